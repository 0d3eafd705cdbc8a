// SPDX-License-Identifier: Apache-2.0 OR MIT
//! mmap and its family, and brk: what the program asks about memory.

use std::sync::atomic::Ordering;

use libc::c_long;

use crate::context::Context;
use crate::fault::Access;
use crate::mapping::{Ownership, Pages, promised_by};
use crate::pager::{Pager, in_arena};
use crate::places::Promise;
use crate::policy::abi;
use crate::region::{PAGE_BYTES, round_up};
use crate::syscall;

const fn fails(errno: i32) -> isize {
    -(errno as isize)
}

fn pass(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the program's own call, outside the arena.
    unsafe { syscall::call(number, arguments) }
}

/// mmap.
pub fn mmap(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [address, bytes, protection, flags, ..] = arguments;
    let flags = flags as i32;
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let ours = flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_PRIVATE != 0
        && flags & libc::MAP_SHARED == 0
        && flags & libc::MAP_HUGETLB == 0
        && flags & libc::MAP_GROWSDOWN == 0;
    if fixed && in_arena(address) {
        return map_over(pager, arguments, ours);
    }
    let wanted = ours
        && !fixed
        && bytes >= pager.min_bytes
        && flags & (libc::MAP_STACK | libc::MAP_LOCKED | libc::MAP_32BIT) == 0
        && protection as i32 & libc::PROT_EXEC == 0;
    if !wanted {
        let mut arguments = arguments;
        if in_arena(address) {
            // A hint into our address space: the kernel picks another place.
            arguments[0] = 0;
        }
        return pass(libc::SYS_mmap, arguments);
    }
    let reserves = protection as i32 == libc::PROT_NONE;
    if reserves && insists(pager, address) {
        return pass(libc::SYS_mmap, arguments);
    }
    let Some(pages) = page_count(bytes) else {
        return match reserves {
            true => pass(libc::SYS_mmap, arguments),
            false => fails(libc::ENOMEM),
        };
    };
    let hint = address
        .is_multiple_of(PAGE_BYTES)
        .then(|| pager.table.page_of(address))
        .flatten();
    let mapped = {
        let operation = pager.enter();
        let mapped = pager.reserve_pages(pages, hint).map(|pages| {
            map_new(pager, pages, protection as i32)
                .map(|()| pages)
                .inspect_err(|_| pager.give_place(pages))
        });
        drop(operation);
        mapped
    };
    match mapped {
        // Larger than what is left of our address space.
        None if reserves => pass(libc::SYS_mmap, arguments),
        None => fails(libc::ENOMEM),
        Some(Ok(pages)) => {
            if flags & libc::MAP_POPULATE != 0 {
                populate(pager, pages, protection as i32 & libc::PROT_WRITE != 0);
            }
            pager.table.address(pages.first) as isize
        }
        Some(Err(errno)) => fails(errno),
    }
}

/// A mapping of fresh address space.
fn map_new(pager: &Pager, pages: Pages, protection: i32) -> Result<(), i32> {
    if protection == libc::PROT_NONE {
        return pager.map_inaccessible(pages);
    }
    pager.map(pages, protection)
}

/// Whether somebody reserves who wants an exact place outside our address space, gets another,
/// gives it back and tries the next, time and again (java's ZGC, which maps shared memory
/// there: not ours in any case).
fn insists(pager: &Pager, address: usize) -> bool {
    /// Programs that can live with another place give up before that.
    const ATTEMPTS: u32 = 64;
    let elsewhere = address != 0 && !in_arena(address);
    elsewhere && pager.misplaced.fetch_add(1, Ordering::Relaxed) >= ATTEMPTS
}

fn page_count(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.checked_add(PAGE_BYTES - 1)? / PAGE_BYTES).ok()
}

/// Brings pages in, as far as half the limit goes.
fn populate(pager: &Pager, pages: Pages, write: bool) {
    let most = pages.count.min((pager.budget.limit_pages() / 2) as u32);
    for page in pages.first..pages.first + most {
        let mut operation = pager.enter();
        let access = Access {
            write,
            pin: false,
            thread: 0,
        };
        if pager.accessible(page) {
            pager.resolve(page, access, &mut operation.context);
        }
    }
}

