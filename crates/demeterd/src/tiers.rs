// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Matches the memory table that a monitor hands over with the tiers that were
//! configured. Memory that belongs to no tier is nobody's to punch.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::{fs, io};

use demeter_balloon::regions::{Piece, Region, RegionError, Regions};
use demeter_balloon::view::tier_name;
use demeter_balloon::wire::PAGE_SHIFT;
use serde::{Deserialize, Serialize};

use crate::by_page::is_by_page;
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

/// Files of guest memory.
#[derive(Debug, Default)]
pub struct Files {
    /// By the index that [`Region::backing`] holds.
    backing: Vec<Arc<File>>,
    /// Of each tier. A file that several regions lie in is here once.
    tiers: Vec<Vec<Arc<File>>>,
    /// Which ones these are.
    which: Vec<Arc<Which>>,
    /// Of each tier, as it was when somebody first asked: does the host allocate it page by page,
    /// and for this tier alone?
    by_page: OnceLock<Vec<bool>>,
}

/// Which files these are, after they are closed, too.
#[derive(Debug, PartialEq, Eq)]
pub struct Which(Vec<Option<KnownIdentity>>);

impl Which {
    fn of(files: &[Arc<File>]) -> Self {
        Self(files.iter().map(|file| known_identity(file)).collect())
    }

    /// The same ones. Of files of which the system does not say which they are nobody knows, unless
    /// they were handed over at one time.
    pub fn is(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || (self == other && self.0.iter().all(Option::is_some))
    }
}

/// What the host has allocated for a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocated {
    /// So much.
    pub bytes: u64,
    /// Length of the files that it lies in, if these are of pages that were touched, and of this
    /// tier alone.
    pub length_bytes: Option<u64>,
}

/// Most regions of one memory table: what the kernel's vhost takes, and so every monitor.
pub const MAX_SLOTS: usize = 509;

/// A hole is punched in pieces of this size: the system does not interrupt one,
/// and the daemon's end waits for it.
const PUNCH_BYTES: u64 = 32 << 20;

impl Files {
    fn new(backing: Vec<Arc<File>>, regions: &Regions, nr_tiers: usize) -> Self {
        let of_tier = |node: usize| {
            let mut seen = Vec::new();
            (regions.as_slice().iter())
                .filter(|region| usize::from(region.node) == node)
                .filter_map(|region| {
                    let file = backing.get(region.backing)?;
                    let identity = identity(&file.metadata().ok()?);
                    let new = !seen.contains(&identity);
                    seen.push(identity);
                    new.then(|| file.clone())
                })
                .collect()
        };
        let of_tiers = Self::of_tiers((0..nr_tiers).map(of_tier).collect());
        Self {
            backing,
            ..of_tiers
        }
    }

    /// Those of each tier only, for measuring.
    pub fn of_tiers(tiers: Vec<Vec<Arc<File>>>) -> Self {
        Self {
            backing: Vec::new(),
            which: tiers
                .iter()
                .map(|files| Arc::new(Which::of(files)))
                .collect(),
            tiers,
            by_page: OnceLock::new(),
        }
    }

    /// Those of each tier.
    pub fn tiers(&self) -> &[Vec<Arc<File>>] {
        &self.tiers
    }

    /// Which files a tier lies in.
    pub fn which(&self, node: u16) -> Option<&Arc<Which>> {
        self.which.get(usize::from(node))
    }

    /// What the host has allocated for a tier.
    pub fn allocated(&self, node: u16) -> Option<Allocated> {
        let files = self.tiers.get(usize::from(node))?;
        let (mut bytes, mut length_bytes) = (0_u64, 0_u64);
        for file in files {
            let metadata = file.metadata().ok()?;
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            length_bytes = length_bytes.saturating_add(metadata.len());
        }
        let by_page = self.by_page.get_or_init(|| self.by_page());
        (!files.is_empty()).then_some(Allocated {
            bytes,
            length_bytes: by_page[usize::from(node)].then_some(length_bytes),
        })
    }

    fn by_page(&self) -> Vec<bool> {
        let of_others = |node: usize, file: &File| {
            let identity = known_identity(file);
            let mut others = self.tiers.iter().enumerate();
            others.any(|(other, files)| {
                other != node && files.iter().any(|file| known_identity(file) == identity)
            })
        };
        (self.tiers.iter().enumerate())
            .map(|(node, files)| {
                (files.iter()).all(|file| is_by_page(file) && !of_others(node, file))
            })
            .collect()
    }

