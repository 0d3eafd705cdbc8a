// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text in a line for people. A path may hold what ends a line, or what a terminal takes for
//! an order: such letters are shown as they would be written in a program.

use std::fmt;

/// Gives `put` the text, piece by piece. Allocates nothing.
///
/// # Errors
/// Those of `put`.
pub fn escaped(text: &str, mut put: impl FnMut(&str) -> fmt::Result) -> fmt::Result {
    for piece in text.split_inclusive(char::is_control) {
        let plain = piece.trim_end_matches(char::is_control);
        put(plain)?;
        for letter in (piece[plain.len()..].chars()).flat_map(char::escape_default) {
            put(letter.encode_utf8(&mut [0; 4]))?;
        }
    }
    Ok(())
}

/// Something shown in this way.
#[derive(Debug, Clone, Copy)]
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::write(&mut Escaping(out), format_args!("{}", self.0))
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escaped(text, |piece| self.0.write_str(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_command_a_terminal_are_shown() {
        for (text, shown) in [
            ("", ""),
            ("/ä ö", "/ä ö"),
            ("/a\x1b[31m\n", "/a\\u{1b}[31m\\n"),
            ("\r\n\t\x7fé\u{9b}", "\\r\\n\\t\\u{7f}é\\u{9b}"),
        ] {
            assert_eq!(Printable(text).to_string(), shown);
            assert_eq!(Printable(format_args!("{text}")).to_string(), shown);
        }
    }
}
