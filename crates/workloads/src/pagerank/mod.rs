// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `pagerank`: PageRank by pulling, as in the GAP Benchmark Suite (Beamer,
//! Asanović, Patterson, arXiv:1508.03619), on the suite's own graphs.
//!
//! Offsets and scores are small and used all the time; edges are large and read
//! once an iteration. Values of one iteration are seen in the next only, so any
//! number of threads gives the same scores, bit for bit.

mod graph;
mod mersenne;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use demeter_agent::size;
use serde::Serialize;

use self::graph::{Graph, Kind, Names, Recipe, Rows};
use crate::Error;
use crate::array::{self, Pages};
use crate::interest::Interest;
use crate::report;

const DAMPING: f32 = 0.85;
/// Nodes a thread takes at a time.
const CHUNK_NODES: usize = 16_384;
/// Iterations of the suite.
const ITERATIONS: u32 = 20;
/// Iterations over a graph of some footprint: about a minute in a guest.
const FOOTPRINT_ITERATIONS: u32 = 2;
/// Bytes of a node besides its row: score and contribution.
const SCORE_BYTES: u64 = 8;
/// Edges of a graph made to a footprint are a multiple of this, so that the
/// last digit of a logarithm does not change the graph.
const EDGES_STEP: u64 = 1024;

/// Arguments of `pagerank`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// How the graph is generated
    #[arg(long, value_enum, default_value_t = Kind::Kronecker)]
    graph: Kind,
    /// The graph has 2^SCALE nodes
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u32).range(1..=28))]
    scale: u32,
    /// Size of graph and scores: gives the scale that has nearest to --degree
    /// edges a node, and as many edges as fit
    #[arg(long, conflicts_with_all = ["scale", "load"], value_parser = size::parse)]
    footprint: Option<u64>,
    /// Edges generated for each node
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    degree: u64,
    /// Keep the direction of edges: rows of both directions are in memory, as
    /// in the suite, though only one is read
    #[arg(long, conflicts_with_all = ["load", "save"])]
    directed: bool,
    /// What nodes of a Kronecker graph are called
    #[arg(long, value_enum, default_value_t = Names::Permuted)]
    names: Names,
    /// Seed of the graph; the default is the suite's
    #[arg(long, default_value_t = graph::SEED)]
    seed: u32,
    /// Read the graph from this file (GAP's .sg) instead of generating it
    #[arg(long)]
    load: Option<PathBuf>,
    /// Write the graph to this file and stop
    #[arg(long, conflicts_with_all = ["load", "steps"])]
    save: Option<PathBuf>,
    /// Iterations at most [default: 20, with --footprint 2]
    #[arg(long)]
    iterations: Option<u32>,
    /// Stop when an iteration changes the scores by less than this in all
    #[arg(long, default_value_t = 1e-4)]
    tolerance: f64,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Times that progress is reported, evenly spread over the iterations
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    progress: u64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
    /// One iteration for each line on standard input (the line is the number of
    /// threads), one JSON object for each; --iterations and --tolerance do not count
    #[arg(long)]
    steps: bool,
}

/// What `pagerank` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    nodes: usize,
    /// Undirected ones once
    edges: u64,
    footprint_bytes: u64,
    /// When iterations began; zero with --steps
    resident_bytes: u64,
    iterations: u32,
    seconds: f64,
    /// Entries of rows read a second
    entries_per_s: f64,
    /// Change of all scores in the last iteration
    error: f64,
    /// Error of one push iteration over the result: the suite's own verification
    verification_error: f64,
    /// It is below the tolerance, or below what is left after so few iterations
    verified: bool,
    /// Digest of all scores; the same for any number of threads
    checksum: String,
    /// Nodes of the highest scores
    top: Vec<(u32, f32)>,
}

/// One iteration, as `--steps` prints it.
#[derive(Serialize)]
struct Step {
    iteration: u32,
    threads: u64,
    seconds: f64,
    error: f64,
}

/// The rows that are pulled from, and those of the other direction where they
/// are not the same.
struct Web {
    into: Graph,
    out: Option<Graph>,
}

