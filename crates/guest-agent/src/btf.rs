// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a member of a kernel structure lies, from the kernel's own description of
//! its types (BTF, <https://docs.kernel.org/bpf/btf.html>).

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BtfError {
    /// Not BTF, cut short, or of a kind not known.
    #[error("the kernel's type information is not understood")]
    Malformed,
    /// No such structure or member.
    #[error("the kernel's type information has no {0}")]
    Missing(String),
}

const MAGIC: u32 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// Anonymous structures inside of each other.
const DEPTH: u32 = 8;

/// A parsed description.
pub struct Btf<'a> {
    types: &'a [u8],
    names: &'a [u8],
    /// Start of each type, the first being type 1.
    starts: Vec<u32>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

impl<'a> Btf<'a> {
    /// Finds the types.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        Self::try_parse(bytes).ok_or(BtfError::Malformed)
    }

    fn try_parse(bytes: &'a [u8]) -> Option<Self> {
        if word(bytes, 0)? & 0xffff != MAGIC {
            return None;
        }
        let part = |offset: usize, length: usize| {
            let start = (word(bytes, 4)? as usize).checked_add(word(bytes, offset)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, length)? as usize)?)
        };
        let (types, names) = (part(8, 12)?, part(16, 20)?);
        let mut starts = Vec::new();
        let mut at = 0;
        while at < types.len() {
            starts.push(u32::try_from(at).ok()?);
            let info = word(types, at + 4)?;
            let count = info as usize & 0xffff;
            at += 12
                + match info >> 24 & 31 {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        Some(Self {
            types,
            names,
            starts,
        })
    }

    fn is_named(&self, name_offset: u32, name: &str) -> bool {
        (self.names.get(name_offset as usize..))
            .and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Offset in bytes of `member` in `struct name`.
    pub fn offset(&self, name: &str, member: &str) -> Result<u64, BtfError> {
        let missing = || BtfError::Missing(format!("{member} in struct {name}"));
        let wanted = |&&start: &&u32| {
            let start = start as usize;
            word(self.types, start + 4).is_some_and(|info| info >> 24 & 31 == STRUCT)
                && word(self.types, start).is_some_and(|at| self.is_named(at, name))
        };
        let start = self.starts.iter().find(wanted).ok_or_else(missing)?;
        let bits = self.find(*start, member, DEPTH).ok_or_else(missing)?;
        Ok(bits / 8)
    }

    /// Offset in bits of a member, also one of an anonymous structure inside.
    fn find(&self, start: u32, member: &str, depth: u32) -> Option<u64> {
        let start = start as usize;
        let info = word(self.types, start + 4)?;
        if !matches!(info >> 24 & 31, STRUCT | UNION) {
            return None;
        }
        let bit_fields = info >> 31 == 1;
        (0..info as usize & 0xffff).find_map(|index| {
            let at = start + 12 + 12 * index;
            let (name, of) = (word(self.types, at)?, word(self.types, at + 4)?);
            let offset = word(self.types, at + 8)? & if bit_fields { 0xff_ffff } else { u32::MAX };
            if self.is_named(name, member) {
                return Some(u64::from(offset));
            }
            if !self.is_named(name, "") || depth == 0 {
                return None;
            }
            let inner = self.starts.get((of as usize).checked_sub(1)?)?;
            Some(u64::from(offset) + self.find(*inner, member, depth - 1)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An int, a struct with a bit-field flag, and one with an anonymous part.
    fn btf() -> Vec<u8> {
        let names = b"\0int\0task_struct\0flags\0comm\0pid\0";
        let at = |name: &str| {
            let name = format!("\0{name}\0");
            names
                .windows(name.len())
                .position(|part| part == name.as_bytes())
                .unwrap() as u32
                + 1
        };
        let types: Vec<u32> = [
            &[at("int"), 1 << 24, 4, 32][..],
            // 2: the anonymous part
            &[0, 4 << 24 | 1, 8, at("pid"), 1, 32],
            // 3: the structure
            &[at("task_struct"), 1 << 31 | 4 << 24 | 3, 32],
            &[at("flags"), 1, 8 << 24 | 96],
            &[0, 2, 128],
            &[at("comm"), 1, 192],
        ]
        .concat();
        let header = [
            MAGIC | 1 << 16,
            24,
            0,
            types.len() as u32 * 4,
            types.len() as u32 * 4,
            names.len() as u32,
        ];
        let mut bytes: Vec<u8> = header
            .into_iter()
            .chain(types)
            .flat_map(u32::to_le_bytes)
            .collect();
        bytes.extend(names);
        bytes
    }

    #[test]
    fn members_are_found_where_they_lie() {
        let bytes = btf();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("task_struct", "flags"), Ok(12));
        assert_eq!(btf.offset("task_struct", "pid"), Ok(20));
        assert_eq!(btf.offset("task_struct", "comm"), Ok(24));
        assert!(btf.offset("task_struct", "com").is_err());
        assert!(btf.offset("int", "pid").is_err());
    }

    #[test]
    fn damaged_descriptions_are_refused() {
        let bytes = btf();
        for length in 0..bytes.len() {
            assert!(Btf::parse(&bytes[..length]).is_err(), "{length}");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0xff;
            if let Ok(btf) = Btf::parse(&bytes) {
                let _ = btf.offset("task_struct", "pid");
            }
        }
    }

    /// Whatever kernel this runs on describes itself.
    #[test]
    fn this_kernel_if_it_tells() {
        if let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") {
            let btf = Btf::parse(&bytes).unwrap();
            for member in ["flags", "comm", "pid"] {
                assert!(
                    btf.offset("task_struct", member).unwrap() < 65536,
                    "{member}"
                );
            }
        }
    }
}
