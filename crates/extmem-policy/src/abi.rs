// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter_extmem_policy.h` in Rust. The header is the contract and has the comments.

use std::ffi::{c_char, c_void};

/// Version of the contract.
pub const ABI: u32 = 1;

/// It was never used before, or was all zero when it left.
pub const FIRST_TOUCH: u8 = 0;
/// Read from the swap store.
pub const SWAP: u8 = 1;
/// Decompressed.
pub const COMPRESSED: u8 = 2;
/// Was on its way out and wanted again.
pub const VICTIM_CACHE: u8 = 3;
/// Not sent: such a page comes as [`FIRST_TOUCH`].
pub const ZERO: u8 = 4;

/// A write wanted it.
pub const WRITE: u8 = 1;
/// Part of a sequential or strided walk.
pub const STREAM: u8 = 2;
/// Nobody waited for it.
pub const PREFETCHED: u8 = 4;

/// Distance of a page that was never evicted.
pub const NEVER: u32 = u32::MAX;

/// `MADV_NORMAL`.
pub const HINT_NORMAL: u32 = 0;
/// `MADV_SEQUENTIAL`.
pub const HINT_SEQUENTIAL: u32 = 1;
/// `MADV_RANDOM`.
pub const HINT_RANDOM: u32 = 2;
/// `MADV_WILLNEED`.
pub const HINT_WILLNEED: u32 = 3;
/// `MADV_COLD`, `MADV_PAGEOUT`.
pub const HINT_COLD: u32 = 4;
/// Evict it last.
pub const HINT_KEEP: u32 = 5;
/// Evict it as soon as it was used.
pub const HINT_STREAM: u32 = 6;

/// `struct demeter_extmem_arrival`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Arrival {
    /// The page.
    pub page: u32,
    /// How it came.
    pub source: u8,
    /// [`WRITE`], [`STREAM`], [`PREFETCHED`].
    pub flags: u8,
    /// Of a page that was in the victim cache, how far it had come: from 0, just in, to 1000,
    /// about to leave.
    pub cache_permille: u16,
    /// Who wanted it.
    pub thread: u32,
    /// Pages evicted between its own eviction and now, or [`NEVER`].
    pub distance: u32,
}

/// `struct demeter_extmem_host`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Host {
    /// [`ABI`].
    pub abi: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// Pages are below this.
    pub arena_pages: u32,
    /// How many may be in DRAM.
    pub dram_pages: u32,
    /// For the calls below.
    pub context: *mut c_void,
    /// Bring pages in.
    pub prefetch: Option<extern "C" fn(*mut c_void, u32, u32, u32)>,
    /// 1 in DRAM, 2 elsewhere, 0 neither.
    pub state: Option<extern "C" fn(*mut c_void, u32) -> u32>,
}

/// `struct demeter_extmem_policy`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Policy {
    /// [`ABI`].
    pub abi: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// Its name.
    pub name: *const c_char,
    /// Memory that `start` will get.
    pub memory_bytes: Option<unsafe extern "C" fn(*const Host, *const c_char) -> u64>,
    /// Sets it up.
    pub start: Option<unsafe extern "C" fn(*mut c_void, *const Host, *const c_char) -> *mut c_void>,
    /// A mapping came. Optional.
    pub mapped: Option<unsafe extern "C" fn(*mut c_void, u32, u32)>,
    /// A range went.
    pub unmapped: Option<unsafe extern "C" fn(*mut c_void, u32, u32)>,
    /// Pages came to DRAM.
    pub arrived: Option<unsafe extern "C" fn(*mut c_void, *const Arrival, u32)>,
    /// Names victims.
    pub choose: Option<unsafe extern "C" fn(*mut c_void, *mut u32, u32) -> u32>,
    /// Victims that stay.
    pub returned: Option<unsafe extern "C" fn(*mut c_void, *const u32, u32)>,
    /// Pages left DRAM. Optional.
    pub evicted: Option<unsafe extern "C" fn(*mut c_void, *const u32, u32)>,
    /// The program said something. Optional.
    pub hint: Option<unsafe extern "C" fn(*mut c_void, u32, u32, u32)>,
    /// Size of the victim cache. Optional.
    pub victim_cache_pages: Option<unsafe extern "C" fn(*mut c_void) -> u32>,
    /// Names pages that stay. Optional.
    pub staying: Option<unsafe extern "C" fn(*mut c_void, *mut u32, u32) -> u32>,
}

// SAFETY: a table of functions and a constant name.
unsafe impl Sync for Policy {}
// SAFETY: as above.
unsafe impl Send for Policy {}

/// Type of the entry point `demeter_extmem_policy`.
pub type EntryPoint = unsafe extern "C" fn(u32) -> *const Policy;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::process::Command;

    /// The C compiler's view of the header must be ours.
    #[test]
    fn the_header_says_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("layout.c");
        let binary = directory.path().join("layout");
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../extmem/include");
        let expected = [
            (
                "sizeof(struct demeter_extmem_arrival)",
                size_of::<Arrival>(),
            ),
            (
                "offsetof(struct demeter_extmem_arrival, thread)",
                offset_of!(Arrival, thread),
            ),
            (
                "offsetof(struct demeter_extmem_arrival, distance)",
                offset_of!(Arrival, distance),
            ),
            ("sizeof(struct demeter_extmem_host)", size_of::<Host>()),
            (
                "offsetof(struct demeter_extmem_host, context)",
                offset_of!(Host, context),
            ),
            (
                "offsetof(struct demeter_extmem_host, state)",
                offset_of!(Host, state),
            ),
            ("sizeof(struct demeter_extmem_policy)", size_of::<Policy>()),
            (
                "offsetof(struct demeter_extmem_policy, name)",
                offset_of!(Policy, name),
            ),
            (
                "offsetof(struct demeter_extmem_policy, start)",
                offset_of!(Policy, start),
            ),
            (
                "offsetof(struct demeter_extmem_policy, arrived)",
                offset_of!(Policy, arrived),
            ),
            (
                "offsetof(struct demeter_extmem_policy, choose)",
                offset_of!(Policy, choose),
            ),
            (
                "offsetof(struct demeter_extmem_policy, hint)",
                offset_of!(Policy, hint),
            ),
            (
                "offsetof(struct demeter_extmem_policy, victim_cache_pages)",
                offset_of!(Policy, victim_cache_pages),
            ),
            (
                "offsetof(struct demeter_extmem_policy, staying)",
                offset_of!(Policy, staying),
            ),
            ("DEMETER_EXTMEM_POLICY_ABI", ABI as usize),
            ("DEMETER_EXTMEM_ZERO", ZERO as usize),
            ("DEMETER_EXTMEM_PREFETCHED", PREFETCHED as usize),
            ("DEMETER_EXTMEM_HINT_STREAM", HINT_STREAM as usize),
        ];
        let mut text = String::from(
            "#include <stddef.h>\n#include <stdio.h>\n#include <demeter_extmem_policy.h>\nint main(void){\n",
        );
        for (expression, _) in &expected {
            text += &format!("printf(\"%zu\\n\", (size_t)({expression}));\n");
        }
        text += "return 0;}\n";
        std::fs::write(&source, text).unwrap();
        let compiled = Command::new("cc")
            .args([
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-I",
                include,
                "-o",
            ])
            .args([&binary, &source])
            .status()
            .unwrap();
        assert!(compiled.success());
        let output = Command::new(&binary).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        for ((expression, ours), theirs) in expected.iter().zip(said.lines()) {
            assert_eq!(theirs, ours.to_string(), "{expression}");
        }
    }
}
