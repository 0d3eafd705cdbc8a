// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `btree`: look-ups in a B+-tree whose elements were inserted in random order,
//! after the index benchmark of Mitosis (Achermann et al., ASPLOS 2020) that
//! Memtis and the paper use. There all elements have one key, so the tree holds
//! but one or two records; here every element has its own.
//!
//! Keys are even, look-ups draw from all numbers: half of them hit.

mod tree;

use demeter_agent::size;
use serde::Serialize;

use self::tree::Tree;
use crate::Error;
use crate::array::Pages;
use crate::interest::Interest;
use crate::permutation::Permutation;
use crate::random::Random;
use crate::report;

/// Elements of the smallest tree that is worth a measurement.
const LEAST_ELEMENTS: u64 = 16;

/// Arguments of `btree`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Size of nodes, records and elements
    #[arg(long, default_value = "560M", value_parser = size::parse)]
    footprint: u64,
    /// Look-ups
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    lookups: u64,
    /// Seed of the order of insertions and of the look-ups
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Times that progress is reported, evenly spread over the look-ups
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    progress: u64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
}

/// What `btree` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    elements: u64,
    nodes: usize,
    footprint_bytes: u64,
    resident_bytes: u64,
    lookups: u64,
    hits: u64,
    seconds: f64,
    lookups_per_s: f64,
    lookups_per_s_last_quarter: f64,
    /// Digest of the elements found
    checksum: String,
    verified: bool,
}

/// What look-ups came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    hits: u64,
    digest: u64,
}

impl Found {
    /// Of look-ups in some order; the digest of none is zero.
    #[inline(always)]
    fn add(&mut self, word: u64) {
        self.hits += 1;
        self.digest = self.digest.rotate_left(1) ^ word;
    }
}

/// Keys that are looked for, hit or not.
fn keys(seed: u64, elements: u64, lookups: u64) -> impl Iterator<Item = u64> {
    let mut random = Random::new(seed, 1);
    (0..lookups).map(move |_| random.below(2 * elements))
}

fn build(elements: u64, seed: u64, pages: Pages) -> Result<Tree, Error> {
    let mut tree = Tree::new(elements, pages)?;
    let order = Permutation::new(elements, seed);
    (0..elements).for_each(|index| tree.insert(order.of(index)));
    Ok(tree)
}

/// The measured phase.
#[inline(never)]
fn look_up(tree: &Tree, keys: impl Iterator<Item = u64>, reach: impl Fn(u64)) -> Found {
    let mut found = Found::default();
    for (done, key) in (1..).zip(keys) {
        if let Some(element) = tree.find(key) {
            found.add(element.word());
        }
        reach(done);
    }
    found
}

/// What is wrong with a tree, or with what was found in it.
fn verify(tree: &Tree, found: &Found, arguments: &Arguments, elements: u64) -> Result<(), Error> {
    let wrong = |found: String, expected: String| Err(Error::Checksum { found, expected });
    let mut expected = Found::default();
    keys(arguments.seed, elements, arguments.lookups)
        .filter(|key| key.is_multiple_of(2))
        .for_each(|key| expected.add(tree::Element::of(key).word()));
    if *found != expected {
        return wrong(format!("{found:x?}"), format!("{expected:x?}"));
    }
    match tree.check() {
        Ok(count) if count == elements => Ok(()),
        Ok(count) => wrong(
            format!("{count} elements in the tree"),
            elements.to_string(),
        ),
        Err(disorder) => wrong(disorder.to_string(), "a tree in order".into()),
    }
}

/// Runs the benchmark and prints its outcome.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let elements = tree::elements_of(arguments.footprint);
    if elements < LEAST_ELEMENTS || elements > u64::from(u32::MAX) {
        return Err(Error::Usage(format!(
            "a footprint of {} bytes gives {elements} elements, not {LEAST_ELEMENTS} to 2^32",
            arguments.footprint
        )));
    }
    let tree = build(elements, arguments.seed, arguments.pages)?;
    let interest = Interest::begin(arguments.lookups, arguments.progress);
    let found = look_up(
        &tree,
        keys(arguments.seed, elements, arguments.lookups),
        |done| interest.reach(done),
    );
    let times = interest.end();
    let outcome = verify(&tree, &found, arguments, elements);
    report::line(
        &mut std::io::stdout().lock(),
        &Outcome {
            workload: "btree",
            elements,
            nodes: tree.nodes(),
            footprint_bytes: tree.bytes(),
            resident_bytes: times.resident_bytes,
            lookups: arguments.lookups,
            hits: found.hits,
            seconds: times.seconds,
            lookups_per_s: times.per_s(),
            lookups_per_s_last_quarter: times.per_s_last_quarter(),
            checksum: format!("{:016x}", found.digest),
            verified: outcome.is_ok(),
        },
    )?;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        btree: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(std::iter::once("btree").chain(line.split_whitespace())).btree
    }

    #[test]
    fn runs_and_half_of_the_look_ups_hit() {
        let arguments = arguments("--footprint 4M --lookups 20000");
        run(&arguments).unwrap();
        let tree = build(1000, 1, Pages::Huge).unwrap();
        let found = look_up(&tree, keys(1, 1000, 20_000), |_| {});
        assert!((9_500..10_500).contains(&found.hits), "{found:?}");
        assert_eq!(found, look_up(&tree, keys(1, 1000, 20_000), |_| {}));
        assert_ne!(found, look_up(&tree, keys(2, 1000, 20_000), |_| {}));
    }

    #[test]
    fn a_wrong_count_or_digest_is_noticed() {
        let arguments = arguments("--lookups 1000");
        let tree = build(1000, 1, Pages::System).unwrap();
        let mut found = look_up(&tree, keys(1, 1000, 1000), |_| {});
        assert!(verify(&tree, &found, &arguments, 1000).is_ok());
        assert!(verify(&tree, &found, &arguments, 999).is_err());
        found.digest ^= 1;
        assert!(verify(&tree, &found, &arguments, 1000).is_err());
        found.digest ^= 1;
        found.hits -= 1;
        assert!(verify(&tree, &found, &arguments, 1000).is_err());
    }

    #[test]
    fn the_smallest_and_largest_trees_are_refused() {
        for footprint in ["1K", "4096G"] {
            let arguments = arguments(&format!("--footprint {footprint}"));
            assert!(matches!(run(&arguments), Err(Error::Usage(_))));
        }
    }
}