/// A mapping at an exact place in the arena.
fn map_over(pager: &Pager, arguments: [usize; 6], ours: bool) -> isize {
    let [address, bytes, protection, flags, ..] = arguments;
    let no_replace = flags as i32 & libc::MAP_FIXED_NOREPLACE != 0;
    if !address.is_multiple_of(PAGE_BYTES) || bytes == 0 {
        return fails(libc::EINVAL);
    }
    let Some(pages) = pager.pages_in(address, bytes) else {
        return fails(libc::ENOMEM);
    };
    pager.misplaced.store(0, Ordering::Relaxed);
    let mut operation = pager.enter();
    let context = &mut operation.context;
    let _places = pager.places.lock();
    let protection = protection as i32;
    if no_replace {
        // To ask first whether it is free would be in vain: another thread may be faster.
        if !pager.reserve_exactly(pages) {
            return fails(libc::EEXIST);
        }
        let result = if ours {
            map_new(pager, pages, protection).map_or_else(fails, |()| address as isize)
        } else {
            map_foreign(pager, pages, arguments)
        };
        if result < 0 {
            pager.give_place(pages);
        }
        return result;
    }
    if ours && let Some(result) = pager.renew(pages, protection, context) {
        return result.map_or_else(fails, |()| address as isize);
    }
    let promise = Promise {
        pages: if ours {
            promised_by(pages.count, protection)
        } else {
            0
        },
        lent: 0,
    };
    if let Err(errno) = pager.take_over(pages, promise, context) {
        return fails(errno);
    }
    let result = if !ours {
        map_foreign(pager, pages, arguments)
    } else if protection == libc::PROT_NONE {
        pager
            .map_inaccessible(pages)
            .map_or_else(fails, |()| address as isize)
    } else {
        pager
            .map_promised(pages, protection)
            .map_or_else(fails, |()| address as isize)
    };
    if result < 0 {
        pager.budget.release(promise.pages);
        pager.keep_inaccessible(pages);
    }
    result
}

/// A file, or shared memory: the kernel's business, in our address space.
fn map_foreign(pager: &Pager, pages: Pages, arguments: [usize; 6]) -> isize {
    let mut arguments = arguments;
    arguments[3] = (arguments[3] as i32 & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED) as usize;
    let result = pass(libc::SYS_mmap, arguments);
    if result < 0 {
        // The kernel may have made a hole of it.
        pager.reserve_address_space(pages);
    } else {
        pager.mark_foreign(pages);
    }
    result
}

/// munmap.
pub fn munmap(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [address, bytes, ..] = arguments;
    if !address.is_multiple_of(PAGE_BYTES) || bytes == 0 {
        return fails(libc::EINVAL);
    }
    if !in_arena(address) {
        // The length happened to look like an address of ours.
        return pass(libc::SYS_munmap, arguments);
    }
    let Some(pages) = pager.pages_in(address, bytes) else {
        return fails(libc::EINVAL);
    };
    let mut operation = pager.enter();
    let _places = pager.places.lock();
    if !pager.part_from_neighbours(pages) {
        return fails(libc::ENOMEM);
    }
    pager.unmap(pages, &mut operation.context);
    0
}

/// mprotect.
pub fn mprotect(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [address, bytes, protection, ..] = arguments;
    if !in_arena(address) || bytes == 0 {
        return pass(libc::SYS_mprotect, arguments);
    }
    if !address.is_multiple_of(PAGE_BYTES) {
        return fails(libc::EINVAL);
    }
    let Some(pages) = pager.pages_in(address, bytes) else {
        return fails(libc::ENOMEM);
    };
    let _operation = pager.enter();
    let _places = pager.places.lock();
    if protection as i32 != libc::PROT_NONE {
        pager.misplaced.store(0, Ordering::Relaxed);
        pager.materialize(pages);
    }
    piecewise(pager, pages, libc::SYS_mprotect, arguments, |run| {
        let result = pager.protect(run, protection as i32);
        result.map_or_else(fails, |()| 0)
    })
}

