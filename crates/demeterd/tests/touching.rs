// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A modelled guest that does as it is told, speaks, and then uses what is in its balloon. The
//! daemon, its sockets and the files of guest memory are real.

#[path = "rings/model.rs"]
mod model;
#[path = "rings/tenant.rs"]
mod tenant;

use std::time::{Duration, Instant};

use model::{Daemon, LIMIT};
use tenant::{Load, Tenant};

/// All of FMEM for the guest's balloon but the pages of its rings, which is its share.
const SHARE_PAGES: u64 = 64;
const LOAD: Load = Load {
    hot_pages: 1000,
    accesses: 1000,
};

/// Goes on until something has become so, or for that time.
fn live(tenant: &mut Tenant, limit: Duration, mut has_come: impl FnMut(&Tenant) -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < limit {
        tenant.obey();
        tenant.work(began.elapsed().as_nanos() as u64 + 1, LOAD);
        if has_come(tenant) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn who_uses_its_balloon_pays_for_it() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut tenant = Tenant::new(&daemon, "a", &[0]);
    let policy = format!(
        r#"{{"name": "guaranteed", "fmem_pool_bytes": {}, "interval_ms": 20}}"#,
        SHARE_PAGES << 12
    );
    daemon.call("PUT /v1/policy", &policy);
    let account = |key: &str| daemon.view("a")["account"][key].as_u64();
    let kept_pages = || {
        let bytes = daemon.view("a")["tiers"][0]["kept_bytes"].as_u64();
        bytes.map(|bytes| bytes >> 12)
    };
    let is_paid = |pages: u64| account("charged_bytes") == Some(pages << 12);
    let has_obeyed = |tenant: &Tenant| tenant.size_pages() == SHARE_PAGES && is_paid(SHARE_PAGES);
    assert!(live(&mut tenant, LIMIT, has_obeyed));
    let Some(before_pages) = kept_pages() else {
        println!("not tried: files of guest memory may have huge pages here");
        return;
    };
    assert_eq!(before_pages, 0);
    // Longer than what it keeps is let pass below.
    let credit_ms = account("credit_ms");
    let is_charged = |_: &Tenant| !is_paid(SHARE_PAGES);
    assert!(!live(&mut tenant, Duration::from_secs(4), is_charged));
    assert_eq!(account("credit_ms"), credit_ms);
    tenant.touch_balloon();
    let balloon_pages = tenant::NODE_PAGES - SHARE_PAGES;
    assert_eq!(kept_pages(), Some(balloon_pages));
    // Fifteen times its share.
    let is_all_paid = |_: &Tenant| is_paid(tenant::NODE_PAGES);
    assert!(live(&mut tenant, LIMIT, is_all_paid));
    let is_spent = |_: &Tenant| account("credit_ms") < credit_ms;
    assert!(live(&mut tenant, LIMIT, is_spent));
}
