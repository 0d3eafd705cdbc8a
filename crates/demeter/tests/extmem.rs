// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter extmem` on real programs. All of it needs the pager's library, which
//! `make build` and `cargo test --workspace` build.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::Duration;

fn demeter() -> Command {
    Command::new(env!("CARGO_BIN_EXE_demeter"))
}

/// The folder of the library: $DEMETER_LIBEXEC, or where this test's binaries lie.
fn library() -> PathBuf {
    let folder = match std::env::var_os("DEMETER_LIBEXEC") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_BIN_EXE_demeter"))
            .parent()
            .unwrap()
            .to_owned(),
    };
    assert!(
        folder.join("libdemeter_extmem.so").exists(),
        "no libdemeter_extmem.so in {}; next: cargo build --release -p demeter-extmem",
        folder.display()
    );
    folder
}

fn run(folder: &Path, swap: &Path, options: &[&str], command: &[&str]) -> Output {
    demeter()
        .env("DEMETER_LIBEXEC", folder)
        .env_remove("DRAMSIZE")
        .env_remove("SWAPDIR")
        .args(["extmem", "run", "--dram", "32M", "--swap"])
        .arg(swap)
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_one_error(output: &Output, message: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains(message) && text.contains("; next: "),
        "{text}"
    );
}

/// Fills 96 MiB with lines that do not compress away, and prints them in order.
const SORT: &str = "seq 1 600000 | sha1sum > /dev/null; seq 600000 -1 1 | sort -n --buffer-size=96M --parallel=1 | md5sum";

