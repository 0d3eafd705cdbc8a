// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration that is read anew, or a start, changes.

use super::*;

use crate::args::settings_of;

const LONG: Duration = Duration::from_secs(60);

/// Guests are served by threads, as the program of a test serves nobody.
fn settings(text: &str) -> Settings {
    settings_of("file".as_ref(), &format!("isolation = 'none'\n{text}")).unwrap()
}

fn configured(policy: &str) -> Settings {
    settings(&format!("[policy]\nname = '{policy}'\nfmem-pool = '1G'"))
}

fn chosen(policy: &str) -> PolicyView {
    configured(policy).policy
}

fn state(directory: &tempfile::TempDir) -> Arc<State> {
    Arc::new(State::open(directory.path()).unwrap())
}

/// A daemon with that configuration, on what the last one has written.
fn start(state: &Arc<State>, settings: Settings) -> Fleet {
    state.files.wait(state.files.last(), LONG).unwrap();
    Fleet::start(settings, Some(state.clone())).unwrap()
}

#[test]
fn a_choice_that_a_reload_gave_up_does_not_come_back_with_what_was_configured_then() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let fleet = start(&state, configured("external"));
    fleet.set_policy(&chosen("pressure")).unwrap();
    // As before: it stands.
    fleet.reload(configured("external")).unwrap();
    assert_eq!(fleet.policy_view().name, "pressure");
    for policy in ["static", "external"] {
        fleet.reload(configured(policy)).unwrap();
        assert_eq!(fleet.policy_view().name, policy);
    }
    drop(fleet);
    let fleet = start(&state, configured("external"));
    assert_eq!(fleet.policy_view().name, "external");
}

#[test]
fn a_choice_that_a_start_gave_up_does_not_come_back_either() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let fleet = start(&state, configured("external"));
    fleet.set_policy(&chosen("pressure")).unwrap();
    drop(fleet);
    for (configuration, policy) in [
        ("external", "pressure"),
        ("static", "static"),
        ("external", "external"),
    ] {
        let fleet = start(&state, configured(configuration));
        assert_eq!(fleet.policy_view().name, policy);
    }
}
