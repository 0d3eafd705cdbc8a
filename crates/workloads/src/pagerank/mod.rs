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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;

use self::graph::{Graph, Kind};
use crate::Error;
use crate::report;

const DAMPING: f32 = 0.85;
/// Nodes a thread takes at a time.
const CHUNK_NODES: usize = 16_384;

/// Arguments of `pagerank`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// How the graph is generated
    #[arg(long, value_enum, default_value_t = Kind::Kronecker)]
    graph: Kind,
    /// The graph has 2^SCALE nodes
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u32).range(1..=28))]
    scale: u32,
    /// Edges generated for each node
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    degree: u64,
    /// Read the graph from this file (GAP's .sg) instead of generating it
    #[arg(long)]
    load: Option<PathBuf>,
    /// Write the graph to this file and stop
    #[arg(long, conflicts_with_all = ["load", "steps"])]
    save: Option<PathBuf>,
    /// Iterations at most
    #[arg(long, default_value_t = 20)]
    iterations: u32,
    /// Stop when an iteration changes the scores by less than this in all
    #[arg(long, default_value_t = 1e-4)]
    tolerance: f64,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
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
    edges: u64,
    iterations: u32,
    seconds: f64,
    /// Change of all scores in the last iteration
    error: f64,
    /// Error of one push iteration over the result: the suite's own verification
    verification_error: f64,
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

struct Ranks {
    scores: Vec<f32>,
    contributions: Vec<f32>,
    iterations: u32,
}

impl Ranks {
    fn new(graph: &Graph) -> Self {
        Self {
            scores: vec![1.0 / graph.nodes() as f32; graph.nodes()],
            contributions: vec![0.0; graph.nodes()],
            iterations: 0,
        }
    }

    /// One iteration; returns by how much all scores changed.
    fn iterate(&mut self, graph: &Graph, threads: u64) -> f64 {
        let base = (1.0 - DAMPING) / graph.nodes() as f32;
        let scores = &self.scores;
        in_chunks(&mut self.contributions, threads, |first, contributions| {
            for (node, contribution) in (first..).zip(contributions) {
                *contribution = scores[node] / graph.degree(node) as f32;
            }
            0.0
        });
        let contributions = &self.contributions;
        self.iterations += 1;
        in_chunks(&mut self.scores, threads, |first, scores| {
            let mut change = 0.0;
            for (node, score) in (first..).zip(scores) {
                let mut incoming = 0.0_f32;
                for &neighbour in graph.of(node) {
                    incoming += contributions[neighbour as usize];
                }
                let old = *score;
                *score = base + DAMPING * incoming;
                change += f64::from((*score - old).abs());
            }
            change
        })
    }

    /// The suite's verification: how far a push iteration would move the scores.
    fn push_error(&self, graph: &Graph) -> f64 {
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
    let graph = match &arguments.load {
        Some(path) => Graph::load(BufReader::with_capacity(1 << 20, open(path)?))?,
        None => Graph::generate(
            arguments.graph,
            arguments.scale,
            arguments.degree,
            arguments.threads,
        ),
    };
    if let Some(path) = &arguments.save {
        let file = File::create(path).map_err(|cause| file_error(path, cause))?;
        return graph
            .save(BufWriter::with_capacity(1 << 20, file))
            .map_err(|cause| file_error(path, cause));
    }
    let mut ranks = Ranks::new(&graph);
    let mut out = std::io::stdout().lock();
    let (mut seconds, mut error) = (0.0, 0.0);
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
            error = ranks.iterate(&graph, threads);
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
        let began = Instant::now();
        while ranks.iterations < arguments.iterations {
            error = ranks.iterate(&graph, arguments.threads);
            if error < arguments.tolerance {
                break;
            }
        }
        seconds = began.elapsed().as_secs_f64();
    }
    let verification_error = ranks.push_error(&graph);
    let outcome = Outcome {
        workload: "pagerank",
        nodes: graph.nodes(),
        edges: graph.edges(),
        iterations: ranks.iterations,
        seconds,
        error,
        verification_error,
        verified: verification_error < arguments.tolerance,
        checksum: format!("{:016x}", ranks.checksum()),
        top: ranks.top(5),
    };
    report::line(&mut out, &outcome)?;
    // Fewer iterations than convergence takes are no error of memory.
    if error < arguments.tolerance && !arguments.steps && !outcome.verified {
        return Err(Error::Checksum {
            found: format!("a verification error of {verification_error}"),
            expected: format!("less than {}", arguments.tolerance),
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

    fn ranked(threads: u64) -> (Graph, Ranks, f64) {
        let graph = Graph::generate(Kind::Kronecker, 16, 16, 2);
        let mut ranks = Ranks::new(&graph);
        let mut error = f64::MAX;
        while error >= 1e-4 {
            error = ranks.iterate(&graph, threads);
            assert!(
                ranks.iterations <= 20,
                "converges in the suite's 20 iterations"
            );
        }
        (graph, ranks, error)
    }

    #[test]
    fn passes_the_suites_verification() {
        let (graph, ranks, error) = ranked(1);
        assert!(ranks.push_error(&graph) < 1e-4 && error < 1e-4);
        let top = ranks.top(5);
        assert!(top.len() == 5 && top.is_sorted_by(|a, b| a.1 >= b.1));
    }

    #[test]
    fn threads_do_not_change_the_scores() {
        assert_eq!(ranked(1).1.checksum(), ranked(3).1.checksum());
    }

    #[test]
    fn a_wrong_score_fails_verification() {
        let (graph, mut ranks, _) = ranked(1);
        let node = ranks.top(1)[0].0 as usize;
        ranks.scores[node] += 0.01;
        assert!(ranks.push_error(&graph) > 1e-4);
    }
}
