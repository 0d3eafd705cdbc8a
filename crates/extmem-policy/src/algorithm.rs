// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy as a trait, and the trait as a table of C functions.

use std::ffi::{CStr, c_char, c_void};

use crate::abi::{self, Arrival};

/// What the pager offers a policy.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    raw: abi::Host,
}

impl Host {
    /// Of the C structure.
    pub fn from_raw(raw: abi::Host) -> Self {
        Self { raw }
    }

    /// Pages are below this.
    pub fn arena_pages(&self) -> u32 {
        self.raw.arena_pages
    }

    /// How many may be in DRAM.
    pub fn dram_pages(&self) -> u32 {
        self.raw.dram_pages
    }

    /// Asks for pages, soon and in the background.
    pub fn prefetch(&self, first: u32, pages: u32, flags: u8) {
        if let Some(prefetch) = self.raw.prefetch {
            prefetch(self.raw.context, first, pages, u32::from(flags));
        }
    }

    /// True when the page is in DRAM.
    pub fn is_resident(&self, page: u32) -> bool {
        self.raw
            .state
            .is_some_and(|state| state(self.raw.context, page) == 1)
    }
}

/// Zero-filled memory to build a policy in.
#[derive(Debug)]
pub struct Memory {
    next: *mut u8,
    left_bytes: usize,
}

impl Memory {
    const ALIGN: usize = 16;

    /// Bytes that [`Self::take`] of `count` values will use.
    pub const fn bytes<T>(count: usize) -> usize {
        (size_of::<T>() * count).next_multiple_of(Self::ALIGN)
    }

    /// # Safety
    /// `start` must be 16-byte aligned and begin `bytes` of zero-filled memory that nobody
    /// else uses, for the life of the process.
    pub unsafe fn from_raw(start: *mut u8, bytes: usize) -> Self {
        Self {
            next: start,
            left_bytes: bytes,
        }
    }

    /// Room for `count` values, all bits zero.
    ///
    /// # Safety
    /// All bits zero must be a value of `T`.
    pub unsafe fn take<T>(&mut self, count: usize) -> Option<&'static mut [T]> {
        let bytes = Self::bytes::<T>(count);
        if bytes > self.left_bytes || align_of::<T>() > Self::ALIGN {
            return None;
        }
        let start = self.next;
        // SAFETY: that much is left.
        self.next = unsafe { start.add(bytes) };
        self.left_bytes -= bytes;
        // SAFETY: aligned, zero, ours, and lives as long as the policy does.
        Some(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })
    }
}

/// A policy. See `demeter_extmem_policy.h` for when each function is called and what it
/// must not do.
pub trait Algorithm: Sized + 'static {
    /// Its name.
    const NAME: &'static CStr;

    /// Memory it will take, without itself. None: the options are wrong.
    fn memory_bytes(host: &Host, options: &str) -> Option<usize>;

    /// Sets it up. None: it cannot.
    fn start(memory: &mut Memory, host: Host, options: &str) -> Option<Self>;

    /// A mapping came.
    fn mapped(&mut self, _first: u32, _pages: u32) {}

    /// A range went: forget its pages.
    fn unmapped(&mut self, first: u32, pages: u32);

    /// Pages came to DRAM.
    fn arrived(&mut self, arrivals: &[Arrival]);

    /// Names victims, and forgets them.
    fn choose(&mut self, victims: &mut [u32]) -> usize;

    /// Victims that stay.
    fn returned(&mut self, pages: &[u32]);

    /// Pages left DRAM.
    fn evicted(&mut self, _pages: &[u32]) {}

    /// The program said something of a range.
    fn hint(&mut self, _first: u32, _pages: u32, _hint: u32) {}

    /// Pages that the victim cache should have.
    fn victim_cache_pages(&mut self) -> u32;

    /// Names pages that stay in DRAM, each once after it came.
    fn staying(&mut self, _pages: &mut [u32]) -> usize {
        0
    }
}

/// The table of a policy.
pub const fn table<A: Algorithm>() -> abi::Policy {
    abi::Policy {
        abi: abi::ABI,
        size: size_of::<abi::Policy>() as u32,
        name: A::NAME.as_ptr(),
        memory_bytes: Some(memory_bytes::<A>),
        start: Some(start::<A>),
        mapped: Some(mapped::<A>),
        unmapped: Some(unmapped::<A>),
        arrived: Some(arrived::<A>),
        choose: Some(choose::<A>),
        returned: Some(returned::<A>),
        evicted: Some(evicted::<A>),
        hint: Some(hint::<A>),
        victim_cache_pages: Some(victim_cache_pages::<A>),
        staying: Some(staying::<A>),
    }
}

