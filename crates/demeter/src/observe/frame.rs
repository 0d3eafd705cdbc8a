// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `demeter top` shows, drawn on any terminal, also one that is only text.

use std::collections::{BTreeMap, VecDeque};

use demeter_machine::heat::{HeatReport, HeatRow};
use demeter_observe::State;
use demeter_observe::heat::Range;
use demeter_observe::state::Target;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use super::rates::Rates;
use super::{mib, status};
use crate::table;
use crate::vm::{Picture, SHADES};

/// Looks that the map goes back.
const LOOKS: usize = 240;
/// Lines of a map before they are folded.
const MAP_GRANULES: u64 = 2048;
const LEAST_GRANULE_BYTES: u64 = 2 << 20;
/// Fills are whole numbers, samples are not.
const FILLS_PER_SAMPLE: f64 = 256.0;
/// Address and bars beside a map.
const MAP_MARGIN: u16 = 18;
/// Address spaces listed at most.
const LISTED: usize = 8;
const COLOURS: [Color; 10] = [
    Color::Reset,
    Color::Indexed(238),
    Color::Indexed(94),
    Color::Indexed(130),
    Color::Indexed(172),
    Color::Indexed(208),
    Color::Indexed(202),
    Color::Indexed(196),
    Color::Indexed(160),
    Color::Indexed(201),
];

/// The ranges of one address space at one time.
struct Look {
    time_ns: u64,
    ranges: Vec<Range>,
}

/// All that is shown.
pub struct View {
    name: String,
    state: State,
    rates: Option<Rates>,
    /// Address space of the map; none: the one with most samples.
    chosen: Option<u32>,
    looks: VecDeque<Look>,
    /// Why there is nothing newer.
    trouble: Option<String>,
}

impl View {
    /// Begins with a first look.
    pub fn new(name: String, state: State) -> Self {
        let mut view = Self {
            name,
            state,
            rates: None,
            chosen: None,
            looks: VecDeque::new(),
            trouble: None,
        };
        view.remember();
        view
    }

    /// Another look.
    pub fn look(&mut self, state: State) {
        self.rates = Rates::between(&self.state, &state);
        self.state = state;
        self.trouble = None;
        self.remember();
    }

    /// There was none, and why.
    pub fn fail(&mut self, cause: String) {
        self.trouble = Some(cause);
    }

    /// The latest.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Since the look before.
    pub fn rates(&self) -> Option<&Rates> {
        self.rates.as_ref()
    }

    /// Maps the next address space, or the one before.
    pub fn choose(&mut self, forward: bool) {
        let spaces: Vec<u32> = self
            .state
            .targets
            .iter()
            .map(|target| target.space)
            .collect();
        let Some(at) = (spaces.iter()).position(|&space| Some(space) == self.space()) else {
            return;
        };
        let step = if forward { 1 } else { spaces.len() - 1 };
        self.chosen = Some(spaces[(at + step) % spaces.len()]);
        self.looks.clear();
        self.remember();
    }

    fn space(&self) -> Option<u32> {
        let targets = &self.state.targets;
        let managed = |space: &u32| targets.iter().any(|target| target.space == *space);
        self.chosen.filter(managed).or_else(|| {
            let hottest = |a: &&Target, b: &&Target| {
                a.samples.total_cmp(&b.samples).then(b.space.cmp(&a.space))
            };
            targets.iter().max_by(hottest).map(|target| target.space)
        })
    }

    fn remember(&mut self) {
        let Some(space) = self.space() else {
            self.looks.clear();
            return;
        };
        // Another address space is another map.
        if self.chosen != Some(space) {
            self.looks.clear();
            self.chosen = Some(space);
        }
        let ranges = self.state.heat.ranges.iter();
        self.looks.push_back(Look {
            time_ns: self.state.time_ns,
            ranges: ranges
                .filter(|range| range.space == space)
                .cloned()
                .collect(),
        });
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
    }