impl Web {
    fn new(arguments: &Arguments) -> Result<Self, Error> {
        if let Some(path) = &arguments.load {
            let into = Graph::load(BufReader::with_capacity(1 << 20, open(path)?))?;
            return Ok(Self { into, out: None });
        }
        let recipe = recipe(arguments)?;
        let graph = |rows| Graph::generate(recipe, rows, arguments.threads, arguments.pages);
        if arguments.directed {
            let out = graph(Rows::Out)?;
            let into = out.transposed(arguments.pages)?;
            Ok(Self {
                into,
                out: Some(out),
            })
        } else {
            let into = graph(Rows::Undirected)?;
            Ok(Self { into, out: None })
        }
    }

    /// Rows of where edges lead to.
    fn out(&self) -> &Graph {
        self.out.as_ref().unwrap_or(&self.into)
    }

    fn nodes(&self) -> usize {
        self.into.nodes()
    }

    fn edges(&self) -> u64 {
        match self.out {
            Some(_) => self.into.entries(),
            None => self.into.entries() / 2,
        }
    }

    fn bytes(&self) -> u64 {
        self.into.bytes() + self.out.as_ref().map_or(0, Graph::bytes)
    }
}

/// What the graph is made of.
fn recipe(arguments: &Arguments) -> Result<Recipe, Error> {
    let with = |scale: u32, edges: u64| Recipe {
        kind: arguments.graph,
        scale,
        edges,
        names: arguments.names,
        seed: arguments.seed,
        quick: arguments.footprint.is_some(),
    };
    let Some(footprint) = arguments.footprint else {
        return Ok(with(arguments.scale, arguments.degree << arguments.scale));
    };
    let bytes_of = |recipe: Recipe| {
        let offset_bytes = (size_of::<u64>() as f64) * (1_u64 << recipe.scale) as f64;
        let rows = |rows| offset_bytes + size_of::<u32>() as f64 * recipe.entries(rows);
        let both = if arguments.directed {
            2.0 * rows(Rows::Out)
        } else {
            rows(Rows::Undirected)
        };
        both + (SCORE_BYTES << recipe.scale) as f64
    };
    (4..=28)
        .filter_map(|scale| {
            let wanted = arguments.degree << scale;
            // The most that fit; four times too many is another scale's business.
            let (mut low, mut high) = (0, 4 * wanted / EDGES_STEP);
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if bytes_of(with(scale, middle * EDGES_STEP)) <= footprint as f64 {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            let edges = low * EDGES_STEP;
            let factor = edges as f64 / wanted as f64;
            let fits = factor > 0.25 && factor < 3.9;
            fits.then(|| (factor.max(1.0 / factor), with(scale, edges)))
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, recipe)| recipe)
        .ok_or_else(|| {
            Error::Usage(format!(
                "a footprint of {footprint} bytes holds no graph of 2^4 to 2^28 nodes with about {} edges each",
                arguments.degree
            ))
        })
}

struct Ranks {
    scores: Vec<f32>,
    contributions: Vec<f32>,
    iterations: u32,
}

impl Ranks {
    fn new(nodes: usize, pages: Pages) -> Result<Self, Error> {
        Ok(Self {
            scores: array::filled(1.0 / nodes as f32, nodes, pages)?,
            contributions: array::filled(0.0, nodes, pages)?,
            iterations: 0,
        })
    }

    /// One iteration; returns by how much all scores changed. Calls `reach`
    /// with the nodes that are done in all.
    fn iterate(&mut self, web: &Web, threads: u64, reach: impl Fn(u64) + Sync) -> f64 {
        let (graph, out) = (&web.into, web.out());
        let base = (1.0 - DAMPING) / graph.nodes() as f32;
        let scores = &self.scores;
        in_chunks(&mut self.contributions, threads, |first, contributions| {
            for (node, contribution) in (first..).zip(contributions) {
                *contribution = scores[node] / out.degree(node) as f32;
            }
            0.0
        });
        let contributions = &self.contributions;
        let done = AtomicU64::new(u64::from(self.iterations) * graph.nodes() as u64);
        self.iterations += 1;
        in_chunks(&mut self.scores, threads, |first, scores| {
            let mut change = 0.0;
            let nodes = scores.len() as u64;
            for (node, score) in (first..).zip(scores) {
                let mut incoming = 0.0_f32;
                for &neighbour in graph.of(node) {
                    incoming += contributions[neighbour as usize];
                }
                let old = *score;
                *score = base + DAMPING * incoming;
                change += f64::from((*score - old).abs());
            }
            reach(done.fetch_add(nodes, Ordering::Relaxed) + nodes);
            change
        })
    }

    /// The suite's verification: how far a push iteration would move the scores.
    fn push_error(&self, web: &Web) -> f64 {
        let graph = web.out();
        let base = (1.0 - DAMPING) / graph.nodes() as f32;
        let mut sums = vec![0.0_f32; graph.nodes()];
        for node in 0..graph.nodes() {
            let contribution = self.scores[node] / graph.degree(node) as f32;
            for &neighbour in graph.of(node) {
                sums[neighbour as usize] += contribution;
            }
        }
        sums.iter()
            .zip(&self.scores)
            .map(|(&sum, &score)| f64::from((base + DAMPING * sum - score).abs()))
            .sum()
    }

    /// What a push iteration may come to: the suite's tolerance. After too few
    /// iterations for that, the change of the last one times the damping, by
    /// which every iteration contracts the sum of changes, and as much as the
    /// tolerance for rounding: never less than single precision has, as scores
    /// that have converged go on changing in their last digits.
    fn is_right(error: f64, verification_error: f64, tolerance: f64) -> bool {
        let left = if error < tolerance {
            0.0
        } else {
            f64::from(DAMPING) * error
        };
        verification_error < left + tolerance.max(f64::from(f32::EPSILON))
    }

    fn checksum(&self) -> u64 {
        self.scores.iter().fold(0, |sum: u64, score| {
            (sum ^ u64::from(score.to_bits()))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        })
    }

    fn top(&self, count: usize) -> Vec<(u32, f32)> {
        let mut top: Vec<(u32, f32)> = Vec::new();
        for (node, &score) in (0..).zip(&self.scores) {
            if top.len() < count || top.last().is_some_and(|last| score > last.1) {
                let at = top.partition_point(|entry| entry.1 >= score);
                top.insert(at, (node, score));
                top.truncate(count);
            }
        }
        top
    }
}

/// Calls `work` with chunks of `values`, divided among threads as they come;
/// adds up what it returns in the order of the chunks.
fn in_chunks(
    values: &mut [f32],
    threads: u64,
    work: impl Fn(usize, &mut [f32]) -> f64 + Sync,
) -> f64 {
    let sums = Mutex::new(vec![0.0; values.len().div_ceil(CHUNK_NODES)]);
    let chunks: Vec<Mutex<&mut [f32]>> = values.chunks_mut(CHUNK_NODES).map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(Ok(mut chunk)) = chunks.get(index).map(|chunk| chunk.lock()) else {
                return;
            };
            let sum = work(index * CHUNK_NODES, &mut chunk);
            if let Ok(mut sums) = sums.lock() {
                sums[index] = sum;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(worker);
        }
        worker();
    });
    sums.into_inner().unwrap_or_default().iter().sum()
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let web = Web::new(arguments)?;
    if let Some(path) = &arguments.save {
        let file = File::create(path).map_err(|cause| file_error(path, cause))?;
        return web
            .into
            .save(BufWriter::with_capacity(1 << 20, file))
            .map_err(|cause| file_error(path, cause));
    }
    let mut ranks = Ranks::new(web.nodes(), arguments.pages)?;
    let footprint_bytes = web.bytes() + (SCORE_BYTES * web.nodes() as u64);
    let mut out = std::io::stdout().lock();
    let (mut seconds, mut error, mut resident_bytes) = (0.0, 0.0, 0);
    if arguments.steps {
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            let threads = line
                .trim()
                .parse()
                .ok()
                .filter(|threads| (1..=64).contains(threads))
                .ok_or_else(|| Error::Usage(format!("step '{line}' is no number of threads")))?;
            let began = Instant::now();
            error = ranks.iterate(&web, threads, |_| {});
            let step = Step {
                iteration: ranks.iterations,
                threads,
                seconds: began.elapsed().as_secs_f64(),
                error,
            };
            seconds += step.seconds;
            report::line(&mut out, &step)?;
        }
    } else {
        let iterations = arguments.iterations.unwrap_or(match arguments.footprint {
            Some(_) => FOOTPRINT_ITERATIONS,
            None => ITERATIONS,
        });
        let work = u64::from(iterations) * web.nodes() as u64;
        let interest = Interest::begin(work, arguments.progress);
        while ranks.iterations < iterations {
            error = ranks.iterate(&web, arguments.threads, |done| interest.reach(done));
            if error < arguments.tolerance {
                break;
            }
        }
        let times = interest.end();
        (seconds, resident_bytes) = (times.seconds, times.resident_bytes);
    }
    let verification_error = ranks.push_error(&web);
    let outcome = Outcome {
        workload: "pagerank",
        nodes: web.nodes(),
        edges: web.edges(),
        footprint_bytes,
        resident_bytes,
        iterations: ranks.iterations,
        seconds,
        entries_per_s: web.into.entries() as f64 * f64::from(ranks.iterations) / seconds.max(1e-9),
        error,
        verification_error,
        verified: Ranks::is_right(error, verification_error, arguments.tolerance),
        checksum: format!("{:016x}", ranks.checksum()),
        top: ranks.top(5),
    };
    report::line(&mut out, &outcome)?;
    // Without an iteration there is no change to go by.
    if ranks.iterations > 0 && !outcome.verified {
        return Err(Error::Checksum {
            found: format!("a verification error of {verification_error}"),
            expected: format!("less, after a change of {error}"),
        });
    }
    Ok(())
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|cause| file_error(path, cause))
}