/// None when the pointers are not what the contract says.
unsafe fn inputs<'a>(host: *const abi::Host, options: *const c_char) -> Option<(Host, &'a str)> {
    if host.is_null() {
        return None;
    }
    // SAFETY: the pager passes a host; its size tells how much of it there is.
    let raw = unsafe { *host };
    if raw.abi != abi::ABI || (raw.size as usize) < size_of::<abi::Host>() {
        return None;
    }
    let options = if options.is_null() {
        ""
    } else {
        // SAFETY: the pager passes a terminated string.
        unsafe { CStr::from_ptr(options) }.to_str().ok()?
    };
    Some((Host::from_raw(raw), options))
}

unsafe extern "C" fn memory_bytes<A: Algorithm>(
    host: *const abi::Host,
    options: *const c_char,
) -> u64 {
    // SAFETY: the pager's own arguments.
    unsafe { inputs(host, options) }
        .and_then(|(host, options)| A::memory_bytes(&host, options))
        .map_or(0, |bytes| (Memory::bytes::<A>(1) + bytes) as u64)
}

unsafe extern "C" fn start<A: Algorithm>(
    memory: *mut c_void,
    host: *const abi::Host,
    options: *const c_char,
) -> *mut c_void {
    let place = memory.cast::<A>();
    let started = || {
        // SAFETY: the pager's own arguments.
        let (host, options) = unsafe { inputs(host, options) }?;
        let bytes = A::memory_bytes(&host, options)?;
        // SAFETY: `memory_bytes` asked for room for `A` first, and that much behind it.
        let mut memory =
            unsafe { Memory::from_raw(memory.cast::<u8>().add(Memory::bytes::<A>(1)), bytes) };
        A::start(&mut memory, host, options)
    };
    match started() {
        Some(algorithm) if align_of::<A>() <= Memory::ALIGN => {
            // SAFETY: room for `A`, aligned.
            unsafe { place.write(algorithm) };
            place.cast()
        }
        _ => std::ptr::null_mut(),
    }
}

/// # Safety
/// `policy` must be what `start` returned, and no other call be running.
unsafe fn own<'a, A>(policy: *mut c_void) -> &'a mut A {
    // SAFETY: calls are serialised by the pager.
    unsafe { &mut *policy.cast::<A>() }
}

/// # Safety
/// `items` must be `count` values, or `count` be 0.
unsafe fn slice<'a, T>(items: *const T, count: u32) -> &'a [T] {
    if items.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(items, count as usize) }
}

unsafe extern "C" fn mapped<A: Algorithm>(policy: *mut c_void, first: u32, pages: u32) {
    // SAFETY: the pager's own arguments.
    unsafe { own::<A>(policy) }.mapped(first, pages);
}

unsafe extern "C" fn unmapped<A: Algorithm>(policy: *mut c_void, first: u32, pages: u32) {
    // SAFETY: the pager's own arguments.
    unsafe { own::<A>(policy) }.unmapped(first, pages);
}

unsafe extern "C" fn arrived<A: Algorithm>(
    policy: *mut c_void,
    arrivals: *const Arrival,
    count: u32,
) {
    // SAFETY: the pager's own arguments.
    unsafe { own::<A>(policy).arrived(slice(arrivals, count)) };
}

/// # Safety
/// `items` must have room for `count` values that nobody else uses, or `count` be 0.
unsafe fn room<'a>(items: *mut u32, count: u32) -> &'a mut [u32] {
    if items.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts_mut(items, count as usize) }
}

unsafe extern "C" fn choose<A: Algorithm>(
    policy: *mut c_void,
    victims: *mut u32,
    want: u32,
) -> u32 {
    // SAFETY: the pager's own arguments: room for `want`.
    unsafe { own::<A>(policy).choose(room(victims, want)) as u32 }
}

unsafe extern "C" fn returned<A: Algorithm>(policy: *mut c_void, pages: *const u32, count: u32) {
    // SAFETY: the pager's own arguments.
    unsafe { own::<A>(policy).returned(slice(pages, count)) };
}

unsafe extern "C" fn evicted<A: Algorithm>(policy: *mut c_void, pages: *const u32, count: u32) {
    // SAFETY: the pager's own arguments.
    unsafe { own::<A>(policy).evicted(slice(pages, count)) };
}

unsafe extern "C" fn hint<A: Algorithm>(policy: *mut c_void, first: u32, pages: u32, hint: u32) {
    // SAFETY: the pager's own arguments.
    unsafe { own::<A>(policy) }.hint(first, pages, hint);
}

unsafe extern "C" fn victim_cache_pages<A: Algorithm>(policy: *mut c_void) -> u32 {
    // SAFETY: the pager's own arguments.
    unsafe { own::<A>(policy) }.victim_cache_pages()
}

unsafe extern "C" fn staying<A: Algorithm>(policy: *mut c_void, pages: *mut u32, want: u32) -> u32 {
    // SAFETY: the pager's own arguments: room for `want`.
    unsafe { own::<A>(policy).staying(room(pages, want)) as u32 }
}
