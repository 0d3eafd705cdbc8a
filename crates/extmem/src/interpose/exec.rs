// SPDX-License-Identifier: Apache-2.0 OR MIT
//! exec: what the next image of a process is given.
//!
//! Descriptors and the environment lead it to the pager. Programs that cannot load the
//! library, or not beside what they are, are started without it, and run as they are.

use demeter_extmem_image::{Image, SCRIPT_DEPTH, Tool, inspect};
use libc::c_long;

use crate::interpose::randomisation::{self, ForExec};
use crate::interpose::transfer::{ATTEMPTS, Held, read_user};
use crate::pager::Pager;
use crate::{descriptor, syscall};

/// So much of a path is looked at.
const PATH_BYTES: usize = 256;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libdemeter_extmem.so";
/// No more: the stack may be a small one. A larger environment stays as it is.
const MOST_VARIABLES: usize = 512;
/// Nor does one that names so many libraries.
const PRELOAD_BYTES: usize = 512;

/// execve and execveat. May run in a child by vfork, on little stack.
pub fn perform(pager: &Pager, number: c_long, arguments: [usize; 6]) -> isize {
    pager.counters().syscalls_trapped.add(1);
    descriptor::hand_on();
    let [folder, path, environment] = match number {
        libc::SYS_execveat => [arguments[0], arguments[1], 3],
        _ => [libc::AT_FDCWD as usize, arguments[0], 2],
    };
    {
        // Memory that is on disk, of which the kernel and we shall see a path.
        let mut held = Held::new(pager, true);
        held.hold_text(path);
    }
    let mut room = [0; PATH_BYTES];
    let name = read_text(path, &mut room);
    let loaded = loaded(folder, path);
    if has_c_library(loaded) && randomisation::is_off() {
        randomisation::refuse(name);
        return -libc::EPERM as isize;
    }
    let addresses = ForExec::new();
    // SAFETY: no arguments. This process may be a child by vfork.
    let process = unsafe { syscall::call(libc::SYS_getpid, [0; 6]) } as u32;
    let departure = pager.statistics.leave(process, name);
    let result = if tool(folder, path, name).is_none() && loads_library(loaded) {
        reissue(pager, number, arguments)
    } else {
        reissue_without_library(pager, number, arguments, environment)
    };
    // It did not come to the exec.
    drop(addresses);
    pager.statistics.stayed(process, departure);
    result
}

/// Makes the call, with all that it reads in DRAM. Not pinned: an exec does not return, and in
/// a vfork child the pins would stay with the parent.
fn reissue(pager: &Pager, number: c_long, arguments: [usize; 6]) -> isize {
    let mut result = 0;
    for _ in 0..ATTEMPTS {
        let mut held = Held::new(pager, true);
        held.hold_pointers(number, &arguments);
        pager.counters().syscalls_reissued.add(1);
        // SAFETY: the program's own call, or with an environment of ours in its place.
        result = unsafe { syscall::call(number, arguments) };
        if result != -(libc::EFAULT as isize) {
            break;
        }
    }
    result
}

/// The tool of that path, by its name or by that of the file which links lead to. Not part of
/// what calls it: it takes more of a stack, which may be a small one.
#[inline(never)]
fn tool(folder: usize, path: usize, name: &[u8]) -> Option<Tool> {
    if let Some(tool) = Tool::of(name) {
        return Some(tool);
    }
    let mut room = [0; libc::PATH_MAX as usize];
    if name.is_empty() {
        // execveat of a descriptor.
        return Tool::of(descriptor::path(folder as i32, &mut room));
    }
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    // SAFETY: a path of the program's, or one that ends.
    let file = unsafe { syscall::call(libc::SYS_openat, [folder, path, flags, 0, 0, 0]) };
    if file < 0 {
        return None;
    }
    let tool = Tool::of(descriptor::path(file as i32, &mut room));
    // SAFETY: ours.
    unsafe { syscall::call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]) };
    tool
}

/// What the kernel loads for that path, which may lead to an interpreter; none where that is a
/// tool.
fn loaded(folder: usize, path: usize) -> Option<Image> {
    let (mut folder, mut path) = (folder, path);
    // What `path` leads to, from the second round on.
    let mut interpreter;
    for _ in 0..SCRIPT_DEPTH {
        match image(folder, path) {
            Image::Script(next) => {
                interpreter = next;
                // As the kernel does: of the working directory, wherever the script lies.
                folder = libc::AT_FDCWD as usize;
                path = interpreter
                    .c_path()
                    .map_or(0, |path| path.as_ptr() as usize);
                if tool(folder, path, interpreter.path()).is_some() {
                    return None;
                }
            }
            image => return Some(image),
        }
    }
    Some(Image::Unknown)
}

/// Whether that can have the library. What cannot be read is given it.
fn loads_library(loaded: Option<Image>) -> bool {
    !matches!(loaded, None | Some(Image::OtherLibrary | Image::Sanitized))
}

/// Whether that has a C library of the kind that the filter knows.
fn has_c_library(loaded: Option<Image>) -> bool {
    matches!(
        loaded,
        None | Some(Image::Dynamic | Image::Sanitized | Image::Go)
    )
}

fn image(folder: usize, path: usize) -> Image {
    // Nothing that is no file may keep us waiting.
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: a path of the program's, or one that ends.
    let file = unsafe { syscall::call(libc::SYS_openat, [folder, path, flags, 0, 0, 0]) };
    if file < 0 {
        return Image::Unknown;
    }
    let image = inspect(&mut |offset, buffer| {
        let (into, bytes) = (buffer.as_mut_ptr() as usize, buffer.len());
        // SAFETY: fills the buffer.
        let read = unsafe {
            syscall::call(
                libc::SYS_pread64,
                [file as usize, into, bytes, offset as usize, 0, 0],
            )
        };
        usize::try_from(read).unwrap_or(0)
    });
    // SAFETY: ours.
    unsafe { syscall::call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]) };
    image
}

