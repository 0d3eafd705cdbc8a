// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls on memory that may be on disk: bring it, hold it, call, let go.
//!
//! In inline mode the kernel's own access to a missing page fails with EFAULT, so
//! everything a call touches is brought in first and pinned until the call is over.

use std::sync::atomic::Ordering;

use libc::c_long;

use crate::fault::{Access, Resolution};
use crate::interpose::arguments::{Extent, Pointer, may_be_short, pointers};
use crate::page::PageIndex;
use crate::pager::{Pager, block_signals, restore_signals};
use crate::queue::Window;
use crate::region::PAGE_BYTES;
use crate::syscall;

/// Pinned ranges of one call.
const MOST_RANGES: usize = 64;
/// Longest string the kernel takes as a path or argument, in pages.
const TEXT_PAGES: usize = 32;
/// Attempts before an EFAULT is believed.
pub(super) const ATTEMPTS: usize = 16;

/// Pages one call holds in DRAM.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pager: &'a Pager,
    ranges: [(PageIndex, u32); MOST_RANGES],
    used: usize,
    bytes: usize,
    /// Bring pages in, but do not pin them (the call may never return here).
    unpinned: bool,
    /// A call on this descriptor that may wait for ever and move less: where others hold much of
    /// DRAM, and there are no boundaries to be kept, hold two pages of its buffer.
    cut_on: Option<usize>,
    /// Whose pins they are: not those of a child that a signal handler forked in the middle.
    process: i32,
}

impl<'a> Held<'a> {
    /// Nothing yet.
    pub(super) fn new(pager: &'a Pager, unpinned: bool) -> Self {
        Self {
            pager,
            ranges: [(0, 0); MOST_RANGES],
            used: 0,
            bytes: 0,
            unpinned,
            cut_on: None,
            process: pager.process.load(Ordering::Relaxed),
        }
    }

    /// Brings `[address, address + bytes)` into DRAM as far as it is managed. Stops at
    /// the end of what one call may hold; returns bytes held from the start.
    pub(super) fn hold(&mut self, address: usize, bytes: usize, write: bool) -> usize {
        let pager = self.pager;
        if bytes == 0 || pager.table.page_of(address).is_none() {
            return bytes;
        }
        let room = pager
            .most_pinned_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(self.bytes)
            .max(2 * PAGE_BYTES);
        let pages_of = |bytes: usize| (address % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES);
        let mut pages = pages_of(bytes.min(room));
        let Some(first) = pager.table.page_of(address) else {
            return 0;
        };
        // Noted before they are held: many may begin at a time.
        let mut noted = if self.unpinned { 0 } else { pages as i64 };
        if pager.notes_pins(noted) && self.cut_on.is_some_and(is_stream) {
            let fewer = pages_of(bytes.min(2 * PAGE_BYTES)).min(pages);
            pager.notes_pins(fewer as i64 - noted);
            (pages, noted) = (fewer, fewer as i64);
        }
        let mut operation = pager.enter();
        if pages >= 4 {
            // All at once what would otherwise be read page by page.
            let window = Window {
                first,
                pages: pages as u32,
                write,
            };
            pager.prefetch(window, &mut operation.context);
        }
        let end = (first as usize + pages).min(pager.table.pages()) as PageIndex;
        let mut page = first;
        while page < end {
            // What is not ours in between (files mapped over managed memory, holes) is
            // the kernel's to judge.
            let start = page;
            let pin = !self.unpinned && self.used < MOST_RANGES;
            let access = Access {
                write,
                pin,
                thread: 0,
            };
            while page < end
                && pager.accessible(page)
                && pager.resolve(page, access, &mut operation.context) == Resolution::Done
            {
                page += 1;
            }
            if pin && page > start {
                self.ranges[self.used] = (start, page - start);
                self.used += 1;
                noted -= i64::from(page - start);
            }
            page += 1;
        }
        drop(operation);
        pager.notes_pins(-noted);
        let brought = (end - first) as usize * PAGE_BYTES;
        self.bytes += brought;
        brought.saturating_sub(address % PAGE_BYTES).min(bytes)
    }

    /// Brings in a string page by page until its end.
    pub(super) fn hold_text(&mut self, address: usize) {
        let mut at = address;
        for _ in 0..TEXT_PAGES {
            let rest = PAGE_BYTES - at % PAGE_BYTES;
            let Some(page) = self.pager.table.page_of(at) else {
                return;
            };
            if !self.pager.accessible(page) || self.hold(at, rest, false) < rest {
                return;
            }
            // SAFETY: just brought in; should it be gone again, touching it brings it
            // back (no lock is held here).
            let part = unsafe { std::slice::from_raw_parts(at as *const u8, rest) };
            if part.contains(&0) {
                return;
            }
            at += rest;
        }
    }

