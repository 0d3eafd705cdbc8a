// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm demo`: GUPS with the paper's proportions under every manager.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use demeter_agent::size;
use serde::Serialize;

use super::compare::{by_name, digest, run_managers};
use super::figures::{self, Others, Row};
use super::settings::{Options, RoiChoice};
use super::tmm::Tmm;
use super::workplace::to_json;
use crate::error::Error;

/// Order of the table, and of starting: the slowest guests first.
const MANAGERS: [Tmm; 8] = [
    Tmm::None,
    Tmm::NbtDefault,
    Tmm::Nbt,
    Tmm::Damon,
    Tmm::Demeter,
    Tmm::Oracle,
    Tmm::Ideal,
    Tmm::Fast,
];

/// Arguments of `vm demo`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Guests at a time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Updates of each run
    #[arg(long, default_value_t = 60_000_000)]
    updates: u64,
    /// Share of updates that go to the hot part, in permille
    #[arg(long, default_value_t = 900)]
    hot_permille: u32,
    /// Seed of the accesses: other seeds show how far a row depends on chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these managers, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    tmm: Vec<Tmm>,
    /// Results directory
    #[arg(long, default_value = "out/demo", value_name = "DIR")]
    out: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Summary {
    digest: String,
    rows: BTreeMap<&'static str, Row>,
}

/// Carries the verb out.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let mut options = arguments.options.clone();
    options.roi = RoiChoice::Own;
    // The paper's proportions: footprint 7/8 of memory, 1/14 of it hot.
    let total = options.fmem + options.smem;
    let huge = |bytes: u64| bytes >> 21 << 21;
    let footprint = huge(total / 8 * 7);
    let hot = huge(footprint / 14);
    let command: Vec<String> = [
        "/demeter/workloads",
        "gups",
        "--footprint",
        &size::format(footprint),
        "--hot",
        &size::format(hot),
        "--hot-permille",
        &arguments.hot_permille.to_string(),
        "--updates",
        &arguments.updates.to_string(),
        "--seed",
        &arguments.seed.to_string(),
        // Without asking, Linux gives huge pages on the local node only, and
        // managers would be compared by page size, not by placement.
        "--pages",
        "huge",
    ]
    .map(str::to_owned)
    .into();
    let managers: Vec<Tmm> = MANAGERS
        .into_iter()
        .filter(|tmm| arguments.tmm.is_empty() || arguments.tmm.contains(tmm))
        .collect();
    let results = run_managers(
        &options,
        &managers,
        &command,
        arguments.jobs,
        &arguments.out,
        Some(arguments.updates),
        Others::Stop,
    )?;
    let (rows, finished) = (results.rows, results.finished);
    let summary = Summary {
        digest: digest(&finished),
        rows: by_name(&rows),
    };
    let text = to_json(&summary)?;
    results.directory.finish("summary.json", &text)?;
    let shown = if arguments.json {
        text
    } else {
        format!(
            "GUPS: {} of {} hot with {} permille of {} updates; FMEM {}, SMEM {} ({:?}); times modelled\n\n{}{}\n{}digest {}\n",
            size::format(hot),
            size::format(footprint),
            arguments.hot_permille,
            arguments.updates,
            size::format(options.fmem),
            size::format(options.smem),
            options.slow,
            figures::render(&rows, &[]),
            figures::render_unequal(&finished),
            figures::render_stages(&finished),
            summary.digest
        )
        .into_bytes()
    };
    let _ = std::io::stdout().write_all(&shown);
    Ok(0)
}