/// Does a call on a range piece by piece: ours, the kernel's (files mapped into our
/// address space), and holes, which make it fail in the end, as the kernel does it.
fn piecewise(
    pager: &Pager,
    pages: Pages,
    number: c_long,
    arguments: [usize; 6],
    mut ours: impl FnMut(Pages) -> isize,
) -> isize {
    let mut result = 0;
    let end = pages.first + pages.count;
    let mut page = pages.first;
    while page < end {
        let kind = pager.ownership(page);
        if kind == Ownership::Reserved {
            // There is nothing, and it cannot be accessed either way.
            page = pager.table.alike_until(page, end, true);
            continue;
        }
        let mut run = Pages {
            first: page,
            count: 1,
        };
        while page + run.count < end && pager.ownership(page + run.count) == kind {
            run.count += 1;
        }
        let outcome = match kind {
            Ownership::Pager => ours(run),
            Ownership::Kernel => {
                let mut piece = arguments;
                piece[0] = pager.table.address(run.first);
                piece[1] = run.bytes();
                pass(number, piece)
            }
            Ownership::Reserved => 0,
            Ownership::Nobody => fails(libc::ENOMEM),
        };
        if outcome < 0 {
            if outcome != fails(libc::ENOMEM) {
                return outcome;
            }
            result = outcome;
        }
        page += run.count;
    }
    result
}

/// madvise.
pub fn madvise(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [address, bytes, advice, ..] = arguments;
    if !in_arena(address) || bytes == 0 {
        return pass(libc::SYS_madvise, arguments);
    }
    if !address.is_multiple_of(PAGE_BYTES) {
        return fails(libc::EINVAL);
    }
    let Some(pages) = pager.pages_in(address, bytes) else {
        return fails(libc::ENOMEM);
    };
    piecewise(pager, pages, libc::SYS_madvise, arguments, |run| {
        advise(pager, run, advice as i32)
    })
}

fn advise(pager: &Pager, pages: Pages, advice: i32) -> isize {
    let hint = match advice {
        libc::MADV_NORMAL => Some(abi::HINT_NORMAL),
        libc::MADV_SEQUENTIAL => Some(abi::HINT_SEQUENTIAL),
        libc::MADV_RANDOM => Some(abi::HINT_RANDOM),
        libc::MADV_WILLNEED => Some(abi::HINT_WILLNEED),
        libc::MADV_COLD | libc::MADV_PAGEOUT => Some(abi::HINT_COLD),
        _ => None,
    };
    if let Some(hint) = hint {
        let operation = pager.enter();
        pager.policy.hint(pages.first, pages.count, hint);
        drop(operation);
    }
    match advice {
        // Freed pages may be lost at once: that is within what MADV_FREE says.
        libc::MADV_DONTNEED | libc::MADV_FREE => {
            let mut operation = pager.enter();
            pager.discard(pages, &mut operation.context);
            0
        }
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            populate(pager, pages, advice == libc::MADV_POPULATE_WRITE);
            0
        }
        libc::MADV_WILLNEED => {
            will_need(pager, pages);
            0
        }
        // Only advice, and not for us (huge pages are never used here).
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DODUMP
        | libc::MADV_DONTDUMP
        | libc::MADV_DOFORK
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_COLLAPSE => 0,
        // Whoever asks for these relies on them.
        _ => fails(libc::EINVAL),
    }
}

fn will_need(pager: &Pager, pages: Pages) {
    let operation = pager.enter();
    pager.start_threads();
    let most = pages.count.min((pager.budget.limit_pages() / 4) as u32);
    let mut step = 0;
    while step < most {
        let window = crate::queue::Window {
            first: pages.first + step,
            pages: (most - step).min(64),
            write: false,
        };
        if !pager.windows.push(window) {
            break;
        }
        step += 64;
    }
    drop(operation);
}

