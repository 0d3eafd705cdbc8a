// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `demeter balloon top` shows, drawn on any terminal, also one that is only text.

use demeter_balloon::statistics::Statistics;
use demeter_balloon::view::{PolicyView, Short, Sizing, Stage, TierView, VmView};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use serde::Serialize;

use super::{credit, last, marked_stage, reasons};
use crate::table;

const HEADER: [&str; 9] = [
    "guest",
    "stage",
    "short",
    "FMEM MiB",
    "SMEM MiB",
    "hot MiB",
    "stalled %",
    "refaults/s",
    "OOM kills",
];
/// Characters of a tier's bar.
const BAR: usize = 8;
const MIB: f64 = (1 << 20) as f64;
const PAGES_PER_MIB: f64 = 256.0;

/// What the daemon says at one time.
#[derive(Debug, Clone, Serialize)]
pub struct Fleet {
    pub policy: PolicyView,
    pub guests: Vec<VmView>,
}

/// All that is shown.
pub struct View {
    fleet: Fleet,
    /// The look before, for rates.
    earlier: Option<Fleet>,
    /// The guest that is told more of.
    chosen: usize,
    /// Why there is nothing newer.
    trouble: Option<String>,
}

impl View {
    /// Begins with a first look.
    pub fn new(fleet: Fleet) -> Self {
        Self {
            fleet,
            earlier: None,
            chosen: 0,
            trouble: None,
        }
    }

    /// Another look; who was chosen stays so while it is there.
    pub fn look(&mut self, fleet: Fleet) {
        let name = self.guest().map(|vm| vm.name.clone());
        let earlier = std::mem::replace(&mut self.fleet, fleet);
        self.earlier = Some(earlier);
        let at = (self.fleet.guests.iter()).position(|vm| Some(&vm.name) == name.as_ref());
        self.chosen = at.unwrap_or(0);
        self.trouble = None;
    }

    /// There was none, and why.
    pub fn fail(&mut self, cause: String) {
        self.trouble = Some(cause);
    }

    /// The latest.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Tells more of the next guest, or of the one before.
    pub fn choose(&mut self, forward: bool) {
        let count = self.fleet.guests.len().max(1);
        let step = if forward { 1 } else { count - 1 };
        self.chosen = (self.chosen + step) % count;
    }

    fn guest(&self) -> Option<&VmView> {
        self.fleet.guests.get(self.chosen)
    }

    fn row(&self, vm: &VmView) -> Vec<String> {
        let tier = |node: u16| {
            let tier = vm.tiers.iter().find(|tier| tier.node == node);
            tier.map_or_else(|| "-".to_owned(), bar)
        };
        let now = vm.statistics.as_ref();
        let rates = self.rates(vm);
        vec![
            vm.name.clone(),
            marked_stage(vm),
            short(vm.sizing.as_ref()).to_owned(),
            tier(0),
            tier(1),
            table::number(
                now.filter(|now| now.has_tmm)
                    .map(|now| now.hot_wanted_pages as f64 / PAGES_PER_MIB),
                0,
            ),
            table::percent(rates.map(|rates| rates.stalled), 1),
            table::number(rates.map(|rates| rates.refaults_per_s), 0),
            table::number(now.map(|now| now.oom_kills as f64), 0),
        ]
    }

    /// Since the look before, by the guest's own clock.
    fn rates(&self, vm: &VmView) -> Option<Rates> {
        let before = self.earlier.as_ref()?;
        let before = before.guests.iter().find(|old| old.name == vm.name)?;
        Rates::between(before.statistics.as_ref()?, vm.statistics.as_ref()?)
    }

    fn head(&self) -> String {
        let policy = &self.fleet.policy;
        let guests = self.fleet.guests.len();
        // One that has a problem is driven even so.
        let driven = (self.fleet.guests.iter()).filter(|vm| vm.stage == Stage::Driven);
        format!(
            "{guests} guests, {} driven; policy {}, {:.0} MiB of FMEM shared, every {} ms",
            driven.count(),
            policy.name,
            policy.fmem_pool_bytes as f64 / MIB,
            policy.interval_ms,
        )
    }

