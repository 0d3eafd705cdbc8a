// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is the program one that a preloaded library can manage?
//!
//! The loader leaves LD_PRELOAD aside for static programs and for those that gain
//! privileges, without a word: such a program would run unmanaged. So we look first.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use demeter_extmem_image::{Image, SCRIPT_DEPTH, Tool, inspect};

use crate::error::{Error, refuse};

/// Finds the program and refuses what cannot be managed.
pub fn check(name: &OsStr) -> Result<PathBuf, Error> {
    let path = find(name)?;
    allow(&path, SCRIPT_DEPTH)?;
    Ok(path)
}

/// Refuses programs that run others in ways that a pager cannot be part of, also where a link
/// to one has another name.
fn refuse_tool(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let behind = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let tool = |path: &Path| Tool::of(path.as_os_str().as_bytes());
    match tool(path).or_else(|| tool(&behind)) {
        None => Ok(()),
        Some(Tool::Debugger) => Err(refuse(
            format!(
                "debugger {shown} cannot be managed: it stops programs whose memory it then waits for"
            ),
            "run the program under the pager, and attach the debugger to it (gdb -p)",
        )),
        Some(Tool::Valgrind) => Err(refuse(
            format!("{shown} cannot be managed, for valgrind knows no userfaultfd"),
            "run the program under one of the two: valgrind or the pager",
        )),
    }
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

fn allow(path: &Path, depth: usize) -> Result<(), Error> {
    let shown = path.display();
    refuse_tool(path)?;
    if gains_privileges(path) {
        return Err(refuse(
            format!(
                "program {shown} is setuid, setgid or has file capabilities, and so loads no libraries of ours"
            ),
            "run a copy without these rights (`cp` drops them)",
        ));
    }
    let file = std::fs::File::open(path).map_err(|error| {
        refuse(
            format!("cannot read program {shown}: {error}"),
            "check its permissions",
        )
    })?;
    let image = inspect(&mut |offset, buffer| file.read_at(buffer, offset).unwrap_or(0));
    let (cause, next) = match image {
        Image::Dynamic => return Ok(()),
        Image::Script(interpreter) if depth > 0 && !interpreter.path().is_empty() => {
            return allow(Path::new(OsStr::from_bytes(interpreter.path())), depth - 1);
        }
        Image::Script(_) => {
            return Err(refuse(
                format!("script {shown} has no usable interpreter"),
                "check its first line",
            ));
        }
        Image::Static => (
            "is statically linked, and so loads no libraries of ours",
            "link it dynamically",
        ),
        Image::OtherLibrary => (
            "is linked with another C library than the GNU one, and cannot load ours",
            "build it for the GNU C library",
        ),
        Image::Sanitized => (
            "is built with a sanitizer, which lays out memory by itself",
            "build it without -fsanitize, or run it as it is",
        ),
        Image::Go => (
            "is built by Go, whose run-time system cannot be managed",
            "run it as it is, and give the kernel swap",
        ),
        Image::Foreign => (
            "is not a 64-bit binary of this machine",
            "build it for this machine",
        ),
        Image::Unknown => (
            "is neither an ELF binary nor a script with #!",
            "run it by its interpreter",
        ),
    };
    Err(refuse(format!("program {shown} {cause}"), next))
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
        assert!(said(&place("gdb", b"#!/bin/sh\n", 0o755)).contains("debugger"));
        let debugger = directory.path().join("gdb");
        let line = format!("#!{} -x\n", debugger.display());
        assert!(said(&place("script", line.as_bytes(), 0o755)).contains("debugger"));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&debugger, &link).unwrap();
        assert!(said(&link).contains("debugger"));
        assert!(said(&place("valgrind", b"#!/bin/sh\n", 0o755)).contains("userfaultfd"));
        let mut elf = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(check(place("copy", &elf, 0o755).as_os_str()).is_ok());
        let at = elf.windows(8).position(|text| text == b"ld-linux").unwrap();
        elf[at..at + 8].copy_from_slice(b"ld-2.36-");
        assert!(check(place("bundled", &elf, 0o755).as_os_str()).is_ok());
        elf[at..at + 8].copy_from_slice(b"ld-musl-");
        assert!(said(&place("musl", &elf, 0o755)).contains("another C library"));
        // No program headers.
        elf[56] = 0;
        assert!(said(&place("static", &elf, 0o755)).contains("statically linked"));
        elf[4] = 1;
        assert!(said(&place("small", &elf, 0o755)).contains("not a 64-bit binary"));
        let looped = directory.path().join("loop");
        let line = format!("#!{}\n", looped.display());
        place("loop", line.as_bytes(), 0o755);
        assert!(said(&looped).contains("no usable interpreter"));
    }
}
