// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter why PID`: each move and refusal of a process, what it was to gain and
//! what it gained.

use demeter_observe::State;
use demeter_observe::ledger::{Account, Decision, Kind, Ledger, Source, Standing};
use serde::Serialize;

use super::{mib, ms, source, status};
use crate::error::{Advice, Error};
use crate::table;

/// Arguments of `why`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Process that is or was managed
    pid: u32,
    #[command(flatten)]
    source: source::Arguments,
    /// Decisions shown, the latest; 0 for all that are remembered
    #[arg(long, default_value_t = 20, value_name = "N")]
    last: usize,
    /// Print it as JSON, all decisions
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    format: u32,
    pid: u32,
    sampler: &'a str,
    time_ns: u64,
    /// Its address spaces; none when it is not managed any more.
    accounts: Vec<&'a Account>,
    /// Those in which it gained or gave.
    decisions: Vec<&'a Decision>,
    /// Decisions of anybody that are remembered, and taken.
    remembered: usize,
    taken: u64,
    /// Where accounts and totals differ; only told while nothing is managed.
    imbalance: Vec<String>,
}

/// Answers.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let state = arguments.source.read()?;
    let ledger = (state.ledger.as_ref()).ok_or(demeter_observe::Error::Lacks { what: "ledger" })?;
    let answer = answer(&state, ledger, arguments.pid)?;
    super::print(&if arguments.json {
        status::json(&answer)?
    } else {
        render(&answer, &state, arguments.last)
    });
    Ok(0)
}

/// There is nothing to say of a process.
#[derive(Debug, thiserror::Error)]
#[error("process {pid} is not managed, and no decision of it is remembered")]
struct NotManaged {
    pid: u32,
}

impl Advice for NotManaged {
    fn next(&self) -> String {
        "see what is with `demeter status`; write the PID to \
         /sys/kernel/mm/demeter/targets/pid_add to have it managed"
            .into()
    }
}

fn answer<'a>(state: &'a State, ledger: &'a Ledger, pid: u32) -> Result<Answer<'a>, Error> {
    let accounts: Vec<&Account> = (ledger.accounts.iter())
        .filter(|account| account.pid == pid)
        .collect();
    let decisions: Vec<&Decision> = (ledger.decisions.iter())
        .filter(|decision| {
            decision.hot.pid == pid || decision.cold.as_ref().is_some_and(|cold| cold.pid == pid)
        })
        .collect();
    if accounts.is_empty() && decisions.is_empty() {
        return Err(NotManaged { pid }.into());
    }
    Ok(Answer {
        format: 1,
        pid,
        sampler: &state.sampler,
        time_ns: ledger.time_ns,
        accounts,
        decisions,
        remembered: ledger.decisions.len(),
        taken: ledger.decisions_taken,
        imbalance: if state.enabled {
            Vec::new()
        } else {
            state.imbalance()
        },
    })
}

fn render(answer: &Answer<'_>, state: &State, last: usize) -> String {
    let mut text = String::new();
    for account in &answer.accounts {
        text += &of_account(account, state);
    }
    if answer.accounts.is_empty() {
        text += &format!("process {} is not managed any more\n", answer.pid);
    }
    let plans: Vec<String> = (state.stats_in("plans"))
        .map(|(end, number)| format!("{end} {number}"))
        .collect();
    text += &format!(
        "plans of all processes by where they ended: {}\n\n",
        plans.join(", ")
    );
    let shown = match last {
        0 => &answer.decisions[..],
        last => &answer.decisions[answer.decisions.len().saturating_sub(last)..],
    };
    if shown.is_empty() {
        text += "no decision about it is remembered\n";
    } else {
        text += &of_decisions(shown, answer);
    }
    text += &format!(
        "{} of its {} remembered decisions; the latest {} of {} of all processes are\n",
        shown.len(),
        answer.decisions.len(),
        answer.remembered,
        answer.taken,
    );
    for line in &answer.imbalance {
        text += &format!("the books do not balance: {line}\n");
    }
    text
}

