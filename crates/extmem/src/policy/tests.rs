// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies as the pager meets them: built in, from C, from Rust, and wrong ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

const PAGES: u32 = 1 << 16;
const DRAM: u32 = 1 << 12;

extern "C" fn no_prefetch(_: *mut c_void, _: u32, _: u32, _: u32) {}

/// Odd pages are in DRAM.
extern "C" fn odd(_: *mut c_void, page: u32) -> u32 {
    page % 2
}

fn load(spec: &str) -> Result<Policy, PolicyError> {
    Policy::load(
        &PolicyOptions {
            spec,
            pages: PAGES,
            dram_pages: DRAM,
        },
        Services {
            context: std::ptr::null_mut(),
            prefetch: no_prefetch,
            state: odd,
        },
    )
}

fn arrive(policy: &Policy, pages: impl IntoIterator<Item = u32>) {
    for page in pages {
        policy.arrived(&mut [Arrival {
            page,
            source: abi::SWAP,
            ..Arrival::default()
        }]);
    }
}

fn drain(policy: &Policy, count: usize) -> Vec<u32> {
    let mut out = vec![0; count];
    let named = policy.choose(&mut out);
    out.truncate(named);
    out
}

/// Compiles a C policy; the compiler must not even warn.
fn compile(source: &Path, directory: &Path) -> String {
    // The loader takes two files of one path for the same.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let object = directory.join(format!(
        "policy{}.so",
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let status = Command::new("cc")
        .args([
            "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I",
        ])
        .args([Path::new(include), Path::new("-o"), &object, source])
        .status()
        .unwrap();
    assert!(status.success());
    object.to_str().unwrap().to_owned()
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
}

/// What every policy must do with the pages it is told of.
fn assert_keeps_books(policy: &Policy) {
    arrive(policy, 100..200);
    policy.unmapped(150, 10);
    let first = drain(policy, 40);
    assert_eq!(first.len(), 40);
    policy.returned(&first[..10]);
    policy.evicted(&first[10..]);
    let rest = drain(policy, 60);
    assert_eq!(rest.len(), 60, "{}", policy.name());
    let mut all: Vec<u32> = first[10..].iter().chain(&rest).copied().collect();
    all.sort_unstable();
    let expected: Vec<u32> = (100..150).chain(160..200).collect();
    assert_eq!(all, expected, "{}", policy.name());
}

/// A few hundred pages in use must not keep a policy from naming others.
fn assert_names_others(policy: &Policy, flags: u8, source: u8) {
    for _ in 0..2 {
        for page in 0..DRAM {
            policy.arrived(&mut [Arrival {
                page,
                source,
                flags,
                ..Arrival::default()
            }]);
        }
    }
    let in_use = drain(policy, 400);
    policy.returned(&in_use);
    let named = (0..2000).any(|_| {
        let chosen = drain(policy, 32);
        let (back, others): (Vec<u32>, Vec<u32>) =
            chosen.iter().partition(|page| in_use.contains(page));
        policy.returned(&back);
        !others.is_empty()
    });
    assert!(named, "{}: {flags} {source}", policy.name());
    policy.unmapped(0, DRAM);
}

#[test]
fn pages_in_use_do_not_stop_policies() {
    for name in demeter_extmem_policy::BUILT_IN {
        let policy = load(name).unwrap();
        assert_names_others(&policy, 0, abi::SWAP);
        assert_names_others(&policy, 0, abi::VICTIM_CACHE);
        assert_names_others(&policy, abi::STREAM, abi::SWAP);
    }
}

#[test]
fn built_in_policies_keep_books() {
    for name in demeter_extmem_policy::BUILT_IN {
        let policy = load(name).unwrap();
        assert_eq!(policy.name(), name);
        assert_keeps_books(&policy);
        assert!(policy.victim_cache_pages() <= DRAM / 2);
    }
}

#[test]
fn the_c_example_loads_and_keeps_books() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(&example("policy_random.c"), directory.path());
    for options in ["", ":seed=9"] {
        let policy = load(&format!("{path}{options}")).unwrap();
        assert_eq!(policy.name(), "random");
        assert_keeps_books(&policy);
        // It has none of the optional functions.
        policy.mapped(0, 10);
        policy.hint(0, 10, abi::HINT_COLD);
        assert_eq!(policy.victim_cache_pages(), DRAM / 16);
        assert_eq!(policy.staying(&mut [0; 8]), 0);
    }
    let refused = load(&format!("{path}:sed=9")).unwrap_err();
    assert!(matches!(refused, PolicyError::Options { .. }), "{refused}");
}

#[test]
fn the_rust_example_loads_and_keeps_books() {
    // Examples are built beside the directory of the tests.
    let binary = std::env::current_exe().unwrap();
    let path = binary
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples/libpolicy_newest.so");
    if !path.exists() {
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "-p",
                "demeter-extmem",
                "--example",
                "policy_newest",
            ])
            .args(
                binary
                    .ancestors()
                    .any(|above| above.ends_with("release"))
                    .then_some("--release"),
            )
            .status()
            .unwrap();
        assert!(built.success());
    }
    let policy = load(path.to_str().unwrap()).unwrap();
    assert_eq!(policy.name(), "newest");
    arrive(&policy, [5, 6, 7]);
    assert_eq!(drain(&policy, 2), [7, 6]);
    assert_eq!(drain(&policy, 2), [5]);
    assert_keeps_books(&policy);
}

#[test]
fn tables_count_once_their_pages_came() {
    let policy = load("fifo").unwrap();
    let come = |page| {
        policy.arrived(&mut [Arrival {
            page,
            ..Arrival::default()
        }])
    };
    // Fourteen bytes a page, 512 pages at a time: seven pages for four blocks.
    assert_eq!([0, 511, 512, 600].map(come), [2, 0, 2, 0]);
    assert_eq!([1535, 1536, 1536, 0].map(come), [2, 1, 0, 0]);
    policy.unmapped(0, 512);
    assert_eq!(come(0), 0, "they stay physical");
    // No such page.
    assert_eq!(come(u32::MAX), 0);
}