    /// Drops what lies there.
    pub fn punch(&self, piece: Piece) -> io::Result<()> {
        let file = (self.backing.get(piece.backing))
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let wraps = || io::Error::from(io::ErrorKind::InvalidInput);
        let end = (piece.offset_bytes.checked_add(piece.length_bytes)).ok_or_else(wraps)?;
        let mut at = piece.offset_bytes;
        while at < end {
            let length = PUNCH_BYTES.min(end - at);
            punch(file, at, length)?;
            at += length;
        }
        Ok(())
    }
}

fn punch(file: &File, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
    let cannot = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = libc::off_t::try_from(offset_bytes).map_err(cannot)?;
    let length = libc::off_t::try_from(length_bytes).map_err(cannot)?;
    loop {
        // SAFETY: the descriptor is open as long as `file` is borrowed, and no
        // pointers are passed.
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

/// What is wrong with a monitor's memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// Two tiers in one file.
    #[error("{0} lies in the same file as another tier")]
    Shared(String),
    /// A region that nothing can be punched into.
    #[error("memory at {gpa:#x} cannot be used: {cause}")]
    Region {
        /// Guest physical address.
        gpa: u64,
        /// Why.
        cause: RegionProblem,
    },
    /// The table as a whole.
    #[error("{0}")]
    Table(#[from] RegionError),
    /// A tier without memory.
    #[error("no memory of {0} is shared with this daemon")]
    Missing(String),
    /// A file that was named and cannot be compared.
    #[error("{0}")]
    Unseen(Unseen),
    /// More pieces than a vhost device can have.
    #[error(
        "its memory lies in {0} pieces, and a vhost-user device takes {MAX_SLOTS}: give the guest \
         fewer and larger memory devices"
    )]
    Slots(usize),
}

/// So much of the path of one is told, and of so many of a tier: a message to a worker is
/// bounded.
const MAX_PATH_CHARS: usize = 200;
const MAX_UNSEEN: usize = 8;

/// A file that was named and cannot be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{words}")]
pub struct Unseen {
    /// In words, with the system's reason.
    words: String,
    /// It may come later.
    is_absent: bool,
}

impl Unseen {
    fn new(path: &Path, cause: io::ErrorKind) -> Self {
        let path = path.display().to_string();
        // Of a long one the end says more.
        let (cut, end) = match path.char_indices().rev().nth(MAX_PATH_CHARS) {
            Some((at, _)) => ("…", &path[at..]),
            None => ("", path.as_str()),
        };
        Self {
            words: format!("cannot look at {cut}{end}: {cause}{}", hint(cause)),
            is_absent: cause == io::ErrorKind::NotFound,
        }
    }
}

/// What can be done about it.
fn hint(cause: io::ErrorKind) -> &'static str {
    match cause {
        io::ErrorKind::PermissionDenied => {
            " (let the daemon's user search its directory, or name addresses: gpa:BEGIN-END)"
        }
        _ => "",
    }
}

/// What is wrong with a region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionProblem {
    /// The system's words.
    #[error("{0}")]
    System(String),
    /// Beyond 64 bits.
    #[error("it wraps")]
    Wraps,
    /// Holes would go elsewhere than the guest's pages, or nowhere.
    #[error("it ends behind its file")]
    BehindFile,
    /// Address or offset.
    #[error("it is not made of 4 KiB pages")]
    Unaligned,
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

/// How to know a tier's memory, for somebody who sees no file names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Known {
    /// It lies in these files.
    Files {
        /// As far as they can be seen.
        identities: Vec<Identity>,
        /// The others.
        unseen: Vec<Unseen>,
    },
    /// It has these guest physical addresses: begin and end in bytes.
    Addresses(Vec<(u64, u64)>),
}

impl Known {
    fn identities(&self) -> &[Identity] {
        match self {
            Self::Files { identities, .. } => identities,
            Self::Addresses(_) => &[],
        }
    }

    fn unseen(&self) -> &[Unseen] {
        match self {
            Self::Files { unseen, .. } => unseen,
            Self::Addresses(_) => &[],
        }
    }

    /// May that file be this tier's, as far as files tell?
    pub fn may_be(&self, file: &File) -> bool {
        match self {
            Self::Files { identities, .. } => {
                let metadata = file.metadata();
                metadata.is_ok_and(|metadata| identities.contains(&identity(&metadata)))
            }
            Self::Addresses(_) => true,
        }
    }
}

