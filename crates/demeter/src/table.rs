// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text tables: first column to the left, numbers to the right.

/// Lays out rows under a header.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let columns = header.len();
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.take(columns).enumerate() {
            let width = widths[column];
            if column == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut header.iter().copied());
    let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
    line(&mut rule.iter().map(String::as_str));
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// A number with the given decimals, or a dash.
pub fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A share as percent, or a dash.
pub fn percent(value: Option<f64>, decimals: usize) -> String {
    number(value.map(|share| share * 100.0), decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = render(
            &["name", "x"],
            &[
                vec!["a".into(), "1.50".into()],
                vec!["longer".into(), "12".into()],
            ],
        );
        assert_eq!(
            text,
            "name       x\n------  ----\na       1.50\nlonger    12\n"
        );
    }

    #[test]
    fn missing_values_are_dashes() {
        assert_eq!(number(None, 2), "-");
        assert_eq!(percent(Some(0.1234), 1), "12.3");
    }
}