#[test]
fn distances_are_counted_in_evictions() {
    let policy = load("fifo").unwrap();
    let arrival = |page| Arrival {
        page,
        ..Arrival::default()
    };
    let mut arrivals = [arrival(1)];
    policy.arrived(&mut arrivals);
    assert_eq!(arrivals[0].distance, abi::NEVER);
    policy.evicted(&[1]);
    policy.evicted(&[2, 3, 4]);
    policy.arrived(&mut arrivals);
    assert_eq!(arrivals[0].distance, 3);
    // A page whose content was given up starts anew.
    policy.unmapped(1, 1);
    policy.arrived(&mut arrivals);
    assert_eq!(arrivals[0].distance, abi::NEVER);
}

#[test]
fn a_policy_that_names_nobody_or_nonsense_is_overruled() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("bad.c");
    let text = std::fs::read_to_string(example("policy_random.c")).unwrap();
    for body in [
        "(void)victims; (void)want; return 0;",
        "for (uint32_t i = 0; i < want; i++) victims[i] = 0xfffffff0; return want;",
        "for (uint32_t i = 0; i < want; i++) victims[i] = 0xfffffff0; return 4000000000u;",
    ] {
        let text = text
            .replace("static uint32_t choose(", "static uint32_t choose_well(")
            .replace(".returned = returned,", ".returned = returned, .staying = choose,")
            .replace(
                "static void returned(",
                &format!(
                    "static uint32_t choose(void *state, demeter_extmem_page *victims, uint32_t want) {{ (void)choose_well; (void)state; {body} }}\nstatic void returned("
                ),
            );
        std::fs::write(&source, text).unwrap();
        let policy = load(&compile(&source, directory.path())).unwrap();
        assert_eq!(policy.staying(&mut [0; 8]), 0);
        // The services say that odd pages are in DRAM.
        assert_eq!(drain(&policy, 3), [1, 3, 5]);
        assert_eq!(drain(&policy, 2), [7, 9]);
    }
}

/// The default policy says of hot pages that they stay, once each, when it knows that those it
/// put on trial were wanted again, and others were not.
#[test]
fn hot_pages_stay() {
    let policy = load("default").unwrap();
    let staying = |room: usize| {
        let mut out = vec![0; room];
        let named = policy.staying(&mut out);
        out.truncate(named);
        out
    };
    let saved = |page| {
        policy.arrived(&mut [Arrival {
            page,
            source: abi::VICTIM_CACHE,
            ..Arrival::default()
        }]);
    };
    (0..DRAM).for_each(saved);
    assert!(staying(64).is_empty());
    // Others come, and leave unused.
    arrive(&policy, 2 * DRAM..3 * DRAM);
    for _ in 0..60 {
        let pages = drain(&policy, 64);
        assert!(pages.iter().all(|&page| page >= 2 * DRAM));
        policy.evicted(&pages);
    }
    assert!(staying(64).is_empty());
    // All that are named then are wanted again before they leave.
    for _ in 0..8 {
        drain(&policy, 64).into_iter().for_each(saved);
    }
    let mut all = staying(64);
    assert_eq!(all.len(), 64);
    all.extend(staying(DRAM as usize));
    let count = all.len();
    assert!(count > 3000 && count < DRAM as usize, "{count}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(staying(64).is_empty());
    // None of them are, or too late: nothing is certain any more.
    let late: Vec<_> = (0..20)
        .flat_map(|_| {
            let pages = drain(&policy, 64);
            policy.evicted(&pages);
            pages
        })
        .collect();
    policy.evicted(&[DRAM; DRAM as usize]);
    arrive(&policy, late);
    (0..DRAM).for_each(saved);
    assert!(staying(64).is_empty());
}

#[test]
fn wrong_policies_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let said = |spec: &str| load(spec).unwrap_err().to_string();
    assert!(said("lru").contains("no built-in policy 'lru'"));
    assert!(said("clock:x=1").contains("does not accept the options 'x=1'"));
    assert!(said("/nowhere/policy.so").contains("cannot load policy /nowhere/policy.so"));
    let text_file = directory.path().join("text.so");
    std::fs::write(&text_file, "text").unwrap();
    assert!(said(text_file.to_str().unwrap()).contains("cannot load policy"));
    let source = directory.path().join("wrong.c");
    let good = std::fs::read_to_string(example("policy_random.c")).unwrap();
    for (text, message) in [
        ("int x;".to_owned(), "has no demeter_extmem_policy()"),
        (
            good.replace("? &policy_random : NULL", "? NULL : &policy_random"),
            "not made for version 1",
        ),
        (
            good.replace(".abi = DEMETER_EXTMEM_POLICY_ABI", ".abi = 2"),
            "not made for version 1",
        ),
        (
            good.replace("\t.choose = choose,\n", "")
                .replace("static uint32_t choose", "uint32_t choose"),
            "lacks choose()",
        ),
        // A table that ends before its functions.
        (
            good.replace("sizeof(struct demeter_extmem_policy)", "16"),
            "lacks memory_bytes()",
        ),
        (
            good.replace("\treturn policy;\n", "\treturn NULL;\n"),
            "could not start",
        ),
    ] {
        std::fs::write(&source, text).unwrap();
        let path = compile(&source, directory.path());
        let line = said(&path);
        assert!(
            line.contains(message) && line.contains("; next: "),
            "{line}"
        );
        assert!(!line.contains('\n'), "{line}");
    }
}
