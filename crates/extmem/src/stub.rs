// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two places that the filter knows: the stub, whose calls it lets through, and a return from a
//! handler, which it traps.
//!
//! A seccomp filter cannot be lifted, so the pager's own calls need an address
//! that it exempts. Each lives alone in a page at a fixed address, on either side of a 4 GiB line:
//! the filter only has to look at the upper half of the instruction pointer, and the same
//! filter serves the next program image after an exec.

use crate::syscall;

/// Upper 32 bits of the stub's address: nothing else of the pager lives there.
pub const ADDRESS_HIGH: u32 = 0x6cff;
/// Where it is.
pub const ADDRESS: usize = (ADDRESS_HIGH as usize) << 32;
/// Upper 32 bits of [`RETURN`].
pub const RETURN_HIGH: u32 = ADDRESS_HIGH - 1;
/// Where a handler of the program's returns to whose frame lies in managed memory, on a page of
/// which the kernel would not wait. Some way into its page: unwinders look for the byte before.
pub const RETURN: usize = ADDRESS - PAGE_BYTES + 64;
/// Behind its call.
pub const RETURNED: usize = RETURN + RETURN_CODE.len() - 2;
const PAGE_BYTES: usize = 4096;
/// What is mapped: both pages.
pub const FIRST: usize = ADDRESS - PAGE_BYTES;
/// The bytes of both.
pub const BYTES: usize = 2 * PAGE_BYTES;

/// System V arguments to system call arguments, the call, and back:
/// `mov rax,rdi; mov rdi,rsi; mov rsi,rdx; mov rdx,rcx; mov r10,r8; mov r8,r9;
/// mov r9,[rsp+8]; syscall; ret`.
const CODE: [u8; 26] = [
    0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d, 0x89, 0xc2, 0x4d,
    0x89, 0xc8, 0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05, 0xc3,
];

/// `mov rax, 15; syscall; ud2`: by these bytes debuggers and unwinders know the end of a handler.
const RETURN_CODE: [u8; 11] = [
    0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x0f, 0x0b,
];

/// Maps both places and sends all later calls of the pager through the stub.
pub fn install() -> std::io::Result<()> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as usize;
    // SAFETY: a fresh mapping; NOREPLACE keeps what lies there.
    let mapped = unsafe {
        syscall::call(
            libc::SYS_mmap,
            [FIRST, BYTES, protection, flags, usize::MAX, 0],
        )
    };
    if mapped < 0 {
        return Err(std::io::Error::from_raw_os_error(-mapped as i32));
    }
    if mapped as usize != FIRST {
        // A kernel without MAP_FIXED_NOREPLACE took the address as a hint.
        return Err(std::io::Error::from_raw_os_error(libc::EEXIST));
    }
    // SAFETY: the pages just mapped, writable, ours; then made executable.
    let protected = unsafe {
        std::ptr::copy_nonoverlapping(CODE.as_ptr(), ADDRESS as *mut u8, CODE.len());
        let end_of_handlers = RETURN as *mut u8;
        std::ptr::copy_nonoverlapping(RETURN_CODE.as_ptr(), end_of_handlers, RETURN_CODE.len());
        syscall::call(
            libc::SYS_mprotect,
            [
                FIRST,
                BYTES,
                (libc::PROT_READ | libc::PROT_EXEC) as usize,
                0,
                0,
                0,
            ],
        )
    };
    if protected < 0 {
        return Err(std::io::Error::from_raw_os_error(-protected as i32));
    }
    // SAFETY: CODE is a function of this signature, and the page is never unmapped.
    unsafe { syscall::set_entry(std::mem::transmute::<usize, syscall::Entry>(ADDRESS)) };
    Ok(())
}
