// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a guest's files live while it runs: memory files on a tmpfs, results
//! in a directory that gets its name only when it is complete.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{OFlag, openat};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

use crate::error::Error;

static NEXT: AtomicU32 = AtomicU32::new(0);
const RAM_PREFIX: &str = "demeter-vm-";

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// Memory files of one guest; removed when dropped.
pub struct RamDir {
    path: PathBuf,
    source: Source,
    /// What [`RamDir::memory`] made outside the directory; it lives as long as this.
    memory: Mutex<Vec<fs::File>>,
}

/// Where guest RAM comes from. Most hosts mount `/dev/shm` without huge pages, but
/// some other way to memory that processes can share has them.
#[derive(Debug)]
enum Source {
    /// A tmpfs of our own that is mounted nowhere; root may make one.
    Mount(OwnedFd),
    /// Memory files outside any mount.
    Memfd,
    /// The directory.
    Files(Pages),
}

impl Source {
    fn best() -> Self {
        if chosen_word(HUGE_PAGES, "shmem_enabled").as_deref() == Some("deny") {
            return Self::Files(Pages::Small);
        }
        match huge_tmpfs() {
            Ok(mount) => Self::Mount(mount),
            Err(_) if memfd_is_huge(HUGE_PAGES) => Self::Memfd,
            Err(_) => Self::Files(Pages::Small),
        }
    }
}

/// What pages of the host guest RAM is made of. It decides how fast a run is, never
/// what comes out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pages {
    /// Huge ones as long as the host has them.
    Huge,
    /// Small ones: the host gives us shared memory of no others.
    Small,
    /// Those of the file system of `$DEMETER_RAM_DIR`.
    OfDirectory,
}

impl RamDir {
    /// Makes a directory on the tmpfs (`$DEMETER_RAM_DIR`, else `/dev/shm`)
    /// after clearing away what killed runs left there.
    pub fn create(needed_bytes: u64) -> Result<Self, Error> {
        let chosen = std::env::var_os("DEMETER_RAM_DIR").map(PathBuf::from);
        let source = match &chosen {
            Some(_) => Source::Files(Pages::OfDirectory),
            None => Source::best(),
        };
        let base = chosen.unwrap_or_else(|| PathBuf::from("/dev/shm"));
        remove_orphans(&base);
        check_space(
            &base,
            needed_bytes,
            "make the tiers smaller, or set DEMETER_RAM_DIR to a directory with more room",
        )?;
        let path = base.join(format!("{RAM_PREFIX}{}", unique()));
        fs::create_dir(&path).map_err(|cause| Error::file("create", &path, cause))?;
        Ok(Self {
            path,
            source,
            memory: Mutex::default(),
        })
    }

    /// What its memory is made of.
    pub fn pages(&self) -> Pages {
        match self.source {
            Source::Mount(_) | Source::Memfd => Pages::Huge,
            Source::Files(pages) => pages,
        }
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the memory of FMEM and SMEM.
    pub fn nodes(&self, node_bytes: [u64; 2]) -> Result<[PathBuf; 2], Error> {
        Ok([
            self.memory("node0", node_bytes[0])?,
            self.memory("node1", node_bytes[1])?,
        ])
    }

    /// Makes guest RAM of that size, zeroed. Where it is not in the directory the path
    /// is a link to it, which whoever runs as this user can open while this exists.
    pub fn memory(&self, name: &str, bytes: u64) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        let failed = |cause| Error::file("create", &path, cause);
        let made = match &self.source {
            Source::Files(_) => return self.file(name, bytes),
            Source::Memfd => memfd_create(name, MFdFlags::MFD_CLOEXEC),
            Source::Mount(mount) => openat(
                mount,
                name,
                OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC,
                Mode::S_IRUSR | Mode::S_IWUSR,
            ),
        };
        let file: fs::File = made.map_err(|errno| failed(errno.into()))?.into();
        file.set_len(bytes).map_err(failed)?;
        let open = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        std::os::unix::fs::symlink(open, &path).map_err(failed)?;
        match self.memory.lock() {
            Ok(mut memory) => memory.push(file),
            Err(poisoned) => poisoned.into_inner().push(file),
        }
        Ok(path)
    }

