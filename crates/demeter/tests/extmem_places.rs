// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter extmem run` with several places for swap. Needs root, as it mounts a file system
//! in memory of 96 MiB beside a folder on disk.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Swaps some 70 MiB with 32 of DRAM.
const SORT: &str = "seq 600000 -1 1 | sort -n --buffer-size=96M --parallel=1 | md5sum";

/// Where the test binary lies is a disk.
fn folder() -> PathBuf {
    match std::env::var_os("DEMETER_LIBEXEC") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_BIN_EXE_demeter"))
            .parent()
            .unwrap()
            .to_owned(),
    }
}

/// A script in which $M is memory, $K a folder on disk, and `run` what runs a program.
fn between_memory_and_disk(script: &str) -> Output {
    let place = tempfile::tempdir_in(folder()).unwrap();
    let [memory, disk] = ["memory", "disk"].map(|name| place.path().join(name));
    for path in [&memory, &disk] {
        std::fs::create_dir(path).unwrap();
    }
    let output = Command::new("unshare")
        .args(["-m", "sh", "-ec"])
        .arg(format!(
            "mount -t tmpfs -o size=96M none \"$M\"\n\
             run() {{ \"$D\" extmem run --dram 32M --compress off \"$@\"; }}\n{script}"
        ))
        .env("D", env!("CARGO_BIN_EXE_demeter"))
        .env("M", &memory)
        .env("K", &disk)
        .env("SORT", SORT)
        .env("DEMETER_LIBEXEC", folder())
        .env_remove("DRAMSIZE")
        .env_remove("SWAPDIR")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
    output
}

