// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter status`: what is managed, and what came of it, in a few lines.

use demeter_observe::State;
use demeter_observe::groups::Group;
use demeter_observe::ledger::Origin;
use serde::Serialize;

use super::{mib, ms, source};
use crate::error::Error;
use crate::table;

/// Arguments of `status`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: source::Arguments,
    /// Print everything as JSON: parameters, totals, address spaces, ranges, decisions
    #[arg(long)]
    json: bool,
}

/// Prints it.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let state = arguments.source.read()?;
    super::print(&if arguments.json {
        json(&state)?
    } else {
        render(&state)
    });
    Ok(0)
}

/// Pretty JSON with a final newline.
pub fn json(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Malformed {
        path: "state".into(),
        cause: error.to_string(),
    })?;
    Ok(text + "\n")
}

fn render(state: &State) -> String {
    let mut text = head(state);
    text.push('\n');
    text += &tiers(state);
    text.push('\n');
    text += &moves(state);
    text.push('\n');
    text += &targets(state);
    if !state.groups.is_empty() {
        text.push('\n');
        text += &groups(state);
    }
    text
}

/// On or off, how it samples, how often it decides.
pub fn head(state: &State) -> String {
    let on = if state.enabled { "managing" } else { "off" };
    let ticks = state.stat("pace/ticks_per_epoch").max(1);
    format!(
        "demeter.ko: {on}, sampler {} by {}, epoch {} of {} ms, latency gap {} ns\n",
        state.sampler,
        state.sampler_delivery,
        state.stat("epochs"),
        (state.params.get("epoch_ms").copied().unwrap_or(0)).saturating_mul(ticks),
        state.stat("latency_gap_ps") / 1000,
    )
}

/// One line a tier, and one for each node of a tier that has several.
pub fn tiers(state: &State) -> String {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), mib);
    let samples: Vec<i64> = (state.tiers.iter())
        .map(|tier| state.stat(&format!("{}_samples", tier.name)))
        .collect();
    let all = samples.iter().sum::<i64>().max(1) as f64;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (tier, &seen) in state.tiers.iter().zip(&samples) {
        let nodes: Vec<String> = (tier.nodes.iter())
            .map(|node| node.node.to_string())
            .collect();
        rows.push(vec![
            tier.name.to_uppercase(),
            if nodes.is_empty() {
                "-".to_owned()
            } else {
                nodes.join(",")
            },
            size(tier.total_bytes),
            size(tier.free_bytes),
            mib(tier.managed_bytes),
            table::percent(Some(seen as f64 / all), 1),
        ]);
        for node in tier.nodes.iter().filter(|_| nodes.len() > 1) {
            rows.push(vec![
                format!("  node {}", node.node),
                String::new(),
                size(node.total_bytes),
                size(node.free_bytes),
                size(node.managed_bytes),
                String::new(),
            ]);
        }
    }
    let header = ["tier", "node", "MiB", "free", "managed", "samples %"];
    table::render(&header, &rows)
}

fn moves(state: &State) -> String {
    let pages = |path: &str| mib(u64::try_from(state.stat(path)).unwrap_or(0) << 12);
    let mut text = format!(
        "promoted {} MiB ({} of it into free memory), demoted {}, refused {}\n",
        pages("promoted_pages"),
        pages("filled_pages"),
        pages("demoted_pages"),
        pages("refused_pages"),
    );
    let mut reasons: Vec<(&str, i64)> = (state.stats_in("refused"))
        .filter(|&(_, pages)| pages > 0)
        .collect();
    reasons.sort_by_key(|&(name, pages)| (-pages, name));
    if !reasons.is_empty() {
        let told: Vec<String> = (reasons.iter())
            .map(|(name, pages)| format!("{name} {pages}"))
            .collect();
        text += &format!("refused pages by reason: {}\n", told.join(", "));
    }
    let gain = |name: &str| ms(state.stat(&format!("gain/{name}")) as f64);
    if state.ledger.is_some() {
        text += &format!(
            "gain of {} decisions: predicted {} ms, realised so far {} ms; \
             of the {} whose time is over: predicted {}, realised {}\n",
            state.stat("gain/decisions"),
            gain("predicted_ns"),
            gain("realised_ns"),
            state.stat("gain/settled_decisions"),
            gain("settled_predicted_ns"),
            gain("settled_realised_ns"),
        );
    }
    let cost: i64 = state.stats_in("time_ns").map(|(_, ns)| ns).sum();
    text += &format!(
        "CPU time spent {} ms, samples {} ({} lost, {} stray)\n",
        ms(cost as f64),
        state.stat("samples"),
        state.stat("lost_samples"),
        state.stat("stray_samples"),
    );
    text
}

/// One line a group; nothing where there are none.
pub fn groups(state: &State) -> String {
    if state.groups.is_empty() {
        return String::new();
    }
    let cgroup = |group: &Group| match group.state.as_str() {
        "none" => "-".to_owned(),
        "gone" => format!("{} (gone)", group.cgroup),
        _ => group.cgroup.clone(),
    };
    let rows: Vec<Vec<String>> = (state.groups.iter())
        .map(|group| {
            vec![
                group.name.clone(),
                cgroup(group),
                group.processes.to_string(),
                mib(group.floor_bytes),
                group.cap_bytes.map_or_else(|| "-".to_owned(), mib),
                mib(group.fmem_bytes),
                mib(group.smem_bytes),
                mib(group.worth_bytes),
            ]
        })
        .collect();
    let header = [
        "group",
        "cgroup",
        "processes",
        "floor",
        "cap",
        "FMEM",
        "SMEM",
        "worth FMEM",
    ];
    table::render(&header, &rows)
}

/// One line an address space.
pub fn targets(state: &State) -> String {
    if state.targets.is_empty() {
        return "nothing is managed; next: write a PID to targets/pid_add, or a path to \
                targets/cgroup\n"
            .to_owned();
    }
    let rows: Vec<Vec<String>> = (state.targets.iter())
        .map(|target| {
            let account = target.account.as_ref();
            let pages =
                |pages: Option<u64>| pages.map_or_else(|| "-".to_owned(), |pages| mib(pages << 12));
            vec![
                format!(
                    "{} {}",
                    target.pid,
                    target.command.as_deref().unwrap_or("-")
                ),
                account
                    .map_or("-", |account| Origin::word(account.origin))
                    .to_owned(),
                target.ranges.to_string(),
                mib(target.fmem_bytes),
                mib(target.smem_bytes),
                format!("{:.0}", target.samples),
                pages(account.map(|account| account.promoted_pages)),
                pages(account.map(|account| account.demoted_pages)),
                account.map_or_else(|| "-".to_owned(), |a| ms(a.predicted_ns as f64)),
                account.map_or_else(|| "-".to_owned(), |a| ms(a.realised_ns as f64)),
            ]
        })
        .collect();
    let header = [
        "process",
        "by",
        "ranges",
        "FMEM",
        "SMEM",
        "heat",
        "promoted",
        "demoted",
        "predicted",
        "realised",
    ];
    table::render(&header, &rows)
        + "sizes in MiB, heat in decayed samples, gains in ms of latency saved\n"
}