fn file_error(path: &Path, cause: std::io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        pagerank: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(std::iter::once("pagerank").chain(line.split_whitespace())).pagerank
    }

    fn ranked(line: &str, iterations: u32) -> (Web, Ranks, f64) {
        let arguments = arguments(line);
        let web = Web::new(&arguments).unwrap();
        let mut ranks = Ranks::new(web.nodes(), Pages::System).unwrap();
        let mut error = f64::MAX;
        while error >= 1e-4 && ranks.iterations < iterations {
            error = ranks.iterate(&web, arguments.threads, |_| {});
        }
        (web, ranks, error)
    }

    const SMALL: &str = "--scale 14";

    #[test]
    fn passes_the_suites_verification() {
        // With directions it takes more than the suite's twenty iterations.
        for (line, iterations) in [
            ("--scale 16", 20),
            ("--scale 14 --directed", 40),
            ("--scale 14 --names generated", 20),
        ] {
            let (web, ranks, error) = ranked(line, iterations);
            let verification_error = ranks.push_error(&web);
            assert!(
                verification_error < 1e-4 && error < 1e-4,
                "{line}: {error} {verification_error}"
            );
            let top = ranks.top(5);
            assert!(top.len() == 5 && top.is_sorted_by(|a, b| a.1 >= b.1));
        }
    }

    #[test]
    fn rounding_is_no_error() {
        // Long converged: what changes is the last digit of some scores.
        let (web, ranks, error) = ranked("--scale 13", 400);
        assert!(Ranks::is_right(error, ranks.push_error(&web), 0.0));
    }

    #[test]
    fn threads_do_not_change_the_scores() {
        let three = format!("{SMALL} --threads 3");
        let (one, three) = (ranked(SMALL, 20).1, ranked(&three, 20).1);
        assert_eq!(one.checksum(), three.checksum());
    }

    #[test]
    fn a_wrong_score_fails_verification() {
        for iterations in [1, 2, 4, 20] {
            let (web, mut ranks, error) = ranked(SMALL, iterations);
            assert!(Ranks::is_right(error, ranks.push_error(&web), 1e-4));
            let node = ranks.top(1)[0].0 as usize;
            // As much as is left to converge would not be noticed, nor need it be.
            ranks.scores[node] += 0.01 + 4.0 * error as f32;
            assert!(
                !Ranks::is_right(error, ranks.push_error(&web), 1e-4),
                "{iterations}"
            );
        }
        assert!(!Ranks::is_right(f64::NAN, f64::NAN, 1e-4));
    }

    #[test]
    fn sizes_follow_the_footprint() {
        for direction in ["", "--directed --degree 30", "--graph uniform"] {
            for megabytes in [3_u64, 12] {
                let arguments = arguments(&format!("--footprint {megabytes}M {direction}"));
                let web = Web::new(&arguments).unwrap();
                let bytes = web.bytes() + SCORE_BYTES * web.nodes() as u64;
                let off = bytes as f64 / (megabytes << 20) as f64 - 1.0;
                assert!(off.abs() < 0.02, "{megabytes}M {direction}: {off}");
                let degree = web.edges() / web.nodes() as u64;
                assert!((8..50).contains(&degree), "{degree}");
            }
        }
        assert!(recipe(&arguments("--footprint 1K")).is_err());
        run(&arguments("--footprint 2M --directed")).unwrap();
    }
}
