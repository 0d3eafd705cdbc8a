// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In which order several places for swap are filled: the one first whose pages come back
//! soonest, measured before the program starts.

use std::path::Path;
use std::time::Duration;

use demeter_extmem_tree::Printable;

/// Who is faster by less is not faster.
const MARGIN_PERCENT: u32 = 125;

/// What a page took from each place, and its index among those given.
pub type Timed = (usize, Option<Duration>);

/// The order by what a page took from each place; those that could not be measured last.
pub fn by_time(times: impl Iterator<Item = Option<Duration>>) -> Vec<Timed> {
    let mut left: Vec<Timed> = times.enumerate().collect();
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        // Of those that none beats, the one that was given first.
        let best = left
            .iter()
            .position(|&(_, time)| left.iter().all(|&(_, other)| !beats(other, time)));
        ordered.push(left.remove(best.unwrap_or(0)));
    }
    ordered
}

fn beats(time: Option<Duration>, other: Option<Duration>) -> bool {
    match (time, other) {
        (Some(time), Some(other)) => time * MARGIN_PERCENT < other * 100,
        (time, other) => time.is_some() && other.is_none(),
    }
}

/// For people.
pub fn shown(paths: &[&Path], order: &[Timed]) -> String {
    let each: Vec<_> = (order.iter())
        .filter_map(|&(index, time)| {
            let path = Printable(paths.get(index)?.display());
            Some(match time {
                Some(time) => format!("{path} (a page in {} us)", time.as_micros()),
                None => format!("{path} (not measured)"),
            })
        })
        .collect();
    format!("swap goes to {}", each.join(", then "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_comes_first_and_equals_as_given() {
        let indices = |times: &[Option<u64>]| -> Vec<usize> {
            let times = times.iter().map(|time| time.map(Duration::from_micros));
            by_time(times).iter().map(|one| one.0).collect()
        };
        assert_eq!(indices(&[Some(90), Some(4000)]), [0, 1]);
        assert_eq!(indices(&[Some(4000), Some(90)]), [1, 0]);
        assert_eq!(indices(&[Some(100), Some(90)]), [0, 1]);
        assert_eq!(indices(&[None, Some(4000), Some(90)]), [2, 1, 0]);
        assert_eq!(indices(&[None, None]), [0, 1]);
        assert_eq!(indices(&[Some(140), Some(120), Some(100)]), [1, 2, 0]);
        assert_eq!(indices(&[Some(200), None, Some(100)]), [2, 0, 1]);
    }
}
