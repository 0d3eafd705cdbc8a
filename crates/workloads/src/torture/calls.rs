// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls whose arguments lie in paged memory: each kind moves a page
//! through the kernel, or has the kernel read or write structures, paths and
//! vectors there.

use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::dice::Dice;
use super::mapping::{Mapping, PAGE};
use super::trouble::{Check, Trouble};

/// Pages moved at once by the large transfers.
const MANY: usize = 48;
/// Pages that one call of many vectors moves: more than a pager with 48 MiB of DRAM holds for it.
const MANY_IN_VECTORS: usize = 500;
/// Its vectors.
const VECTORS: usize = 24;

/// Descriptors that the calls use, one set a thread.
pub struct Channels {
    pipe: (OwnedFd, OwnedFd),
    sockets: (OwnedFd, OwnedFd),
    file: OwnedFd,
    working_directory: Vec<u8>,
}

/// Every kind of call.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Pipe,
    File,
    Vectors,
    Sockets,
    Messages,
    ManyPages,
    ManyVectors,
    WorkingDirectory,
    Path,
    OtherProcess,
    Structures,
    Futex,
    Random,
    BadAddress,
}

/// All of them.
pub const KINDS: [Kind; 14] = [
    Kind::Pipe,
    Kind::File,
    Kind::Vectors,
    Kind::Sockets,
    Kind::Messages,
    Kind::ManyPages,
    Kind::ManyVectors,
    Kind::WorkingDirectory,
    Kind::Path,
    Kind::OtherProcess,
    Kind::Structures,
    Kind::Futex,
    Kind::Random,
    Kind::BadAddress,
];

/// The result of a call that must be exactly `expected`.
fn exactly(call: &str, expected: usize, result: isize) -> Check<()> {
    match usize::try_from(result) {
        Ok(got) if got == expected => Ok(()),
        Ok(got) => Err(Trouble::Length {
            call: call.to_owned(),
            got,
            expected,
        }),
        Err(_) => Err(Trouble::of_call(call)),
    }
}

/// Calls again when a signal came in between.
fn uninterrupted(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let result = call();
        if result >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return result;
        }
    }
}

fn vector(base: *mut u8, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: bytes,
    }
}

/// Cuts a page into three.
fn cut(page: *mut u8, dice: &mut Dice) -> [libc::iovec; 3] {
    let first = 1 + dice.below(PAGE - 2);
    let second = 1 + dice.below(PAGE - first - 1);
    [
        vector(page, first),
        vector(page.wrapping_add(first), second),
        vector(page.wrapping_add(first + second), PAGE - first - second),
    ]
}

/// Cuts a range into many, some of them empty.
fn cut_into_many(base: *mut u8, bytes: usize, dice: &mut Dice) -> [libc::iovec; VECTORS] {
    let mut ends: [usize; VECTORS] = std::array::from_fn(|_| dice.below(bytes + 1));
    ends[VECTORS - 1] = bytes;
    ends.sort_unstable();
    let mut start = 0;
    ends.map(|end| {
        let piece = vector(base.wrapping_add(start), end - start);
        start = end;
        piece
    })
}

