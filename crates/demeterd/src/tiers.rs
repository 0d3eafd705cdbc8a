// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Matches the memory table that a monitor hands over with the tiers that were
//! configured. Memory that belongs to no tier is nobody's to punch.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::{fs, io};

use demeter_balloon::device::Backing;
use demeter_balloon::regions::{Piece, Region, Regions};
use demeter_balloon::view::tier_name;
use demeter_balloon::wire::PAGE_SHIFT;

use crate::spec::Tier;

/// A region of the monitor's memory table.
pub struct Handed {
    /// Guest physical address.
    pub gpa: u64,
    /// Length.
    pub length_bytes: u64,
    /// Where it lies.
    pub file: Arc<File>,
    /// From where on.
    pub offset_bytes: u64,
}

/// Files of the regions, by the index that [`Region::backing`] holds.
#[derive(Debug, Default)]
pub struct Files(Vec<Arc<File>>);

impl Files {
    /// Bytes that the host has allocated for a tier; a file that several
    /// regions lie in counts once.
    pub fn allocated_bytes(&self, regions: &Regions, node: u16) -> Option<u64> {
        let mut seen = Vec::new();
        let mut bytes = 0;
        for region in regions.as_slice().iter().filter(|r| r.node == node) {
            let metadata = self.0.get(region.backing)?.metadata().ok()?;
            let identity = (metadata.dev(), metadata.ino());
            if !seen.contains(&identity) {
                seen.push(identity);
                bytes += metadata.blocks() * 512;
            }
        }
        (!seen.is_empty()).then_some(bytes)
    }
}

