// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is the program one that a preloaded library can manage?
//!
//! The loader leaves LD_PRELOAD aside for static programs and for those that gain
//! privileges, without a word: such a program would run unmanaged. So we look first.

use std::ffi::{CString, OsStr};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, refuse};

/// Scripts may name scripts; the kernel follows this many.
const SCRIPT_DEPTH: usize = 5;
/// The program header table lies within this much of every sensible binary.
const INSPECTED_BYTES: u64 = 64 << 10;

/// Finds the program and refuses what cannot be managed.
pub fn check(name: &OsStr) -> Result<PathBuf, Error> {
    let path = find(name)?;
    if path.file_name().is_some_and(|name| name == "gdb") {
        return Err(refuse(
            "gdb cannot be managed: it stops programs whose memory it then waits for",
            "run the program under the pager, and attach gdb to it (gdb -p)",
        ));
    }
    inspect(&path, SCRIPT_DEPTH)?;
    Ok(path)
}

/// As execvp does.
fn find(name: &OsStr) -> Result<PathBuf, Error> {
    let shown = name.to_string_lossy();
    let unfound = || {
        refuse(
            format!("program '{shown}' is not found"),
            "check its name, or give its path",
        )
    };
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else {
        std::env::var_os("PATH")
            .map(|path| {
                std::env::split_paths(&path)
                    .map(|directory| directory.join(name))
                    .collect()
            })
            .unwrap_or_default()
    };
    let mut not_executable = None;
    for candidate in candidates {
        if candidate.is_dir() || !candidate.exists() {
            continue;
        }
        if executable(&candidate) {
            return Ok(candidate);
        }
        not_executable = Some(candidate);
    }
    Err(match not_executable {
        Some(path) => refuse(
            format!("program {} is not executable", path.display()),
            "check its permissions",
        ),
        None => unfound(),
    })
}

fn executable(path: &Path) -> bool {
    CString::new(path.as_os_str().as_bytes()).is_ok_and(|path| {
        // SAFETY: a terminated string.
        unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
    })
}

fn inspect(path: &Path, depth: usize) -> Result<(), Error> {
    let shown = path.display();
    if gains_privileges(path) {
        return Err(refuse(
            format!(
                "program {shown} is setuid, setgid or has file capabilities, and so loads no libraries of ours"
            ),
            "run a copy without these rights (`cp` drops them)",
        ));
    }
    let mut head = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(INSPECTED_BYTES).read_to_end(&mut head))
        .map_err(|error| {
            refuse(
                format!("cannot read program {shown}: {error}"),
                "check its permissions",
            )
        })?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let interpreter = line
            .split(|byte| byte.is_ascii_whitespace())
            .find(|word| !word.is_empty());
        return match interpreter {
            Some(interpreter) if depth > 0 => {
                inspect(Path::new(OsStr::from_bytes(interpreter)), depth - 1)
            }
            _ => Err(refuse(
                format!("script {shown} has no usable interpreter"),
                "check its first line",
            )),
        };
    }
    if is_go(&head) {
        return Err(refuse(
            format!("program {shown} is built by Go, whose run-time system cannot be managed"),
            "run it as it is, and give the kernel swap",
        ));
    }
    match Binary::of(&head) {
        Binary::Dynamic => Ok(()),
        Binary::Static => Err(refuse(
            format!("program {shown} is statically linked, and so loads no libraries of ours"),
            "link it dynamically",
        )),
        Binary::Foreign => Err(refuse(
            format!("program {shown} is not a 64-bit binary of this machine"),
            "build it for this machine",
        )),
        Binary::Unknown => Err(refuse(
            format!("program {shown} is neither an ELF binary nor a script with #!"),
            "run it by its interpreter",
        )),
    }
}

/// Whether a dynamic binary has the note of Go's linker (static ones are refused as such).
fn is_go(head: &[u8]) -> bool {
    Binary::of(head) == Binary::Dynamic
        && head.windows(16).any(|note| {
            // Bytes of the name, bytes of what follows, kind 4, and the name.
            note[..4] == [4, 0, 0, 0] && note[8..] == *b"\x04\0\0\0Go\0\0"
        })
}

fn gains_privileges(path: &Path) -> bool {
    const SPECIAL_BITS: u32 = 0o6000;
    let by_mode = std::fs::metadata(path).is_ok_and(|about| about.mode() & SPECIAL_BITS != 0);
    let by_capability = CString::new(path.as_os_str().as_bytes()).is_ok_and(|path| {
        // SAFETY: terminated strings; a size of 0 only asks.
        let bytes = unsafe {
            libc::getxattr(
                path.as_ptr(),
                c"security.capability".as_ptr(),
                std::ptr::null_mut(),
                0,
            )
        };
        bytes > 0
    });
    by_mode || by_capability
}

#[derive(Debug, PartialEq, Eq)]
enum Binary {
    Dynamic,
    Static,
    Foreign,
    Unknown,
}

impl Binary {
    fn of(head: &[u8]) -> Self {
        const PT_INTERP: u32 = 3;
        let machine: u16 = if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
        if !head.starts_with(b"\x7fELF") {
            return Self::Unknown;
        }
        // Class 2 is 64 bit, data 1 little endian.
        if head.get(4..6) != Some(&[2, 1]) || half(head, 18) != Some(machine) {
            return Self::Foreign;
        }
        let (Some(table), Some(entry_bytes), Some(entries)) =
            (word(head, 32), half(head, 54), half(head, 56))
        else {
            return Self::Unknown;
        };
        let interpreted = (0..usize::from(entries)).any(|index| {
            usize::try_from(table)
                .ok()
                .and_then(|table| table.checked_add(index * usize::from(entry_bytes)))
                .and_then(|at| head.get(at..)?.first_chunk::<4>())
                .is_some_and(|kind| u32::from_le_bytes(*kind) == PT_INTERP)
        });
        if interpreted {
            Self::Dynamic
        } else {
            Self::Static
        }
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk::<2>()
        .map(|half| u16::from_le_bytes(*half))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk::<8>()
        .map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn said(name: &Path) -> String {
        check(name.as_os_str()).unwrap_err().to_string()
    }

    #[test]
    fn ordinary_programs_and_scripts_pass() {
        assert!(check(OsStr::new("sh")).is_ok());
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, "#!/bin/sh -e\ntrue\n").unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(check(script.as_os_str()).is_ok());
    }

    #[test]
    fn what_cannot_be_managed_is_refused_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str, content: &[u8], mode: u32| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        assert!(said(&directory.path().join("none")).contains("is not found"));
        assert!(said(Path::new("no-such-program-here")).contains("is not found"));
        assert!(said(&place("text", b"hello", 0o755)).contains("neither an ELF"));
        assert!(said(&place("suid", b"#!/bin/sh\n", 0o4755)).contains("setuid"));
        let mut elf = [0u8; 128];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        assert!(said(&place("static", &elf, 0o755)).contains("statically linked"));
        elf[64] = 3;
        elf[96..112].copy_from_slice(b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0");
        assert!(said(&place("go", &elf, 0o755)).contains("built by Go"));
        assert!(said(&place("gdb", b"#!/bin/sh\n", 0o755)).contains("gdb cannot be managed"));
        elf[4] = 1;
        assert!(said(&place("small", &elf, 0o755)).contains("not a 64-bit binary"));
        let looped = directory.path().join("loop");
        let line = format!("#!{}\n", looped.display());
        place("loop", line.as_bytes(), 0o755);
        assert!(said(&looped).contains("no usable interpreter"));
    }
}