/// mremap.
pub fn mremap(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [address, old_bytes, new_bytes, flags, target, _] = arguments;
    let flags = flags as i32;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if !in_arena(address) {
        return if fixed && in_arena(target) {
            move_in(pager, arguments)
        } else {
            pass(libc::SYS_mremap, arguments)
        };
    }
    if !address.is_multiple_of(PAGE_BYTES)
        || old_bytes == 0
        || new_bytes == 0
        || flags & libc::MREMAP_DONTUNMAP != 0
        || (fixed && flags & libc::MREMAP_MAYMOVE == 0)
    {
        return fails(libc::EINVAL);
    }
    let Some(old) = pager.pages_in(address, round_up(old_bytes, PAGE_BYTES)) else {
        return fails(libc::EFAULT);
    };
    let Some(new_count) = page_count(new_bytes) else {
        return fails(libc::ENOMEM);
    };
    let mut operation = pager.enter();
    let places = pager.places.lock();
    pager.materialize(old);
    if !pager.is_managed(old) {
        return fails(libc::EFAULT);
    }
    // The kernel would have to move more than one mapping of its own.
    if (fixed || new_count > old.count) && !pager.is_uniform(old) {
        return fails(libc::EFAULT);
    }
    if fixed && !in_arena(target) {
        drop(places);
        drop(operation);
        return move_out(pager, old, new_count, target);
    }
    let result = if fixed {
        move_to(pager, old, new_count, Some(target), &mut operation.context)
    } else if new_count <= old.count {
        let tail = Pages {
            first: old.first + new_count,
            count: old.count - new_count,
        };
        if tail.count > 0 {
            pager.unmap(tail, &mut operation.context);
        }
        Ok(address)
    } else {
        grow(pager, old, new_count, flags, &mut operation.context)
    };
    result.map_or_else(fails, |address| address as isize)
}

/// A mapping of the kernel's moves into our address space and stays the kernel's.
fn move_in(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [_, _, new_bytes, _, target, _] = arguments;
    let Some(pages) = pager
        .pages_in(target, new_bytes)
        .filter(|_| target.is_multiple_of(PAGE_BYTES))
    else {
        return fails(libc::EINVAL);
    };
    let mut operation = pager.enter();
    let _places = pager.places.lock();
    if let Err(errno) = pager.take_over(pages, Promise::default(), &mut operation.context) {
        return fails(errno);
    }
    let result = pass(libc::SYS_mremap, arguments);
    if result < 0 {
        pager.keep_inaccessible(pages);
    } else {
        pager.mark_foreign(pages);
    }
    result
}

/// Managed memory moves to an exact place outside: copied there, and the kernel's from
/// then on.
fn move_out(pager: &Pager, old: Pages, new_count: u32, target: usize) -> isize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let bytes = new_count as usize * PAGE_BYTES;
    let protection = pager.protection_of(old.first);
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let mapped = pass(
        libc::SYS_mmap,
        [
            target,
            bytes,
            writable as usize,
            flags as usize,
            usize::MAX,
            0,
        ],
    );
    if mapped < 0 {
        return mapped;
    }
    let shared = old.count.min(new_count) as usize * PAGE_BYTES;
    if protection != libc::PROT_NONE {
        // SAFETY: both ranges are mapped; what is on disk comes in as it is read (no lock
        // is held here).
        unsafe {
            std::ptr::copy_nonoverlapping(
                pager.table.address(old.first) as *const u8,
                target as *mut u8,
                shared,
            );
        }
    }
    if protection != writable {
        pass(
            libc::SYS_mprotect,
            [target, bytes, protection as usize, 0, 0, 0],
        );
    }
    let mut operation = pager.enter();
    let _places = pager.places.lock();
    pager.unmap(old, &mut operation.context);
    target as isize
}

