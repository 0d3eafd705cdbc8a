// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real daemon with modelled guests that work, for tests in other languages: a browser,
//! Prometheus, whoever reads the description of the interface. It stays until its standard
//! input ends. `STAGE_GUESTS` names the guests, `STAGE_OPTIONS` more words of the daemon,
//! one a line, where `@` is the daemon's directory.

#[path = "rings/model.rs"]
mod model;
#[path = "rings/tenant.rs"]
mod tenant;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model::Daemon;
use tenant::{Load, Tenant};

/// From one word of a guest to the next.
const PAUSE: Duration = Duration::from_millis(100);

fn words(name: &str) -> Vec<String> {
    let text = std::env::var(name).unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// Busy and idle by turns, each guest a little later than the one before.
fn load(at: usize, second: u64) -> Load {
    let is_busy = (second / 4 + at as u64).is_multiple_of(2);
    Load {
        hot_pages: if is_busy { 900 } else { 120 },
        accesses: if is_busy { 20_000 } else { 500 },
    }
}

#[test]
#[ignore = "a stage for other tests, until its standard input ends"]
fn stage() {
    let names = words("STAGE_GUESTS");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let directory = model::directory();
    let place = directory.path().display().to_string();
    let mut options: Vec<String> = (words("STAGE_OPTIONS").iter())
        .map(|word| word.replace('@', &place))
        .collect();
    std::fs::write(
        directory.path().join("token"),
        "0123456789abcdef0123456789abcdef+/==",
    )
    .unwrap();
    use std::os::unix::fs::PermissionsExt;
    let secret = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(directory.path().join("token"), secret).unwrap();
    // Of the configuration: nobody who tries the interface takes them away.
    for name in &names {
        model::make_memory(directory.path(), name);
        let keys =
            model::keys_of(directory.path(), name).map(|(key, path)| format!(",{key}={path}"));
        options.push(format!("--vm={name},fmem-ceiling=3M{}", keys.concat()));
    }
    let daemon = Daemon::in_directory(directory, options);
    let mut tenants: Vec<Tenant> = (names.iter())
        .map(|name| Tenant::new(&daemon, name, &[1]))
        .collect();
    let ended = Arc::new(AtomicBool::new(false));
    let ends = ended.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ends.store(true, Ordering::Relaxed);
    });
    println!("\nstage {place}");
    std::io::stdout().flush().unwrap();
    let began = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        let now = began.elapsed();
        for (at, tenant) in tenants.iter_mut().enumerate() {
            let load = load(at, now.as_secs());
            // Those who are busy wait for memory now and then.
            let waits = load.accesses / 1000;
            tenant.stalled_us = Some(tenant.stalled_us.unwrap_or(0) + 500 * waits);
            tenant.say(now.as_nanos() as u64 + 1, load);
            tenant.wait();
            tenant.obey();
        }
        std::thread::sleep(PAUSE);
    }
}
