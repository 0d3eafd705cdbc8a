// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the C library's code lies in this process.

use std::ffi::{CStr, c_int, c_void};

use demeter_extmem_image::are_of_go;

struct Search {
    text: Option<(usize, usize)>,
}

/// First and one past the last byte of libc.so.6's executable segment.
pub fn text() -> Option<(usize, usize)> {
    let mut search = Search { text: None };
    // SAFETY: the callback gets what we pass, and each object while it is loaded.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast::<c_void>()) };
    search.text
}

unsafe extern "C" fn look(
    object: *mut libc::dl_phdr_info,
    _bytes: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr's promises; `search` is the caller's.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    if object.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a C string of the loader.
    let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    if file != b"libc.so.6" {
        return 0;
    }
    for index in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: inside the object's table.
        let header = unsafe { &*object.dlpi_phdr.add(index) };
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
            let start = object.dlpi_addr as usize + header.p_vaddr as usize;
            search.text = Some((start, start + header.p_memsz as usize));
            return 1;
        }
    }
    0
}

/// Where the kernel sees the library's brk() come from: behind its system call. None if it has no
/// such call and only one at its beginning, or is not in that text.
pub fn break_site(text: (usize, usize)) -> Option<usize> {
    const MOST_BYTES: usize = 64;
    // mov $12, %eax; syscall
    const CALL: [u8; 7] = [0xb8, libc::SYS_brk as u8, 0, 0, 0, 0x0f, 0x05];
    let start = libc::brk as *const () as usize;
    if start < text.0 || start.checked_add(MOST_BYTES)? > text.1 {
        return None;
    }
    // SAFETY: in the library's text, which stays.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, MOST_BYTES) };
    let mut calls = code
        .windows(CALL.len())
        .enumerate()
        .filter(|(_, bytes)| **bytes == CALL);
    match (calls.next(), calls.next()) {
        (Some((at, _)), None) => Some(start + at + CALL.len()),
        _ => None,
    }
}

/// Whether the program is Go's, linked with the C library (a static one has no libraries).
/// Its run-time system changes signal masks by calls of its own, which a filter cannot tell
/// from those of others, and with our signals blocked a missing page ends the program.
pub fn program_is_go() -> bool {
    // SAFETY: asks for what the kernel told this process.
    let (table, count) = unsafe {
        (
            libc::getauxval(libc::AT_PHDR) as *const libc::Elf64_Phdr,
            libc::getauxval(libc::AT_PHNUM) as usize,
        )
    };
    if table.is_null() {
        return false;
    }
    // SAFETY: the program headers of the running program.
    let headers = unsafe { std::slice::from_raw_parts(table, count) };
    let Some(own) = headers.iter().find(|header| header.p_type == libc::PT_PHDR) else {
        return false;
    };
    let base = (table as usize).wrapping_sub(own.p_vaddr as usize);
    headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE)
        .any(|header| {
            let start = base.wrapping_add(header.p_vaddr as usize) as *const u8;
            // SAFETY: a loaded segment of the program.
            are_of_go(unsafe { std::slice::from_raw_parts(start, header.p_memsz as usize) })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_library() {
        let (start, end) = text().unwrap();
        assert!(start < end);
    }

    #[test]
    fn finds_where_the_break_is_asked_for() {
        let (start, end) = text().unwrap();
        let site = break_site((start, end)).unwrap();
        assert!(start < site && site < end);
        assert_eq!(break_site((start, start)), None);
    }

    #[test]
    fn this_program_is_not_go() {
        assert!(!program_is_go());
    }
}