/// Looks at the files that tiers are named by. It may have to wait for a file that somebody
/// else's program serves.
pub fn look(tiers: &[Tier]) -> Vec<Known> {
    let known = |tier: &Tier| match tier {
        Tier::Addresses(ranges) => Known::Addresses(ranges.clone()),
        Tier::Files(paths) => {
            let (mut identities, mut unseen) = (Vec::new(), Vec::new());
            for path in paths {
                match fs::metadata(path) {
                    Ok(metadata) => identities.push(identity(&metadata)),
                    Err(error) => unseen.push(Unseen::new(path, error.kind())),
                }
            }
            // Those that keep a machine from being served first.
            unseen.sort_by_key(|unseen| unseen.is_absent);
            unseen.truncate(MAX_UNSEEN);
            // A memory table has no more regions, so that other files cannot be used.
            identities.truncate(MAX_SLOTS / tiers.len().max(1));
            Known::Files { identities, unseen }
        }
    };
    tiers.iter().map(known).collect()
}

/// Finds the tier of every region.
pub fn matched(known: &[Known], handed: &[Handed]) -> Matched {
    let files: Vec<Arc<File>> = handed.iter().map(|region| region.file.clone()).collect();
    let (regions, problems) = match regions_of(known, handed) {
        Ok(regions) => {
            let missing = (known.iter().enumerate())
                .filter(|(node, _)| regions.node_pages(*node as u16) == 0)
                .flat_map(|(node, known)| {
                    let missing = TierError::Missing(tier_name(node as u16));
                    let unseen = known.unseen().iter().cloned();
                    [missing].into_iter().chain(unseen.map(TierError::Unseen))
                })
                .collect();
            (regions, missing)
        }
        Err(problems) => (Regions::default(), problems),
    };
    let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Matched {
        files: Files::new(files, &regions, known.len()),
        regions,
        problem: (!words.is_empty()).then(|| words.join("; ")),
    }
}

fn regions_of(known: &[Known], handed: &[Handed]) -> Result<Regions, Vec<TierError>> {
    if handed.len() > MAX_SLOTS {
        return Err(vec![TierError::Slots(handed.len())]);
    }
    // A file that is not there yet may be that of memory which is plugged in later; one
    // that may not be looked at may be that of memory which is there.
    let mut problems: Vec<TierError> = (known.iter().flat_map(Known::unseen))
        .filter(|unseen| !unseen.is_absent)
        .cloned()
        .map(TierError::Unseen)
        .collect();
    for (node, mine) in known.iter().enumerate() {
        let mut others = known[..node].iter().flat_map(Known::identities);
        if others.any(|identity| mine.identities().contains(identity)) {
            problems.push(TierError::Shared(tier_name(node as u16)));
        }
    }
    let mut regions = Vec::new();
    for (backing, region) in handed.iter().enumerate() {
        match tier_regions(known, region, backing) {
            Ok(list) => regions.extend(list),
            Err(cause) => problems.push(TierError::Region {
                gpa: region.gpa,
                cause,
            }),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Regions::new(regions).map_err(|error| vec![error.into()])
}

/// Device and inode.
type Identity = (u64, u64);

fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// Device (major, minor) and inode.
type KnownIdentity = (u32, u32, u64);

/// Which file it is, as the system knows it already: without waiting for a program that may
/// serve it.
pub fn known_identity(file: &File) -> Option<KnownIdentity> {
    let mut known = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is terminated, the descriptor is open as long as `file` is borrowed,
    // and the place for the answer lives until the end.
    let status = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            libc::STATX_INO,
            known.as_mut_ptr(),
        )
    };
    // SAFETY: all zeros are a valid value, whatever the call has written.
    let known = unsafe { known.assume_init() };
    (status == 0).then_some((known.stx_dev_major, known.stx_dev_minor, known.stx_ino))
}

