// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In which order several places for swap are filled: the one first whose pages come back
//! soonest, measured before the program starts.

use std::time::Duration;

use crate::extmem::tree::SwapPlace;

/// Who is faster by less is not faster.
const MARGIN_PERCENT: u32 = 125;

/// What a page took from each place, and its index among those given.
pub type Timed = (usize, Option<Duration>);

/// Measures a read of each; the order, those that cannot be measured last.
pub fn measure(places: &[SwapPlace]) -> Vec<Timed> {
    order(places.iter().map(SwapPlace::time_reads).collect())
}

fn order(times: Vec<Option<Duration>>) -> Vec<Timed> {
    let mut ordered: Vec<Timed> = Vec::new();
    for (index, time) in times.into_iter().enumerate() {
        // Behind the last that it does not beat, so that equals stay as they were given.
        let at = ordered
            .iter()
            .rposition(|&(_, other)| !beats(time, other))
            .map_or(0, |at| at + 1);
        ordered.insert(at, (index, time));
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
pub fn shown(places: &[SwapPlace], order: &[Timed]) -> String {
    let each: Vec<_> = (order.iter())
        .filter_map(|&(index, time)| {
            let path = places.get(index)?.path().display();
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
            order(times.collect()).iter().map(|one| one.0).collect()
        };
        assert_eq!(indices(&[Some(90), Some(4000)]), [0, 1]);
        assert_eq!(indices(&[Some(4000), Some(90)]), [1, 0]);
        assert_eq!(indices(&[Some(100), Some(90)]), [0, 1]);
        assert_eq!(indices(&[None, Some(4000), Some(90)]), [2, 1, 0]);
        assert_eq!(indices(&[None, None]), [0, 1]);
    }
}
