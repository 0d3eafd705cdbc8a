// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A descriptor that is handed on from exec to exec, by its number in the environment.

use std::fmt;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

/// A number, and which file it must be: whoever closed it may have opened another there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    /// Its number in every program.
    pub descriptor: RawFd,
    device: u64,
    inode: u64,
    /// Something the program must know of it.
    pub detail: u64,
}

impl Handed {
    /// Copies an open file to the first free number from `lowest` on, not to be closed by
    /// an exec. The copy stays open until the process ends.
    ///
    /// # Errors
    /// Those of the system.
    pub fn hand_on(file: &File, lowest: RawFd, detail: u64) -> std::io::Result<Self> {
        let about = file.metadata()?;
        // SAFETY: an open descriptor.
        let descriptor = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, lowest) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            descriptor,
            device: about.dev(),
            inode: about.ino(),
            detail,
        })
    }

    /// Whether that descriptor is still open, and still that file.
    pub fn is_there(&self) -> bool {
        // SAFETY: not closed here; whether it is open at all is what we ask.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.descriptor) });
        file.metadata()
            .is_ok_and(|about| (about.dev(), about.ino()) == (self.device, self.inode))
    }
}

impl fmt::Display for Handed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}:{}:{}:{}",
            self.descriptor, self.device, self.inode, self.detail
        )
    }
}

/// The text is not what [`Handed`] prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a descriptor that was handed on")]
pub struct NotHanded;

impl FromStr for Handed {
    type Err = NotHanded;

    fn from_str(text: &str) -> Result<Self, NotHanded> {
        let mut fields = text.split(':');
        let mut next = || {
            fields
                .next()
                .and_then(|field| field.parse::<u64>().ok())
                .ok_or(NotHanded)
        };
        let handed = Self {
            descriptor: RawFd::try_from(next()?).map_err(|_| NotHanded)?,
            device: next()?,
            inode: next()?,
            detail: next()?,
        };
        if fields.next().is_some() {
            return Err(NotHanded);
        }
        Ok(handed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_under_the_number_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        let handed = Handed::hand_on(&file, 300, 17).unwrap();
        assert!(handed.descriptor >= 300);
        let read: Handed = handed.to_string().parse().unwrap();
        assert!(read == handed && read.is_there() && read.detail == 17);
        let other = tempfile::tempfile().unwrap();
        // SAFETY: two open descriptors, the second ours to replace.
        unsafe { libc::dup2(other.as_raw_fd(), handed.descriptor) };
        assert!(!read.is_there());
        // SAFETY: ours.
        unsafe { libc::close(handed.descriptor) };
        assert!(!read.is_there());
        for text in ["", "3", "3:4:5", "3:4:5:6:7", "-3:4:5:6", "a:b:c:d"] {
            assert_eq!(text.parse::<Handed>(), Err(NotHanded), "{text}");
        }
    }
}
