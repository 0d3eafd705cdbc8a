// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lies under a place for swap: two names may lead to the same bytes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use demeter_extmem_tree::Node;

/// Loop devices on loop devices, at most.
const DEPTH: usize = 8;

/// Bytes of a file or device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ground {
    what: What,
    bytes: std::ops::Range<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A device by its number, wherever its name lies.
    Device(u64),
    /// A file or directory: its file system, and its number there.
    Inode(u64, u64),
    /// A memory node.
    Node(u32),
}

impl Ground {
    /// What a path leads to, below loop devices.
    pub fn of(path: &Path) -> io::Result<Self> {
        let about = std::fs::metadata(path)?;
        let mut ground = Self {
            what: match about.file_type().is_block_device() {
                true => What::Device(about.rdev()),
                false => What::Inode(about.dev(), about.ino()),
            },
            bytes: 0..u64::MAX,
        };
        for _ in 0..DEPTH {
            let below = match ground.what {
                What::Device(number) => loop_of(path, number),
                What::Inode(..) | What::Node(_) => None,
            };
            let Some(below) = below else {
                break;
            };
            ground = ground.on(below);
        }
        Ok(ground)
    }

    /// A memory node.
    pub fn of_node(node: Node) -> Self {
        Self {
            what: What::Node(node.number()),
            bytes: 0..u64::MAX,
        }
    }

    /// Whether some of the bytes are the same.
    pub fn meets(&self, other: &Self) -> bool {
        self.what == other.what
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }

    /// These bytes of a device that lies on others.
    fn on(&self, below: Self) -> Self {
        let at = |inside: u64| {
            (below.bytes.start)
                .saturating_add(inside)
                .min(below.bytes.end)
        };
        Self {
            what: below.what,
            bytes: at(self.bytes.start)..at(self.bytes.end),
        }
    }
}

/// What a loop device shows; None of any other.
fn loop_of(path: &Path, number: u64) -> Option<Ground> {
    const GET_STATUS: libc::Ioctl = 0x4c05;
    const MAJOR: libc::c_uint = 7;
    /// `struct loop_info64`, whose rest is not looked at.
    #[repr(C)]
    struct Status {
        device: u64,
        inode: u64,
        device_if_device: u64,
        offset: u64,
        size_limit: u64,
        rest: [u8; 192],
    }
    const _: () = assert!(size_of::<Status>() == 232);
    if libc::major(number) != MAJOR {
        return None;
    }
    let about = std::fs::metadata(path).ok()?;
    let named = match about.rdev() == number {
        true => path.to_owned(),
        false => Path::new("/dev").join(format!("loop{}", libc::minor(number))),
    };
    let file = File::open(named).ok()?;
    if file.metadata().ok()?.rdev() != number {
        return None;
    }
    // SAFETY: zero is a Status.
    let mut status: Status = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; the call fills one Status.
    if unsafe { libc::ioctl(file.as_raw_fd(), GET_STATUS, &raw mut status) } != 0 {
        return None;
    }
    Some(Ground {
        // Of a file kernels give nothing there, or its file system.
        what: match status.device_if_device {
            0 => What::Inode(status.device, status.inode),
            device if device == status.device => What::Inode(status.device, status.inode),
            device => What::Device(device),
        },
        bytes: status.offset..match status.size_limit {
            0 => u64::MAX,
            bytes => status.offset.saturating_add(bytes),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    struct Loop(PathBuf);

    impl Loop {
        fn on(path: &Path, options: &[&str]) -> Option<Self> {
            let output = Command::new("losetup")
                .args(["--find", "--show"])
                .args(options)
                .arg(path)
                .output()
                .ok()?;
            let name = String::from_utf8(output.stdout).ok()?;
            (output.status.success()).then(|| Self(name.trim().into()))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup")
                .arg("--detach")
                .arg(&self.0)
                .status();
        }
    }

    #[test]
    fn bytes_are_those_below() {
        let ground = |bytes| Ground {
            what: What::Device(1),
            bytes,
        };
        assert!(ground(0..10).meets(&ground(9..10)) && !ground(0..10).meets(&ground(10..20)));
        assert_eq!(ground(5..u64::MAX).on(ground(100..200)), ground(105..200));
        assert_eq!(ground(5..20).on(ground(100..200)), ground(105..120));
    }

    /// Needs root, which it may do without only if that is said.
    #[test]
    fn a_loop_device_is_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| folder.path().join(name));
        for path in [&path, &other] {
            File::create(path).unwrap().set_len(8 << 20).unwrap();
        }
        let (Some(whole), Some(half)) = (
            Loop::on(&path, &[]),
            Loop::on(&path, &["--offset", "4194304"]),
        ) else {
            let lacks = std::env::var("DEMETER_TEST_LACKS").unwrap_or_default();
            assert!(
                lacks.split(',').any(|one| one == "loop"),
                "no loop device can be had; next: run it as root, with losetup and the loop driver, or leave it out by DEMETER_TEST_LACKS=loop"
            );
            return;
        };
        let first = Loop::on(&path, &["--sizelimit", "4194304"]).unwrap();
        let above = Loop::on(&whole.0, &["--offset", "6291456"]).unwrap();
        let of = |path: &Path| Ground::of(path).unwrap();
        for (a, b, meet) in [
            (&path, &whole.0, true),
            (&path, &half.0, true),
            (&path, &above.0, true),
            (&half.0, &above.0, true),
            (&first.0, &above.0, false),
            (&first.0, &half.0, false),
            (&other, &whole.0, false),
        ] {
            assert_eq!(of(a).meets(&of(b)), meet, "{a:?} {b:?}");
            assert_eq!(of(b).meets(&of(a)), meet, "{b:?} {a:?}");
        }
    }
}
