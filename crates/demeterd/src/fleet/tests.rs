// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration that is read anew, or a start, changes.

use super::*;

use crate::args::settings_of;

const LONG: Duration = Duration::from_secs(60);

impl Fleet {
    /// Has that machine, in the place of one of its name; a test serves it.
    pub(crate) fn put(&self, vm: &Arc<Vm>) {
        let member = Member {
            vm: vm.clone(),
            keeper: None,
            waits_for_disk: false,
            added: Some(Description::default()),
        };
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.insert(vm.spec.name.clone(), member);
    }
}

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

#[test]
fn a_class_says_what_those_who_were_added_are_entitled_to() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let gold = |keys: &str| settings(&format!("[class.gold]\n{keys}"));
    let fleet = start(&state, gold("fmem-floor = '1M'"));
    let at = |name: &str| directory.path().join(name).display().to_string();
    let line = format!("a,socket={},fmem={},class=gold", at("s"), at("f"));
    let line = format!("{line},fmem-ceiling=4M");
    let vm = fleet.add(Description::parse(&line).unwrap()).unwrap();
    let floor_bytes = || vm.share().fmem_floor_bytes;
    assert_eq!(floor_bytes(), 1 << 20);
    fleet
        .reload(gold("fmem-floor = '2M'\nfmem-ceiling = '8M'"))
        .unwrap();
    assert_eq!(floor_bytes(), 2 << 20);
    assert_eq!(vm.share().fmem_ceiling_bytes, Some(4 << 20), "its own");
    assert_eq!(vm.view().problem, None);
    // Impossible for it, and gone: it is served as before, and says so.
    for (wrong, why) in [
        (gold("fmem-floor = '5M'"), "fmem-ceiling below fmem-floor"),
        (settings(""), "no class 'gold'"),
    ] {
        fleet.reload(wrong).unwrap();
        assert_eq!(floor_bytes(), 2 << 20);
        let problem = vm.view().problem.unwrap();
        assert!(problem.contains(why), "{problem}");
        assert!(fleet.is_served("a"));
    }
    fleet.reload(gold("fmem-floor = '3M'")).unwrap();
    assert_eq!((floor_bytes(), vm.view().problem), (3 << 20, None));
    fleet.remove("a").unwrap();
}

/// A ledger takes 16 MiB, which a slow disk does not read in five seconds.
#[test]
fn who_waits_for_the_disk_at_a_start_is_served_when_it_answers() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let at = |name: &str| directory.path().join(name).display().to_string();
    let vm = |name: &str| {
        let (socket, fmem) = (at(name), at("f"));
        format!("[[vm]]\nname = '{name}'\nsocket = '{socket}'\nfmem = '{fmem}'\n")
    };
    // Nobody is left of an earlier daemon that was killed.
    drop(std::os::unix::net::UnixListener::bind(at("b")).unwrap());
    let (thaws, frozen) = std::sync::mpsc::channel::<()>();
    let place = state.reads.push(move || {
        let _ = frozen.recv();
    });
    let fleet = start(&state, settings(&(vm("a") + &vm("b"))));
    let problem = |name: &str| fleet.vm(name).unwrap().view().problem;
    for name in ["a", "b"] {
        assert!(!fleet.is_served(name));
        let problem = problem(name).unwrap();
        assert!(problem.contains("does not answer"), "{problem}");
        assert!(problem.contains("tried again"), "{problem}");
    }
    // No monitor gets through to somebody who does not serve it.
    assert!(!directory.path().join("a").exists());
    assert!(fleet.try_again().is_empty());
    drop(thaws);
    state.reads.wait(place, LONG).unwrap();
    assert_eq!(fleet.try_again().len(), 2);
    for name in ["a", "b"] {
        assert!(fleet.is_served(name));
        assert_eq!(problem(name), None);
    }
    fleet.end("a");
    fleet.end("b");
}