impl Backing for &Files {
    fn punch(&mut self, piece: Piece) -> io::Result<()> {
        let file = self
            .0
            .get(piece.backing)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let cannot = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let offset = libc::off_t::try_from(piece.offset_bytes).map_err(cannot)?;
        let length = libc::off_t::try_from(piece.length_bytes).map_err(cannot)?;
        loop {
            // SAFETY: the descriptor is open as long as `file` is borrowed, and
            // no pointers are passed.
            let status = unsafe {
                libc::fallocate(
                    file.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    offset,
                    length,
                )
            };
            if status == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// The device's memory table, the files, and what does not fit.
pub struct Matched {
    /// For the device.
    pub regions: Regions,
    /// For punching.
    pub files: Files,
    /// In words, if something does not fit.
    pub problem: Option<String>,
}

/// Finds the tier of every region.
pub fn matched(tiers: &[Tier], handed: &[Handed]) -> Matched {
    let mut problems = Vec::new();
    let identities: Vec<Vec<Identity>> = tiers.iter().map(identities_of).collect();
    for (node, mine) in identities.iter().enumerate() {
        let others = identities[..node].iter().flatten();
        if others.clone().any(|identity| mine.contains(identity)) {
            problems.push(format!(
                "{} lies in the same file as another tier",
                tier_name(node as u16)
            ));
        }
    }
    let mut regions = Vec::new();
    let mut files = Files::default();
    for region in handed {
        let backing = files.0.len();
        files.0.push(region.file.clone());
        match tier_regions(tiers, &identities, region, backing) {
            Ok(list) => regions.extend(list),
            Err(problem) => problems.push(problem),
        }
    }
    let regions = if problems.is_empty() {
        Regions::new(regions).unwrap_or_else(|error| {
            problems.push(error.to_string());
            Regions::default()
        })
    } else {
        Regions::default()
    };
    if problems.is_empty() {
        for node in 0..tiers.len() as u16 {
            if regions.node_pages(node) == 0 {
                problems.push(format!(
                    "no memory of {} is shared with this daemon",
                    tier_name(node)
                ));
            }
        }
    }
    Matched {
        regions,
        files,
        problem: (!problems.is_empty()).then(|| problems.join("; ")),
    }
}

/// Device and inode.
type Identity = (u64, u64);

fn identities_of(tier: &Tier) -> Vec<Identity> {
    match tier {
        Tier::Files(paths) => (paths.iter())
            .filter_map(|path| fs::metadata(path).ok())
            .map(|metadata| (metadata.dev(), metadata.ino()))
            .collect(),
        Tier::Addresses(_) => Vec::new(),
    }
}

/// The parts of a region that are memory of some tier.
fn tier_regions(
    tiers: &[Tier],
    identities: &[Vec<Identity>],
    handed: &Handed,
    backing: usize,
) -> Result<Vec<Region>, String> {
    let words = |cause: &dyn std::fmt::Display| {
        format!("memory at {:#x} cannot be used: {cause}", handed.gpa)
    };
    let metadata = handed.file.metadata().map_err(|error| words(&error))?;
    let identity = (metadata.dev(), metadata.ino());
    let end = handed
        .gpa
        .checked_add(handed.length_bytes)
        .ok_or_else(|| words(&"it wraps"))?;
    let in_file = handed.offset_bytes.checked_add(handed.length_bytes);
    let mut list = Vec::new();
    for (node, tier) in tiers.iter().enumerate() {
        let parts: Vec<(u64, u64)> = match tier {
            Tier::Files(_) if identities[node].contains(&identity) => vec![(handed.gpa, end)],
            Tier::Files(_) => Vec::new(),
            Tier::Addresses(ranges) => ranges
                .iter()
                .map(|&(from, to)| (from.max(handed.gpa), to.min(end)))
                .filter(|(from, to)| from < to)
                .collect(),
        };
        for (from, to) in parts {
            // Holes would go elsewhere than the guest's pages, or nowhere.
            if in_file.is_none_or(|end| end > metadata.len()) {
                return Err(words(&"it ends behind its file"));
            }
            let page = (1 << PAGE_SHIFT) - 1;
            if (from | to | handed.offset_bytes) & page != 0 {
                return Err(words(&"it is not made of 4 KiB pages"));
            }
            list.push(Region {
                first_page: from >> PAGE_SHIFT,
                nr_pages: (to - from) >> PAGE_SHIFT,
                node: node as u16,
                backing,
                offset_bytes: handed.offset_bytes + (from - handed.gpa),
            });
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::path::Path;

    fn memory(directory: &Path, name: &str, bytes: usize) -> (Tier, Arc<File>) {
        let path = directory.join(name);
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        file.write_all(&vec![0xa5; bytes]).unwrap();
        (Tier::Files(vec![path]), Arc::new(file))
    }

    fn handed(gpa: u64, length_bytes: u64, file: &Arc<File>, offset_bytes: u64) -> Handed {
        Handed {
            gpa,
            length_bytes,
            file: file.clone(),
            offset_bytes,
        }
    }

    #[test]
    fn a_region_is_the_tier_of_its_file_whatever_the_order() {
        let directory = tempfile::tempdir().unwrap();
        let (fmem, fast) = memory(directory.path(), "fast", 0x4000);
        let (smem, slow) = memory(directory.path(), "slow", 0x8000);
        let (_, other) = memory(directory.path(), "other", 0x1000);
        let table = [
            handed(0x10_0000, 0x8000, &slow, 0),
            handed(0x20_0000, 0x1000, &other, 0),
            handed(0, 0x4000, &fast, 0),
        ];
        let matched = matched(&[fmem, smem], &table);
        assert_eq!(matched.problem, None);
        assert_eq!(matched.regions.node_pages(0), 4);
        assert_eq!(matched.regions.node_pages(1), 8);
        assert_eq!(matched.regions.as_slice().len(), 2);
    }

    #[test]
    fn addresses_cut_a_region() {
        let directory = tempfile::tempdir().unwrap();
        let (_, file) = memory(directory.path(), "both", 0x4000);
        let tiers = [
            Tier::Addresses(vec![(0, 0x1000)]),
            Tier::Addresses(vec![(0x2000, 0x9000)]),
        ];
        let matched = matched(&tiers, &[handed(0, 0x4000, &file, 0)]);
        assert_eq!(matched.problem, None);
        let slow = matched.regions.as_slice()[1];
        assert_eq!((slow.first_page, slow.nr_pages), (2, 2));
        assert_eq!(slow.offset_bytes, 0x2000);
    }

    #[test]
    fn what_does_not_fit_takes_all_memory_away() {
        let directory = tempfile::tempdir().unwrap();
        let (fmem, fast) = memory(directory.path(), "fast", 0x4000);
        let (smem, slow) = memory(directory.path(), "slow", 0x4000);
        let tiers = [fmem.clone(), smem];
        let both = |fast_bytes, slow_offset| {
            [
                handed(0, fast_bytes, &fast, 0),
                handed(0x10_0000, 0x4000, &slow, slow_offset),
            ]
        };
        assert!(matched(&tiers, &both(0x4000, 0)).problem.is_none());
        // Behind the end of the file; not at a page; a tier that is not there.
        assert!(matched(&tiers, &both(0x8000, 0)).problem.is_some());
        assert!(matched(&tiers, &both(0x4000, 8)).problem.is_some());
        let missing = matched(&tiers, &both(0x4000, 0)[..1]);
        assert!(missing.problem.unwrap().contains("smem"));
        let link = directory.path().join("link");
        fs::hard_link(directory.path().join("fast"), &link).unwrap();
        let twice = matched(&[fmem, Tier::Files(vec![link])], &both(0x4000, 0));
        assert_eq!(twice.regions.as_slice().len(), 0);
        assert!(twice.problem.is_some());
    }

    #[test]
    fn punches_the_piece_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (_, file) = memory(directory.path(), "memory", 0x4000);
        let files = Files(vec![file.clone()]);
        (&files)
            .punch(Piece {
                backing: 0,
                offset_bytes: 0x1000,
                length_bytes: 0x2000,
            })
            .unwrap();
        let mut bytes = Vec::new();
        (&*file).seek(SeekFrom::Start(0)).unwrap();
        (&*file).read_to_end(&mut bytes).unwrap();
        assert!(bytes[..0x1000].iter().all(|&byte| byte == 0xa5));
        assert!(bytes[0x1000..0x3000].iter().all(|&byte| byte == 0));
        assert!(bytes[0x3000..].iter().all(|&byte| byte == 0xa5));
        let nowhere = Piece {
            backing: 1,
            offset_bytes: 0,
            length_bytes: 4096,
        };
        assert!((&files).punch(nowhere).is_err());
    }
}