    /// Lines of the table of guests; `height` of them, with the chosen one among them.
    fn table(&self, height: usize) -> Text<'static> {
        let rows: Vec<Vec<String>> = self.fleet.guests.iter().map(|vm| self.row(vm)).collect();
        let text = table::render(&HEADER, &rows);
        let mut lines: Vec<Line<'static>> = text.lines().map(|l| Line::raw(l.to_owned())).collect();
        if let Some(line) = lines.get_mut(2 + self.chosen) {
            line.style = Style::new().add_modifier(Modifier::REVERSED);
        }
        let over = (3 + self.chosen).saturating_sub(height.max(3));
        lines.drain(2..(2 + over).min(lines.len().max(2)));
        Text::from(lines)
    }

    /// What was asked of the chosen guest, what came of it, and what it did wrong.
    fn detail(&self) -> String {
        let Some(vm) = self.guest() else {
            return "no guests: add one with POST /v1/vms, or in the configuration".to_owned();
        };
        let mut text = format!("{}: {}\n", vm.name, marked_stage(vm));
        if let Some(problem) = &vm.problem {
            text.push_str(&format!("  problem: {problem}\n"));
        }
        for tier in &vm.tiers {
            text.push_str(&asked(tier));
        }
        if let Some(sizing) = &vm.sizing {
            text.push_str(&format!("  {}\n", reasons(sizing)));
        }
        if let Some(account) = &vm.account {
            text.push_str(&format!("  {}\n", credit(account)));
        }
        if let Some(age_ms) = vm.statistics_age_ms {
            text.push_str(&format!("  statistics {age_ms} ms old\n"));
        }
        for (reason, count) in &vm.violations {
            text.push_str(&format!("  violations: {reason}: {count}\n"));
        }
        let churn = &vm.churn;
        if churn.held_back + churn.untold + churn.unwritten > 0 {
            text.push_str(&format!(
                "  messages held back {}, changes untold {}, entries unwritten {}\n",
                churn.held_back, churn.untold, churn.unwritten
            ));
        }
        text
    }

    /// Draws it.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let detail = fold(&self.detail(), usize::from(frame.area().width));
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(detail.lines().count() as u16),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(Line::styled(self.head(), bold)), areas[0]);
        let trouble = self.trouble.clone().unwrap_or_default();
        let red = Style::new().fg(Color::Red);
        frame.render_widget(Paragraph::new(Line::styled(trouble, red)), areas[1]);
        let table = self.table(usize::from(areas[2].height));
        frame.render_widget(Paragraph::new(table), areas[2]);
        frame.render_widget(Paragraph::new(detail), areas[3]);
        let keys = "q quit   up, down: another guest";
        frame.render_widget(Paragraph::new(keys), areas[4]);
    }
}

/// Between two messages of a guest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    /// Share of the time in which some task waited for memory.
    stalled: f64,
    refaults_per_s: f64,
}

impl Rates {
    fn between(before: &Statistics, now: &Statistics) -> Option<Self> {
        let passed_ns = now.guest_time_ns.checked_sub(before.guest_time_ns)?;
        if passed_ns == 0 || now.sequence <= before.sequence {
            return None;
        }
        let seconds = passed_ns as f64 * 1e-9;
        let stalled_us = now.psi_some_us.saturating_sub(before.psi_some_us);
        Some(Self {
            stalled: if now.has_psi {
                stalled_us as f64 * 1e-6 / seconds
            } else {
                f64::NAN
            },
            refaults_per_s: now.refaults.saturating_sub(before.refaults) as f64 / seconds,
        })
    }
}

