// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where images of a process lie.
//!
//! The filter outlives an exec and knows the C library of its image by where that lies. An
//! image whose addresses are fixed would know a place where that of each later image with fixed
//! addresses lies, too, which would be ended at its first call. So an image with fixed addresses
//! begins anew with random ones, before it has a filter. One that insists, as it starts itself
//! anew for fixed ones, has them; what it starts has not.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{fatal, syscall};

/// In the environment: the process that has begun anew, and the file that it ran.
const MARK: &str = "DEMETER_EXTMEM_RANDOMISED";
const SETTING: &std::ffi::CStr = c"/proc/sys/kernel/randomize_va_space";
/// Asks personality() for what is set.
const QUESTION: usize = 0xffff_ffff;
const FIXED: usize = libc::ADDR_NO_RANDOMIZE as usize;

/// This image has fixed addresses.
static IS_FIXED: AtomicBool = AtomicBool::new(false);

/// Runs this image once more, if its addresses are fixed and would not be then. Before all
/// else: nothing is held yet.
pub fn begin_anew_if_fixed() {
    let Some(before) = personality(QUESTION).filter(|before| before & FIXED != 0) else {
        return;
    };
    IS_FIXED.store(true, Ordering::Relaxed);
    let Some(path) = own_path() else {
        return;
    };
    let own = format!("{} {}", std::process::id(), path.to_string_lossy());
    if std::env::var_os(MARK).is_some_and(|mark| mark == own.as_str())
        || personality(before & !FIXED).is_none()
    {
        return;
    }
    // SAFETY: the program has not begun, and the constructors that ran before leave no threads.
    unsafe { std::env::set_var(MARK, own) };
    let texts: Option<Vec<CString>> = std::env::args_os()
        .map(|text| CString::new(text.into_vec()).ok())
        .collect();
    if let Some(texts) = texts {
        let mut list: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        list.push(std::ptr::null());
        // SAFETY: a path that ends, and a list of texts that does.
        unsafe { libc::execv(path.as_ptr(), list.as_ptr()) };
    }
    // It goes on as it is.
    personality(before);
}

/// The file of this image by its own name, which becomes that of the process.
fn own_path() -> Option<CString> {
    const LINK: &str = "/proc/self/exe";
    let path = std::fs::read_link(LINK).ok()?;
    let path = if path.exists() { path } else { LINK.into() };
    CString::new(path.into_os_string().into_vec()).ok()
}

/// Has the next image of this thread have random addresses where this one has fixed ones;
/// undone when it is dropped, where the exec failed.
#[derive(Debug)]
pub struct ForExec {
    before: Option<usize>,
}

impl ForExec {
    /// See the type. May run in a child by vfork.
    pub fn new() -> Self {
        let is_fixed = IS_FIXED.load(Ordering::Relaxed);
        let before = is_fixed.then(|| personality(QUESTION)).flatten();
        let before = before.filter(|before| before & FIXED != 0);
        if let Some(before) = before {
            personality(before & !FIXED);
        }
        Self { before }
    }
}

impl Drop for ForExec {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            personality(before);
        }
    }
}

/// Whether no image has random addresses. What cannot be read is as it is everywhere else.
pub fn is_off() -> bool {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let path = SETTING.as_ptr() as usize;
    // SAFETY: a path that ends.
    let file = unsafe {
        syscall::call(
            libc::SYS_openat,
            [libc::AT_FDCWD as usize, path, flags, 0, 0, 0],
        )
    };
    if file < 0 {
        return false;
    }
    let mut digit = 0u8;
    let into = &raw mut digit as usize;
    // SAFETY: room for a byte; a file of ours.
    unsafe {
        syscall::call(libc::SYS_read, [file as usize, into, 1, 0, 0, 0]);
        syscall::call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]);
    }
    digit == b'0'
}

/// Says that a program cannot be started where no addresses are random. Apart, for the stack's
/// sake.
#[inline(never)]
pub fn refuse(name: &[u8]) {
    use std::fmt::Write;
    let mut line = fatal::Line::new();
    let _ = line.write_str("demeter extmem: ");
    for piece in name.utf8_chunks() {
        let _ = line.write_str(piece.valid());
    }
    let _ = line.write_str(
        " is not started: addresses are fixed on this system, and what a managed program starts \
         would be taken for the program itself; next: sysctl kernel.randomize_va_space=2",
    );
    line.emit();
}

/// Sets what it is given, unless that is the question; what was set before. None where that is
/// refused.
fn personality(value: usize) -> Option<usize> {
    // SAFETY: no pointers.
    let before = unsafe { syscall::call(libc::SYS_personality, [value, 0, 0, 0, 0, 0]) };
    usize::try_from(before).ok()
}
