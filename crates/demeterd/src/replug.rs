// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After a restart of the daemon, or of a worker, monitors have devices whose other side is
//! gone. Where a monitor takes commands (`qmp`), its device is put in anew without anybody's
//! help.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use demeter_qmp::{Place, Plug, Qmp, QmpError};

use crate::ledger::{Entry, What};
use crate::spec::Socket;
use crate::vm::Vm;

/// A monitor that has lost a worker sees it within so many pauses.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);
/// Between looks at a device that we took out and could not put in, the last time: each pause
/// is twice the one before, two minutes together.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// A guest has heard within this that a device was put in. Who takes it out before is heard
/// twice by a guest with ACPI hotplug: it ejects once more what was put in meanwhile, and QEMU
/// takes that out without a word.
const HEARD: Duration = Duration::from_secs(1);

/// Looks once, in a thread of its own: a monitor may keep us waiting.
pub fn look_after(vm: Arc<Vm>) {
    look(vm, 1);
}

/// The same where a worker has just died.
pub fn after_death(vm: Arc<Vm>) {
    look(vm, TRIES);
}

fn look(vm: Arc<Vm>, tries: u32) {
    let Some(path) = vm.spec.qmp.clone() else {
        return;
    };
    // A monitor may keep one thread waiting, and not one for each death.
    if vm.replugs.fetch_add(1, Ordering::SeqCst) > 0 {
        return;
    }
    let (name, asked) = (vm.spec.name.clone(), vm.clone());
    let looked = thread::Builder::new()
        .name(format!("qmp {name}"))
        .spawn(move || {
            let mut seen = asked.replugs.load(Ordering::SeqCst);
            // Who asks besides asks after a death, which the monitor may not have seen yet.
            let mut tries = if seen > 1 { TRIES } else { tries };
            loop {
                look_once(&asked, &path, tries);
                tries = TRIES;
                let done =
                    (asked.replugs).compare_exchange(seen, 0, Ordering::SeqCst, Ordering::SeqCst);
                match done {
                    Ok(_) => return,
                    // A worker died meanwhile.
                    Err(more) => seen = more,
                }
            }
        });
    if let Err(error) = looked {
        vm.replugs.store(0, Ordering::SeqCst);
        tracing::error!(vm = name, "cannot start a thread: {error}");
    }
}

fn look_once(vm: &Vm, path: &Path, tries: u32) {
    let mut hang_ups = 1;
    let mut pause = PAUSE;
    let looked = loop {
        match look_there(vm, path, tries) {
            // A monitor has one place for commands, and hangs up on others: an earlier
            // daemon's connection may still be in it.
            Err(error) if is_hung_up(&error) && hang_ups < TRIES => {
                hang_ups += 1;
                thread::sleep(PAUSE);
            }
            Err(QmpError::Connect { path, cause }) if is_absent(&cause) => {
                break Err(QmpError::Connect { path, cause });
            }
            // It is out, or will be when the guest lets go.
            Err(error) if vm.ledger.taken_out().is_some() && pause <= LONGEST_PAUSE => {
                tracing::warn!(
                    vm = vm.spec.name,
                    "its device is not in yet: {error}; looking again in {pause:?}"
                );
                thread::sleep(pause);
                pause *= 2;
            }
            looked => break looked,
        }
    };
    if looked.is_err()
        && vm.ledger.taken_out().is_some()
        && let Ok(mut qmp) = Qmp::connect(path, || false)
    {
        close_if_in(vm, &mut qmp);
    }
    match looked {
        // Not started yet: it will connect by itself.
        Err(QmpError::Connect { cause, .. }) if is_absent(&cause) => {
            tracing::info!(vm = vm.spec.name, "no monitor takes commands: {cause}");
        }
        Ok(true) => tracing::info!(vm = vm.spec.name, "plugged in anew"),
        Ok(false) => {}
        Err(error) => tell(vm, &error),
    }
}

fn look_there(vm: &Vm, path: &Path, tries: u32) -> Result<bool, QmpError> {
    let mut qmp = Qmp::connect(path, || false)?;
    mend_within(vm, &mut qmp, tries)
}

fn is_hung_up(error: &QmpError) -> bool {
    match error {
        QmpError::Closed => true,
        QmpError::Silent(cause) | QmpError::Deaf(cause) => matches!(
            cause.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        ),
        _ => false,
    }
}

