// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that goes away under us: a monitor may shorten the file of guest memory
//! which it has handed over, and the host may find a page broken. Touching it is a
//! SIGBUS, which would end the daemon, and with it all other machines.
//!
//! The thread that touches guest memory says beforehand whose it is. A SIGBUS there
//! gets a page of zeros in place of the lost one and a note for that machine. The
//! thread goes on and finds the note.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// Of memory in 4 KiB pages, and in huge ones of hugetlbfs, of which no part can
/// be replaced.
const PAGE_BYTES: [usize; 3] = [4 << 10, 2 << 20, 1 << 30];

thread_local! {
    /// Keeps alive what `CURRENT` points to.
    static OWNER: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
    /// For the handler, which may not borrow.
    static CURRENT: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
}

/// From now on, lost memory that this thread touches is noted there.
pub fn watch(note: &Arc<AtomicBool>) {
    if CURRENT.get() == Arc::as_ptr(note) {
        return;
    }
    OWNER.with_borrow_mut(|owner| {
        CURRENT.set(ptr::null());
        *owner = Some(note.clone());
        CURRENT.set(Arc::as_ptr(note));
    });
}

/// Installs the handler, for good.
pub fn install() -> Result<(), Error> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is an action: no flags, no mask, the default.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is one of three arguments, as SA_SIGINFO asks for, and
    // calls nothing that a handler may not.
    let status = unsafe { libc::sigaction(libc::SIGBUS, action, ptr::null_mut()) };
    if status == 0 {
        return Ok(());
    }
    Err(Error::System {
        action: "catch SIGBUS",
        cause: io::Error::last_os_error(),
    })
}

extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    let note = CURRENT.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: the kernel hands over a whole siginfo, of a SIGBUS.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A positive code: not sent by a process, but by the access itself.
    if !note.is_null() && code > 0 && replace(address) {
        // SAFETY: OWNER keeps it as long as CURRENT points to it.
        unsafe { (*note).store(true, Ordering::Relaxed) };
        return;
    }
    // Not guest memory: end as without a handler, at the same instruction.
    // SAFETY: restores the default, which is allowed in a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Puts zeros there. False: it cannot be done.
fn replace(address: usize) -> bool {
    // SAFETY: errno is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    let mut replaced = false;
    for bytes in PAGE_BYTES {
        // SAFETY: the page faulted because nothing is behind it any more, so nobody
        // loses anything; its mapping is a part of guest memory, which the thread
        // said to be touching.
        let mapped = unsafe {
            libc::mmap(
                (address & !(bytes - 1)) as *mut libc::c_void,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        replaced = mapped != libc::MAP_FAILED;
        // SAFETY: as above.
        if replaced || unsafe { *errno } != libc::EINVAL {
            break;
        }
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

    fn truncated(bytes: usize) -> (File, GuestMemoryMmap) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes as u64).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(0), bytes, Some(offset));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        (file, memory)
    }

    #[test]
    fn lost_memory_reads_as_zeros_and_is_noted() {
        install().unwrap();
        let (file, memory) = truncated(0x3000);
        memory.write_slice(&[7; 0x3000], GuestAddress(0)).unwrap();
        file.set_len(0x1000).unwrap();
        let note = Arc::new(AtomicBool::new(false));
        watch(&note);
        assert_eq!(memory.read_obj::<u8>(GuestAddress(0xfff)).unwrap(), 7);
        assert!(!note.load(Ordering::Relaxed));
        assert_eq!(memory.read_obj::<u8>(GuestAddress(0x1000)).unwrap(), 0);
        assert!(note.load(Ordering::Relaxed));
        memory.write_obj(9_u8, GuestAddress(0x2000)).unwrap();
        // Another machine's thread has a note of its own.
        let other = Arc::new(AtomicBool::new(false));
        watch(&other);
        assert!(!other.load(Ordering::Relaxed));
    }
}
