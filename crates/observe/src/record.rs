// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fixed-size records in the byte order of the machine, which later versions only
//! make longer.

/// What is wrong with a dump, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too early.
    #[error("it ends after {bytes} bytes where {needed} were expected")]
    Short {
        /// How long it is.
        bytes: usize,
        /// How long it must be at least.
        needed: u64,
    },
    /// The first bytes are wrong.
    #[error("it begins with {seen:#018x}, not with {wanted:#018x}")]
    Magic {
        /// What was read.
        seen: u64,
        /// What was expected.
        wanted: u64,
    },
    /// A later version.
    #[error("its version is {seen}, and only {known} is known")]
    Version {
        /// What was read.
        seen: u32,
        /// What is known.
        known: u32,
    },
    /// Records are shorter than in the first version.
    #[error("its {what} are of {seen} bytes where at least {least} are expected")]
    Size {
        /// Which records.
        what: &'static str,
        /// What was read.
        seen: u32,
        /// Least.
        least: u32,
    },
}

/// Reads fields one after the other; what is missing reads as 0, as lengths are
/// checked before.
pub struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Of a record.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        if let Some((head, rest)) = self.bytes.split_at_checked(N) {
            field.copy_from_slice(head);
            self.bytes = rest;
        } else {
            self.bytes = &[];
        }
        field
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    /// The next eight bytes, with a sign.
    pub fn i64(&mut self) -> i64 {
        i64::from_ne_bytes(self.take())
    }
}

/// Checks magic and version, which every dump begins with.
pub fn check_head(bytes: &[u8], magic: u64, version: u32) -> Result<(), Malformed> {
    need(bytes, 16)?;
    let mut fields = Fields::new(bytes);
    let (seen, seen_version) = (fields.u64(), fields.u32());
    if seen != magic {
        return Err(Malformed::Magic {
            seen,
            wanted: magic,
        });
    }
    if seen_version != version {
        return Err(Malformed::Version {
            seen: seen_version,
            known: version,
        });
    }
    Ok(())
}

/// Checks the length of the whole.
pub fn need(bytes: &[u8], needed: u64) -> Result<(), Malformed> {
    if (bytes.len() as u64) < needed {
        return Err(Malformed::Short {
            bytes: bytes.len(),
            needed,
        });
    }
    Ok(())
}

/// Checks the size of a kind of records.
pub fn at_least(what: &'static str, seen: u32, least: u32) -> Result<usize, Malformed> {
    if seen < least {
        return Err(Malformed::Size { what, seen, least });
    }
    Ok(seen as usize)
}
