// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that run others in ways that a pager cannot be part of, by their names.

/// Such a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// It stops the program that it has started by vfork, and so waits for, at each signal:
    /// at the first call of that program that the pager traps both wait for ever.
    Debugger,
    /// It executes the program itself, knows no userfaultfd, and sees what it does as errors.
    Valgrind,
}

impl Tool {
    /// The one of a path.
    pub fn of(path: &[u8]) -> Option<Self> {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let ends = |end: &[u8]| {
            name.strip_suffix(end)
                .is_some_and(|rest| rest.ends_with(b"-"))
        };
        match name {
            b"gdb" | b"gdbserver" | b"gdb-multiarch" => Some(Self::Debugger),
            // As distributions call the one of a machine: x86_64-linux-gnu-gdb.
            _ if ends(b"gdb") || ends(b"gdbserver") => Some(Self::Debugger),
            b"valgrind" | b"valgrind.bin" => Some(Self::Valgrind),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_and_folders_do_not() {
        for name in [
            "gdb",
            "/usr/bin/gdb",
            "/opt/x86_64-linux-gnu-gdb",
            "a-gdbserver",
        ] {
            assert_eq!(Tool::of(name.as_bytes()), Some(Tool::Debugger), "{name}");
        }
        assert_eq!(Tool::of(b"./valgrind.bin"), Some(Tool::Valgrind));
        for name in ["", "/gdb/", "gdbm", "agdb", "/usr/valgrind/sort"] {
            assert_eq!(Tool::of(name.as_bytes()), None, "{name}");
        }
    }
}
