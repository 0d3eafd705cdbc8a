// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file or block device under a store.
//!
//! In a directory it is an unnamed file, of all programs of a run together or of one
//! program and its forks, so that whatever ends them leaves nothing behind.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::path::Path;

use demeter_extmem_tree::{
    Handed, LEAST_BYTES, MOST_SLOTS, NamedPlace, Node, Printable, Promises, SwapFile,
    largest_file_bytes,
};

use super::{SLOT_BYTES, SwapError};
use crate::descriptor;

/// Who else uses the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// Nobody but this program and its forks.
    Alone,
    /// All programs of a run, which have the same description of it.
    WithTree,
    /// Whoever was given its name.
    ByName,
}

/// An open place to swap to.
#[derive(Debug)]
pub struct Backing {
    file: File,
    /// Where slot 0 begins.
    pub start_bytes: u64,
    /// Slots that fit.
    pub slots: u64,
    /// The page cache is bypassed.
    pub direct: bool,
    /// Who else uses it.
    pub shared: Shared,
    /// Disk space is taken part by part.
    pub sparse: bool,
    /// It lies in memory of this node.
    pub node: Option<Node>,
    /// "file", "block device", "unnamed file" or "memory node".
    pub kind: &'static str,
    /// Its path, or that of its directory, for who reads of a failure.
    pub place: &'static str,
}

impl Backing {
    /// Opens `path` for `capacity_bytes`, or for what is there, or in a directory or on a node for
    /// a multiple of `dram_bytes`, of what nobody was promised.
    pub fn open(
        path: &Path,
        capacity_bytes: Option<u64>,
        dram_bytes: u64,
        promises: &mut Promises,
    ) -> Result<Self, SwapError> {
        let place = shown(path);
        let failed = |cause| SwapError::Place { place, cause };
        let node = Node::named(path).transpose().map_err(failed)?;
        if node.is_some() || path.is_dir() {
            let made = match node {
                Some(node) => SwapFile::create_on(node, capacity_bytes, dram_bytes, promises),
                None => SwapFile::create(path, capacity_bytes, dram_bytes, promises),
            };
            let made = made.map_err(failed)?;
            return Ok(Self {
                file: made.file,
                start_bytes: 0,
                slots: made.slots,
                direct: made.direct,
                shared: Shared::Alone,
                sparse: true,
                node,
                kind: kind_of_unnamed(node),
                place,
            });
        }
        let opened = NamedPlace::open(path, capacity_bytes, promises).map_err(failed)?;
        Ok(Self {
            file: opened.file,
            start_bytes: NamedPlace::START_BYTES,
            slots: opened.slots,
            direct: opened.direct,
            shared: Shared::ByName,
            sparse: false,
            node: None,
            kind: match opened.is_device {
                true => "block device",
                false => "file",
            },
            place,
        })
    }

    /// The file of the run in `directory` or on a node, if that was handed on and is still there.
    pub fn inherited(handed: &Handed, directory: &Path) -> Option<Self> {
        if !handed.is_there() || handed.detail == 0 || handed.detail > MOST_SLOTS {
            return None;
        }
        // Of a program that may only make smaller files, the first part is.
        let slots = handed.detail.min(slots(largest_file_bytes()));
        if slots < LEAST_BYTES / SLOT_BYTES as u64 {
            return None;
        }
        let node = Node::named(directory).and_then(Result::ok);
        let descriptor = descriptor::inherit(handed.descriptor);
        // SAFETY: plain descriptors.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
        Some(Self {
            // SAFETY: open, and never closed: the store lives as long as the process.
            file: unsafe { File::from_raw_fd(descriptor) },
            start_bytes: 0,
            slots,
            direct: flags & libc::O_DIRECT != 0,
            shared: Shared::WithTree,
            sparse: true,
            node,
            kind: kind_of_unnamed(node),
            place: shown(directory),
        })
    }

    /// So many slots of nothing.
    #[cfg(test)]
    pub fn for_tests(slots: u64) -> Self {
        Self {
            file: File::open("/dev/null").unwrap(),
            start_bytes: 0,
            slots,
            direct: false,
            shared: Shared::Alone,
            sparse: false,
            node: None,
            kind: "nothing",
            place: "nowhere",
        }
    }

    /// Moves the descriptor out of the way of programs that close or reuse low ones.
    pub fn settle(self) -> Self {
        if self.shared == Shared::WithTree {
            return self;
        }
        let kept = descriptor::keep(self.file.into_raw_fd());
        Self {
            // SAFETY: open, and given to us.
            file: unsafe { File::from_raw_fd(kept) },
            ..self
        }
    }

    /// The descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

fn kind_of_unnamed(node: Option<Node>) -> &'static str {
    match node {
        Some(_) => "memory node",
        None => "unnamed file",
    }
}

/// Kept for as long as the process lives, as the store is.
fn shown(path: &Path) -> &'static str {
    String::leak(Printable(path.display()).to_string())
}

fn slots(bytes: u64) -> u64 {
    (bytes / SLOT_BYTES as u64).min(MOST_SLOTS)
}
