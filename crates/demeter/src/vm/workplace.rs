// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a guest's files live while it runs: memory files on a tmpfs, results
//! in a directory that gets its name only when it is complete.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

static NEXT: AtomicU32 = AtomicU32::new(0);
const RAM_PREFIX: &str = "demeter-vm-";

/// Memory files of one guest; removed when dropped.
pub struct RamDir {
    path: PathBuf,
}

impl RamDir {
    /// Makes a directory on the tmpfs (`$DEMETER_RAM_DIR`, else `/dev/shm`)
    /// after clearing away what killed runs left there.
    pub fn create(needed_bytes: u64) -> Result<Self, Error> {
        let base = std::env::var_os("DEMETER_RAM_DIR")
            .map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
        remove_orphans(&base);
        check_space(
            &base,
            needed_bytes,
            "make the tiers smaller, or set DEMETER_RAM_DIR to a directory with more room",
        )?;
        let path = base.join(format!("{RAM_PREFIX}{}", unique()));
        fs::create_dir(&path).map_err(|cause| Error::file("create", &path, cause))?;
        Ok(Self { path })
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the memory of FMEM and SMEM.
    pub fn nodes(&self, node_bytes: [u64; 2]) -> Result<[PathBuf; 2], Error> {
        Ok([
            self.file("node0", node_bytes[0])?,
            self.file("node1", node_bytes[1])?,
        ])
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
fn write_atomically(path: &Path, content: &[u8]) -> Result<(), Error> {
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
    fn space_is_checked_first() {
        let place = tempfile::tempdir().unwrap();
        assert!(matches!(
            ResultsDir::create(&place.path().join("r"), u64::MAX),
            Err(Error::Space { .. })
        ));
    }
}