    /// Brings in what a call is given by its arguments.
    pub(super) fn hold_pointers(&mut self, number: c_long, arguments: &[usize; 6]) {
        for pointer in pointers(number) {
            self.hold_pointer(pointer, arguments);
        }
    }

    fn hold_pointer(&mut self, pointer: &Pointer, arguments: &[usize; 6]) {
        let address = arguments[pointer.argument];
        if address == 0 {
            return;
        }
        match pointer.extent {
            Extent::Structure(bytes) => {
                self.hold(address, bytes, pointer.written);
            }
            Extent::Counted(count, size) => {
                self.hold(
                    address,
                    arguments[count].saturating_mul(size),
                    pointer.written,
                );
            }
            Extent::Text => self.hold_text(address),
            Extent::Vectors(count) => {
                self.hold_vectors(address, arguments[count], pointer.written);
            }
            Extent::Message => self.hold_message(address, pointer.written),
            Extent::Messages(count) => {
                for at in 0..arguments[count].min(1024) {
                    self.hold_message(address + at * size_of::<libc::mmsghdr>(), true);
                }
            }
            Extent::Texts => self.hold_texts(address),
        }
    }

    fn hold_texts(&mut self, address: usize) {
        let mut at = address;
        loop {
            let mut texts = [0usize; 32];
            // Never across a page: the array may end right before an unmapped one.
            let count = ((PAGE_BYTES - at % PAGE_BYTES) / 8).clamp(1, texts.len());
            self.hold(at, count * 8, false);
            if !read_words(at, &mut texts[..count]) {
                return;
            }
            for &text in &texts[..count] {
                match text {
                    0 => return,
                    text => self.hold_text(text),
                }
            }
            at += count * 8;
        }
    }

    fn hold_vectors(&mut self, address: usize, count: usize, write: bool) {
        let count = count.min(1024);
        self.hold(address, count * size_of::<libc::iovec>(), false);
        for at in 0..count {
            let vector = address + at * size_of::<libc::iovec>();
            if let (Some(base), Some(bytes)) = (read_user(vector), read_user(vector + 8)) {
                self.hold(base, bytes, write);
            }
        }
    }

    fn hold_message(&mut self, address: usize, written: bool) {
        // struct msghdr: name, namelen, iov, iovlen, control, controllen, flags.
        self.hold(address, size_of::<libc::mmsghdr>(), true);
        let field = |offset: usize| read_user(address + offset).unwrap_or(0);
        self.hold(field(0), field(8) as u32 as usize, written);
        self.hold_vectors(field(16), field(24), written);
        self.hold(field(32), field(40), written);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Not through the gate: somebody inside may wait for the frames that are given
        // up here, and a fork in front of it for him. One compare-and-swap a page leaves
        // nothing half done, and a child takes all pins off its copy anyway.
        let signals = block_signals();
        for &(first, pages) in &self.ranges[..self.used] {
            self.pager.unpin(first, pages);
            if self.process == self.pager.process.load(Ordering::Relaxed) {
                self.pager.notes_pins(-i64::from(pages));
            }
        }
        restore_signals(signals);
    }
}

/// A word of the program's memory, which may be anywhere, even invalid.
pub(super) fn read_user(address: usize) -> Option<usize> {
    let mut word = [0usize];
    read_words(address, &mut word).then_some(word[0])
}

/// Words of the program's memory. False if they cannot be read.
fn read_words(address: usize, words: &mut [usize]) -> bool {
    let copy = |words: &mut [usize]| {
        for (at, word) in words.iter_mut().enumerate() {
            // SAFETY: an address the program hands to the kernel; managed memory that has
            // left again is brought back by the load (no lock is held here).
            *word = unsafe { (address as *const usize).add(at).read_unaligned() };
        }
        true
    };
    if let Some(pager) = crate::pager::pager()
        && let Some(page) = pager.table.page_of(address)
        && pager.accessible(page)
    {
        return copy(words);
    }
    // Not ours: anywhere else, or a file mapped into our address space.
    let bytes = size_of_val(words);
    let local = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: bytes,
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes,
    };
    // SAFETY: the local words are ours.
    let read = unsafe { syscall::read_own(&[remote], &[local]) };
    match -read as i32 {
        // Not permitted here (a hardened container): trust the pointer.
        libc::EPERM | libc::ENOSYS => copy(words),
        _ => read == bytes as isize,
    }
}