fn grow(
    pager: &Pager,
    old: Pages,
    new_count: u32,
    flags: i32,
    context: &mut Context,
) -> Result<usize, i32> {
    let tail = Pages {
        first: old.first + old.count,
        count: new_count - old.count,
    };
    let fits = (tail.first as usize + tail.count as usize) <= pager.table.pages();
    if fits && pager.reserve_exactly(tail) {
        return match pager.map(tail, pager.protection_of(old.first)) {
            Ok(()) => Ok(pager.table.address(old.first)),
            Err(errno) => {
                pager.give_place(tail);
                Err(errno)
            }
        };
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(libc::ENOMEM);
    }
    move_to(pager, old, new_count, None, context)
}

fn move_to(
    pager: &Pager,
    old: Pages,
    new_count: u32,
    target: Option<usize>,
    context: &mut Context,
) -> Result<usize, i32> {
    let protection = pager.protection_of(old.first);
    let shared = old.count.min(new_count);
    // Both count as promised for a moment: the old range's promise is lent to the new.
    let promise = Promise {
        pages: promised_by(new_count, protection),
        lent: promised_by(shared, protection),
    };
    let new = match target {
        Some(target) => {
            if !target.is_multiple_of(PAGE_BYTES) {
                return Err(libc::EINVAL);
            }
            let new = pager
                .pages_in(target, new_count as usize * PAGE_BYTES)
                .ok_or(libc::EINVAL)?;
            let apart = new.first >= old.first + old.count || old.first >= new.first + new.count;
            if !apart {
                return Err(libc::EINVAL);
            }
            pager.take_over(new, promise, context)?;
            new
        }
        None => {
            if !pager.promise(promise.pages - promise.lent) {
                return Err(libc::ENOMEM);
            }
            pager.budget.take_promise(promise.lent);
            pager.reserve_pages(new_count, None).ok_or_else(|| {
                pager.budget.release(promise.pages);
                libc::ENOMEM
            })?
        }
    };
    if let Err(errno) = pager.map_promised(new, protection) {
        pager.budget.release(promise.pages);
        match target {
            Some(_) => pager.keep_inaccessible(new),
            None => pager.give_place(new),
        }
        return Err(errno);
    }
    pager.relocate(
        Pages {
            first: old.first,
            count: shared,
        },
        Pages {
            first: new.first,
            count: shared,
        },
        context,
    );
    pager.unmap(old, context);
    Ok(pager.table.address(new.first))
}

/// brk. The program's break lies in the arena; the kernel's is moved by who calls it by syscall()
/// alone.
pub fn brk(pager: &Pager, wanted: usize) -> isize {
    let mut operation = pager.enter();
    let mut current = pager.program_break.lock();
    let (start, now, limit) = (current.start, current.now, current.limit);
    if wanted < start || wanted > limit {
        return now as isize;
    }
    let (old_end, new_end) = (round_up(now, PAGE_BYTES), round_up(wanted, PAGE_BYTES));
    let _places = pager.places.lock();
    if new_end > old_end {
        let Some(pages) = pager.pages_in(old_end, new_end - old_end) else {
            return now as isize;
        };
        if pager
            .map(pages, libc::PROT_READ | libc::PROT_WRITE)
            .is_err()
        {
            return now as isize;
        }
    } else if new_end < old_end {
        let Some(pages) = pager.pages_in(new_end, old_end - new_end) else {
            return now as isize;
        };
        let promised = pager.vacate(pages, &mut operation.context);
        pager.budget.release(promised);
    }
    current.now = wanted;
    wanted as isize
}

/// mlock, mlock2, munlock on the arena: pages stay in DRAM, within a quarter of it.
pub fn lock(pager: &Pager, number: c_long, arguments: [usize; 6]) -> isize {
    let [address, bytes, ..] = arguments;
    if !in_arena(address) || bytes == 0 {
        return pass(number, arguments);
    }
    let Some(pages) = pager.pages_in(address, bytes) else {
        return fails(libc::ENOMEM);
    };
    let on = number != libc::SYS_munlock;
    piecewise(pager, pages, number, arguments, |run| {
        if pager.set_locked(run, on) {
            0
        } else {
            fails(libc::ENOMEM)
        }
    })
}