/// How much of a tier a guest has, and which size it is asked for if that is another.
fn bar(tier: &TierView) -> String {
    let share = tier.size_bytes as f64 / tier.total_bytes.max(1) as f64;
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    let bar = "#".repeat(full) + &".".repeat(BAR - full);
    let size = tier.size_bytes as f64 / MIB;
    let total = tier.total_bytes as f64 / MIB;
    match tier.wanted_size_bytes {
        Some(wanted) if wanted != tier.size_bytes => {
            format!("{bar} {size:.0}>{:.0}/{total:.0}", wanted as f64 / MIB)
        }
        _ => format!("{bar} {size:.0}/{total:.0}"),
    }
}

/// Why a guest has less FMEM than it has a use for, in a word.
fn short(sizing: Option<&Sizing>) -> &'static str {
    match sizing.and_then(|sizing| sizing.fmem_short) {
        Some(Short::Pool) => "pool",
        Some(Short::Credit) => "credit",
        Some(Short::Ceiling) => "ceiling",
        None => "-",
    }
}

/// Lines of at most so many characters, which begin further in where one goes on: a terminal
/// would show the first of it only.
fn fold(text: &str, width: usize) -> String {
    let mut folded = String::new();
    for line in text.lines() {
        let own = line.len() - line.trim_start_matches(' ').len();
        let further = own + 2;
        // Where nothing fits there is nothing to see.
        let width = if width <= further { usize::MAX } else { width };
        let mut rest: Vec<char> = line.chars().collect();
        let mut indent = own;
        while rest.len() > width {
            let blank = (indent + 1..=width).rev().find(|&at| rest[at] == ' ');
            let end = blank.unwrap_or(width);
            folded.extend(&rest[..end]);
            folded.push('\n');
            let next = rest.split_off(end);
            rest = vec![' '; further];
            indent = further;
            rest.extend(next.into_iter().skip_while(|&letter| letter == ' '));
        }
        folded.extend(rest);
        folded.push('\n');
    }
    folded
}