    fn rates_text(&self) -> String {
        let Some(rates) = &self.rates else {
            return "rates from the second look on".to_owned();
        };
        let mib_s = |bytes: f64| table::number(Some(bytes / f64::from(1 << 20)), 1);
        format!(
            "samples {:.0}/s ({:.0} lost), {}% of them in FMEM; promoted {} MiB/s, demoted {}, \
             refused {}\ngain {} ms of latency a second; CPU {}%",
            rates.samples_per_s,
            rates.lost_samples_per_s,
            table::percent(rates.fmem_share, 1),
            mib_s(rates.promoted_bytes_per_s),
            mib_s(rates.demoted_bytes_per_s),
            mib_s(rates.refused_bytes_per_s),
            table::number(Some(rates.realised_gain_share * 1e3), 1),
            table::percent(Some(rates.cpu_share), 2),
        )
    }

    fn targets_text(&self) -> String {
        let mut state = self.state.clone();
        let all = state.targets.len();
        (state.targets).sort_by(|a, b| b.samples.total_cmp(&a.samples).then(a.space.cmp(&b.space)));
        state.targets.truncate(LISTED);
        let mut text = status::targets(&state);
        if all > LISTED {
            text += &format!("and {} more\n", all - LISTED);
        }
        let groups = status::groups(&state);
        if !groups.is_empty() {
            text.push('\n');
            text += &groups;
        }
        text
    }

    fn map_title(&self) -> String {
        let space = self.space();
        let target = (self.state.targets.iter()).find(|target| Some(target.space) == space);
        target.map_or_else(String::new, |target| {
            format!(
                "heat of {} {}, {} MiB: address against time",
                target.pid,
                target.command.as_deref().unwrap_or("-"),
                mib(target.fmem_bytes + target.smem_bytes),
            )
        })
    }

    /// Draws it.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let tiers = status::tiers(&self.state);
        let targets = self.targets_text();
        let lines = |text: &str| text.lines().count() as u16;
        let areas = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(lines(&tiers) + 1),
            Constraint::Length(3),
            Constraint::Length(lines(&targets) + 1),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let head = Text::from(vec![
            Line::styled(
                format!("{}: {}", self.name, status::head(&self.state).trim_end()),
                bold,
            ),
            Line::styled(
                self.trouble.clone().unwrap_or_default(),
                Style::new().fg(Color::Red),
            ),
        ]);
        frame.render_widget(Paragraph::new(head), areas[0]);
        frame.render_widget(Paragraph::new(tiers), areas[1]);
        frame.render_widget(Paragraph::new(self.rates_text()), areas[2]);
        frame.render_widget(Paragraph::new(targets), areas[3]);
        frame.render_widget(
            Paragraph::new(Line::styled(self.map_title(), bold)),
            areas[4],
        );
        let map = map_text(
            &self.looks,
            usize::from(areas[5].height),
            usize::from(areas[5].width.saturating_sub(MAP_MARGIN)),
        );
        frame.render_widget(Paragraph::new(coloured(&map)), areas[5]);
        let keys = "q quit   up, down: another process";
        frame.render_widget(Paragraph::new(keys), areas[6]);
    }
}

/// The map in at most so many lines. A picture has about as many as it is asked for,
/// and more the more gaps it folds: what is hot must not be cut off.
fn map_text(looks: &VecDeque<Look>, lines: usize, columns: usize) -> String {
    let (rows, report) = heat_of(looks);
    if rows.is_empty() {
        return "nothing was sampled yet".to_owned();
    }
    let mut wanted = lines;
    loop {
        let text = Picture::fold(&rows, &report, wanted, columns).text();
        let over = text.lines().count().saturating_sub(lines);
        if over == 0 || wanted <= 1 {
            return text;
        }
        wanted = wanted.saturating_sub(over).max(1);
    }
}

/// Shades in colours, where the terminal has them.
fn coloured(map: &str) -> Text<'_> {
    let shade = |c: char| SHADES.iter().position(|&shade| shade == c).unwrap_or(0);
    map.lines()
        .map(|line| {
            let Some((address, cells)) = line.split_once('|') else {
                return Line::raw(line);
            };
            let mut spans = vec![Span::raw(address), Span::raw("|")];
            spans.extend(
                cells.chars().map(|c| {
                    Span::styled(c.to_string(), Style::new().fg(COLOURS[shade(c).min(9)]))
                }),
            );
            Line::from(spans)
        })
        .collect()
}