#[test]
fn a_real_program_gives_the_same_output_and_leaves_nothing() {
    let folder = library();
    let swap = tempfile::tempdir_in(&folder).unwrap();
    let json = swap.path().join("summary.json");
    let native = Command::new("sh").args(["-c", SORT]).output().unwrap();
    let options = ["--json", json.to_str().unwrap(), "--policy", "clock"];
    let paged = run(&folder, swap.path(), &options, &["sh", "-c", SORT]);
    assert!(paged.status.success(), "{}", stderr(&paged));
    assert_eq!(paged.stdout, native.stdout);
    let text = stderr(&paged);
    assert!(
        text.starts_with("demeter extmem: ") && text.contains("policy clock"),
        "{text}"
    );
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let touched: u64 = summary["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["counters"]["first_touches"].as_u64().unwrap())
        .sum();
    assert!(touched > 4096, "{touched}");
    // What a managed shell starts pages as well as the shell, under the filter it inherits.
    let engines: BTreeSet<_> = summary["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|process| process["command"] != "(fork)")
        .map(|process| process["engine"].as_str().unwrap())
        .collect();
    assert_eq!(engines.len(), 1, "{engines:?}");
    std::fs::remove_file(&json).unwrap();
    assert_eq!(std::fs::read_dir(swap.path()).unwrap().count(), 0);
}

#[test]
fn status_and_signals_are_the_programs() {
    let folder = library();
    let swap = tempfile::tempdir_in(&folder).unwrap();
    let failed = run(&folder, swap.path(), &["--quiet"], &["sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(7));
    assert_eq!(stderr(&failed), "");
    let killed = run(&folder, swap.path(), &["-q"], &["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(128 + 9));
    // SIGTERM to us alone reaches the program, which may say its last word.
    let mut child = waiting(&folder, swap.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    // SAFETY: our own child.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(ended(&mut child).code(), Some(5));
    assert_eq!(std::fs::read_dir(swap.path()).unwrap().count(), 0);
}

/// A managed shell that waits for SIGTERM.
fn waiting(folder: &Path, swap: &Path) -> Command {
    const SCRIPT: &str = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = demeter();
    command
        .env("DEMETER_LIBEXEC", folder)
        .args(["extmem", "run", "-q", "--dram", "32M", "--swap"])
        .arg(swap)
        .args(["--", "sh", "-c", SCRIPT]);
    command
}

/// The status of a child that must end by itself.
fn ended(child: &mut Child) -> ExitStatus {
    for _ in 0..600 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    panic!("it goes on a minute after it should have ended");
}

/// Whenever the signal comes, somebody heeds it: the runner before the program is
/// there, the program from then on.
#[test]
fn no_moment_of_the_start_loses_a_signal() {
    let folder = library();
    let swap = tempfile::tempdir_in(&folder).unwrap();
    for delay_ms in 0..40 {
        let mut child = waiting(&folder, swap.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        // SAFETY: our own child.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let status = ended(&mut child);
        // By the signal before anybody caught it; told to stop; or the program's word.
        let heeded =
            status.signal() == Some(libc::SIGTERM) || matches!(status.code(), Some(130 | 143 | 5));
        assert!(heeded, "after {delay_ms} ms: {status}");
    }
    assert_eq!(std::fs::read_dir(swap.path()).unwrap().count(), 0);
}

/// Nobody can pass SIGKILL on. The program then hears of it as of a SIGTERM, and ends.
#[test]
fn a_killed_runner_leaves_no_program() {
    let folder = library();
    let swap = tempfile::tempdir_in(&folder).unwrap();
    let mut child = waiting(&folder, swap.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut output, &mut ready).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // The last writer's end is the end of the file.
        let rest = std::io::Read::read_to_end(&mut output, &mut Vec::new());
        ended.send(rest.is_ok())
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
    assert_eq!(std::fs::read_dir(swap.path()).unwrap().count(), 0);
}

#[test]
fn statistics_can_be_watched() {
    let folder = library();
    let swap = tempfile::tempdir_in(&folder).unwrap();
    let file = swap.path().join("statistics");
    let options = ["--stats", file.to_str().unwrap(), "-q"];
    let output = run(&folder, swap.path(), &options, &["sh", "-c", SORT]);
    assert!(output.status.success(), "{}", stderr(&output));
    let top = demeter()
        .args(["extmem", "top", "--count", "1"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8(top.stdout).unwrap();
    assert!(
        text.contains("swap-ins/s") && text.contains("sort"),
        "{text}"
    );
    let json = demeter()
        .args(["extmem", "top", "--count", "1", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(value["processes"].as_array().unwrap().len() >= 2);
}

#[test]
fn swap_errors_end_the_program_with_one_line() {
    let folder = library();
    let swap = tempfile::tempdir_in(&folder).unwrap();
    let data = tempfile::tempdir().unwrap();
    let input = data.path().join("numbers");
    let numbers = Command::new("seq")
        .args(["3000000", "-1", "1"])
        .output()
        .unwrap();
    std::fs::write(&input, numbers.stdout).unwrap();
    let output = demeter()
        .env("DEMETER_LIBEXEC", &folder)
        .env("DEMETER_EXTMEM_INJECT", "write-enospc@1")
        .args([
            "extmem",
            "run",
            "-q",
            "--compress",
            "off",
            "--dram",
            "32M",
            "--swap",
        ])
        .arg(swap.path())
        .args(["--", "sort", "-n", "--buffer-size=96M"])
        .arg(&input)
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(70), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains("no space left on device") && text.contains("page 0x"),
        "{text}"
    );
    assert_eq!(std::fs::read_dir(swap.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_work_is_refused_in_one_line() {
    let nowhere = tempfile::tempdir().unwrap();
    let folder = library();
    let swap = nowhere.path();
    for (options, command, message) in [
        (
            &["--policy", "lru"][..],
            &["true"][..],
            "no built-in policy 'lru'",
        ),
        (
            &["--swap-size", "1000T"],
            &["true"],
            "MiB free where --swap-size",
        ),
        (&[], &["/no/such/program"], "is not found"),
        (&[], &["/etc/passwd"], "is not executable"),
        (
            &["--stats", "/etc/passwd"],
            &["true"],
            "is no statistics file",
        ),
    ] {
        assert_one_error(&run(&folder, swap, options, command), message);
    }
    assert_one_error(
        &run(&folder, &swap.join("none"), &[], &["true"]),
        "does not exist",
    );
    let precious = swap.join("precious");
    std::fs::write(&precious, vec![7; 2 << 20]).unwrap();
    let refused = run(&folder, &precious, &[], &["true"]);
    assert_one_error(&refused, "holds data that swapping would destroy");
    assert!(std::fs::read(&precious).unwrap() == vec![7; 2 << 20]);
    let top = demeter()
        .args(["extmem", "top", "/no/such/file"])
        .output()
        .unwrap();
    assert_one_error(&top, "cannot open the statistics file");
}

/// A name may hold what ends a line, or what a terminal takes for an order: whoever tells of it,
/// runner or library, before, in or after the run.
#[test]
fn letters_that_command_a_terminal_are_shown_wherever_a_path_is() {
    let folder = library();
    let parent = tempfile::tempdir_in(&folder).unwrap();
    let bad = parent.path().join("bad\n\x1b[2J");
    let [one, two, data, text] = ["one", "two", "data", "text.so"].map(|name| bad.join(name));
    for path in [&one, &two] {
        std::fs::create_dir_all(path).unwrap();
    }
    std::fs::write(&data, vec![7; 2 << 20]).unwrap();
    std::fs::write(&text, "text").unwrap();
    let [none, text] = [bad.join("none/none"), text].map(|path| path.to_str().unwrap().to_owned());
    let two = two.to_str().unwrap();
    let inject = "DEMETER_EXTMEM_INJECT=read-eio@1";
    let sort = format!("{SORT}; exit 3");
    for (swap, options, command, message) in [
        // The runner refuses …
        (
            &bad.join("none"),
            &["-q"][..],
            &["true"][..],
            "does not exist",
        ),
        (&one, &["-q"], &[&none], "is not found"),
        (&one, &["-q"], &[&text], "is not executable"),
        (
            &one,
            &["-q", "--policy", &none],
            &["true"],
            "cannot find policy",
        ),
        (
            &one,
            &["-q", "--stats", &none],
            &["true"],
            "statistics file",
        ),
        (
            &one,
            &["-q", "--stats", &text],
            &["true"],
            "is no statistics file",
        ),
        (
            &one,
            &["-q", "--swap", two, "--swap", two],
            &["true"],
            "are the same place",
        ),
        (&one, &["-q", "--json", &none], &["true"], "cannot write"),
        // … tells what it does …
        (
            &one,
            &["--swap", two],
            &["sh", "-c", "exit 3"],
            "swap goes to",
        ),
        // … and so does the library.
        (&data, &["-q"], &["true"], "holds data"),
        (
            &one,
            &["-q", "--log", &none],
            &["true"],
            "cannot write the decision log",
        ),
        (
            &one,
            &["-q", "--policy", &text],
            &["true"],
            "cannot load policy",
        ),
        (
            &one,
            &["-q", "--compress", "off"],
            &["env", inject, "sh", "-c", &sort],
            "swap read of slot",
        ),
    ] {
        let output = run(&folder, swap, options, command);
        let told = stderr(&output);
        assert!(
            !output.status.success() && told.contains(message),
            "{message}: {told}"
        );
        let lines: Vec<_> = told.split_terminator('\n').collect();
        let line = lines.iter().find(|line| line.contains(message)).unwrap();
        assert!(line.contains(r"/bad\n\u{1b}[2J/"), "{message}: {told}");
        for line in lines {
            assert!(
                line.starts_with("demeter") || line.starts_with("  "),
                "{message}: {told}"
            );
            assert!(!line.contains(char::is_control), "{message}: {told}");
        }
    }
    for (options, message) in [
        (&["top", &none][..], "cannot open"),
        (&["doctor"], "is missing at"),
    ] {
        let output = demeter()
            .env("DEMETER_LIBEXEC", &none)
            .arg("extmem")
            .args(options)
            .output()
            .unwrap();
        let told = String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output);
        let line = told.lines().find(|line| line.contains(message)).unwrap();
        assert!(line.contains(r"/bad\n\u{1b}[2J/"), "{message}: {told}");
    }
}

#[test]
fn the_doctor_tries_a_program_and_says_what_forbids_it() {
    let folder = library();
    let doctor = |limit: &str| {
        Command::new("sh")
            .args(["-c", &format!("{limit} exec \"$0\" extmem doctor")])
            .arg(env!("CARGO_BIN_EXE_demeter"))
            .env("DEMETER_LIBEXEC", &folder)
            .output()
            .unwrap()
    };
    let well = doctor("");
    let told = String::from_utf8_lossy(&well.stdout).into_owned();
    assert!(well.status.success(), "{told}");
    assert!(
        told.contains("ok       a program") && told.contains("40 MiB of memory in 16 MiB"),
        "{told}"
    );
    let limited = doctor("ulimit -v 4000000;");
    let told = String::from_utf8_lossy(&limited.stdout).into_owned();
    assert_eq!(limited.status.code(), Some(1), "{told}");
    assert!(
        told.contains("FAILED   a program") && told.contains("next: lift the limits"),
        "{told}"
    );
}