    /// Makes a sparse file of that size.
    pub fn file(&self, name: &str, bytes: u64) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        fs::File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .map_err(|cause| Error::file("create", &path, cause))?;
        Ok(path)
    }
}

impl Drop for RamDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The plugin's configuration: in a results directory while its guest runs, and
/// where that failed.
pub const PLUGIN_CONFIG: &str = "plugin.json";

/// A results directory in the making.
pub struct ResultsDir {
    building: PathBuf,
    wanted: PathBuf,
    published: bool,
}

impl ResultsDir {
    /// Starts a directory that will be called `wanted`.
    pub fn create(wanted: &Path, needed_bytes: u64) -> Result<Self, Error> {
        refuse_foreign(wanted)?;
        let parent = match wanted.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        fs::create_dir_all(&parent).map_err(|cause| Error::file("create", &parent, cause))?;
        check_space(
            &parent,
            needed_bytes,
            "free some space, or choose --out elsewhere",
        )?;
        let building = with_suffix(wanted, &format!(".tmp-{}", unique()));
        fs::create_dir(&building).map_err(|cause| Error::file("create", &building, cause))?;
        Ok(Self {
            building,
            wanted: wanted.to_path_buf(),
            published: false,
        })
    }

    /// A file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.building.join(name)
    }

    /// Writes a file in it.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.join(name);
        fs::write(&path, content).map_err(|cause| Error::file("write", &path, cause))
    }

    /// Gives the directory its name.
    pub fn publish(self) -> Result<PathBuf, Error> {
        let wanted = self.wanted.clone();
        self.rename_to(&wanted)
    }

    /// Keeps what there is as `<wanted>.failed`, in the place of an earlier failure.
    pub fn keep_failed(self) -> PathBuf {
        let mut failed = with_suffix(&self.wanted, ".failed");
        if failed.exists() && !failed.join(PLUGIN_CONFIG).is_file() {
            // It has that name for another reason.
            failed = with_suffix(&self.wanted, &format!(".failed-{}", unique()));
        }
        self.rename_to(&failed).unwrap_or(failed)
    }

    fn rename_to(mut self, target: &Path) -> Result<PathBuf, Error> {
        if target.exists() {
            fs::remove_dir_all(target).map_err(|cause| Error::file("replace", target, cause))?;
        }
        fs::rename(&self.building, target).map_err(|cause| Error::file("create", target, cause))?;
        self.published = true;
        Ok(target.to_path_buf())
    }
}

impl Drop for ResultsDir {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_dir_all(&self.building);
        }
    }
}

/// A directory of several runs, each in a directory below it. Until it is
/// complete a file tells so: whatever ends the runs, what they leave is known as
/// ours, and the next ones take its place.
pub struct RowsDir {
    path: PathBuf,
}

impl RowsDir {
    /// Begins it. What summed up earlier runs there is gone then: it would not
    /// belong to the rows.
    pub fn create(path: &Path) -> Result<Self, Error> {
        refuse_foreign(path)?;
        fs::create_dir_all(path).map_err(|cause| Error::file("create", path, cause))?;
        let unfinished = path.join(UNFINISHED);
        let text = "Runs that did not end, or did not end well. The next ones with this --out \
                    replace them.\n";
        fs::write(&unfinished, text).map_err(|cause| Error::file("write", &unfinished, cause))?;
        for name in SUMMARIES {
            remove_if_there(&path.join(name))?;
        }
        Ok(Self {
            path: path.to_path_buf(),
        })
    }

    /// Sums the runs up, in a file of [`SUMMARIES`].
    pub fn finish(self, name: &str, content: &[u8]) -> Result<(), Error> {
        write_atomically(&self.path.join(name), content)?;
        remove_if_there(&self.path.join(UNFINISHED))
    }
}

fn remove_if_there(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", path, cause))
        }
        _ => Ok(()),
    }
}

/// Files that sum several runs up.
const SUMMARIES: [&str; 2] = ["compare.json", "summary.json"];
/// Beside the runs until they are summed up.
const UNFINISHED: &str = "unfinished";

