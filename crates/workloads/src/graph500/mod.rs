// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `graph500`: breadth-first searches over a Kronecker graph, after the Graph500
//! benchmark (graph500.org) and its sequential reference code.
//!
//! Memory is allocated and touched in the order of the reference: first the list
//! of edges, which searches never read. Under first touch it fills FMEM with
//! memory that stays cold; this is kept.
//!
//! Unlike there, parents are kept for all searches (in 32 bits) and checked
//! after the last, so that the region of interest is one piece.

mod generate;
mod graph;
mod validate;

use std::time::Instant;

use demeter_agent::size;
use serde::Serialize;

use self::graph::{Graph, Search};
use crate::Error;
use crate::array::{self, Pages};
use crate::interest::Interest;
use crate::page::mix;
use crate::report;

/// Edges for each vertex that the benchmark asks for.
const EDGE_FACTOR: u64 = 16;
/// Bytes of an edge: in the list, and in both rows.
const EDGE_BYTES: u64 = 32;
/// Bytes of a vertex: its row, its parent, its place in the queue.
const VERTEX_BYTES: u64 = 32;
/// Bytes of a vertex in each kept result.
const RESULT_BYTES: u64 = 4;
/// Results name vertices by 32 bits.
const SCALES: std::ops::RangeInclusive<u32> = 4..=31;

/// Arguments of `graph500`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Size of edges, rows and results: gives the scale that has nearest to 16
    /// edges a vertex, and as many edges as fit
    #[arg(long, default_value = "560M", value_parser = size::parse)]
    footprint: u64,
    /// The graph has 2^SCALE vertices and 16 times as many edges
    #[arg(long, conflicts_with = "footprint", value_parser = clap::value_parser!(u32).range(4..=31))]
    scale: Option<u32>,
    /// Searches
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    searches: u32,
    /// Seed of the graph and of the roots
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Times that progress is reported, evenly spread over all searches
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    progress: u64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
}

/// What `graph500` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    scale: u32,
    edges: u64,
    edges_per_vertex: f64,
    footprint_bytes: u64,
    resident_bytes: u64,
    searches: usize,
    construction_seconds: f64,
    /// The region of interest: all searches, and putting results by
    seconds: f64,
    /// Traversed edges a second
    teps_min: f64,
    teps_harmonic_mean: f64,
    teps_max: f64,
    /// Digest of the parents of all searches
    checksum: String,
    verified: bool,
}

/// Size of a graph.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    scale: u32,
    edges: u64,
}

impl Shape {
    fn of(arguments: &Arguments) -> Result<Self, Error> {
        if let Some(scale) = arguments.scale {
            return Ok(Self {
                scale,
                edges: EDGE_FACTOR << scale,
            });
        }
        let vertex_bytes = VERTEX_BYTES + RESULT_BYTES * u64::from(arguments.searches);
        SCALES
            .filter_map(|scale| {
                let rest = arguments.footprint.checked_sub(vertex_bytes << scale)?;
                let edges = rest / EDGE_BYTES;
                let factor = edges as f64 / (EDGE_FACTOR << scale) as f64;
                // How many times too many or too few.
                (factor > 0.5 && factor < 4.0)
                    .then_some((factor.max(1.0 / factor), Self { scale, edges }))
            })
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, shape)| shape)
            .ok_or_else(|| {
                Error::Usage(format!(
                    "a footprint of {} bytes holds no graph of scale {} to {}",
                    arguments.footprint,
                    SCALES.start(),
                    SCALES.end()
                ))
            })
    }
}

/// Checks all results; returns the traversed edges of each search.
fn verify(graph: &Graph, roots: &[u64], results: &[u32]) -> Result<Vec<u64>, Error> {
    roots
        .iter()
        .zip(results.chunks(graph.vertices()))
        .map(|(&root, parents)| {
            validate::traversed(&graph.edges, parents, root).map_err(|broken| Error::Checksum {
                found: format!("a search from vertex {root} that breaks {broken}"),
                expected: "a tree of parents by the rules of Graph500".into(),
            })
        })
        .collect()
}

