// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays the golden traces through the wrappers. The language is described in
//! `core/tests/golden.h`; this is an implementation of its own, on purpose.

use demeter_core::{FMEM, PlanParams, Planner, Ranges, RangesParams, Ranking, SMEM, digest_add};
use std::{fs, path::PathBuf};

const SPACE_RANGES: u64 = 512;
const MAX_STEPS: u64 = 64;

#[derive(Default)]
struct Replay {
    spaces: Vec<Ranges>,
    active: usize,
    planner: Option<Planner>,
    repetition: u64,
    now_ns: u64,
    digest: u64,
}

fn number(word: &str) -> u64 {
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("hexadecimal"),
        None => word.parse().expect("decimal"),
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn params(w: &[u64]) -> RangesParams {
    RangesParams {
        split_samples: w[0] as u32,
        significance: w[1] as u32,
        vcpus: w[2] as u32,
        merge_epochs: w[3] as u32,
        granule_bytes: w[4],
    }
}

impl Replay {
    fn note(&mut self, result: Result<(), demeter_core::Error>) {
        let code = result.map_or_else(|error| error.code(), |()| 0);
        self.digest = digest_add(self.digest, i64::from(code) as u64);
    }

    fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let command = words.next().expect("a command");
        let w: Vec<u64> = words.map(number).collect();
        match command {
            "space" => {
                assert!(w[0] <= SPACE_RANGES);
                self.active = self.spaces.len();
                let space = Ranges::new(w[0] as u32, &params(&w[1..])).expect("a space");
                self.spaces.push(space);
            }
            "use" => self.active = w[0] as usize,
            "area" => {
                let result = self.spaces[self.active].set_area(w[0] as u32, w[1], w[2]);
                self.note(result);
            }
            "params" => {
                let result = self.spaces[self.active].set_params(&params(&w));
                self.note(result);
            }
            "hit" => {
                for _ in 0..w[1] {
                    self.spaces[self.active].sample(w[0]);
                }
            }
            "spray" => {
                let mut seed = w[0] + (self.repetition << 32);
                for _ in 0..w[1] {
                    let gva = w[2] + random(&mut seed) % (w[3] - w[2]);
                    self.spaces[self.active].sample(gva);
                }
            }
            "epoch" => {
                for space in &mut self.spaces {
                    space.end_epoch();
                    self.digest = space.digest(self.digest);
                }
            }
            "economy" => {
                let economy = PlanParams {
                    sample_period: w[0],
                    epoch_ns: w[1],
                    latency_gap_ps: w[2],
                    remote_ps: 0,
                    horizon_ns: w[3],
                    swap_cost_ns: w[4],
                    move_cost_ns: w[5],
                    hysteresis_permille: w[6] as u32,
                    significance: w[7] as u32,
                    rate_pages_per_s: w[8],
                    burst_pages: w[9],
                };
                assert!(w[10] <= MAX_STEPS);
                // The token bucket outlives a change of the economy.
                let keep = self.planner.take().filter(|_| self.now_ns > 0);
                self.planner = Some(match keep {
                    Some(mut planner) => {
                        planner.params = economy;
                        planner.set_max_steps(w[10] as u32);
                        planner
                    }
                    None => Planner::new(economy, w[10] as u32),
                });
            }
            "plan" => self.plan(w[0], w[1], w[2]),
            other => panic!("unknown command {other}"),
        }
    }

    fn plan(&mut self, free_pages: u64, fmem_below: u64, step_ns: u64) {
        let mut ranking = Ranking::default();
        for (number, space) in self.spaces.iter().enumerate() {
            ranking.gather(space, number as u32);
        }
        for entry in &mut ranking.entries {
            let cut = fmem_below.clamp(entry.start, entry.end);
            entry.pages[FMEM] = (cut - entry.start) >> 12;
            entry.pages[SMEM] = (entry.end - cut) >> 12;
        }
        ranking.sort();
        self.digest = ranking.digest(self.digest);
        self.now_ns = self.now_ns.wrapping_add(step_ns);
        let planner = self.planner.as_mut().expect("economy before plan");
        let plan = planner
            .make(&ranking, free_pages, self.now_ns, self.digest)
            .expect("a plan");
        self.digest = plan.digest;
    }
}

fn replay(text: &str) -> u64 {
    let lines: Vec<&str> = text.lines().collect();
    let mut replay = Replay::default();
    let (mut at, mut body, mut left) = (0, 0, 0);
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(times) = line.strip_prefix("repeat ") {
            left = number(times);
            body = at;
            replay.repetition = 0;
        } else if line == "end" {
            if left > 1 {
                left -= 1;
                replay.repetition += 1;
                at = body;
            } else {
                replay.repetition = 0;
            }
        } else {
            replay.line(line);
        }
    }
    replay.digest
}

#[test]
fn decisions_are_those_on_record() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../core/tests/golden");
    let digests = fs::read_to_string(golden.join("digests.txt")).expect("digests");
    let mut traces = 0;
    for line in digests.lines() {
        let (name, digest) = line.split_once(' ').expect("NAME HEX");
        let text = fs::read_to_string(golden.join(format!("{name}.trace"))).expect("a trace");
        assert_eq!(format!("{:016x}", replay(&text)), digest, "{name}");
        traces += 1;
    }
    assert!(traces >= 8);
}
