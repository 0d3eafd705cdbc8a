// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real pages through real LZ4.

use std::collections::HashMap;

use proptest::prelude::*;

use super::class::SPAN_BYTES;
use super::*;
use crate::region::PAGE_BYTES;

fn tier(pool_bytes: usize) -> CompressedTier {
    let options = CompressedOptions {
        pool_bytes,
        always_on: false,
    };
    let region = Region::map_anonymous(CompressedTier::footprint_bytes(&options)).unwrap();
    CompressedTier::new(&options, region).unwrap()
}

/// A page of which `percent` is random; the rest is zero but for the owner's number.
fn page(owner: u32, percent: usize) -> Vec<u8> {
    let mut page = vec![0u8; PAGE_BYTES];
    let mut state = u64::from(owner) * 2 + 1;
    for word in page[..PAGE_BYTES * percent / 100].chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    page[PAGE_BYTES - 4..].copy_from_slice(&owner.to_le_bytes());
    page
}

fn store(tier: &CompressedTier, owner: u32, percent: usize) -> Option<Handle> {
    // SAFETY: a living page.
    unsafe { tier.store(owner, page(owner, percent).as_ptr()) }
}

fn assert_holds(tier: &CompressedTier, handle: Handle, owner: u32, percent: usize) {
    let mut read = vec![0xffu8; PAGE_BYTES];
    // SAFETY: a living page.
    unsafe { tier.load(handle, read.as_mut_ptr()) }.unwrap();
    assert!(read == page(owner, percent), "page {owner}");
}

#[test]
fn pages_come_back_and_memory_goes_back() {
    let tier = tier(8 << 20);
    let empty = tier.resident_bytes();
    let handles: Vec<_> = (0..2000)
        .map(|owner| store(&tier, owner, 30).unwrap())
        .collect();
    assert!(tier.live_bytes() < 2000 * 1400, "{}", tier.live_bytes());
    assert!(tier.resident_bytes() > empty + 2000 * 1228);
    for (owner, &handle) in handles.iter().enumerate() {
        assert_holds(&tier, handle, owner as u32, 30);
    }
    handles.iter().for_each(|&handle| tier.free(handle));
    assert_eq!(tier.live_bytes(), 0);
    // A few spare spans stay.
    assert!(
        tier.resident_bytes() < empty + 20 * SPAN_BYTES,
        "{}",
        tier.resident_bytes()
    );
}

#[test]
fn random_pages_are_refused_and_switch_it_off() {
    let tier = tier(8 << 20);
    assert!((0..2000).all(|owner| store(&tier, owner, 100).is_none()));
    assert!(!tier.is_on());
    assert_eq!(tier.live_bytes(), 0);
    let mut owner = 0;
    while !tier.is_on() {
        store(&tier, owner, 30);
        owner += 1;
        assert!(owner < 5000, "it never comes back");
    }
}

#[test]
fn a_full_tier_drains_oldest_first() {
    let tier = tier(4 << 20);
    tier.set_limit_bytes(2 << 20);
    let mut handles = HashMap::new();
    let mut owner = 0;
    while let Some(handle) = store(&tier, owner, 30) {
        handles.insert(owner, handle);
        owner += 1;
    }
    assert!(tier.wants_drain());
    assert!(tier.resident_bytes() <= (2 << 20) + 3 * SPAN_BYTES);
    let mut out = [Aged {
        owner: 0,
        handle: Handle(0),
        advice: Advice::Relocate,
    }; 256];
    let count = tier.drain(&mut out);
    assert!(count > 20, "{count}");
    for aged in &out[..count] {
        assert_eq!(aged.advice, Advice::WriteBack);
        assert!(
            aged.owner < 400,
            "page {} is not among the oldest",
            aged.owner
        );
        assert_eq!(handles.remove(&aged.owner), Some(aged.handle));
        tier.free(aged.handle);
    }
    assert!(store(&tier, 1_000_000, 30).is_some());
    for (owner, handle) in handles {
        assert_holds(&tier, handle, owner, 30);
    }
}