/// Makes a call of the program's with all it touches held in DRAM.
pub fn perform(pager: &Pager, number: c_long, arguments: [usize; 6]) -> isize {
    pager.counters().syscalls_trapped.add(1);
    if let Some((buffer, count)) = may_be_short(number)
        && arguments[count] > PAGE_BYTES
        && pager.table.page_of(arguments[buffer]).is_some()
    {
        return perform_in_pieces(pager, number, arguments, buffer, count);
    }
    if let Some(positioned) = vectors_may_be_short(number) {
        return perform_vectors(pager, number, arguments, positioned);
    }
    perform_once(pager, number, arguments)
}

/// Calls that move what vectors say and may move less; whether they say where in the file.
fn vectors_may_be_short(number: c_long) -> Option<bool> {
    match number {
        libc::SYS_readv | libc::SYS_writev => Some(false),
        libc::SYS_preadv | libc::SYS_pwritev | libc::SYS_preadv2 | libc::SYS_pwritev2 => Some(true),
        _ => None,
    }
}

/// Vectors of more than one call may pin go in pieces, on regular files: others may count on
/// one call being one message.
fn perform_vectors(
    pager: &Pager,
    number: c_long,
    arguments: [usize; 6],
    positioned: bool,
) -> isize {
    const AT_ONCE: usize = 16;
    /// The kernel takes no more; what is larger is for it to refuse.
    const MOST_VECTORS: usize = 1024;
    let most_bytes = pager.most_pinned_bytes.load(Ordering::Relaxed) / PAGE_BYTES * PAGE_BYTES;
    let (list, count) = (arguments[1], arguments[2]);
    let vector = |at: usize| {
        let place = list + at * size_of::<libc::iovec>();
        Some((read_user(place)?, read_user(place + 8)?))
    };
    let total = (0..count.min(MOST_VECTORS + 1)).try_fold(0usize, |sum, at| {
        vector(at).and_then(|(_, bytes)| sum.checked_add(bytes))
    });
    let fits = total.is_none_or(|total| total <= most_bytes / 2);
    let whole = fits || count > MOST_VECTORS || !is_regular_file(arguments[0]);
    let (mut at, mut inside, mut done) = (0, 0, 0);
    // By so many bytes; vectors that were empty or are done with are passed over.
    let advance = |at: &mut usize, inside: &mut usize, moved: usize| {
        *inside += moved;
        while let Some((_, length)) = (*at < count).then(|| vector(*at)).flatten()
            && *inside >= length
        {
            *inside -= length;
            *at += 1;
        }
    };
    if whole {
        let result = perform_once(pager, number, arguments);
        let is_short = total.is_some_and(|total| (1..total as isize).contains(&result));
        if !is_short || count > MOST_VECTORS || !is_regular_file(arguments[0]) {
            return result;
        }
        done = result as usize;
        advance(&mut at, &mut inside, done);
    }
    while at < count {
        let mut piece = [(0usize, 0usize); AT_ONCE];
        let (mut used, mut bytes) = (0, 0);
        let (mut next, mut skip) = (at, inside);
        while next < count && used < AT_ONCE && bytes < most_bytes {
            let Some((base, length)) = vector(next) else {
                break;
            };
            let here = (length - skip).min(most_bytes - bytes);
            if here > 0 {
                piece[used] = (base + skip, here);
                used += 1;
            }
            bytes += here;
            skip += here;
            if skip == length {
                (next, skip) = (next + 1, 0);
            }
        }
        let mut call = arguments;
        call[1] = piece.as_ptr() as usize;
        call[2] = used;
        if positioned && arguments[3] as isize != -1 {
            call[3] = arguments[3] + done;
        }
        let result = perform_once(pager, number, call);
        if result < 0 {
            return if done > 0 { done as isize } else { result };
        }
        // Less than asked for is the end of the file only if nothing comes after it: a part may
        // have had no room in DRAM, where vectors begin and end inside pages, or others of the
        // run have taken some of it meanwhile.
        if result == 0 {
            break;
        }
        done += result as usize;
        advance(&mut at, &mut inside, result as usize);
    }
    done as isize
}

fn perform_once(pager: &Pager, number: c_long, arguments: [usize; 6]) -> isize {
    let mut result = 0;
    for attempt in 0..ATTEMPTS {
        let mut held = Held::new(pager, false);
        held.hold_pointers(number, &arguments);
        if attempt > 0 && number == libc::SYS_ioctl {
            hold_what_it_points_to(&mut held, arguments[2]);
        }
        pager.counters().syscalls_reissued.add(1);
        // SAFETY: the program's own call.
        result = unsafe { syscall::call(number, arguments) };
        if result != -(libc::EFAULT as isize) {
            break;
        }
    }
    result
}

