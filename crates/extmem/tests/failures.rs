// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What goes wrong says so in one line, ends the process, and leaves nothing behind.

mod bench;

use std::os::unix::fs::FileExt;
use std::process::{Command, Output, Stdio};

use bench::{Bench, text};

/// Exactly one line of ours, of the form "cause; next: what to do".
fn one_line(output: &Output, status: i32, words: &[&str]) {
    let told = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = told
        .lines()
        .filter(|line| line.starts_with("demeter extmem: error: "))
        .collect();
    assert_eq!(output.status.code(), Some(status), "{}", text(output));
    assert_eq!(lines.len(), 1, "{}", text(output));
    assert!(lines[0].contains("; next: "), "{}", lines[0]);
    for word in words {
        assert!(lines[0].contains(word), "no {word:?} in {}", lines[0]);
    }
}

#[test]
fn bad_settings_are_told_at_start() {
    let bench = Bench::new();
    let file = bench.folder().join("other");
    std::fs::write(&file, b"somebody else's data, which must stay").unwrap();
    let file = file.to_str().unwrap();
    for (name, value, words) in [
        ("DEMETER_EXTMEM_DRAM", "lots", vec!["lots"]),
        ("DEMETER_EXTMEM_DRAM", "1M", vec!["DRAM"]),
        (
            "DEMETER_EXTMEM_SWAP",
            "/nonexistent/folder",
            vec!["swap place /nonexistent/folder: it does not exist"],
        ),
        ("DEMETER_EXTMEM_SWAP", file, vec![file]),
        ("DEMETER_EXTMEM_SWAP_SIZE", "1000T", vec![]),
        ("DEMETER_EXTMEM_MODE", "fast", vec!["inline", "handler"]),
        ("DEMETER_EXTMEM_POLICY", "best", vec!["best"]),
        (
            "DEMETER_EXTMEM_POLICY",
            "/nonexistent.so",
            vec!["/nonexistent.so"],
        ),
        ("DEMETER_EXTMEM_COMPRESS", "maybe", vec!["maybe"]),
        (
            "DEMETER_EXTMEM_LOG",
            "/nonexistent/log",
            vec!["/nonexistent/log"],
        ),
        ("DEMETER_EXTMEM_INJECT", "chaos", vec![]),
    ] {
        let output = bench
            .paged("/bin/true".as_ref())
            .env(name, value)
            .output()
            .unwrap();
        one_line(&output, 2, &words);
    }
    let kept = std::fs::read(file).unwrap();
    assert_eq!(kept, b"somebody else's data, which must stay");
}

/// `/bin/true` under the pager, after a shell has set a limit.
fn limited(bench: &Bench, limit: &str) -> Output {
    let paged = bench.paged("/bin/true".as_ref());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}; exec env \"$@\" /bin/true"), "sh"]);
    for (name, value) in paged.get_envs() {
        let mut pair = name.to_os_string();
        pair.push("=");
        pair.push(value.unwrap());
        command.arg(pair);
    }
    command.output().unwrap()
}

#[test]
fn limits_that_are_too_low_are_named() {
    let bench = Bench::new();
    for (limit, words) in [
        ("ulimit -v 20000000", ["address space", "ulimit -v"]),
        ("ulimit -d 50000", ["address space", "ulimit -d"]),
        ("ulimit -n 8", ["open files", "ulimit -n"]),
    ] {
        one_line(&limited(&bench, limit), 2, &words);
    }
}

/// The runner would refuse it, and a managed program would start it without the library.
#[test]
fn a_sanitizer_that_has_our_addresses_is_named() {
    let bench = Bench::new();
    let program = bench.compile("threads", &["-fsanitize=thread"]);
    let output = bench.paged(&program).output().unwrap();
    one_line(&output, 2, &["is taken", "sanitizers"]);
}

#[test]
fn without_settings_the_library_stays_out_of_the_way() {
    let output = Command::new("/bin/echo")
        .arg("untouched")
        .env("LD_PRELOAD", bench::library())
        .env_remove("DRAMSIZE")
        .output()
        .unwrap();
    assert!(output.status.success() && output.stdout == b"untouched\n");
    assert!(output.stderr.is_empty(), "{}", text(&output));
}

/// A device that fails in mid-run: the page is named, and no wrong byte is ever seen (the
/// program would say so and end with another status).
#[test]
fn transfer_errors_end_the_program() {
    let bench = Bench::new();
    let program = bench.compile("threads", &[]);
    for (plan, words) in [
        ("read-eio@100", vec!["page 0x", "read"]),
        ("read-short@50", vec!["page 0x", "read"]),
        ("write-eio@5", vec!["page 0x", "written"]),
        ("write-enospc@5", vec!["page 0x", "written"]),
    ] {
        for mode in ["inline", "handler"] {
            let output = bench
                .paged(&program)
                .env("DEMETER_EXTMEM_INJECT", plan)
                .env("DEMETER_EXTMEM_COMPRESS", "off")
                .env("DEMETER_EXTMEM_MODE", mode)
                .output()
                .unwrap();
            one_line(&output, 70, &words);
        }
    }
    bench.assert_left_with(&["threads"]);
}

/// Runs a program that pages to a named file, to which something is done until it ends.
fn while_somebody(does: impl Fn(&std::fs::File)) -> Output {
    let bench = Bench::new();
    let program = bench.compile("threads", &[]);
    let swap = bench.folder().join("swap");
    let file = std::fs::File::create_new(&swap).unwrap();
    file.set_len(1 << 30).unwrap();
    let mut child = bench
        .paged(&program)
        .env("DEMETER_EXTMEM_SWAP", &swap)
        .env_remove("DEMETER_EXTMEM_SWAP_SIZE")
        .env("DEMETER_EXTMEM_COMPRESS", "off")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Not before the pager has looked at it: it would refuse what holds something.
    let mut mark = [0; 8];
    while child.try_wait().unwrap().is_none() {
        if mark == *b"demeter " {
            does(&file);
        } else {
            file.read_exact_at(&mut mark, 0).unwrap();
        }
    }
    child.wait_with_output().unwrap()
}

/// Somebody writes to the swap file: the program ends with the page named, and never sees a
/// byte of it (it would say so and end with another status).
#[test]
fn a_scribbled_swap_file_ends_the_program() {
    // All that is in use, again and again, until a page of it is wanted.
    let garbage = vec![0xa5u8; 64 << 20];
    let output = while_somebody(|file| file.write_all_at(&garbage, 0).unwrap());
    let words = ["page 0x", "at byte ", "is not what was written"];
    one_line(&output, 70, &words);
}

/// Somebody shortens it. Writes make it long again, with zeros for what is gone.
#[test]
fn a_truncated_swap_file_ends_the_program() {
    let output = while_somebody(|file| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        file.set_len(1 << 20).unwrap();
    });
    one_line(&output, 70, &["page 0x", "at byte ", "; next: check"]);
}

#[test]
fn memory_that_swap_cannot_hold_is_refused_at_once() {
    let bench = Bench::new();
    let program = bench.compile("fork", &[]);
    let output = bench
        .paged(&program)
        .env("DEMETER_EXTMEM_SWAP_SIZE", "20M")
        .output()
        .unwrap();
    // The program asks for 40 MiB, gets ENOMEM, and says so itself.
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("errno 12"),
        "{}",
        text(&output)
    );
}

#[test]
fn a_killed_program_leaves_nothing() {
    let bench = Bench::new();
    let program = bench.compile("threads", &[]);
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let mut child = bench.paged(&program).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(child.id() as i32, signal) };
        child.wait().unwrap();
        bench.assert_left_with(&["threads"]);
    }
}
