// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trees of programs under `demeter extmem run`: one swap for all of them, whatever user,
//! root directory or name space they change to. Needs root, as it mounts file systems and
//! gives rights up.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder that everybody may read, with the library in it.
fn everybodys() -> tempfile::TempDir {
    let built = match std::env::var_os("DEMETER_LIBEXEC") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_BIN_EXE_demeter"))
            .parent()
            .unwrap()
            .to_owned(),
    };
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    let library = folder.path().join("libdemeter_extmem.so");
    std::fs::copy(built.join("libdemeter_extmem.so"), &library)
        .expect("libdemeter_extmem.so is built: cargo build -p demeter-extmem");
    open(&library);
    open(folder.path());
    folder
}

/// A shell script that runs `demeter` as `$D extmem run -q --dram 32M --swap $S --`; $S is a
/// file system of 300 MiB of its own.
fn on_a_small_disk(script: &str) -> Output {
    let folder = everybodys();
    let swap = folder.path().join("swap");
    std::fs::create_dir(&swap).unwrap();
    let run = "run() { \"$D\" extmem run -q --dram 32M --swap \"$S\" -- \"$@\"; }\n\
               used() { df --output=used -k \"$S\" | tail -n 1; }\n";
    Command::new("unshare")
        .args(["-m", "sh", "-ec"])
        .arg(format!(
            "mount -t tmpfs -o size=300M none \"$S\"\n{run}{script}"
        ))
        .env("D", env!("CARGO_BIN_EXE_demeter"))
        .env("S", &swap)
        .env("DEMETER_LIBEXEC", folder.path())
        .env_remove("DRAMSIZE")
        .env_remove("SWAPDIR")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(output: &Output) -> (String, String) {
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn assert_says(output: &Output, said: &str) {
    let (out, told) = text(output);
    assert!(output.status.success(), "{}: {out}{told}", output.status);
    assert_eq!((out.as_str(), told.as_str()), (said, ""));
}

/// 40 programs would have allocated 128 MiB each.
#[test]
fn programs_that_swap_nothing_take_no_space() {
    let output = on_a_small_disk(
        "run sh -c 'seq 40 | xargs -P 4 -n 1 true; df --output=used -k \"$S\" | tail -n 1 | tr -d \" \"'",
    );
    assert_says(&output, "0\n");
}

/// Each sort swaps some 70 MiB, one after another and in two runs: more than the disk has.
#[test]
fn space_is_back_when_a_program_ends() {
    const SORT: &str = "seq 600000 -1 1 | sort -n --buffer-size=96M --parallel=1 | md5sum";
    let plain = Command::new("sh").args(["-c", SORT]).output().unwrap();
    let sum = String::from_utf8(plain.stdout).unwrap();
    let output = on_a_small_disk(&format!(
        "run sh -c '{SORT}; {SORT}'; [ $(used) = 0 ]; run sh -c '{SORT}'; [ $(used) = 0 ]"
    ));
    assert_says(&output, &sum.repeat(3));
}

/// Killed, in the middle of a tree that goes on: nobody in it can free anything.
#[test]
fn space_of_a_killed_program_is_back_while_others_run() {
    let output = on_a_small_disk(
        r#"run sh -c '
            used() { df --output=used -k "$S" | tail -n 1; }
            wait_until() { for i in $(seq 600); do [ $(used) "$@" ] && return; sleep 0.1; done; echo "used $(used)"; exit 1; }
            python3 -c "
import time, random
kept = [random.randbytes(1 << 20) for _ in range(80)]
time.sleep(600)" & child=$!
            wait_until -gt 20000
            kill -9 $child
            wait_until -eq 0
            echo freed' 2>/dev/null"#,
    );
    assert_says(&output, "freed\n");
}

#[test]
fn other_users_and_name_spaces_are_managed_too() {
    const MEMORY: &str = "import hashlib, random; r = random.Random(1); b = [r.randbytes(1 << 20) for _ in range(48)]; print(hashlib.md5(bytes().join(hashlib.md5(x).digest() for x in b)).hexdigest())";
    const FORK: &str = "import os; os.setgid(65534); os.setuid(65534); p = os.fork(); (p == 0) and os._exit(3); print(os.waitpid(p, 0)[1] >> 8)";
    let plain = Command::new("python3")
        .args(["-c", MEMORY])
        .output()
        .unwrap();
    let sum = String::from_utf8(plain.stdout).unwrap();
    let script = format!(
        "python3 -c '{FORK}'
         setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'true; python3 -c \"{MEMORY}\"'
         runuser -u nobody -- sh -c 'true; python3 -c \"{MEMORY}\"'
         unshare -Ur sh -c 'true; python3 -c \"{MEMORY}\"'
         prlimit --nofile=64:64 sh -c 'true; python3 -c \"{MEMORY}\"'"
    );
    let output = on_a_small_disk(&format!(
        "cat > \"$S/script\" <<'END'\n{script}\nEND\nchmod 755 \"$S/script\"; run sh -e \"$S/script\""
    ));
    assert_says(&output, &format!("3\n{}", sum.repeat(4)));
}

/// As sandboxes do, after a login has set limits: the numbers by which the run's files are handed on
/// lie above the limit then.
#[test]
fn who_closes_all_before_an_exec_still_has_the_swap_of_the_run() {
    const CLOSES: &str = "import ctypes, os, sys
if sys.argv[1] == \"again\":
    kept = [os.urandom(1 << 20) for _ in range(48)]
    print(sum(map(len, kept)) >> 20)
    sys.exit()
if sys.argv[1] == \"mark\":
    ctypes.CDLL(None).close_range(3, ctypes.c_uint(-1), 4)
else:
    for name in os.listdir(\"/proc/self/fd\"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass
os.execv(sys.executable, [\"python3\", __file__, \"again\"])";
    let output = on_a_small_disk(&format!(
        "chmod 755 \"$S\"; cat > \"$S/closes\" <<'END'\n{CLOSES}\nEND
         for limit in 64: 1024: 20000:; do for how in close mark; do
             run prlimit --nofile=$limit setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 \"$S/closes\" $how
         done; done"
    ));
    assert_says(&output, &"48\n".repeat(6));
}

/// The numbers are free for the program once it has closed them: its own files stay.
#[test]
fn what_the_program_opens_by_the_runs_numbers_is_its_own() {
    const OPENS: &str = "import os, resource
number = int(os.environ[\"DEMETER_EXTMEM_SWAP_FD\"].split(\":\")[0])
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
own = os.open(__file__, os.O_RDONLY)
os.dup2(own, number)
try:
    os.execv(\"/nonexistent\", [\"x\"])
except FileNotFoundError:
    pass
print(os.path.sameopenfile(own, number), resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1])";
    let output = on_a_small_disk(&format!(
        "cat > \"$S/opens\" <<'END'\n{OPENS}\nEND
         run prlimit --nofile=64: /usr/bin/python3 \"$S/opens\""
    ));
    assert_says(&output, "True True\n");
}

#[test]
fn a_signal_sent_to_the_runner_reaches_the_program() {
    let output = on_a_small_disk(
        r#"run sh -c 'trap "echo interrupted; exit 5" INT; echo ready; while :; do sleep 0.05; done' > "$S/said" & runner=$!
        until grep -qs ready "$S/said"; do sleep 0.05; done
        kill -INT $(pgrep -P $runner -x demeter || echo $runner)
        status=0; wait $runner || status=$?
        echo $status; tail -n 1 "$S/said""#,
    );
    assert_says(&output, "5\ninterrupted\n");
}

/// Of 48 MiB, at least 16 must be in swap.
#[test]
fn a_limit_on_the_size_of_files_bounds_swap_and_kills_nobody() {
    const MEMORY: &str = "import random; r = random.Random(1); b = [r.randbytes(1 << 20) for _ in range(48)]; print(sum(x[77] for x in b))";
    let plain = Command::new("python3")
        .args(["-c", MEMORY])
        .output()
        .unwrap();
    let sum = String::from_utf8(plain.stdout).unwrap();
    let limited = |limit: &str| {
        on_a_small_disk(&format!(
            "prlimit --fsize={limit} \"$D\" extmem run --dram 32M --swap \"$S\" -- python3 -c '{MEMORY}'"
        ))
    };
    let (out, told) = text(&limited("100000"));
    assert!(
        out.is_empty() && told.lines().count() == 1 && told.contains("97 KiB"),
        "{out}{told}"
    );
    assert!(told.contains("; next: raise the limit on the size of files"));
    // Enough of it, for the runner or for one program of a tree.
    let (out, told) = text(&limited("120000000"));
    assert_eq!(out, sum, "{told}");
    let inside = |limit: &str| {
        on_a_small_disk(&format!(
            "\"$D\" extmem run --dram 32M --swap \"$S\" -- sh -c \"prlimit --fsize={limit} python3 -c '{MEMORY}' 2>&1; echo status \\$?\""
        ))
    };
    let (out, told) = text(&inside("110000000"));
    assert_eq!(out, format!("{sum}status 0\n"), "{told}");
    // Too little: memory is refused, and the end of the run says why.
    let (out, told) = text(&inside("30000000"));
    assert!(out.contains("MemoryError"), "{out}{told}");
    assert!(
        told.contains("refused, for swap could not hold") && told.contains("ulimit -f"),
        "{told}"
    );
    let (out, told) = text(&inside("100000"));
    assert!(
        out.contains(": files may have at most 97 KiB where swap needs")
            && out.starts_with("demeter extmem: error: swap place ")
            && out.ends_with("status 2\n"),
        "{out}{told}"
    );
}

/// The kernel answers such writes with a signal that would end the program without a word; not
/// Python as it is, which has it ignored.
#[test]
fn a_limit_on_the_size_of_files_that_comes_later_is_named() {
    let lowered = |limit_bytes: u32, mib: u32| {
        on_a_small_disk(&format!(
            "run python3 -c 'import random, resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); r = random.Random(1); b = [r.randbytes(1 << 20) for _ in range(40)]; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes})); b += [r.randbytes(1 << 20) for _ in range({mib})]'"
        ))
    };
    let says = |output: &Output, said: &str| {
        let (_, told) = text(output);
        assert_eq!(output.status.code(), Some(70), "{told}");
        assert!(
            told.lines().count() == 1 && told.contains("page 0x") && told.contains(said),
            "{told}"
        );
    };
    // Below what is there, and further on, where nothing is yet.
    says(
        &lowered(100_000, 40),
        "failed (above the limit on the size of files (ulimit -f)); next: raise that limit",
    );
    says(
        &lowered(60 << 20, 160),
        "error: the limit on the size of files (ulimit -f) keeps swap from growing",
    );
}

#[test]
fn a_runner_that_may_open_few_files_says_so() {
    let output =
        on_a_small_disk("prlimit --nofile=8:8 \"$D\" extmem run --dram 32M --swap \"$S\" -- true");
    let (_, told) = text(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.lines().count() == 1 && told.contains("; next: raise the limit on open files"),
        "{told}"
    );
}

/// So much of memory that does not compress, in MiB, and a sum of it; `between` is done half way.
fn memory(mib: usize, between: &str) -> String {
    format!(
        "import random, hashlib, os, time\nr = random.Random(1)\nb = []\nfor at in range({mib}):\n  b.append(r.randbytes(1 << 20))\n  if at == {mib} // 2:\n    {between}\nprint(hashlib.md5(bytes().join(hashlib.md5(x).digest() for x in b)).hexdigest())"
    )
}

fn sum_of(mib: usize) -> String {
    let plain = Command::new("python3")
        .args(["-c", &memory(mib, "pass")])
        .output()
        .unwrap();
    String::from_utf8(plain.stdout).unwrap()
}

/// Each has a swap part of its own, and neither sees what the other wrote.
#[test]
fn two_runs_share_a_swap_file() {
    let program = memory(64, "pass");
    let output = on_a_small_disk(&format!(
        "fallocate -l 200M \"$S/file\"; S=$S/file
         run python3 -c '{program}' > \"$S.1\" & first=$!
         run python3 -c '{program}' > \"$S.2\"
         wait $first; cat \"$S.1\" \"$S.2\""
    ));
    assert_says(&output, &sum_of(64).repeat(2));
}

/// Both may be promised all of it. Who finds no room ends with a line, the other goes on.
#[test]
fn a_swap_file_that_two_runs_use_up_ends_one_of_them() {
    let program = memory(100, "pass");
    let output = on_a_small_disk(&format!(
        "fallocate -l 130M \"$S/file\"; export S=$S/file
         run python3 -uc '{program}
while not os.path.exists(os.environ[\"S\"] + \".over\"): time.sleep(0.05)' > \"$S.1\" & first=$!
         until [ -s \"$S.1\" ]; do sleep 0.1; done
         status=0; run python3 -c '{program}' > \"$S.2\" 2> \"$S.told\" || status=$?
         touch \"$S.over\"; wait $first; cat \"$S.1\" \"$S.2\"; echo $status; cat \"$S.told\""
    ));
    let (out, told) = text(&output);
    let line = "demeter extmem: error: swap is full (129 MiB for all programs of the run, and of others that swap there)";
    assert!(
        out.starts_with(&format!("{}70\n{line}", sum_of(100))) && out.lines().count() == 3,
        "{out}{told}"
    );
}

/// Half way somebody else takes all that the disk has left.
#[test]
fn a_disk_that_somebody_else_fills_ends_the_program_with_a_line() {
    let program = memory(
        160,
        "open(os.environ[\"S\"] + \"/half\", \"w\")\n    while not os.path.exists(os.environ[\"S\"] + \"/full\"): time.sleep(0.05)",
    );
    let output = on_a_small_disk(&format!(
        "run python3 -c '{program}' & program=$!
         until [ -e \"$S/half\" ]; do sleep 0.05; done
         dd if=/dev/zero of=\"$S/other\" bs=1M 2> /dev/null || true
         touch \"$S/full\"
         status=0; wait $program || status=$?; echo $status"
    ));
    let (out, told) = text(&output);
    assert_eq!(out, "70\n", "{told}");
    assert!(
        told.lines().count() == 1
            && told.contains("the disk under the swap file is full while writing page 0x"),
        "{told}"
    );
}

/// Holds 20 MiB until another one does, too, or has died.
const TWO: &str = r#"import os, sys, time
held = bytearray(20 << 20)
pages = range(0, len(held), 4096)
for page in pages: held[page] = 1 + page // 4096 % 251
open(sys.argv[1], "w").close()
end = time.monotonic() + 60
while not os.path.exists(sys.argv[2]) and time.monotonic() < end: time.sleep(0.02)
assert all(held[page] == 1 + page // 4096 % 251 for page in pages)
"#;

/// Entries of the ledger (there are 1024) and of the statistics are used again and again: two
/// that come after more processes than that still share the budget, where with one for each
/// they would page nothing. No descriptors stay with the shell that starts all of them, nor with
/// the runner.
#[test]
fn a_thousand_short_processes_leave_nothing() {
    let output = on_a_small_disk(&format!(
        r#"cat > "$S/two" << 'END'
{TWO}
END
           cat > "$S/both" << 'END'
rm -f "$S/1" "$S/2"
python3 "$S/two" "$S/1" "$S/2" &
python3 "$S/two" "$S/2" "$S/1"
wait
END
           paged() {{ python3 -c 'import json, sys
processes = json.load(open(sys.argv[1]))["processes"]
print(int(sum(one["counters"]["write_bytes"] for one in processes) > 0))' "$S/summary"; }}
           "$D" extmem run -q --dram 32M --compress off --swap "$S" --json "$S/summary" -- sh -c '
             count() {{ ls /proc/$$/fd | wc -l; ls /proc/$PPID/fd | wc -l; }}
             /bin/true; count
             seq 600 | xargs -P 4 -n 50 sh -c "for i; do /bin/true || echo failed; done" sh
             for i in $(seq 500); do /bin/true || echo failed; done; count; . "$S/both"'
           paged
           "$D" extmem run -q --dram-each 32M --compress off --swap "$S" --json "$S/summary" -- sh "$S/both"
           paged; rm "$S/1" "$S/2"
           used"#,
    ));
    let (out, told) = text(&output);
    let numbers: Vec<u64> = out
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    // The pager's own are among them; of disk space what the summary takes.
    assert!(
        told.is_empty()
            && numbers.len() == 7
            && numbers[0] > 5
            && numbers[..2] == numbers[2..4]
            && numbers[4..6] == [1, 0]
            && numbers[6] < 1000,
        "{out}{told}"
    );
}

/// Each leaves a filter of system calls to the next, and the kernel takes so many.
#[test]
fn programs_may_become_each_other_a_hundred_times_and_more() {
    let output = on_a_small_disk(
        "echo '[ $1 = 0 ] && exec echo there; exec sh \"$0\" $(($1 - 1))' > \"$S/next\"
         run sh \"$S/next\" 120
         run sh \"$S/next\" 200 || echo $?",
    );
    let (out, told) = text(&output);
    assert_eq!(out, "there\n2\n", "{told}");
    assert!(
        told.lines().count() == 1
            && told
                .starts_with("demeter extmem: error: the kernel takes no more system call filters")
            && told.contains("; next: let fewer programs start each other"),
        "{told}"
    );
}

/// Whatever a link to it is called, as a program, as an interpreter, and by its descriptor.
#[test]
fn a_debugger_behind_a_link_runs_without_the_pager() {
    let output = on_a_small_disk(
        r##"export S; mkdir "$S/bin"; cp /bin/sh "$S/bin/gdb"; ln -s bin/gdb "$S/debug"; ln -s /bin/sh "$S/other"
           echo 'case $LD_PRELOAD in *demeter*) echo managed;; *) echo alone;; esac' > "$S/what"
           (echo "#!$S/debug"; cat "$S/what") > "$S/script"; chmod 755 "$S/script"
           echo 'import os, sys; os.execve(os.open(sys.argv[1], os.O_RDONLY), sys.argv[1:], os.environ)' > "$S/by_descriptor"
           run sh -c '
             "$S/debug" "$S/what"; "$S/script"; cd "$S/bin"; "../debug" "$S/what"
             python3 "$S/by_descriptor" "$S/debug" "$S/what"; "$S/other" "$S/what"'"##,
    );
    assert_says(&output, "alone\nalone\nalone\nalone\nmanaged\n");
}

/// Whoever has asked for silence hears what the program may have died of, and no more.
#[test]
fn memory_that_is_refused_is_told_to_the_quiet_if_the_program_fails() {
    let asking = |then: &str| {
        let program = format!(
            "import mmap\ntry: mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nexcept OSError: {then}"
        );
        on_a_small_disk(&format!("run python3 -c '{program}'"))
    };
    assert_says(&asking("pass"), "");
    let (_, told) = text(&asking("raise SystemExit(3)"));
    assert!(
        told.lines().count() == 1
            && told.starts_with("demeter extmem: 1 request for memory was refused"),
        "{told}"
    );
}

/// What the program may have died of is told, also to the quiet.
#[test]
fn a_program_ended_by_a_signal_that_the_pager_needs_is_told_of() {
    for (signal, status, told) in [("SYS", 159, true), ("BUS", 135, true), ("KILL", 137, false)] {
        let ends = format!("run sh -c 'kill -{signal} $$' || echo $?");
        let (out, line) = text(&on_a_small_disk(&ends));
        assert_eq!(out, format!("{status}\n"));
        let expected = format!("demeter extmem: the program was ended by SIG{signal}, as one is");
        assert_eq!(line.starts_with(&expected), told, "{line}");
        assert_eq!(line.lines().count(), usize::from(told), "{line}");
    }
}

/// A reservation promises nothing; to make it accessible does, and is refused like an mmap.
#[test]
fn what_is_refused_after_a_reservation_is_told_at_the_end() {
    const COMMIT: &str = "import ctypes; c = ctypes.CDLL(None, use_errno=True); c.mmap.restype = ctypes.c_void_p; p = c.mmap(None, ctypes.c_size_t(1 << 30), 0, 0x22, -1, ctypes.c_long(0)); print(c.mprotect(ctypes.c_void_p(p), ctypes.c_size_t(1 << 30), 3), ctypes.get_errno())";
    let output = on_a_small_disk(&format!(
        "\"$D\" extmem run --dram 32M --swap \"$S\" -- python3 -c '{COMMIT}'"
    ));
    let (out, told) = text(&output);
    assert_eq!(out, "-1 12\n", "{told}");
    assert!(told.contains("refused, for swap could not hold"), "{told}");
}