impl Channels {
    /// Opens them.
    pub fn new() -> Check<Self> {
        let mut pair = [0; 2];
        let owned = |fd| {
            // SAFETY: a descriptor that was opened just now for this value.
            unsafe { OwnedFd::from_raw_fd(fd) }
        };
        // SAFETY: the array holds two descriptors.
        if unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Trouble::of_call("pipe2"));
        }
        let pipe = (owned(pair[0]), owned(pair[1]));
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: the array holds two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
            return Err(Trouble::of_call("socketpair"));
        }
        let sockets = (owned(pair[0]), owned(pair[1]));
        // SAFETY: the name is a constant.
        let file = unsafe { libc::memfd_create(c"torture".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(Trouble::of_call("memfd_create"));
        }
        let working_directory = std::env::current_dir().map_err(|cause| Trouble::Call {
            call: "getcwd".to_owned(),
            cause,
        })?;
        let mut working_directory = working_directory.into_os_string().into_encoded_bytes();
        working_directory.push(0);
        Ok(Self {
            pipe,
            sockets,
            file: owned(file),
            working_directory,
        })
    }

    /// Makes one call of a kind; `from` and `to` are different pages.
    pub fn call(
        &self,
        kind: Kind,
        mapping: &mut Mapping,
        (from, to): (usize, usize),
        dice: &mut Dice,
    ) -> Check<()> {
        let (source, target) = (mapping.at(from), mapping.at(to));
        match kind {
            Kind::Pipe | Kind::File | Kind::Vectors | Kind::Sockets | Kind::OtherProcess => {
                self.copy(kind, source, target, dice)?;
                mapping.check_copy(from, target)?;
            }
            Kind::Messages => return self.messages(mapping, (from, to), dice),
            Kind::ManyPages => return self.many_pages(mapping, dice),
            Kind::ManyVectors => return self.many_vectors(mapping, dice),
            Kind::WorkingDirectory => self.working_directory(target)?,
            Kind::Path => path(target, mapping, from)?,
            Kind::Structures => structures(target)?,
            Kind::Futex => futex(mapping, to)?,
            Kind::Random => random(target)?,
            Kind::BadAddress => return self.bad_address(mapping, to),
        }
        if matches!(kind, Kind::Futex) {
            return mapping.check(to);
        }
        mapping.renew(to);
        Ok(())
    }

    /// Moves one page through the kernel.
    fn copy(&self, kind: Kind, source: *mut u8, target: *mut u8, dice: &mut Dice) -> Check<()> {
        let (reader, writer) = (self.pipe.0.as_raw_fd(), self.pipe.1.as_raw_fd());
        let (left, right) = (self.sockets.0.as_raw_fd(), self.sockets.1.as_raw_fd());
        let file = self.file.as_raw_fd();
        let (from, to) = (source.cast(), target.cast());
        // SAFETY, for all calls of this function: both pages are mapped and this
        // thread's own; vectors live on the stack and span one page.
        match kind {
            Kind::Pipe => {
                // SAFETY: see above.
                exactly("write", PAGE, unsafe { libc::write(writer, from, PAGE) })?;
                // SAFETY: see above.
                exactly("read", PAGE, unsafe { libc::read(reader, to, PAGE) })
            }
            Kind::File => {
                let offset = (dice.below(64) * 512) as i64;
                // SAFETY: see above.
                exactly("pwrite", PAGE, unsafe {
                    libc::pwrite(file, from, PAGE, offset)
                })?;
                // SAFETY: see above.
                exactly("pread", PAGE, unsafe {
                    libc::pread(file, to, PAGE, offset)
                })
            }
            Kind::Vectors => {
                let (out, into) = (cut(source, dice), cut(target, dice));
                // SAFETY: see above.
                exactly("writev", PAGE, unsafe {
                    libc::writev(writer, out.as_ptr(), 3)
                })?;
                // SAFETY: see above.
                exactly("readv", PAGE, unsafe {
                    libc::readv(reader, into.as_ptr(), 3)
                })
            }
            Kind::Sockets => {
                // SAFETY: see above.
                exactly("send", PAGE, unsafe { libc::send(left, from, PAGE, 0) })?;
                // SAFETY: see above.
                exactly("recv", PAGE, unsafe {
                    libc::recv(right, to, PAGE, libc::MSG_WAITALL)
                })
            }
            _ => {
                let (local, remote) = (vector(target, PAGE), vector(source, PAGE));
                // SAFETY: see above; this process reads its own memory.
                let moved = unsafe {
                    libc::process_vm_readv(
                        libc::getpid(),
                        &raw const local,
                        1,
                        &raw const remote,
                        1,
                        0,
                    )
                };
                exactly("process_vm_readv", PAGE, moved)
            }
        }
    }

    /// `sendmsg` and `recvmsg` with header and vector in paged memory.
    fn messages(
        &self,
        mapping: &mut Mapping,
        (from, to): (usize, usize),
        dice: &mut Dice,
    ) -> Check<()> {
        let pages = mapping.pages();
        // Drawn again and again, of a mapping of few pages none was free once in half an hour.
        let drawn = dice.below(pages);
        let header_page = (0..pages)
            .map(|step| (drawn + step) % pages)
            .find(|page| *page != from && *page != to)
            .ok_or(Trouble::Wrong("too few pages for a message"))?;
        mapping.check(header_page)?;
        let header = mapping.at(header_page).cast::<libc::msghdr>();
        let vectors = mapping
            .at(header_page)
            .wrapping_add(1024)
            .cast::<libc::iovec>();
        let mut each = |page: usize, send: bool| -> Check<()> {
            let parts = cut(mapping.at(page), dice);
            // SAFETY: header and vectors fit into the page `header_page`, which
            // this thread owns and renews below.
            let moved = unsafe {
                vectors.cast::<[libc::iovec; 3]>().write(parts);
                header.write(zeroed());
                (*header).msg_iov = vectors;
                (*header).msg_iovlen = 3;
                if send {
                    libc::sendmsg(self.sockets.0.as_raw_fd(), header, 0)
                } else {
                    libc::recvmsg(self.sockets.1.as_raw_fd(), header, libc::MSG_WAITALL)
                }
            };
            exactly(if send { "sendmsg" } else { "recvmsg" }, PAGE, moved)
        };
        each(from, true)?;
        each(to, false)?;
        mapping.check_copy(from, mapping.at(to))?;
        mapping.renew(to);
        mapping.renew(header_page);
        Ok(())
    }

    /// Writes a range of pages to a file and reads it back over another.
    fn many_pages(&self, mapping: &mut Mapping, dice: &mut Dice) -> Check<()> {
        let count = (mapping.pages() / 2).min(MANY);
        let from = dice.below(mapping.pages() - 2 * count + 1);
        let to = from + count;
        let file = self.file.as_raw_fd();
        let bytes = count * PAGE;
        // SAFETY: both ranges are inside the mapping.
        exactly("pwrite", bytes, unsafe {
            libc::pwrite(file, mapping.at(from).cast(), bytes, 0)
        })?;
        // SAFETY: as above.
        exactly("pread", bytes, unsafe {
            libc::pread(file, mapping.at(to).cast(), bytes, 0)
        })?;
        for page in 0..count {
            mapping.check(from + page)?;
            mapping.check_copy(from + page, mapping.at(to + page))?;
            mapping.renew(to + page);
        }
        Ok(())
    }

    /// Writes most of a mapping to a file by one call and reads it back by another, in vectors
    /// that begin and end anywhere. Seldom, as it takes as long as all other calls together.
    fn many_vectors(&self, mapping: &mut Mapping, dice: &mut Dice) -> Check<()> {
        if dice.below(8) > 0 {
            return Ok(());
        }
        let count = (mapping.pages() / 2).min(MANY_IN_VECTORS);
        let from = dice.below(mapping.pages() - 2 * count + 1);
        let to = from + count;
        let (file, bytes) = (self.file.as_raw_fd(), count * PAGE);
        let (out, into) = (
            cut_into_many(mapping.at(from), bytes, dice),
            cut_into_many(mapping.at(to), bytes, dice),
        );
        let vectors = VECTORS as libc::c_int;
        // SAFETY: the vectors are the two ranges inside the mapping.
        exactly("pwritev", bytes, unsafe {
            libc::pwritev(file, out.as_ptr(), vectors, 0)
        })?;
        // SAFETY: as above.
        exactly("preadv", bytes, unsafe {
            libc::preadv(file, into.as_ptr(), vectors, 0)
        })?;
        for page in 0..count {
            mapping.check(from + page)?;
            mapping.check_copy(from + page, mapping.at(to + page))?;
            mapping.renew(to + page);
        }
        Ok(())
    }

    /// `getcwd` straight into the page (glibc's own might use another buffer).
    fn working_directory(&self, target: *mut u8) -> Check<()> {
        // SAFETY: the page is mapped and this thread's own.
        let got = unsafe { libc::syscall(libc::SYS_getcwd, target, PAGE) };
        let expected = &self.working_directory;
        if got != expected.len() as i64 {
            return Err(Trouble::of_call("getcwd"));
        }
        // SAFETY: as above; that many bytes were written.
        let found = unsafe { std::slice::from_raw_parts(target, expected.len()) };
        if found == expected {
            Ok(())
        } else {
            Err(Trouble::Wrong("getcwd returned another folder"))
        }
    }

    /// A call on memory that may not be read gives `EFAULT`, no signal.
    fn bad_address(&self, mapping: &Mapping, page: usize) -> Check<()> {
        let range = page..page + 1;
        mapping.protect(&range, libc::PROT_NONE)?;
        // SAFETY: the kernel refuses to read the page.
        let result = unsafe { libc::write(self.pipe.1.as_raw_fd(), mapping.at(page).cast(), PAGE) };
        let cause = std::io::Error::last_os_error().raw_os_error();
        mapping.protect(&range, libc::PROT_READ | libc::PROT_WRITE)?;
        if result != -1 || cause != Some(libc::EFAULT) {
            return Err(Trouble::NotRefused {
                call: "a write from memory without access",
                result: result as i64,
                cause,
            });
        }
        mapping.check(page)
    }
}

