// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A loadable policy in Rust: the newest page leaves first.
//!
//! For a program that walks through more memory than fits again and again this is
//! close to the best there is; for most others close to the worst. Built by
//! `cargo build --release -p demeter-extmem --example policy_newest`, used by
//! `--policy target/release/examples/libpolicy_newest.so`.

use std::ffi::CStr;

use demeter_extmem_policy::abi::Arrival;
use demeter_extmem_policy::{Algorithm, Host, Lists, Memory};

const STACK: u8 = 0;

struct Newest {
    pages: Lists<1>,
}

impl Algorithm for Newest {
    const NAME: &'static CStr = c"newest";

    fn memory_bytes(host: &Host, options: &str) -> Option<usize> {
        options
            .is_empty()
            .then(|| Lists::<1>::memory_bytes(host.arena_pages()))
    }

    fn start(memory: &mut Memory, host: Host, _options: &str) -> Option<Self> {
        Some(Self {
            pages: Lists::new(host.arena_pages(), memory)?,
        })
    }

    fn unmapped(&mut self, first: u32, pages: u32) {
        self.pages.remove_range(first, pages);
    }

    fn arrived(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            self.pages.push(STACK, arrival.page);
        }
    }

    fn choose(&mut self, victims: &mut [u32]) -> usize {
        let mut count = 0;
        while count < victims.len()
            && let Some(page) = self.pages.pop_newest(STACK)
        {
            victims[count] = page;
            count += 1;
        }
        count
    }

    fn returned(&mut self, pages: &[u32]) {
        for &page in pages {
            self.pages.push(STACK, page);
        }
    }

    fn victim_cache_pages(&mut self) -> u32 {
        0
    }
}

demeter_extmem_policy::export!(Newest);