/// Only a directory that we made (or an empty one) is ever replaced.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let ours = ["manifest.json", "compare.json", "summary.json", UNFINISHED]
        .iter()
        .any(|name| path.join(name).is_file());
    let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if path.exists() && !ours && !empty {
        return Err(Error::NotResults {
            path: path.to_path_buf(),
        });
    }
    Ok(())
}

/// Fails when the file system of `path` has less than that free.
pub fn check_space(path: &Path, needed_bytes: u64, next: &'static str) -> Result<(), Error> {
    let free_bytes = free_space(path)?;
    if free_bytes < needed_bytes {
        return Err(Error::Space {
            path: path.to_path_buf(),
            free_mib: free_bytes >> 20,
            needed_mib: needed_bytes.div_ceil(1 << 20),
            next,
        });
    }
    Ok(())
}

/// Bytes that an unprivileged process can still write.
pub fn free_space(path: &Path) -> Result<u64, Error> {
    let stat = nix::sys::statvfs::statvfs(path)
        .map_err(|errno| Error::file("examine", path, errno.into()))?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

/// Pretty JSON with a final newline.
pub fn to_json(value: &impl serde::Serialize) -> Result<Vec<u8>, Error> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| Error::Malformed {
        path: "results".into(),
        cause: error.to_string(),
    })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes a file under another name first.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<(), Error> {
    let mut building = path.as_os_str().to_owned();
    building.push(format!(".tmp-{}", std::process::id()));
    let building = PathBuf::from(building);
    fs::write(&building, content)
        .and_then(|()| fs::rename(&building, path))
        .map_err(|cause| {
            let _ = fs::remove_file(&building);
            Error::file("write", path, cause)
        })
}

/// The word in brackets in a file of the kernel's settings.
fn chosen_word(settings: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(settings).join(name)).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// A tmpfs of huge pages that is mounted nowhere: it goes with its last file.
fn huge_tmpfs() -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_SET_STRING: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    let call = |result: libc::c_long| match libc::c_int::try_from(result) {
        Ok(value) if value >= 0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    };
    let none = std::ptr::null::<libc::c_char>();
    let text = |text: Option<&CStr>| text.map_or(none, CStr::as_ptr);
    // SAFETY: system calls on strings that outlive them; each descriptor they
    // return is new and ours.
    unsafe {
        let context = call(libc::syscall(
            libc::SYS_fsopen,
            c"tmpfs".as_ptr(),
            FSOPEN_CLOEXEC,
        ))?;
        let context = OwnedFd::from_raw_fd(context);
        let configure = |command: libc::c_uint, key: Option<&CStr>, value: Option<&CStr>| {
            call(libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                command,
                text(key),
                text(value),
                0,
            ))
        };
        configure(FSCONFIG_SET_STRING, Some(c"huge"), Some(c"always"))?;
        // Bounded by what is checked before a run, as in /dev/shm.
        configure(FSCONFIG_SET_STRING, Some(c"size"), Some(c"100%"))?;
        configure(FSCONFIG_CMD_CREATE, None, None)?;
        let mount = call(libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            0,
        ))?;
        Ok(OwnedFd::from_raw_fd(mount))
    }
}

/// Whether memory files outside any mount get huge pages where their mapping asks for
/// them, as QEMU's does; `settings` is the directory of transparent huge pages.
fn memfd_is_huge(settings: &str) -> bool {
    let all = chosen_word(settings, "shmem_enabled");
    let of_this_size = chosen_word(settings, "hugepages-2048kB/shmem_enabled");
    match (all.as_deref(), of_this_size.as_deref()) {
        (None | Some("deny"), _) => false,
        (Some("force"), _) => true,
        (Some(all), None | Some("inherit")) => all != "never",
        (_, Some(own)) => own != "never",
    }
}

