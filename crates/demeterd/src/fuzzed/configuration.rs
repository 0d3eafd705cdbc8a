// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator writes: the configuration file, a machine's line, a machine in JSON,
//! what the control interface left behind.

use std::collections::BTreeMap;

use super::Input;
use crate::args::settings_of;
use crate::spec::Description;
use crate::store::Changes;

/// Whether it was right.
pub fn run(data: &[u8]) -> bool {
    let mut input = Input(data);
    let kind = input.byte();
    let Ok(text) = std::str::from_utf8(input.0) else {
        return false;
    };
    match kind % 4 {
        0 => file(text),
        1 => machine(Description::parse(text).ok()),
        2 => machine(serde_json::from_str(text).ok()),
        _ => changes(text),
    }
}

fn file(text: &str) -> bool {
    let settings = settings_of("file".as_ref(), text);
    match settings {
        Ok(settings) => {
            assert!(crate::policy::check(&settings.policy).is_ok());
            true
        }
        Err(error) => {
            // Whoever is refused is told why, and what to do.
            assert!(!error.to_string().is_empty() && !error.next().is_empty());
            false
        }
    }
}

/// What is remembered of it is the same machine.
fn machine(description: Option<Description>) -> bool {
    let Some(description) = description else {
        return false;
    };
    let json = serde_json::to_string(&description).expect("as JSON");
    let again: Description = serde_json::from_str(&json).expect("what we wrote ourselves");
    assert_eq!(again, description);
    let (one, other) = (
        description.finish(&BTreeMap::new()),
        again.finish(&BTreeMap::new()),
    );
    assert_eq!(one.is_ok(), other.is_ok());
    let Ok(one) = one else {
        return false;
    };
    assert_eq!(other.ok().as_ref(), Some(&one));
    // It names a file of the ledger.
    assert!(!one.name.contains('/') && !one.name.starts_with('.'));
    assert!((1..=4).contains(&one.tiers.len()));
    true
}

fn changes(text: &str) -> bool {
    let Ok(changes) = serde_json::from_str::<Changes>(text) else {
        return false;
    };
    let json = serde_json::to_vec(&changes).expect("as JSON");
    assert_eq!(serde_json::from_slice::<Changes>(&json).ok(), Some(changes));
    true
}