/// Opens a file whose name lies in paged memory and reads into paged memory.
fn path(target: *mut u8, mapping: &mut Mapping, into: usize) -> Check<()> {
    mapping.check(into)?;
    let bytes = c"/proc/self/comm".to_bytes_with_nul();
    // SAFETY: the page is this thread's own and longer than the name.
    let file = unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        libc::openat(
            libc::AT_FDCWD,
            target.cast(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if file < 0 {
        return Err(Trouble::of_call("openat"));
    }
    // SAFETY: as above; a descriptor of this function.
    let got = unsafe { libc::read(file, mapping.at(into).cast(), PAGE) };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    // SAFETY: the page is mapped; the line ends where `got` says.
    let end = usize::try_from(got)
        .ok()
        .filter(|&got| got > 0)
        .map(|got| unsafe { mapping.at(into).add(got - 1).read_volatile() });
    mapping.renew(into);
    match end {
        Some(b'\n') => Ok(()),
        _ => Err(Trouble::Wrong("the process's name is no line")),
    }
}

/// Time, poll and sleep with their structures in paged memory.
fn structures(target: *mut u8) -> Check<()> {
    let time = target.cast::<libc::timespec>();
    // SAFETY: the page is this thread's own and holds all structures used here.
    unsafe {
        let before = now_s();
        if libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, time) != 0 {
            return Err(Trouble::of_call("clock_gettime"));
        }
        if (*time).tv_sec < before || (*time).tv_sec > now_s() {
            return Err(Trouble::Wrong("the clock's answer is wrong"));
        }
        time.write(libc::timespec {
            tv_sec: 0,
            tv_nsec: 1000,
        });
        let sleep = uninterrupted(|| {
            libc::syscall(libc::SYS_nanosleep, time, std::ptr::null_mut::<u8>()) as isize
        });
        if sleep != 0 {
            return Err(Trouble::of_call("nanosleep"));
        }
        let poll = target.wrapping_add(2048).cast::<libc::pollfd>();
        poll.write(libc::pollfd {
            fd: 1,
            events: libc::POLLNVAL,
            revents: -1,
        });
        if uninterrupted(|| libc::poll(poll, 1, 0) as isize) < 0 {
            return Err(Trouble::of_call("poll"));
        }
        if (*poll).revents == -1 {
            return Err(Trouble::Wrong("poll did not write its answer"));
        }
    }
    Ok(())
}

fn now_s() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec
}