fn unique() -> String {
    format!(
        "{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Memory files of processes that no longer exist.
fn remove_orphans(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(RAM_PREFIX))
            .and_then(|rest| rest.split('-').next())
            .and_then(|pid| pid.parse::<u32>().ok());
        if let Some(pid) = owner
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_unless_published() {
        let place = tempfile::tempdir().unwrap();
        let wanted = place.path().join("r");
        drop(ResultsDir::create(&wanted, 1).unwrap());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);

        let results = ResultsDir::create(&wanted, 1).unwrap();
        results.write("manifest.json", b"{}").unwrap();
        assert!(!wanted.exists());
        assert_eq!(results.publish().unwrap(), wanted);
        assert!(wanted.join("manifest.json").exists());

        let failed = place.path().join("r.failed");
        for _ in 0..2 {
            let results = ResultsDir::create(&wanted, 1).unwrap();
            results.write(PLUGIN_CONFIG, b"{}").unwrap();
            assert_eq!(results.keep_failed(), failed);
        }
        fs::remove_file(failed.join(PLUGIN_CONFIG)).unwrap();
        fs::write(failed.join("letter"), "x").unwrap();
        let results = ResultsDir::create(&wanted, 1).unwrap();
        assert_ne!(results.keep_failed(), failed);
        assert!(failed.join("letter").exists());
        assert!(wanted.join("manifest.json").exists());
    }

    #[test]
    fn foreign_directories_are_left_alone() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("letter"), "x").unwrap();
        assert!(ResultsDir::create(place.path(), 1).is_err());
        assert!(place.path().join("letter").exists());
    }

    #[test]
    fn unfinished_rows_are_replaced() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("c");
        let rows = RowsDir::create(&out).unwrap();
        fs::create_dir(out.join("none")).unwrap();
        drop(rows);
        let rows = RowsDir::create(&out).unwrap();
        rows.finish("compare.json", b"{}").unwrap();
        assert!(out.join("compare.json").exists() && !out.join(UNFINISHED).exists());
        // Nothing sums up rows that are on their way.
        let _rows = RowsDir::create(&out).unwrap();
        assert!(!out.join("compare.json").exists());

        fs::write(place.path().join("letter"), "x").unwrap();
        assert!(RowsDir::create(place.path()).is_err());
        assert!(!place.path().join(UNFINISHED).exists());
    }

    #[test]
    fn huge_pages_as_the_kernel_says() {
        let place = tempfile::tempdir().unwrap();
        let says = |all: &str, own: Option<&str>| {
            fs::write(place.path().join("shmem_enabled"), all).unwrap();
            let of_size = place.path().join("hugepages-2048kB");
            let _ = fs::remove_dir_all(&of_size);
            if let Some(own) = own {
                fs::create_dir(&of_size).unwrap();
                fs::write(of_size.join("shmem_enabled"), own).unwrap();
            }
            memfd_is_huge(place.path().to_str().unwrap())
        };
        assert!(says("always within_size [advise] never deny force\n", None));
        assert!(!says(
            "always within_size advise [never] deny force\n",
            None
        ));
        let never = "always within_size advise [never] deny force\n";
        let denied = "always within_size advise never [deny] force\n";
        let inherit = "always [inherit] within_size advise never\n";
        let advise = "always inherit within_size [advise] never\n";
        assert!(!says(never, Some(inherit)));
        assert!(says(never, Some(advise)));
        assert!(!says(denied, Some(advise)));
        assert!(!memfd_is_huge("/nonexistent"));
    }

    #[test]
    fn memory_is_there_for_others_until_it_is_dropped() {
        let sources = [Some(Source::Memfd), huge_tmpfs().ok().map(Source::Mount)];
        for source in sources.into_iter().flatten() {
            let place = tempfile::tempdir().unwrap();
            let ram = RamDir {
                path: place.path().join("ram"),
                source,
                memory: Mutex::default(),
            };
            fs::create_dir(&ram.path).unwrap();
            let path = ram.memory("node0", 8 << 20).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 8 << 20);
            let mut other = fs::OpenOptions::new().write(true).open(&path).unwrap();
            io::Write::write_all(&mut other, b"guest").unwrap();
            assert_eq!(&fs::read(&path).unwrap()[..5], b"guest");
            drop(ram);
            assert!(fs::read_link(&path).is_err());
        }
    }

    #[test]
    fn space_is_checked_first() {
        let place = tempfile::tempdir().unwrap();
        assert!(matches!(
            ResultsDir::create(&place.path().join("r"), u64::MAX),
            Err(Error::Space { .. })
        ));
    }
}