/// An ioctl whose structure holds pointers nobody told us about: whatever in it looks
/// like an address of the arena is brought in.
fn hold_what_it_points_to(held: &mut Held<'_>, address: usize) {
    for offset in (0..256).step_by(8) {
        if let Some(word) = read_user(address + offset) {
            held.hold(word, 16 * PAGE_BYTES, true);
        }
    }
}

fn perform_in_pieces(
    pager: &Pager,
    number: c_long,
    arguments: [usize; 6],
    buffer: usize,
    count: usize,
) -> isize {
    let total = arguments[count];
    let writes = pointers(number)
        .iter()
        .any(|pointer| pointer.argument == buffer && pointer.written);
    // Reading on would wait for data that the one call would not have waited for, except
    // from a regular file. Datagrams must not be cut: they are smaller than a piece.
    let goes_on = !writes || is_regular_file(arguments[0]);
    let mut done = 0;
    loop {
        let mut piece = arguments;
        piece[buffer] += done;
        piece[count] -= done;
        if done > 0 && matches!(number, libc::SYS_pread64 | libc::SYS_pwrite64) {
            piece[3] = piece[3].wrapping_add(done);
        }
        let mut held = Held::new(pager, false);
        for pointer in pointers(number) {
            if pointer.argument != buffer {
                held.hold_pointer(pointer, &piece);
            }
        }
        held.cut_on = may_be_cut(number, &arguments).then_some(arguments[0]);
        let ready = held.hold(piece[buffer], piece[count], writes);
        let end = piece[buffer] + ready;
        // Past the managed part the kernel copes (or refuses) by itself.
        let rest_is_managed = pager
            .table
            .page_of(end)
            .is_some_and(|page| pager.accessible(page));
        if ready > 0 && ready < piece[count] && rest_is_managed {
            piece[count] = ready;
        }
        let mut result = 0;
        for _ in 0..ATTEMPTS {
            // SAFETY: the program's own call, on a part of its buffer.
            result = unsafe { syscall::call(number, piece) };
            if result != -(libc::EFAULT as isize) {
                break;
            }
            held.hold(piece[buffer], piece[count], writes);
        }
        if result < 0 {
            return if done > 0 { done as isize } else { result };
        }
        done += result as usize;
        if !goes_on || done >= total || (result as usize) < piece[count] {
            return done as isize;
        }
    }
}

fn is_regular_file(fd: usize) -> bool {
    kind_of(fd) == Some(libc::S_IFREG)
}

/// Whether a call may come back with less than there is. Who receives with `MSG_WAITALL` takes
/// that for the end, and who peeks for more than two pages would never have them.
fn may_be_cut(number: c_long, arguments: &[usize; 6]) -> bool {
    const WHOLE: usize = (libc::MSG_WAITALL | libc::MSG_PEEK) as usize;
    number != libc::SYS_recvfrom || arguments[3] & WHOLE == 0
}

/// Whether what is moved there has no boundaries that a shorter call would move: bytes of
/// pipes and stream sockets. A pipe of packets (`O_DIRECT`) has, and a file is not waited for.
fn is_stream(fd: usize) -> bool {
    let number = |call: c_long, arguments: [usize; 6]| {
        // SAFETY: flags of a descriptor, or an option into a word of ours.
        unsafe { syscall::call(call, arguments) }
    };
    match kind_of(fd) {
        Some(libc::S_IFIFO) => {
            let flags = number(libc::SYS_fcntl, [fd, libc::F_GETFL as usize, 0, 0, 0, 0]);
            flags >= 0 && flags as i32 & libc::O_DIRECT == 0
        }
        Some(libc::S_IFSOCK) => {
            let (mut kind, mut bytes) = (0i32, size_of::<i32>() as u32);
            let result = number(
                libc::SYS_getsockopt,
                [
                    fd,
                    libc::SOL_SOCKET as usize,
                    libc::SO_TYPE as usize,
                    &raw mut kind as usize,
                    &raw mut bytes as usize,
                    0,
                ],
            );
            result == 0 && kind == libc::SOCK_STREAM
        }
        _ => false,
    }
}

/// What a descriptor is, of `S_IFMT`.
fn kind_of(fd: usize) -> Option<libc::mode_t> {
    // SAFETY: zero is a stat.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fills one stat.
    let result =
        unsafe { syscall::call(libc::SYS_fstat, [fd, &raw mut status as usize, 0, 0, 0, 0]) };
    (result == 0).then_some(status.st_mode & libc::S_IFMT)
}