/// A futex word in paged memory: a wait for another value returns at once.
fn futex(mapping: &Mapping, page: usize) -> Check<()> {
    let word = mapping.at(page).cast::<u32>();
    let not_this = 0x5a5a_5a5a_u32;
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is mapped; the call only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            wait,
            not_this,
            std::ptr::null::<u8>(),
        )
    };
    let cause = std::io::Error::last_os_error().raw_os_error();
    if result != -1 || cause != Some(libc::EAGAIN) {
        return Err(Trouble::NotRefused {
            call: "futex",
            result,
            cause,
        });
    }
    Ok(())
}

/// Random bytes into a page: half of it keeps its old byte by chance only.
fn random(target: *mut u8) -> Check<()> {
    // SAFETY: the page is this thread's own.
    let before = unsafe { std::slice::from_raw_parts(target, PAGE) }.to_vec();
    // SAFETY: as above.
    let got = uninterrupted(|| unsafe { libc::getrandom(target.cast(), PAGE, 0) });
    exactly("getrandom", PAGE, got)?;
    // SAFETY: as above.
    let after = unsafe { std::slice::from_raw_parts(target, PAGE) };
    let same = before.iter().zip(after).filter(|(a, b)| a == b).count();
    if same > PAGE / 2 {
        return Err(Trouble::NotRandom { same, of: PAGE });
    }
    Ok(())
}