/// Looks as the maps of `demeter vm heat` have them: samples spread evenly over the
/// granules of their range, one window a look.
fn heat_of(looks: &VecDeque<Look>) -> (Vec<HeatRow>, HeatReport) {
    let extent = looks
        .back()
        .map_or(0, |look| look.ranges.iter().map(Range::bytes).sum::<u64>());
    let granule_bytes = (extent / MAP_GRANULES)
        .next_power_of_two()
        .max(LEAST_GRANULE_BYTES);
    let mut cells: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (window, look) in looks.iter().enumerate() {
        for range in look.ranges.iter().filter(|range| range.bytes() > 0) {
            let fills = range.samples * FILLS_PER_SAMPLE * granule_bytes as f64
                / range.bytes().max(granule_bytes) as f64;
            let first = range.start / granule_bytes;
            let last = (range.end - 1) / granule_bytes;
            for granule in first..=last.min(first + 2 * MAP_GRANULES) {
                let row =
                    (cells.entry(granule * granule_bytes)).or_insert_with(|| vec![0; looks.len()]);
                row[window] = row[window].saturating_add(fills as u32);
            }
        }
    }
    let spans_ns = looks.back().zip(looks.front());
    let spans_ns = spans_ns.map_or(0, |(last, first)| {
        last.time_ns.saturating_sub(first.time_ns)
    });
    let report = HeatReport {
        granule_bytes,
        windows: looks.len(),
        window_ns: spans_ns / (looks.len().max(2) as u64 - 1),
        dropped_fills: 0,
        virtual_rows: Vec::new(),
        physical_rows: Vec::new(),
    };
    let rows = (cells.into_iter())
        .map(|(address, fills)| HeatRow {
            space: 0,
            address,
            fills,
        })
        .collect();
    (rows, report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, samples: f64) -> Range {
        Range {
            space: 1,
            pid: 1,
            start,
            end,
            samples,
            fmem_pages: 0,
            smem_pages: 0,
            age_epochs: 0,
            area: 0,
        }
    }

    #[test]
    fn heat_is_spread_over_granules() {
        const G: u64 = LEAST_GRANULE_BYTES;
        let looks = VecDeque::from([
            Look {
                time_ns: 0,
                ranges: vec![range(0, 4 * G, 8.0)],
            },
            Look {
                time_ns: 500,
                ranges: vec![range(0, G, 8.0), range(G, 4 * G, 3.0)],
            },
        ]);
        let (rows, report) = heat_of(&looks);
        assert_eq!((report.granule_bytes, report.window_ns), (G, 500));
        let fills: Vec<&[u32]> = rows.iter().map(|row| &row.fills[..]).collect();
        assert_eq!(fills, [&[512, 2048], &[512, 256], &[512, 256], &[512, 256]]);
        assert!(heat_of(&VecDeque::new()).0.is_empty());
    }

    #[test]
    fn a_map_with_gaps_fits() {
        const G: u64 = LEAST_GRANULE_BYTES;
        let piece = |at: u64| range(at * 1000 * G, (at * 1000 + 40) * G, at as f64);
        let looks = VecDeque::from([Look {
            time_ns: 0,
            ranges: (0..5).map(piece).collect(),
        }]);
        for lines in 9..40 {
            let text = map_text(&looks, lines, 10);
            assert!(text.lines().count() <= lines, "{lines}:\n{text}");
            // The last piece is the hottest.
            assert!(text.contains('@'), "{lines}:\n{text}");
        }
    }

    #[test]
    fn an_address_space_of_any_size_has_a_map() {
        let looks = VecDeque::from([Look {
            time_ns: 0,
            ranges: vec![range(0, u64::MAX, 1e18), range(0, 0, 1.0)],
        }]);
        let (rows, _) = heat_of(&looks);
        assert!(rows.len() as u64 <= 2 * MAP_GRANULES + 1, "{}", rows.len());
    }
}