fn asked(tier: &TierView) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / MIB);
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), mib);
    let kept = tier.kept_bytes.filter(|bytes| *bytes > 0);
    let kept = kept.map_or_else(String::new, |bytes| {
        format!(" ({} of it in the balloon, and touched)", mib(bytes))
    });
    format!(
        "  {}: {} of {}, asked for {}, on the host {}{kept}, last request {}; {} pages in, {} out\n",
        tier.tier,
        mib(tier.size_bytes),
        mib(tier.total_bytes),
        tier.wanted_size_bytes
            .map_or_else(|| "nothing".to_owned(), mib),
        known(tier.backing_bytes),
        last(tier),
        tier.traffic.inflated_pages,
        tier.traffic.deflated_pages,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::picture;
    use serde_json::json;

    fn tier(name: &str, node: u16, size_mib: u64, wanted_mib: Option<u64>) -> serde_json::Value {
        json!({
            "tier": name, "node": node, "total_bytes": 512 << 20,
            "balloon_bytes": (512 - size_mib) << 20, "size_bytes": size_mib << 20,
            "wanted_size_bytes": wanted_mib.map(|mib| mib << 20), "backing_bytes": null,
            "busy": wanted_mib.is_some(), "last": null, "ticket": 1, "ended_ticket": 0,
            "traffic": {"reports": 0, "ranges": 0, "inflated_pages": 7, "deflated_pages": 3,
                "punches": 0, "miscounted": 0, "stray_done": 0, "hellos": 1},
        })
    }

    fn statistics(sequence: u64, psi_some_us: u64) -> serde_json::Value {
        json!({
            "sequence": sequence, "guest_time_ns": sequence * 1_000_000_000, "event": "periodic",
            "has_tmm": true, "has_psi": true, "fmem_samples": 0, "smem_samples": 0,
            "hot_wanted_pages": 2560, "psi_some_us": psi_some_us, "psi_full_us": 0,
            "oom_kills": 2, "oom_deflated_pages": 0, "refaults": 40 * sequence, "nodes": [],
        })
    }

    fn fleet(sequence: u64, psi_some_us: u64) -> Fleet {
        let guest = |name: &str, tiers: Vec<serde_json::Value>, said: serde_json::Value| {
            json!({"name": name, "stage": "driven", "tiers": tiers, "statistics_age_ms": 12,
                "violations": {"order": 4}, "statistics": said,
                "account": {"credit_ms": 1500, "spent": true,
                    "share_bytes": 64 << 20, "charged_bytes": 128 << 20}})
        };
        let both = vec![tier("fmem", 0, 128, Some(64)), tier("smem", 1, 512, None)];
        let guests = json!([
            guest("web", both, statistics(sequence, psi_some_us)),
            guest("db", vec![], serde_json::Value::Null),
        ]);
        Fleet {
            policy: serde_json::from_value(json!({
                "name": "guaranteed", "fmem_pool_bytes": 192 << 20, "interval_ms": 500,
            }))
            .unwrap(),
            guests: serde_json::from_value(guests).unwrap(),
        }
    }

    #[test]
    fn sizes_wishes_and_pressure_are_shown() {
        let mut view = View::new(fleet(1, 0));
        view.look(fleet(3, 50_000));
        let text = picture(|frame| view.draw(frame), (120, 20)).unwrap();
        assert!(
            text.starts_with("2 guests, 2 driven; policy guaranteed, 192 MiB"),
            "{text}"
        );
        let web = text.lines().find(|line| line.starts_with("web ")).unwrap();
        for word in [
            "##...... 128>64/512",
            "######## 512/512",
            " 10 ",
            " 2.5 ",
            " 40 ",
        ] {
            assert!(web.contains(word), "{word}: {web}");
        }
        let detail = "fmem: 128.0 MiB of 512.0 MiB, asked for 64.0 MiB, on the host unknown, \
                      last request under way; 7 pages in, 3 out";
        assert!(text.contains(detail), "{text}");
        assert!(text.contains("violations: order: 4"), "{text}");
        let credit = "credit 1.5 s (spent), borrows 64.0 MiB beyond its share of 64.0 MiB";
        assert!(text.contains(credit), "{text}");
    }

    /// Whoever looks at the live view wants to know why a guest has less than it has a use for.
    #[test]
    fn why_a_guest_is_short_is_told_on_any_width() {
        let mut short = fleet(1, 0);
        short.guests[0].sizing = serde_json::from_value(json!({
            "memory_bytes": 512 << 20, "why": "waits", "fmem_useful_bytes": 200 << 20,
            "fmem_bytes": 128 << 20, "fmem_short": "pool",
        }))
        .unwrap();
        let mut view = View::new(short);
        let wide = picture(|frame| view.draw(frame), (160, 20)).unwrap();
        let reasons = "memory 512.0: it has suffered, and is left alone for a while; \
                       FMEM 128.0 of 200.0: the pool has no more for it";
        assert!(wide.contains(reasons), "{wide}");
        let row = |text: &str, name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(row(&wide, "guest ")[2], "short");
        assert_eq!(row(&wide, "web ")[2], "pool");
        assert_eq!(row(&wide, "db ")[2], "-");
        // Nor is it where the screen ends.
        let mut large = fleet(2, 0);
        large.guests[0] = view.fleet.guests[0].clone();
        for tier in &mut large.guests[0].tiers {
            tier.total_bytes <<= 20;
            tier.size_bytes <<= 20;
        }
        let large = View::new(large);
        let narrow = picture(|frame| large.draw(frame), (80, 30)).unwrap();
        assert_eq!(row(&narrow, "web ")[2], "pool", "{narrow}");
        // Nothing of it is cut off where there is less room.
        let narrow = picture(|frame| view.draw(frame), (60, 30)).unwrap();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&narrow).contains(reasons), "{narrow}");
        for asked in ["asked for 64.0 MiB", "7 pages in, 3 out"] {
            assert!(words(&narrow).contains(asked), "{narrow}");
        }
        view.choose(true);
        assert!(!view.detail().contains("memory "), "{}", view.detail());
    }

    /// A problem is no stage: a guest that is driven is so with a problem, too.
    #[test]
    fn a_problem_is_marked_beside_the_stage() {
        let mut troubled = fleet(1, 0);
        let problem = "the disk under its memory does not answer; next: look after that disk";
        troubled.guests[0].problem = Some(problem.to_owned());
        troubled.guests[1].stage = Stage::Waiting;
        let problem = "not plugged in anew: Permission denied (os error 13)";
        troubled.guests[1].problem = Some(problem.to_owned());
        let mut view = View::new(troubled);
        let text = picture(|frame| view.draw(frame), (120, 20)).unwrap();
        assert!(text.starts_with("2 guests, 1 driven; "), "{text}");
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(row("web ").contains(" driven ! "), "{text}");
        assert!(row("db ").contains(" waiting ! "), "{text}");
        assert!(text.contains("\nweb: driven !\n"), "{text}");
        assert!(text.contains("  problem: the disk under"), "{text}");
        assert!(!text.contains("wrong memory"), "{text}");
        view.choose(true);
        assert!(view.detail().contains(problem), "{}", view.detail());
    }

    #[test]
    fn lines_are_folded_between_words() {
        assert_eq!(fold("a\n  be see\n", 20), "a\n  be see\n");
        assert_eq!(fold("  one two three", 10), "  one two\n    three\n");
        // A word without end is cut, and what follows is not.
        assert_eq!(fold("xxxxxxxxxxxx y", 10), "xxxxxxxxxx\n  xx y\n");
        assert_eq!(fold("  xxxxxxxxxx y", 8), "  xxxxxx\n    xxxx\n    y\n");
        assert_eq!(fold("one two", 0), "one two\n");
    }

    #[test]
    fn what_a_guest_touches_of_its_balloon_is_told() {
        let mut view = tier("fmem", 0, 128, None);
        let asked =
            |view: &serde_json::Value| asked(&serde_json::from_value(view.clone()).unwrap());
        view["backing_bytes"] = json!(192 << 20);
        view["kept_bytes"] = json!(0);
        assert!(asked(&view).contains("on the host 192.0 MiB, last"));
        view["kept_bytes"] = json!(64 << 20);
        let told = "on the host 192.0 MiB (64.0 MiB of it in the balloon, and touched), last";
        assert!(asked(&view).contains(told), "{}", asked(&view));
    }

    #[test]
    fn another_guest_is_told_of_and_stays_chosen() {
        let mut view = View::new(fleet(1, 0));
        view.choose(true);
        view.look(fleet(2, 0));
        assert!(view.detail().starts_with("db: "), "{}", view.detail());
        view.choose(true);
        assert!(view.detail().starts_with("web: "));
        view.look(Fleet {
            guests: Vec::new(),
            ..fleet(3, 0)
        });
        view.choose(false);
        assert!(view.detail().starts_with("no guests"));
    }

    #[test]
    fn the_chosen_one_of_many_is_on_the_screen() {
        let mut many = fleet(1, 0);
        many.guests = (0..100)
            .map(|at| VmView {
                name: format!("vm{at}"),
                ..many.guests[1].clone()
            })
            .collect();
        let mut view = View::new(many);
        view.choose(false);
        let text = picture(|frame| view.draw(frame), (120, 20)).unwrap();
        assert!(text.contains("\nvm99 "), "{text}");
        assert!(text.contains("\nguest "), "{text}");
    }

    #[test]
    fn a_guest_that_began_anew_has_no_rates() {
        let of = |value| serde_json::from_value::<Statistics>(value).unwrap();
        let (old, new) = (of(statistics(9, 100)), of(statistics(1, 0)));
        assert_eq!(Rates::between(&old, &new), None);
        assert_eq!(Rates::between(&old, &old), None);
    }
}
