// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pictures of heat: gaps in the address space folded, in characters and as SVG.

use demeter_machine::heat::{HeatReport, HeatRow};

/// Empty granules that a picture shows as they are; longer gaps are folded.
const FOLD: u64 = 64;
/// Pieces of address space that are shown; of more, those with most fills.
const PIECES: usize = 24;
/// Shades, none first.
pub const SHADES: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];
const COLOURS: [&str; 10] = [
    "#ffffff", "#fff3d6", "#ffe3a3", "#fecc6f", "#fdae4a", "#f98c35", "#ee642a", "#d63d26",
    "#ac1f2d", "#6f0a2c",
];
const SVG_LINES: usize = 160;
const SVG_COLUMNS: usize = 128;
const PANEL_WIDTH: usize = 384;
const PANEL_HEIGHT: usize = 400;
const LEFT: usize = 120;
const TOP: usize = 56;

/// One line of a picture.
#[derive(Debug, PartialEq)]
enum Line {
    /// Addresses left out.
    Fold,
    /// First address, and fills a granule by column.
    Cells(u64, Vec<f64>),
}

/// A map, made as small as wanted.
#[derive(Debug)]
pub struct Picture {
    lines: Vec<Line>,
    max: f64,
    columns: usize,
    /// Modelled time from left to right.
    pub seconds: f64,
    /// Share of fills in pieces of address space that are not shown.
    pub hidden_share: f64,
}

impl Picture {
    /// Folds gaps and shrinks to about so many lines and at most so many columns.
    pub fn fold(rows: &[HeatRow], report: &HeatReport, lines: usize, columns: usize) -> Self {
        let granule_bytes = report.granule_bytes.max(1);
        let fills = |row: &HeatRow| row.fills.iter().map(|&count| f64::from(count)).sum::<f64>();
        let mut pieces: Vec<&[HeatRow]> = rows
            .chunk_by(|a, b| {
                a.space == b.space && b.address.saturating_sub(a.address) / granule_bytes <= FOLD
            })
            .collect();
        let weight = |piece: &[HeatRow]| piece.iter().map(fills).sum::<f64>();
        let all: f64 = weight(rows);
        let mut weights: Vec<f64> = pieces.iter().map(|piece| weight(piece)).collect();
        weights.sort_by(|a, b| b.total_cmp(a));
        if let Some(&least) = weights.get(PIECES) {
            pieces.retain(|piece| weight(piece) > least);
        }
        let shown: f64 = pieces.iter().map(|piece| weight(piece)).sum();
        let extent = |piece: &[HeatRow]| match piece {
            [first, .., last] => (last.address - first.address) / granule_bytes + 1,
            _ => piece.len() as u64,
        };
        let granules: u64 = pieces.iter().map(|piece| extent(piece)).sum();
        let per_line = granules.div_ceil(lines.max(1) as u64).max(1);
        let per_column = report.windows.div_ceil(columns.max(1)).max(1);
        let columns = report.windows.div_ceil(per_column).max(1);
        let mut picture = Self {
            lines: Vec::new(),
            max: 0.0,
            columns,
            seconds: report.windows as f64 * report.window_ns as f64 * 1e-9,
            hidden_share: if all > 0.0 { (all - shown) / all } else { 0.0 },
        };
        for piece in pieces {
            if !picture.lines.is_empty() {
                picture.lines.push(Line::Fold);
            }
            let Some(start) = piece.first().map(|row| row.address) else {
                continue;
            };
            let count = extent(piece).div_ceil(per_line);
            let mut cells = vec![vec![0.0; columns]; count as usize];
            for row in piece {
                let line = (row.address - start) / granule_bytes / per_line;
                let Some(line) = cells.get_mut(line as usize) else {
                    continue;
                };
                for (window, &count) in row.fills.iter().enumerate() {
                    if let Some(cell) = line.get_mut(window / per_column) {
                        *cell += f64::from(count);
                    }
                }
            }
            for (index, mut line) in cells.into_iter().enumerate() {
                let first = index as u64 * per_line;
                let held = per_line.min(extent(piece) - first) as f64;
                for cell in &mut line {
                    *cell /= held;
                    picture.max = picture.max.max(*cell);
                }
                let address = start + first * granule_bytes;
                picture.lines.push(Line::Cells(address, line));
            }
        }
        picture
    }

    /// Shade of a cell: by the root, so that what is cold but used is still seen.
    fn shade(&self, cell: f64) -> usize {
        if cell <= 0.0 || self.max <= 0.0 {
            return 0;
        }
        let top = SHADES.len() - 1;
        ((cell / self.max).sqrt() * top as f64)
            .ceil()
            .clamp(1.0, top as f64) as usize
    }