/// Small DRAM has objects of many sizes, and a span of each of them that is hardly begun: what
/// was never written to takes none, and is not counted.
#[test]
fn what_counts_is_what_has_memory() {
    let options = CompressedOptions {
        pool_bytes: 16 << 20,
        always_on: false,
    };
    let bytes = CompressedTier::footprint_bytes(&options);
    let mut region = Region::map_anonymous(PAGE_BYTES + bytes).unwrap();
    // SAFETY: zero is a u8.
    let before = unsafe { region.carve::<u8>(PAGE_BYTES) }.unwrap();
    let base = before.as_ptr() as usize + PAGE_BYTES;
    let tier = CompressedTier::new(&options, region).unwrap();
    let present_bytes = || {
        let mut present = vec![0u8; bytes.div_ceil(PAGE_BYTES)];
        // SAFETY: the region is never given back; a byte for each of its pages.
        let status = unsafe { libc::mincore(base as *mut _, bytes, present.as_mut_ptr()) };
        assert_eq!(status, 0);
        present.iter().filter(|&&page| page & 1 != 0).count() * PAGE_BYTES
    };
    let slack = 16 * PAGE_BYTES;
    let mut handles = vec![];
    for owner in 0..600 {
        handles.push(store(&tier, owner, owner as usize % 68 + 2).unwrap());
    }
    let used = handles.len() * 1500;
    assert!(present_bytes() < 3 * used, "a span of each size is begun");
    assert!(tier.resident_bytes().abs_diff(present_bytes()) < slack);
    handles.drain(..).for_each(|handle| tier.free(handle));
    assert!(tier.resident_bytes().abs_diff(present_bytes()) < slack);
    tier.set_limit_bytes(0);
    assert!(tier.resident_bytes().abs_diff(present_bytes()) < slack);
}

/// Told to rest, it gives all back, whatever happens to be free, and takes nothing more.
#[test]
fn spare_spans_go_with_the_limit() {
    let tier = tier(8 << 20);
    let empty = tier.resident_bytes();
    let handles: Vec<_> = (0..3000)
        .map(|owner| store(&tier, owner, 30).unwrap())
        .collect();
    handles.iter().for_each(|&handle| tier.free(handle));
    assert!(tier.resident_bytes() > empty, "nothing is kept for later");
    tier.set_limit_bytes(0);
    assert_eq!(tier.resident_bytes(), empty);
}

#[test]
fn a_limit_too_small_for_any_object_is_exhausted() {
    let tier = tier(8 << 20);
    tier.set_limit_bytes(2 * SPAN_BYTES);
    assert!(tier.slab.is_exhausted());
    assert!(store(&tier, 1, 30).is_none());
    tier.set_limit_bytes(8 << 20);
    assert!(!tier.slab.is_exhausted());
}

#[test]
fn a_tier_that_may_hold_nothing_holds_nothing() {
    for kept in [1, 3] {
        let tier = tier(8 << 20);
        let empty = tier.resident_bytes();
        let mut handles = HashMap::new();
        for owner in 0..3000 {
            let handle = store(&tier, owner, 30).unwrap();
            if owner % kept == 0 {
                handles.insert(owner, handle);
            } else {
                tier.free(handle);
            }
        }
        tier.set_limit_bytes(0);
        let mut rounds = 0;
        while tier.wants_drain() {
            assert!(store(&tier, 1_000_000, 30).is_none());
            let mut out = [Aged {
                owner: 0,
                handle: Handle(0),
                advice: Advice::Relocate,
            }; 256];
            let count = tier.drain(&mut out);
            assert!(count > 0, "{} left", handles.len());
            for aged in &out[..count] {
                assert_eq!(aged.advice, Advice::WriteBack);
                assert_eq!(handles.remove(&aged.owner), Some(aged.handle));
                tier.free(aged.handle);
            }
            rounds += 1;
            assert!(rounds < 1000);
        }
        assert!(handles.is_empty());
        assert!(tier.resident_bytes() <= empty + 4 * SPAN_BYTES);
        assert!(store(&tier, 1_000_001, 30).is_none());
    }
}

/// Follows the tier's advice once, as the pager does.
fn relocate_some(tier: &CompressedTier, handles: &mut [Option<Handle>]) {
    let mut out = [Aged {
        owner: 0,
        handle: Handle(0),
        advice: Advice::WriteBack,
    }; 256];
    let count = tier.drain(&mut out);
    for aged in &out[..count] {
        assert_eq!(aged.advice, Advice::Relocate);
        let place = &mut handles[aged.owner as usize];
        assert_eq!(*place, Some(aged.handle));
        if let Some(handle) = tier.relocate(aged.handle) {
            *place = Some(handle);
        }
    }
}

#[test]
fn sparse_spans_are_emptied_by_relocation() {
    let tier = tier(16 << 20);
    let mut handles: Vec<_> = (0..8000).map(|owner| store(&tier, owner, 30)).collect();
    // Random faults take most pages out of every span.
    for (owner, handle) in handles.iter_mut().enumerate() {
        if owner % 5 != 0 {
            tier.free(handle.take().unwrap());
        }
    }
    let before = tier.resident_bytes();
    let mut rounds = 0;
    while tier.wants_drain() {
        relocate_some(&tier, &mut handles);
        rounds += 1;
        assert!(rounds < 1000);
    }
    assert!(
        tier.resident_bytes() * 2 < before,
        "{} of {before}",
        tier.resident_bytes()
    );
    for (owner, handle) in handles.iter().enumerate() {
        if let Some(handle) = handle {
            assert_holds(&tier, *handle, owner as u32, 30);
        }
    }
}