fn is_absent(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn tell(vm: &Vm, error: &QmpError) {
    let words = format!("not plugged in anew: {error}; next: {}", error.next());
    tracing::error!(vm = vm.spec.name, "{words}");
    vm.set_not_plugged(&words);
}

fn mend_within(vm: &Vm, qmp: &mut Qmp, tries: u32) -> Result<bool, QmpError> {
    for _ in 1..tries {
        if vm.is_connected() && vm.ledger.taken_out().is_none() {
            return Ok(false);
        }
        if mend(vm, qmp)? {
            return Ok(true);
        }
        thread::sleep(PAUSE);
    }
    mend(vm, qmp)
}

/// Puts the device in anew if it is cut off.
fn mend(vm: &Vm, qmp: &mut Qmp) -> Result<bool, QmpError> {
    // One that a daemon was putting in anew when it died, or when that failed, is out.
    let note = vm.ledger.taken_out();
    let place = place(vm, note.clone());
    let plug = match Plug::look(qmp, &place) {
        Ok(plug) => plug,
        // Somebody has taken it out and will put it in.
        Err(error @ QmpError::Missing { .. }) => {
            // Or we have, and of an inherited socket we do not know the name.
            if note.is_some() {
                tracing::error!(
                    vm = vm.spec.name,
                    "its device was taken out to be put in anew, and cannot be: {error}; next: demeter balloon replug --socket PATH --bus {}",
                    note.unwrap_or_default()
                );
            }
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    if plug.is_in && !plug.is_cut {
        // Somebody else has put it in: who takes it out from now on wants it out.
        if note.is_some() {
            vm.ledger.add(entry(&plug, What::PutIn));
        }
        return Ok(false);
    }
    if plug.is_in {
        thread::sleep(
            vm.ledger
                .since_put_in()
                .map_or(Duration::ZERO, |since| HEARD.saturating_sub(since)),
        );
        if vm.ledger.is_retired() {
            return Ok(false);
        }
    }
    if !vm.ledger.add_first(entry(&plug, What::TakenOut)) {
        tracing::warn!(
            vm = vm.spec.name,
            "its device is put in anew, and that is not noted, as the disk under the state \
             directory is full or does not answer: should the daemon end before it is in, the \
             next one does not know; next then: demeter balloon replug --socket PATH --bus {}",
            plug.bus
        );
    }
    match plug.take_out(qmp) {
        // An earlier attempt that the guest has not followed yet is refused like this, too,
        // and it may follow.
        Err(error @ QmpError::Stuck { .. }) if note.is_none() => {
            close_if_in(vm, qmp);
            return Err(error);
        }
        taken_out => taken_out?,
    }
    plug.put_in(qmp)?;
    vm.ledger.add(entry(&plug, What::PutIn));
    Ok(true)
}

/// A device that is in, and will not be taken out by us, needs nobody to put it in.
fn close_if_in(vm: &Vm, qmp: &mut Qmp) {
    let place = place(vm, vm.ledger.taken_out());
    match Plug::look(qmp, &place) {
        Ok(plug) if plug.is_in => vm.ledger.add(entry(&plug, What::PutIn)),
        Ok(_) => {}
        Err(error) => tracing::warn!(vm = vm.spec.name, "is its device in? {error}"),
    }
}

fn place(vm: &Vm, bus: Option<String>) -> Place {
    Place {
        socket: match &vm.spec.socket {
            Socket::Path(path) => Some(path.to_string_lossy().into_owned()),
            Socket::Descriptor(_) => None,
        },
        bus,
        ..Place::default()
    }
}

fn entry(plug: &Plug, what: What) -> Entry {
    Entry {
        bus: Some(plug.bus.clone()),
        ..Entry::now(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use serde_json::{Value, json};

    use vmm_sys_util::eventfd::EventFd;

    use crate::pair::{self, Pair};

    /// A machine whose monitor takes commands there.
    fn pair_of(qmp: &Path) -> Pair {
        let line = format!("a,socket=/s,fmem=gpa:0-0x1000,qmp={}", qmp.display());
        let pair = Pair::new(&line, &[]);
        pair.guest.disconnected();
        pair.carry();
        pair
    }

    fn machine(qmp: &Path) -> Arc<Vm> {
        pair_of(qmp).vm
    }

    /// What a monitor has, and what it refuses.
    #[derive(Default)]
    struct State {
        hang_ups: usize,
        is_in: bool,
        is_cut: bool,
        refuses_out: bool,
        /// So many times it does not put it in.
        refuses_in: usize,
        /// It takes it out, and not while one waits.
        is_late: bool,
        /// So many times it loses the daemon as soon as it is in.
        deaths: usize,
        /// Somebody puts it in when it was said to be out.
        comes: bool,
        /// It sees that the daemon is gone after so many questions about that.
        is_cut_after: Option<usize>,
    }

    impl State {
        fn answer(&mut self, command: &Value) -> Value {
            let property = command["arguments"]["property"].as_str();
            let refused = |words: &str| json!({"error": {"class": "GenericError", "desc": words}});
            match (command["execute"].as_str().unwrap(), property) {
                ("device_del", _) if self.is_late && self.is_in => {
                    // Asked again it is done.
                    (self.is_in, self.is_late) = (false, false);
                    refused("Device balloon0 is already in the process of unplug")
                }
                ("qom-get", Some("type")) if !self.is_in && self.comes => {
                    (self.is_in, self.comes) = (true, false);
                    json!({"error": {"class": "DeviceNotFound", "desc": "not found"}})
                }
                ("chardev-remove", _) if self.is_in => refused("Chardev is busy"),
                ("qom-get" | "device_del", _) if !self.is_in => {
                    json!({"error": {"class": "DeviceNotFound", "desc": "not found"}})
                }
                ("device_del", _) if self.refuses_out => {
                    refused("Bus 'pcie.0' does not support hotplugging")
                }
                ("device_del", _) => {
                    self.is_in = false;
                    json!({"return": {}})
                }
                ("device_add", _) if self.refuses_in > 0 => {
                    self.refuses_in -= 1;
                    refused("try again")
                }
                ("device_add", _) => {
                    (self.is_in, self.is_cut) = (true, self.deaths > 0);
                    self.deaths = self.deaths.saturating_sub(1);
                    json!({"return": {}})
                }
                (_, Some("type")) => json!({"return": "vhost-user-test-device-pci"}),
                (_, Some("parent_bus")) => json!({"return": "/machine/port7/port7"}),
                (_, Some("chardev")) => json!({"return": "balloon-socket"}),
                (_, Some(_)) => json!({"return": 256}),
                ("query-chardev", _) if self.is_in => {
                    if let Some(left) = self.is_cut_after.as_mut() {
                        *left = left.saturating_sub(1);
                        self.is_cut = *left == 0;
                        self.is_cut_after.take_if(|left| *left == 0);
                    }
                    let state = if self.is_cut { "disconnected:" } else { "" };
                    let filename = format!("{state}unix:/s");
                    json!({"return": [{"label": "balloon-socket", "filename": filename}]})
                }
                ("query-chardev", _) => json!({"return": []}),
                _ => json!({"return": {}}),
            }
        }
    }

    /// What it is, and the changes that it was told to make.
    struct Monitor {
        state: Arc<Mutex<State>>,
        told: Receiver<String>,
    }

    impl Monitor {
        fn new(path: &Path, state: State) -> Self {
            let listener = UnixListener::bind(path).unwrap();
            let (said, told) = channel();
            let state = Arc::new(Mutex::new(state));
            let of_monitor = state.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut state = of_monitor.lock().unwrap();
                    if state.hang_ups > 0 {
                        state.hang_ups -= 1;
                        continue;
                    }
                    drop(state);
                    let _ = serve(stream.unwrap(), &of_monitor, &said);
                }
            });
            Self { state, told }
        }

        /// Changes since it was last asked, when nobody looks any more.
        fn changes(&self, vm: &Vm) -> Vec<String> {
            while vm.replugs.load(Ordering::SeqCst) > 0 {
                thread::sleep(Duration::from_millis(5));
            }
            self.told.try_iter().collect()
        }

        /// Somebody puts the device in, or takes it out.
        fn by_hand(&self, is_in: bool) {
            let mut state = self.state.lock().unwrap();
            (state.is_in, state.is_cut) = (is_in, false);
            state.refuses_out = false;
        }
    }

    fn serve(stream: UnixStream, state: &Mutex<State>, said: &Sender<String>) -> io::Result<()> {
        let mut writer = stream.try_clone()?;
        writeln!(writer, "{}", json!({"QMP": {}}))?;
        for line in BufReader::new(stream).lines() {
            let command: Value = serde_json::from_str(&line?)?;
            let name = command["execute"].as_str().unwrap();
            if ["device_del", "device_add"].contains(&name) {
                let bus = command["arguments"]["bus"].as_str().unwrap_or_default();
                said.send(format!("{name} {bus}").trim_end().to_owned())
                    .unwrap();
            }
            let answer = state.lock().unwrap().answer(&command);
            if name == "device_del" {
                let data = json!({"device": "balloon0"});
                let event = json!({"event": "DEVICE_DELETED", "data": data});
                writeln!(writer, "{event}")?;
            }
            writeln!(writer, "{answer}")?;
        }
        Ok(())
    }

    fn cut_off() -> State {
        State {
            is_in: true,
            is_cut: true,
            ..State::default()
        }
    }

    fn note(vm: &Vm, what: What) {
        vm.ledger.add(Entry {
            bus: Some("port7".into()),
            ..Entry::now(what)
        });
    }

    #[test]
    fn a_monitor_that_hangs_up_is_asked_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        // QEMU has one place, and that may be an earlier daemon's for a moment.
        let state = State {
            hang_ups: 2,
            ..cut_off()
        };
        let monitor = Monitor::new(&path, state);
        let vm = machine(&path);
        look_after(vm.clone());
        assert_eq!(monitor.changes(&vm), ["device_del", "device_add port7"]);
        assert_eq!(vm.ledger.taken_out(), None);
    }

    #[test]
    fn what_a_daemon_took_out_before_it_died_is_put_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let monitor = Monitor::new(&path, State::default());
        let vm = machine(&path);
        note(&vm, What::TakenOut);
        look_after(vm.clone());
        assert_eq!(monitor.changes(&vm), ["device_add port7"]);
        assert_eq!(vm.ledger.taken_out(), None);
    }

    #[test]
    fn what_somebody_else_took_out_stays_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let monitor = Monitor::new(&path, State::default());
        let vm = machine(&path);
        note(&vm, What::TakenOut);
        note(&vm, What::PutIn);
        look_after(vm.clone());
        assert!(monitor.changes(&vm).is_empty());
    }

    #[test]
    fn what_could_not_be_taken_out_is_not_put_in_after_somebody_took_it_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let state = State {
            refuses_out: true,
            ..cut_off()
        };
        let monitor = Monitor::new(&path, state);
        let pair = pair_of(&path);
        let vm = pair.vm.clone();
        look_after(vm.clone());
        assert_eq!(monitor.changes(&vm), ["device_del"]);
        assert_eq!(vm.ledger.taken_out(), None, "it is in");
        let problem = vm.view().problem.unwrap();
        assert!(
            problem.contains("does not support hotplugging"),
            "{problem}"
        );
        assert!(problem.contains("next: put the device behind"), "{problem}");
        monitor.by_hand(false);
        look_after(vm.clone());
        assert!(monitor.changes(&vm).is_empty());
        // Once it is in, that is over; also when its machine ends later.
        (pair.guest).connected(Arc::new(EventFd::new(0).unwrap()));
        pair.carry();
        assert_eq!(vm.view().problem, None);
        pair.guest.disconnected();
        pair.carry();
        assert_eq!((vm.is_connected(), vm.view().problem), (false, None));
    }

    #[test]
    fn what_is_out_and_not_put_in_is_looked_at_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let state = State {
            refuses_in: 2,
            ..cut_off()
        };
        let monitor = Monitor::new(&path, state);
        let vm = machine(&path);
        look_after(vm.clone());
        let wanted = [
            "device_del",
            "device_add port7",
            "device_add port7",
            "device_add port7",
        ];
        assert_eq!(monitor.changes(&vm), wanted);
        assert_eq!(vm.ledger.taken_out(), None);
    }

    #[test]
    fn a_guest_that_lets_go_late_has_its_device_put_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let state = State {
            is_late: true,
            ..cut_off()
        };
        let monitor = Monitor::new(&path, state);
        let vm = machine(&path);
        // It was told before.
        note(&vm, What::TakenOut);
        look_after(vm.clone());
        let changes = monitor.changes(&vm);
        assert_eq!(changes, ["device_del", "device_add port7"]);
        assert_eq!(vm.ledger.taken_out(), None);
    }

    #[test]
    fn what_somebody_put_in_for_a_dead_daemon_is_not_put_in_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let monitor = Monitor::new(&path, State::default());
        let vm = machine(&path);
        note(&vm, What::TakenOut);
        monitor.by_hand(true);
        look_after(vm.clone());
        assert!(monitor.changes(&vm).is_empty());
        assert_eq!(vm.ledger.taken_out(), None, "it is in");
        monitor.by_hand(false);
        look_after(vm.clone());
        assert!(monitor.changes(&vm).is_empty());
    }

    #[test]
    fn what_somebody_put_in_and_took_out_between_two_looks_stays_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let monitor = Monitor::new(&path, State::default());
        let pair = pair::driven_with(directory.path(), "a", &format!("qmp={}", path.display()));
        let vm = pair.vm.clone();
        pair.guest.disconnected();
        pair.carry();
        // The daemon could not put it in, and looks again in a while.
        note(&vm, What::TakenOut);
        monitor.by_hand(true);
        pair.guest.connected(Arc::new(EventFd::new(0).unwrap()));
        pair.carry();
        assert!(vm.ledger.taken_out().is_some(), "a connection is no device");
        pair.greet(0);
        pair.carry();
        assert_eq!(vm.ledger.taken_out(), None, "who greets has a device");
        monitor.by_hand(false);
        pair.guest.disconnected();
        pair.carry();
        look_after(vm.clone());
        assert!(monitor.changes(&vm).is_empty());
    }

    #[test]
    fn who_was_just_put_in_is_not_taken_out_before_the_guest_has_heard_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let state = State {
            deaths: 1,
            ..cut_off()
        };
        let monitor = Monitor::new(&path, state);
        let vm = machine(&path);
        // The ledger has whole milliseconds.
        let least = HEARD - Duration::from_millis(2);
        let since = Instant::now();
        look_after(vm.clone());
        assert_eq!(monitor.changes(&vm), ["device_del", "device_add port7"]);
        after_death(vm.clone());
        assert_eq!(monitor.changes(&vm), ["device_del", "device_add port7"]);
        assert!(since.elapsed() >= least, "{:?}", since.elapsed());
        // Nor what somebody put in: he has connected just now.
        let vm = machine(&path);
        let since = Instant::now();
        vm.ledger.add(Entry::now(What::Connected));
        monitor.state.lock().unwrap().is_cut = true;
        look_after(vm.clone());
        assert_eq!(monitor.changes(&vm), ["device_del", "device_add port7"]);
        assert!(since.elapsed() >= least, "{:?}", since.elapsed());
    }

    #[test]
    fn who_was_removed_while_the_guest_hears_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let monitor = Monitor::new(&path, cut_off());
        let vm = machine(&path);
        vm.ledger.add(Entry::now(What::PutIn));
        look_after(vm.clone());
        vm.ledger.retire();
        assert!(monitor.changes(&vm).is_empty());
    }

    #[test]
    fn what_is_put_in_while_one_looks_is_not_taken_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let state = State {
            comes: true,
            ..State::default()
        };
        let monitor = Monitor::new(&path, state);
        let vm = machine(&path);
        note(&vm, What::TakenOut);
        look_after(vm.clone());
        assert!(monitor.changes(&vm).is_empty());
        assert_eq!(vm.ledger.taken_out(), None, "it is in");
    }

    #[test]
    fn a_death_that_the_monitor_sees_late_is_looked_for_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let state = State {
            is_in: true,
            is_cut_after: Some(4),
            ..State::default()
        };
        let monitor = Monitor::new(&path, state);
        let vm = machine(&path);
        // A look of a start is under way when the worker dies.
        look_after(vm.clone());
        after_death(vm.clone());
        assert_eq!(monitor.changes(&vm), ["device_del", "device_add port7"]);
    }

    #[test]
    fn a_monitor_that_says_nothing_keeps_one_thread() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let vm = machine(&path);
        (0..10).for_each(|_| after_death(vm.clone()));
        // It has connected, and waits for a greeting.
        let silent = listener.accept().unwrap();
        (0..10).for_each(|_| after_death(vm.clone()));
        listener.set_nonblocking(true).unwrap();
        thread::sleep(PAUSE);
        let more = listener.accept();
        assert!(more.is_err(), "there is another one");
        assert_eq!(vm.replugs.load(Ordering::SeqCst), 20);
        drop((silent, listener));
        while vm.replugs.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