fn text(output: &Output) -> (String, String) {
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn assert_sorts(output: &Output) -> String {
    let plain = Command::new("sh").args(["-c", SORT]).output().unwrap();
    let (out, told) = text(output);
    assert!(output.status.success(), "{}: {out}{told}", output.status);
    assert_eq!(out, text(&plain).0, "{told}");
    told
}

#[test]
fn what_one_cannot_hold_goes_to_the_next() {
    const REFUSED: &str = "were refused, for swap could not hold all";
    let alone = between_memory_and_disk("run --swap $M --swap-size 24M -- sh -c \"$SORT\"");
    assert!(text(&alone).1.contains(REFUSED), "{alone:?}");
    let both = between_memory_and_disk(
        "run --swap $M --swap-size 24M --swap $K --swap-size 400M -- sh -c \"$SORT\"",
    );
    let told = assert_sorts(&both);
    assert!(!told.contains(REFUSED), "{told}");
    let written = told
        .lines()
        .find(|line| line.contains("swap      "))
        .unwrap();
    assert!(!written.contains("0 MiB in 0 writes"), "{told}");
}

/// The program itself fills the disk under the first place, before it needs swap.
#[test]
fn a_disk_that_is_full_is_passed_over() {
    const FILL: &str = "head -c 200M /dev/zero > $M/filler || true; exec sh -c \"$SORT\"";
    let run = |places: &str| {
        between_memory_and_disk(&format!(
            "run -q --swap-order given {places} -- sh -c '{FILL}'"
        ))
    };
    let alone = run("--swap $M --swap-size 90M");
    let (_, told) = text(&alone);
    assert!(
        !alone.status.success() || told.contains("disk"),
        "a full disk was no trouble: {told}"
    );
    let both = run("--swap $M --swap-size 90M --swap $K --swap-size 400M");
    // head(1) says that it could not write all.
    let told = assert_sorts(&both);
    assert!(!told.contains("demeter"), "{told}");
}

/// Of 96 MiB nobody is promised 64 twice; a sparse file is to have what it lacks, too.
#[test]
fn what_a_file_system_has_free_is_promised_once() {
    let output = between_memory_and_disk(
        "mkdir $M/a $M/b; truncate -s 64M $M/sparse\n\
         try() { run -q \"$@\" -- echo started || echo $?; }\n\
         try --swap $M/a --swap $M/b --swap-size 64M\n\
         try --swap $M/a --swap $M/sparse --swap-size 60M\n\
         try --swap $M/a --swap $M/b --swap-size 40M\n\
         try --swap $M/a --swap $M/b\n\
         try --swap $M/a --swap $K --swap-size 64M",
    );
    let (out, told) = text(&output);
    assert_eq!(out, "2\n2\nstarted\nstarted\nstarted\n", "{told}");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(
        lines[0].contains("/memory/b: it has room for ")
            && lines[0].contains(" (and 64 MiB that other places on its disk were promised) where 64 MiB are needed; next: free some space"),
        "{told}"
    );
    assert!(
        lines[1].contains("/memory/a: it has room for ") && lines[1].contains("promised"),
        "{told}"
    );
}

/// Each would fit alone; the trial would fill the first before the second is refused.
#[test]
fn sparse_files_that_do_not_fit_together_are_refused_as_they_are() {
    let output = between_memory_and_disk(
        "truncate -s 64M $M/a $M/b\n\
         run -q --swap $M/a --swap $M/b -- true || echo $?\n\
         stat -c %b $M/a $M/b\n\
         run -q --swap $M/a --swap $M/b --swap-size 64M -- true || echo $?\n\
         run -q --swap $M/a --swap $M/b --swap-size 40M -- echo started",
    );
    let (out, told) = text(&output);
    assert_eq!(out, "2\n0\n0\n2\nstarted\n", "{told}");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(
        lines[0].contains("/memory/b: it is sparse, and its disk has ")
            && lines[0].contains("promised) left for the 64 MiB that it lacks; next: "),
        "{told}"
    );
    assert!(
        lines[1].contains("/memory/a is too small: 65536 KiB where --swap-size is ")
            && lines[1].contains("`fallocate -l 65540KiB`"),
        "{told}"
    );
}

/// Of a file that is larger than this user may write, as much is to have its space as is used, and
/// of that no more than is left.
#[test]
fn what_lies_above_a_limit_is_promised_to_nobody() {
    let output = between_memory_and_disk(
        "truncate -s 200M $M/a $M/b\n\
         ulimit -f $((56 << 11))\n\
         run -q --swap $M/a --swap $M/b -- true || echo $?\n\
         stat -c %b $M/a $M/b\n\
         run -q --swap $M/a -- echo started\n\
         run -q --swap $M/a --swap $K --swap-size 40M -- echo started",
    );
    let (out, told) = text(&output);
    assert_eq!(out, "2\n0\n0\nstarted\nstarted\n", "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(
        told.contains("/memory/b: it is sparse, and its disk has ")
            && told.contains(" (and 56 MiB that other places on its disk were promised) left for the 56 MiB that it lacks"),
        "{told}"
    );
}

#[test]
fn the_faster_place_is_found_by_trial_and_told() {
    for order in ["--swap $K --swap $M", "--swap $M --swap $K"] {
        let output = between_memory_and_disk(&format!(
            "run {order} --swap-size 64M -- true; echo $M; echo $K"
        ));
        let (out, told) = text(&output);
        let (memory, disk) = out.trim().split_once('\n').unwrap();
        let line = told.lines().next().unwrap();
        assert!(
            line.starts_with(&format!(
                "demeter extmem: swap goes to {memory} (a page in "
            )) && line.contains(&format!(" us), then {disk} (a page in ")),
            "{told}"
        );
    }
    let given = between_memory_and_disk(
        "run --swap-order given --swap $K --swap $M --swap-size 64M -- true",
    );
    assert!(!text(&given).1.contains("swap goes to"), "{given:?}");
}

/// A program looks at itself, with a fork that shares all that it has there.
#[test]
fn how_full_each_place_is_can_be_watched() {
    const HOLD: &str = "import os, random, sys, time; r = random.Random(1); \
        b = [r.randbytes(1 << 20) for _ in range(72)]; \
        child = os.fork() or time.sleep(60); time.sleep(1); \
        os.system(sys.argv[1]); os.kill(child, 9); os.wait()";
    let output = between_memory_and_disk(&format!(
        "run -q --stats $K.board --swap $K --swap-size 400M --swap $M --swap-size 24M \
         -- python3 -c '{HOLD}' \"$D extmem top --count 1 $K.board\"\n\
         run -q --stats $K.alone --swap $M -- sh -c \"true; $D extmem top --count 1 $K.alone\"\n\
         echo $M; echo $K"
    ));
    let (out, told) = text(&output);
    assert!(output.status.success(), "{out}{told}");
    let lines: Vec<_> = out.lines().collect();
    let heads: Vec<_> = (0..lines.len())
        .filter(|&at| lines[at].starts_with("swap place "))
        .collect();
    // What has one place has its use in the column "swap".
    assert_eq!(heads.len(), 1, "{out}");
    let row = |at: usize| -> (&str, u64, u64) {
        let words: Vec<_> = lines[heads[0] + at].split_whitespace().collect();
        (
            words[0],
            words[1].parse().unwrap(),
            words[2].parse().unwrap(),
        )
    };
    let [memory, disk] = [lines[lines.len() - 2], lines[lines.len() - 1]];
    // In the order in which they are filled, not as given.
    let (first, second) = (row(2), row(3));
    assert!(
        first.0 == memory && (20..=24).contains(&first.1) && first.2 == 24,
        "{out}"
    );
    assert!(
        second.0 == disk && (8..=80).contains(&second.1) && second.2 == 400,
        "{out}"
    );
}

#[test]
fn a_file_that_holds_data_is_refused_and_kept_among_others_too() {
    let output = between_memory_and_disk(
        "head -c 2M /dev/urandom > $M/precious; md5sum < $M/precious > $M/before\n\
         run -q --swap $K --swap-size 64M --swap $M/precious --swap-size 1M -- true || true\n\
         md5sum < $M/precious | cmp - $M/before && echo kept",
    );
    let (out, told) = text(&output);
    assert_eq!(out, "kept\n", "{told}");
    assert!(
        told.contains("holds data that swapping would destroy"),
        "{told}"
    );
}

/// The trial writes to it: it is marked before, so that it is no data that swapping destroys.
#[test]
fn a_new_file_is_tried_and_then_used_among_others() {
    let output = between_memory_and_disk(
        "fallocate -l 32M $M/new\n\
         run --swap $M/new --swap-size 24M --swap $K --swap-size 400M -- sh -c \"$SORT\"\n\
         run -q --swap $M/new --swap-size 24M -- true && echo again >&2",
    );
    let told = assert_sorts(&output);
    assert!(told.contains("/new (a page in "), "{told}");
    assert!(told.ends_with("again\n"), "{told}");
}

/// A file that is too small is left as it is; of one that this user may not make so large that much
/// is used, and the trial, too, keeps to it.
#[test]
fn what_is_refused_is_not_tried() {
    let output = between_memory_and_disk(
        "(head -c 200K /dev/zero; head -c 300K /dev/urandom) > $M/small\n\
         md5sum < $M/small > $M/before\n\
         run -q --swap $K --swap-size 64M --swap $M/small --swap-size 400K -- true || echo $?\n\
         md5sum < $M/small | cmp - $M/before && echo kept\n\
         fallocate -l 8M $M/new\n\
         ulimit -f 8192\n\
         run --swap $K --swap-size 2M --swap $M/new --swap-size 6M -- true && echo $?",
    );
    let (out, told) = text(&output);
    assert_eq!(out, "2\nkept\n0\n", "{told}");
    let mut lines = told.lines();
    let refusal = lines.next().unwrap();
    assert!(
        refusal.starts_with("demeter: error: swap place ")
            && refusal.contains(
                "/small: it has 500 KiB where swap needs 1028 KiB with its header; next: "
            ),
        "{told}"
    );
    let order = lines.next().unwrap();
    assert_eq!(order.matches(" (a page in ").count(), 2, "{told}");
    assert!(order.starts_with("demeter extmem: swap goes to "), "{told}");
}