#[test]
fn little_is_wasted_while_pages_come_and_go_at_random() {
    // Pages of one kind, and of so many that each class has but a few spans.
    for (kinds, most_percent) in [(30..31, 5), (5..70, 13)] {
        let tier = tier(64 << 20);
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut handles: Vec<Option<Handle>> = vec![None; 24_000];
        for _ in 0..200_000 {
            let owner = random(handles.len());
            handles[owner] = match handles[owner] {
                Some(handle) => {
                    tier.free(handle);
                    None
                }
                None => store(&tier, owner as u32, kinds.start + random(kinds.len())),
            };
            if tier.wants_drain() {
                relocate_some(&tier, &mut handles);
            }
        }
        let (live, resident) = (tier.live_bytes(), tier.resident_bytes());
        assert!(live > 10 << 20, "{live}");
        assert!(
            (resident - live) * 100 < resident * most_percent,
            "{live} of {resident}"
        );
    }
}

#[test]
fn wrong_handles_and_damage_are_errors() {
    let tier = tier(1 << 20);
    let mut into = vec![0u8; PAGE_BYTES];
    let handle = store(&tier, 1, 30).unwrap();
    for wrong in [0x3fff_ffff, 7] {
        // SAFETY: a living page.
        let error = unsafe { tier.load(Handle(wrong), into.as_mut_ptr()) }.unwrap_err();
        assert_eq!(error, CompressedError::Handle { handle: wrong });
        tier.free(Handle(wrong));
    }
    let (_, data) = tier.slab.get(handle).unwrap();
    // SAFETY: nobody reads it: this is the wild write.
    unsafe { std::ptr::write_bytes(data.as_ptr().cast_mut(), 0xee, 64) };
    // SAFETY: a living page.
    let error = unsafe { tier.load(handle, into.as_mut_ptr()) }.unwrap_err();
    assert_eq!(error, CompressedError::Damaged { handle: handle.0 });
    tier.free(handle);
    tier.free(handle);
    assert_eq!(tier.live_bytes(), 0);
}

#[test]
fn threads_store_load_and_free_while_one_drains() {
    let tier = tier(8 << 20);
    tier.set_limit_bytes(3 << 20);
    const OWNERS: u32 = 1500;
    std::thread::scope(|scope| {
        // Each page's state: a lock, as the pager's page states are.
        let table: &'static Vec<Lock<Option<Handle>>> =
            Box::leak(Box::new((0..3 * OWNERS).map(|_| Lock::new(None)).collect()));
        for thread in 0..3u32 {
            let tier = &tier;
            scope.spawn(move || {
                let mut state = u64::from(thread) + 1;
                for _ in 0..20_000 {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let owner = thread * OWNERS + (state >> 33) as u32 % OWNERS;
                    let mut place = table[owner as usize].lock();
                    match place.take() {
                        Some(handle) => {
                            assert_holds(tier, handle, owner, 30);
                            tier.free(handle);
                        }
                        None => *place = store(tier, owner, 30),
                    }
                }
            });
        }
        let tier = &tier;
        scope.spawn(move || {
            let mut out = [Aged {
                owner: 0,
                handle: Handle(0),
                advice: Advice::WriteBack,
            }; 128];
            for _ in 0..2000 {
                if !tier.wants_drain() {
                    std::thread::yield_now();
                    continue;
                }
                let count = tier.drain(&mut out);
                for aged in &out[..count] {
                    let mut place = table[aged.owner as usize].lock();
                    if *place != Some(aged.handle) {
                        continue;
                    }
                    match aged.advice {
                        Advice::Relocate => *place = tier.relocate(aged.handle).or(*place),
                        Advice::WriteBack => {
                            tier.free(aged.handle);
                            *place = None;
                        }
                    }
                }
            }
        });
    });
}

proptest! {
    #[test]
    fn any_page_survives(seed in any::<u32>(), percent in 0usize..=100, noise in proptest::collection::vec((0usize..PAGE_BYTES, any::<u8>()), 0..40)) {
        let tier = tier(1 << 20);
        let mut content = page(seed, percent);
        for (at, byte) in noise {
            content[at] = byte;
        }
        // SAFETY: a living page.
        if let Some(handle) = unsafe { tier.store(seed, content.as_ptr()) } {
            let mut read = vec![0u8; PAGE_BYTES];
            // SAFETY: as above.
            unsafe { tier.load(handle, read.as_mut_ptr()) }.unwrap();
            prop_assert!(read == content);
        } else {
            prop_assert!(percent > 50);
        }
    }
}
