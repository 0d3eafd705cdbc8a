// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes "newc" cpio archives: what the kernel unpacks as initramfs. Times
//! and owners are zero, so that equal content gives equal bytes.

use std::collections::BTreeSet;

const MODE_DIR: u32 = 0o040_755;
const MODE_LINK: u32 = 0o120_777;
const MODE_FILE: u32 = 0o100_000;

/// An archive in memory.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file and the directories above it; `path` is relative.
    pub fn file(&mut self, path: &str, content: &[u8], executable: bool) {
        self.parents(path);
        let mode = MODE_FILE | if executable { 0o755 } else { 0o644 };
        self.entry(path, mode, content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, MODE_LINK, target.as_bytes());
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            let directory = &path[..end];
            if !directory.is_empty() && self.directories.insert(directory.to_owned()) {
                self.entry(directory, MODE_DIR, &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            0,
            0,
            links,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_one_entry() {
        let mut archive = Archive::new();
        archive.file("a", b"xyz", false);
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        // inode 1, mode 0100644
        assert_eq!(&bytes[6..22], b"00000001000081A4");
        // file size in field 7
        assert_eq!(&bytes[54..62], b"00000003");
        // name "a\0" starts at 110, padded to 112; data follows
        assert_eq!(&bytes[110..116], b"a\0xyz\0");
        assert!(bytes.len().is_multiple_of(4));
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }

    #[test]
    fn directories_once_and_before_their_files() {
        let mut archive = Archive::new();
        archive.file("d/e/f", b"", true);
        archive.link("d/e/g", "f");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(text.matches("070701").count(), 5);
        assert!(text.find("d/e\0").unwrap() < text.find("d/e/f").unwrap());
    }

    #[test]
    fn reproducible() {
        let make = || {
            let mut archive = Archive::new();
            archive.file("x", &[1, 2, 3], true);
            archive.finish()
        };
        assert_eq!(make(), make());
    }

    #[test]
    fn cpio_reads_it() {
        let mut archive = Archive::new();
        archive.file("dir/file", b"content", false);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.cpio");
        std::fs::write(&path, archive.finish()).unwrap();
        let output = std::process::Command::new("cpio")
            .args(["-it", "--quiet"])
            .stdin(std::fs::File::open(&path).unwrap())
            .output()
            .expect("cpio runs; `make setup` installs it");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "dir\ndir/file\n");
    }
}