fn of_account(account: &Account, state: &State) -> String {
    let target = (state.targets.iter()).find(|target| target.space == account.space);
    let name = target.and_then(|target| target.command.as_deref());
    let mut text = format!(
        "process {} {}, managed by {}, address space {}",
        account.pid,
        name.unwrap_or("-"),
        account.origin.word(),
        account.space,
    );
    if let Some(target) = target {
        text += &format!(
            ": {} MiB in FMEM, {} in SMEM, {} ranges",
            mib(target.fmem_bytes),
            mib(target.smem_bytes),
            target.ranges,
        );
    }
    text += &format!(
        "\npromoted {} MiB ({} of it into free memory), demoted {}, in {} decisions\n\
         predicted gain {} ms, realised so far {} ms\n",
        mib(account.promoted_pages << 12),
        mib(account.filled_pages << 12),
        mib(account.demoted_pages << 12),
        account.decisions,
        ms(account.predicted_ns as f64),
        ms(account.realised_ns as f64),
    );
    let mut refused: Vec<(&String, &u64)> = account.refused_pages.iter().collect();
    refused.sort_by_key(|&(name, &pages)| (std::cmp::Reverse(pages), name));
    let told: Vec<String> = (refused.iter())
        .map(|(name, pages)| format!("{name} {pages}"))
        .collect();
    text += &match told.is_empty() {
        true => "no page was refused\n".to_owned(),
        false => format!("refused pages by reason: {}\n", told.join(", ")),
    };
    text
}

fn of_decisions(decisions: &[&Decision], answer: &Answer<'_>) -> String {
    let rows: Vec<Vec<String>> = (decisions.iter())
        .map(|decision| {
            let ago_ns = answer.time_ns.saturating_sub(decision.time_ns);
            vec![
                decision.number.to_string(),
                format!("{:.1}", ago_ns as f64 * 1e-9),
                decision.source.map_or("-", Source::word).to_owned(),
                what(decision, answer.pid),
                decision.planned_pages.to_string(),
                decision.moved_pages.to_string(),
                match &decision.reason {
                    Some(reason) if decision.reason_pages < decision.refused_pages => {
                        format!("{} ({reason}, …)", decision.refused_pages)
                    }
                    Some(reason) => format!("{} ({reason})", decision.refused_pages),
                    None => decision.refused_pages.to_string(),
                },
                ms(decision.predicted_ns as f64),
                ms(decision.realised_ns as f64),
                match decision.standing {
                    Standing::Open => format!(
                        "{:.0}%",
                        100.0 * decision.age_ns as f64 / decision.lasts_ns.max(1) as f64
                    ),
                    Standing::Settled => "over".to_owned(),
                    Standing::Empty => "-".to_owned(),
                },
            ]
        })
        .collect();
    let header = [
        "number",
        "s ago",
        "source",
        "what",
        "planned",
        "moved",
        "refused",
        "predicted",
        "realised",
        "time",
    ];
    table::render(&header, &rows)
        + "pages of 4 KiB each way; ms of latency saved, at least and so far; time of the promise\n"
}

fn what(decision: &Decision, pid: u32) -> String {
    let range = |start: u64, end: u64| format!("{start:#x}+{}M", end.saturating_sub(start) >> 20);
    let hot = range(decision.hot.start, decision.hot.end);
    match (&decision.cold, decision.kind) {
        (Some(cold), Kind::Demote) => {
            format!("{} above a cap", range(cold.start, cold.end))
        }
        (Some(cold), _) => {
            let owner = |side_pid: u32| match side_pid == pid {
                true => String::new(),
                false => format!(" of {side_pid}"),
            };
            format!(
                "{hot}{} for {}{}",
                owner(decision.hot.pid),
                range(cold.start, cold.end),
                owner(cold.pid)
            )
        }
        (None, Kind::Fill) => format!("{hot} into free FMEM"),
        (None, _) => hot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_observe::ledger::Side;

    fn decision() -> Decision {
        let side = |space, pid, start| Side {
            space,
            pid,
            start,
            end: start + (4 << 20),
        };
        Decision {
            number: 7,
            time_ns: 1_000_000_000,
            epoch: 3,
            kind: Kind::Swap,
            source: Some(Source::Touch),
            standing: Standing::Open,
            hot: side(1, 10, 1 << 30),
            cold: Some(side(2, 20, 2 << 30)),
            planned_pages: 1024,
            moved_pages: 1000,
            refused_pages: 24,
            reason: Some("pinned".into()),
            reason_pages: 20,
            lasts_ns: 100,
            age_ns: 50,
            predicted_ns: 2_500_000,
            realised_ns: -1_500_000,
        }
    }

    #[test]
    fn a_decision_in_a_line() {
        let decision = decision();
        let answer = Answer {
            format: 1,
            pid: 20,
            sampler: "pebs",
            time_ns: 3_500_000_000,
            accounts: Vec::new(),
            decisions: vec![&decision],
            remembered: 1,
            taken: 8,
            imbalance: Vec::new(),
        };
        let text = of_decisions(&answer.decisions, &answer);
        for part in [
            "2.5   touch  0x",
            "0x40000000+4M of 10 for 0x80000000+4M",
            "24 (pinned, …)",
            "-1.5",
            "50%",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