/// The parts of a region that are memory of some tier.
fn tier_regions(
    known: &[Known],
    handed: &Handed,
    backing: usize,
) -> Result<Vec<Region>, RegionProblem> {
    let metadata =
        (handed.file.metadata()).map_err(|error| RegionProblem::System(error.to_string()))?;
    let identity = identity(&metadata);
    let end = handed
        .gpa
        .checked_add(handed.length_bytes)
        .ok_or(RegionProblem::Wraps)?;
    let in_file = handed.offset_bytes.checked_add(handed.length_bytes);
    let mut list = Vec::new();
    for (node, known) in known.iter().enumerate() {
        let parts: Vec<(u64, u64)> = match known {
            Known::Files { identities, .. } if identities.contains(&identity) => {
                vec![(handed.gpa, end)]
            }
            Known::Files { .. } => Vec::new(),
            Known::Addresses(ranges) => ranges
                .iter()
                .map(|&(from, to)| (from.max(handed.gpa), to.min(end)))
                .filter(|(from, to)| from < to)
                .collect(),
        };
        for (from, to) in parts {
            if in_file.is_none_or(|end| end > metadata.len()) {
                return Err(RegionProblem::BehindFile);
            }
            let page = (1 << PAGE_SHIFT) - 1;
            if (from | to | handed.offset_bytes) & page != 0 {
                return Err(RegionProblem::Unaligned);
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
    use std::path::{Path, PathBuf};

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

    fn matched(tiers: &[Tier], handed: &[Handed]) -> Matched {
        super::matched(&look(tiers), handed)
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
    fn a_file_that_cannot_be_seen_is_told_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let (fmem, fast) = memory(directory.path(), "fast", 0x4000);
        let table = [handed(0, 0x4000, &fast, 0)];
        let smem = |path: PathBuf| Tier::Files(vec![path]);
        let absent = smem(directory.path().join("absent"));
        let problem = matched(&[fmem.clone(), absent], &table).problem.unwrap();
        assert!(problem.contains("no memory of smem"), "{problem}");
        assert!(problem.contains("absent: entity not found"), "{problem}");
        // A directory that may not be searched is not at hand for root; a file is no
        // directory for anybody.
        let inside = smem(directory.path().join("fast/inside"));
        let problem = matched(&[fmem, inside], &table).problem.unwrap();
        assert!(
            problem.contains("fast/inside: not a directory"),
            "{problem}"
        );
        let forbidden = Unseen::new(Path::new("/f"), io::ErrorKind::PermissionDenied);
        assert!(forbidden.to_string().contains("search its directory"));
    }

    #[test]
    fn what_a_worker_is_told_of_many_files_fits_a_message() {
        let directory = tempfile::tempdir().unwrap();
        let (there, _) = memory(directory.path(), "there", 0x1000);
        let (Tier::Files(there), long) = (there, "d".repeat(180)) else {
            panic!("it is made of files")
        };
        let absent = |at| directory.path().join(format!("{long}/{at}"));
        let paths = (0..4000).map(absent).chain([there[0].join("inside")]);
        let many = Tier::Files(paths.collect());
        let all = Tier::Files(vec![there[0].clone(); 4000]);
        let known = look(&[many, all.clone(), all]);
        let bytes = serde_json::to_vec(&known).unwrap().len();
        assert!(bytes < crate::channel::MAX_BYTES / 2, "{bytes}");
        assert!(!known[0].unseen()[0].is_absent, "that one is an obstacle");
    }

    #[test]
    fn a_file_is_the_same_however_it_was_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (_, one) = memory(directory.path(), "one", 0x1000);
        let (_, other) = memory(directory.path(), "other", 0x1000);
        let again = File::open(directory.path().join("one")).unwrap();
        assert!(known_identity(&one).is_some());
        assert_eq!(known_identity(&one), known_identity(&again));
        assert_ne!(known_identity(&one), known_identity(&other));
    }

    #[test]
    fn memory_in_too_many_pieces_is_refused_with_that_reason() {
        let directory = tempfile::tempdir().unwrap();
        let (fmem, fast) = memory(directory.path(), "fast", 0x1000 * (MAX_SLOTS + 1));
        let piece = |at: usize| handed(0x2000 * at as u64, 0x1000, &fast, 0x1000 * at as u64);
        let table: Vec<Handed> = (0..=MAX_SLOTS).map(piece).collect();
        let tiers = [fmem];
        assert_eq!(matched(&tiers, &table[1..]).problem, None);
        let problem = matched(&tiers, &table).problem.unwrap();
        assert!(problem.contains("510 pieces"), "{problem}");
    }

    #[test]
    fn punches_the_piece_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (_, file) = memory(directory.path(), "memory", 0x4000);
        let files = Files {
            backing: vec![file.clone()],
            ..Files::default()
        };
        files
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
        assert!(files.punch(nowhere).is_err());
    }
}