    /// In characters.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            match line {
                Line::Fold => text.push_str("           ~\n"),
                Line::Cells(address, cells) => {
                    let drawn: String = (cells.iter())
                        .filter_map(|&cell| SHADES.get(self.shade(cell)))
                        .collect();
                    text.push_str(format!("{address:>14x} |{drawn}|\n").as_str());
                }
            }
        }
        if self.hidden_share > 0.0 {
            let percent = self.hidden_share * 100.0;
            text.push_str(&format!(
                "(small pieces with {percent:.1}% of fills are left out)\n"
            ));
        }
        text
    }

    /// As a part of an SVG, its upper left corner at `x`.
    fn panel(&self, x: usize, title: &str) -> String {
        let height = PANEL_HEIGHT as f64 / self.lines.len().max(1) as f64;
        let width = PANEL_WIDTH as f64 / self.columns as f64;
        let mut svg = format!(
            "<g transform=\"translate({x} {TOP})\">\n<text x=\"{}\" y=\"-8\" \
             text-anchor=\"middle\" font-size=\"13\">{title}</text>\n",
            PANEL_WIDTH / 2
        );
        let mut labelled_to = f64::MIN;
        let mut after_fold = true;
        for (index, line) in self.lines.iter().enumerate() {
            let y = index as f64 * height;
            let Line::Cells(address, cells) = line else {
                svg.push_str(&format!(
                    "<line x1=\"-6\" x2=\"{PANEL_WIDTH}\" y1=\"{0:.2}\" y2=\"{0:.2}\" \
                     stroke=\"#999\" stroke-dasharray=\"3 3\"/>\n",
                    y + height / 2.0
                ));
                after_fold = true;
                continue;
            };
            let far = y - labelled_to;
            if far >= 12.0 && (after_fold || far >= 60.0) {
                svg.push_str(&format!(
                    "<text x=\"-8\" y=\"{:.2}\" text-anchor=\"end\">{address:#x}</text>\n",
                    y + 8.0
                ));
                labelled_to = y;
                after_fold = false;
            }
            let shades: Vec<usize> = cells.iter().map(|&cell| self.shade(cell)).collect();
            let mut column = 0;
            for run in shades.chunk_by(|a, b| a == b) {
                let shade = run.first().copied().unwrap_or(0);
                if let Some(colour) = COLOURS.get(shade).filter(|_| shade > 0) {
                    svg.push_str(&format!(
                        "<rect x=\"{:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\" \
                         fill=\"{colour}\"/>\n",
                        column as f64 * width,
                        run.len() as f64 * width,
                        height + 0.05
                    ));
                }
                column += run.len();
            }
        }
        svg.push_str(&format!(
            "<rect width=\"{PANEL_WIDTH}\" height=\"{PANEL_HEIGHT}\" fill=\"none\" \
             stroke=\"#444\"/>\n<text y=\"{0}\">0</text>\n<text x=\"{PANEL_WIDTH}\" y=\"{0}\" \
             text-anchor=\"end\">{1:.2} s (modelled)</text>\n</g>\n",
            PANEL_HEIGHT + 16,
            self.seconds
        ));
        svg
    }
}

/// Both maps beside each other, as the paper has them.
pub fn svg(report: &HeatReport, title: &str) -> String {
    let width = 2 * (LEFT + PANEL_WIDTH) + 24;
    let height = TOP + PANEL_HEIGHT + 32;
    let fold = |rows: &[HeatRow]| Picture::fold(rows, report, SVG_LINES, SVG_COLUMNS);
    let virtual_map = fold(&report.virtual_rows).panel(LEFT, "guest-virtual memory");
    let physical_map =
        fold(&report.physical_rows).panel(2 * LEFT + PANEL_WIDTH, "guest-physical memory");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{}\" y=\"20\" text-anchor=\"middle\" font-size=\"14\">line fills from memory \
         over time: {}</text>\n{virtual_map}{physical_map}</svg>\n",
        width / 2,
        escape(title)
    )
}

/// Text as XML has it, and not longer than fits.
fn escape(text: &str) -> String {
    const MOST: usize = 90;
    let mut escaped = String::new();
    for letter in text.chars().take(MOST) {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    if text.chars().count() > MOST {
        escaped.push('…');
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: Vec<HeatRow>) -> HeatReport {
        HeatReport {
            granule_bytes: 4096,
            window_ns: 1_000_000_000,
            windows: 4,
            dropped_fills: 0,
            virtual_rows: rows,
            physical_rows: Vec::new(),
        }
    }

    fn row(address: u64, fills: &[u32]) -> HeatRow {
        HeatRow {
            space: 0,
            address,
            fills: fills.to_vec(),
        }
    }

    #[test]
    fn gaps_are_folded_and_kept_apart() {
        let report = report(vec![
            row(0x40_0000, &[0, 100]),
            row(0x40_2000, &[1]),
            row(0x7fff_0000_0000, &[0, 0, 0, 25]),
        ]);
        let picture = Picture::fold(&report.virtual_rows, &report, 10, 10);
        assert_eq!(
            picture.text(),
            "        400000 | @  |\n        401000 |    |\n        402000 |.   |\n           ~\n  \
             7fff00000000 |   +|\n"
        );
    }

    #[test]
    fn pictures_are_as_small_as_wanted() {
        let rows: Vec<HeatRow> = (0..1000).map(|at| row(at * 4096, &[2, 2, 4, 4])).collect();
        let report = report(rows);
        let picture = Picture::fold(&report.virtual_rows, &report, 10, 2);
        assert_eq!(picture.lines.len(), 10);
        assert_eq!(picture.lines[9], Line::Cells(900 * 4096, vec![4.0, 8.0]));
        assert_eq!(picture.seconds, 4.0);
    }

    #[test]
    fn pieces_beyond_what_can_be_shown_are_told() {
        let rows = (0..40).map(|at| row(at << 32, &[1 + at as u32])).collect();
        let report = report(rows);
        let picture = Picture::fold(&report.virtual_rows, &report, 24, 10);
        assert_eq!(picture.lines.len(), PIECES + PIECES - 1);
        assert!(picture.text().contains("are left out"));
    }

    #[test]
    fn svg_is_well_formed_whatever_the_command() {
        let text = svg(&report(vec![row(0, &[1])]), "sh -c 'a<b && c>d' \u{1}");
        assert!(text.contains("a&lt;b &amp;&amp; c&gt;d"));
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
        assert!(!svg(&report(Vec::new()), "").contains("NaN"));
    }
}