/// Makes the call with an environment that names no library of ours.
#[inline(never)]
fn reissue_without_library(
    pager: &Pager,
    number: c_long,
    arguments: [usize; 6],
    environment: usize,
) -> isize {
    let mut variables = [0; MOST_VARIABLES + 1];
    let mut preload = [0; PRELOAD_BYTES];
    let mut changed = arguments;
    if strip(arguments[environment], &mut variables, &mut preload) {
        changed[environment] = variables.as_ptr() as usize;
    }
    let result = reissue(pager, number, changed);
    std::hint::black_box((&variables, &preload));
    result
}

/// Copies an environment without our library. False where it has no room, or none is there.
fn strip(
    environment: usize,
    variables: &mut [usize; MOST_VARIABLES + 1],
    preload: &mut [u8; PRELOAD_BYTES],
) -> bool {
    let mut kept = 0;
    for at in 0.. {
        let text = match read_user(environment.wrapping_add(at * size_of::<usize>())) {
            None => return false,
            Some(0) => break,
            Some(text) => text,
        };
        let mut name = [0; PRELOAD.len()];
        let text = if read_text(text, &mut name) == PRELOAD {
            let mut value = [0; PRELOAD_BYTES];
            let value = read_text(text + PRELOAD.len(), &mut value);
            if value.len() + PRELOAD.len() >= PRELOAD_BYTES {
                return false;
            }
            if !preload_of_others(value, preload) {
                continue;
            }
            preload.as_ptr() as usize
        } else {
            text
        };
        if kept == MOST_VARIABLES {
            return false;
        }
        variables[kept] = text;
        kept += 1;
    }
    variables[kept] = 0;
    true
}

/// Writes the variable with the libraries of others, and a zero byte. False if there are none.
fn preload_of_others(value: &[u8], variable: &mut [u8; PRELOAD_BYTES]) -> bool {
    variable[..PRELOAD.len()].copy_from_slice(PRELOAD);
    let mut length = PRELOAD.len();
    let libraries = value.split(|byte| matches!(byte, b':' | b' '));
    for library in libraries.filter(|library| !library.is_empty() && !library.ends_with(LIBRARY)) {
        if length > PRELOAD.len() {
            variable[length] = b':';
            length += 1;
        }
        variable[length..length + library.len()].copy_from_slice(library);
        length += library.len();
    }
    variable[length] = 0;
    length > PRELOAD.len()
}

/// A text of the program's memory up to its zero byte, or as much as there is room for.
fn read_text(address: usize, room: &mut [u8]) -> &[u8] {
    const WORD_BYTES: usize = size_of::<usize>();
    let mut length = 0;
    let mut at = address;
    // Whole words: none of them lies in two pages.
    'text: while length < room.len()
        && let Some(word) = read_user(at - at % WORD_BYTES)
    {
        for &byte in &word.to_ne_bytes()[at % WORD_BYTES..] {
            if byte == 0 || length == room.len() {
                break 'text;
            }
            room[length] = byte;
            length += 1;
        }
        at += WORD_BYTES - at % WORD_BYTES;
    }
    &room[..length]
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn texts(variables: &[usize]) -> Vec<String> {
        let ended = variables.iter().take_while(|&&text| text != 0);
        let text = |&text: &usize| {
            // SAFETY: texts that end, of this test.
            let text = unsafe { CStr::from_ptr(text as *const _) };
            text.to_str().unwrap().to_owned()
        };
        ended.map(text).collect()
    }

    /// What `strip` makes of an environment.
    fn stripped(variables: &[&CStr]) -> Option<Vec<String>> {
        let mut given: Vec<usize> = variables
            .iter()
            .map(|text| text.as_ptr() as usize)
            .collect();
        given.push(0);
        let (mut kept, mut preload) = ([usize::MAX; MOST_VARIABLES + 1], [1; PRELOAD_BYTES]);
        strip(given.as_ptr() as usize, &mut kept, &mut preload).then(|| texts(&kept))
    }

    #[test]
    fn the_library_goes_and_the_rest_stays() {
        assert_eq!(stripped(&[]).unwrap(), [""; 0]);
        let alone = c"LD_PRELOAD=/usr/libexec/demeter/libdemeter_extmem.so";
        assert_eq!(stripped(&[c"A=1", alone, c"B="]).unwrap(), ["A=1", "B="]);
        let first = c"LD_PRELOAD=/x/libdemeter_extmem.so:/y/other.so z.so";
        assert_eq!(
            stripped(&[first, c"LD_PRELOADED=1"]).unwrap(),
            ["LD_PRELOAD=/y/other.so:z.so", "LD_PRELOADED=1"]
        );
        let others = c"LD_PRELOAD=/y/other.so";
        assert_eq!(stripped(&[others]).unwrap(), ["LD_PRELOAD=/y/other.so"]);
    }

    #[test]
    fn what_is_too_large_stays_as_it_is() {
        let many = vec![c"A=1"; MOST_VARIABLES];
        assert_eq!(stripped(&many).unwrap().len(), MOST_VARIABLES);
        assert_eq!(stripped(&vec![c"A=1"; MOST_VARIABLES + 1]), None);
        let long = format!("LD_PRELOAD={}", "a".repeat(PRELOAD_BYTES));
        let long = std::ffi::CString::new(long).unwrap();
        assert_eq!(stripped(&[&long]), None);
        assert!(!strip(
            8,
            &mut [0; MOST_VARIABLES + 1],
            &mut [0; PRELOAD_BYTES]
        ));
    }
}