/// Runs the benchmark and prints its outcome.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let shape = Shape::of(arguments)?;
    let began = Instant::now();
    let graph = Graph::generate(shape.scale, shape.edges, arguments.seed, arguments.pages)?;
    let construction_seconds = began.elapsed().as_secs_f64();
    let roots = graph.roots(arguments.searches as usize, arguments.seed);
    let mut search = Search::new(graph.vertices(), arguments.pages)?;
    let mut results = array::filled(0, graph.vertices() * roots.len(), arguments.pages)?;

    let entries = graph.entries();
    let interest = Interest::begin(entries * roots.len() as u64, arguments.progress);
    let mut seconds = Vec::with_capacity(roots.len());
    let mut before = 0;
    for (&root, result) in roots.iter().zip(results.chunks_mut(graph.vertices())) {
        let began = Instant::now();
        graph.search(&mut search, root, |seen| interest.reach(before + seen));
        seconds.push(began.elapsed().as_secs_f64());
        search.keep(result);
        before += entries;
    }
    let times = interest.end();

    let traversed = verify(&graph, &roots, &results);
    let teps: Vec<f64> = traversed
        .iter()
        .flatten()
        .zip(&seconds)
        .map(|(&edges, &seconds)| edges as f64 / seconds.max(1e-9))
        .collect();
    let checksum = results.iter().fold(arguments.seed, |sum, &parent| {
        mix(sum ^ u64::from(parent)).rotate_left(7)
    });
    report::line(
        &mut std::io::stdout().lock(),
        &Outcome {
            workload: "graph500",
            scale: shape.scale,
            edges: shape.edges,
            edges_per_vertex: shape.edges as f64 / (1_u64 << shape.scale) as f64,
            footprint_bytes: graph.bytes() + search.bytes() + size_of_val(&results[..]) as u64,
            resident_bytes: times.resident_bytes,
            searches: roots.len(),
            construction_seconds,
            seconds: times.seconds,
            teps_min: teps.iter().copied().reduce(f64::min).unwrap_or(0.0),
            teps_harmonic_mean: harmonic_mean(&teps),
            teps_max: teps.iter().copied().reduce(f64::max).unwrap_or(0.0),
            checksum: format!("{checksum:016x}"),
            verified: traversed.is_ok(),
        },
    )?;
    traversed.map(|_| ())
}

/// The mean that the benchmark asks for, as rates are averaged over time; 0 of none.
fn harmonic_mean(rates: &[f64]) -> f64 {
    if rates.is_empty() {
        return 0.0;
    }
    rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        graph500: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(std::iter::once("graph500").chain(line.split_whitespace())).graph500
    }

    #[test]
    fn footprints_give_about_sixteen_edges_a_vertex() {
        let shape = Shape::of(&arguments("")).unwrap();
        assert_eq!(shape.scale, 20);
        assert!((15 << 20..17 << 20).contains(&shape.edges));
        for megabytes in [1_u64, 3, 7, 100, 200, 300, 1000] {
            let shape = Shape::of(&arguments(&format!("--footprint {megabytes}M"))).unwrap();
            let factor = shape.edges as f64 / (1_u64 << shape.scale) as f64;
            assert!((10.0..24.0).contains(&factor), "{megabytes}M: {factor}");
            let bytes = shape.edges * EDGE_BYTES + (64 << shape.scale);
            assert!((megabytes << 20).abs_diff(bytes) < 100);
        }
        assert!(Shape::of(&arguments("--footprint 1K")).is_err());
        let fixed = Shape::of(&arguments("--scale 10")).unwrap();
        assert_eq!((fixed.scale, fixed.edges), (10, 16 << 10));
    }

    #[test]
    fn searches_are_valid_and_damage_is_noticed() {
        run(&arguments("--scale 10 --searches 3")).unwrap();
        let graph = Graph::generate(10, 16 << 10, 1, Pages::Huge).unwrap();
        let roots = graph.roots(2, 1);
        let mut search = Search::new(graph.vertices(), Pages::System).unwrap();
        let mut results = vec![0; 2 * graph.vertices()];
        for (&root, result) in roots.iter().zip(results.chunks_mut(graph.vertices())) {
            graph.search(&mut search, root, |_| {});
            search.keep(result);
        }
        let traversed = verify(&graph, &roots, &results).unwrap();
        // Nearly all of the graph is one component.
        assert!(traversed.iter().all(|&edges| edges > 15 << 10));
        let reached: Vec<usize> = (0..results.len())
            .filter(|&at| results[at] != graph::UNREACHED)
            .collect();
        for at in reached.into_iter().step_by(97) {
            let was = results[at];
            results[at] = graph::UNREACHED;
            assert!(verify(&graph, &roots, &results).is_err(), "{at}");
            results[at] = was;
        }
        assert_eq!(verify(&graph, &roots, &results).unwrap(), traversed);
    }

    #[test]
    fn rates_are_averaged_over_time() {
        assert_eq!(harmonic_mean(&[1.0, 1.0]), 1.0);
        assert_eq!(harmonic_mean(&[2.0, 6.0]), 3.0);
        assert_eq!(harmonic_mean(&[]), 0.0);
    }
}
