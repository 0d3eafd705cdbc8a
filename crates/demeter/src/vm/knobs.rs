// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of managers' knobs: names are checked, and words that a kernel would misread.

use std::collections::BTreeMap;

use crate::error::Error;

/// Values of knobs, by name.
pub type Knobs = BTreeMap<String, String>;

/// The values in force: `base`, then the user's, each a `known` knob. Values that
/// the guest's kernel would take for something else are refused here.
pub fn in_force(
    option: &str,
    known: &[&str],
    base: &[(&str, &str)],
    set: &[(String, String)],
) -> Result<Knobs, Error> {
    let base = (base.iter()).map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let knobs: Knobs = base.chain(set.iter().cloned()).collect();
    for (name, value) in &knobs {
        if !known.contains(&name.as_str()) {
            return Err(Error::Usage {
                cause: format!("{option}: there is no knob '{name}'"),
                next: format!("choose from: {}", known.join(", ")),
            });
        }
        let words: &[&str] = match name.as_str() {
            "lru" => &["mglru", "lists"],
            "thp" => &["always", "madvise", "never"],
            "tuner" => &["consist", "temporal"],
            _ => continue,
        };
        if !words.contains(&value.as_str()) {
            return Err(Error::Usage {
                cause: format!("{option}: '{value}' is no value of {name}"),
                next: format!("choose from: {}", words.join(", ")),
            });
        }
    }
    Ok(knobs)
}
