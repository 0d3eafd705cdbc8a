// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads what a running guest adds to its files.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A file that grows.
pub struct Tail {
    path: PathBuf,
    offset: u64,
}

impl Tail {
    /// From the start on.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            offset: 0,
        }
    }

    /// What has been added since.
    pub fn more(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.path)
            && file.seek(SeekFrom::Start(self.offset)).is_ok()
            && let Ok(count) = file.read_to_end(&mut bytes)
        {
            self.offset += count as u64;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_is_new_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("log");
        let mut tail = Tail::new(&path);
        assert_eq!(tail.more(), b"");
        std::fs::write(&path, "one").unwrap();
        assert_eq!(tail.more(), b"one");
        std::fs::write(&path, "one, two").unwrap();
        assert_eq!(tail.more(), b", two");
        assert_eq!(tail.more(), b"");
    }
}
