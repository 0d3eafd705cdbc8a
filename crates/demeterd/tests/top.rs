// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon top` as an operator sees it: the program itself, a real daemon that sizes
//! memory, and modelled guests that have a use for more than they may have.

#[path = "rings/model.rs"]
mod model;
#[path = "rings/tenant.rs"]
mod tenant;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Daemon, LIMIT, directory, keys_of, make_memory};
use tenant::{Load, Tenant};

/// From one word of a guest to the next.
const PAUSE: Duration = Duration::from_millis(100);
const LOAD: Load = Load {
    hot_pages: 900,
    accesses: 20_000,
};
const POLICY: &str = r#"{"name": "working-set", "fmem_pool_bytes": 8388608, "interval_ms": 100}"#;

/// The command line, which lies beside the daemon, or is the one that DEMETER names.
fn command() -> PathBuf {
    if let Some(named) = std::env::var_os("DEMETER") {
        return named.into();
    }
    let path = PathBuf::from(env!("CARGO_BIN_EXE_demeterd")).with_file_name("demeter");
    assert!(
        path.exists(),
        "{path:?} is missing; next: cargo build --release --workspace, and test that"
    );
    path
}

/// What it shows after some looks. Guests go on meanwhile.
fn top(daemon: &Daemon, tenants: &mut [Tenant], now: &mut u64) -> String {
    let mut child: Child = Command::new(command())
        .args(["balloon", "top", "--once", "--looks", "3", "--interval"])
        .args(["2", "--size", "100x40", "--control"])
        .arg(daemon.path("control"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < LIMIT, "it does not end");
        work(tenants, now);
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// All guests work for a while, wait for memory for a tenth of it, and do what they are asked for.
fn work(tenants: &mut [Tenant], now: &mut u64) {
    *now += PAUSE.as_nanos() as u64;
    for tenant in tenants {
        tenant.stalled_us = Some(tenant.stalled_us.unwrap_or(0) + 10_000);
        tenant.say(*now, LOAD);
        tenant.wait();
        tenant.obey();
    }
    std::thread::sleep(PAUSE);
}

/// Of the table, cell by cell.
fn row(shown: &str, name: &str) -> Vec<String> {
    let mut lines = shown.lines();
    let line = lines.find(|line| line.split(' ').next() == Some(name));
    let cells = line.unwrap_or_else(|| panic!("no {name} in\n{shown}"));
    let cells = cells.split("  ").map(str::trim);
    let cells = cells.filter(|cell| !cell.is_empty());
    cells.map(str::to_owned).collect()
}

#[test]
fn it_shows_what_each_guest_has_and_why_not_more() {
    let directory = directory();
    let config = directory.path().join("demeterd.toml");
    let place = directory.path().to_owned();
    let table = |name: &str, socket: &str| {
        make_memory(&place, name);
        let mut text = format!("[[vm]]\nname = '{name}'\nfmem-ceiling = '2M'\n");
        for (key, path) in keys_of(&place, name) {
            let path = if key == "socket" { socket } else { &path };
            text.push_str(&format!("{key} = '{path}'\n"));
        }
        text
    };
    let own = |name: &str| place.join(format!("{name}.sock")).display().to_string();
    let write = |text: String| std::fs::write(&config, text).unwrap();
    write(table("a", &own("a")) + &table("b", &own("b")));
    let options = vec!["--config".into(), config.display().to_string()];
    let daemon = Daemon::in_directory(directory, options);
    daemon.call("PUT /v1/policy", POLICY);
    let mut tenants = ["a", "b"].map(|name| Tenant::new(&daemon, name, &[0, 1]));
    let mut now = 1;
    let began = Instant::now();
    let is_short = |name: &str| {
        let view = daemon.view(name);
        view["sizing"]["fmem_short"] == "ceiling" && view["tiers"][0]["size_bytes"] == 2 << 20
    };
    while !["a", "b"].into_iter().all(is_short) {
        assert!(began.elapsed() < LIMIT, "{}", daemon.view("a"));
        work(&mut tenants, &mut now);
    }
    // Driven as before, and with a problem: its socket is to be where nothing can be.
    write(table("a", &own("missing/a")) + &table("b", &own("b")));
    assert_eq!(daemon.status("POST /v1/reload", "").0, 409);
    let shown = top(&daemon, &mut tenants, &mut now);
    assert!(
        shown.starts_with("2 guests, 2 driven; policy working-set"),
        "{shown}"
    );
    let header = row(&shown, "guest");
    let of = |name: &str, column: &str| {
        let at = header.iter().position(|cell| cell == column);
        row(&shown, name)[at.unwrap_or_else(|| panic!("no {column} in\n{shown}"))].clone()
    };
    for (name, stage) in [("a", "driven !"), ("b", "driven")] {
        assert_eq!(of(name, "stage"), stage, "{shown}");
        assert_eq!(of(name, "FMEM MiB"), "####.... 2/4", "{shown}");
        assert!(of(name, "SMEM MiB").ends_with("/4"), "{shown}");
        assert_eq!(of(name, "short"), "ceiling", "{shown}");
        // Pressure is a number once two of its words were heard.
        let stalled: f64 = of(name, "stalled %").parse().unwrap();
        assert!((5.0..15.0).contains(&stalled), "{shown}");
    }
    // More of the first guest: nothing of that is cut off by the screen's width.
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "a: driven ! problem: ",
        "No such file or directory",
        "fmem: 2.0 MiB of 4.0 MiB, asked for 2.0 MiB",
        "smem: ",
        "FMEM 2.0 of ",
        ": it may not have more",
    ] {
        assert!(words.contains(told), "no '{told}' in\n{shown}");
    }
}
