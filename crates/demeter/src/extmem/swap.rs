// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which places are swapped to, and can they be used? The library looks closer; this says
//! the plain cases before a program is started.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, refuse};
use demeter_agent::size;
use demeter_extmem_tree::{NamedPlace, Node, PlaceError, SWAP_VARIABLES};

use super::ground::Ground;

/// A directory, file, block device or memory node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Absolute, or the name of the node.
    pub path: PathBuf,
    /// The node.
    pub node: Option<Node>,
    /// How much of it; None: all, or in a directory or on a node four times DRAM.
    pub bytes: Option<u64>,
}

/// Of a place that was looked at.
pub fn unusable(path: &Path, error: PlaceError) -> Error {
    let text = error.to_string();
    let (cause, next) = text.split_once("; next: ").unwrap_or((&text, ""));
    refuse(format!("swap place {}: {cause}", path.display()), next)
}

/// The places named, each with its size: none, one for all, or one each.
pub fn places(paths: &[PathBuf], sizes: &[u64]) -> Result<Vec<Place>, Error> {
    const MOST: usize = SWAP_VARIABLES.len();
    if paths.len() > MOST {
        return Err(refuse(
            format!("--swap is given {} times", paths.len()),
            format!("name {MOST} places at most"),
        ));
    }
    if sizes.len() > 1 && sizes.len() != paths.len() {
        return Err(refuse(
            format!(
                "--swap-size is given {} times where --swap is given {} times",
                sizes.len(),
                paths.len()
            ),
            "give one size for all places, or one for each, in the same order",
        ));
    }
    let mut found = Vec::<(Place, Ground)>::new();
    for (at, path) in paths.iter().enumerate() {
        let bytes = sizes.get(at).or_else(|| sizes.first()).copied();
        let node = Node::named(path).transpose();
        let node = node.map_err(|error| unusable(path, error))?;
        let (path, ground) = match node {
            Some(node) => (node.into(), Ground::of_node(node)),
            None => {
                let path = check(path, bytes)?;
                let ground = Ground::of(&path);
                let ground = ground.map_err(|error| Error::file("look at", &path, error))?;
                (path, ground)
            }
        };
        if let Some((other, _)) = found.iter().find(|(_, one)| one.meets(&ground)) {
            return Err(refuse(
                format!(
                    "{} and {} are the same place for swap",
                    other.path.display(),
                    path.display()
                ),
                "name it once",
            ));
        }
        found.push((Place { path, node, bytes }, ground));
    }
    Ok(found.into_iter().map(|(place, _)| place).collect())
}

/// The absolute path, if it is a directory, file or block device that we may write.
fn check(path: &Path, size_bytes: Option<u64>) -> Result<PathBuf, Error> {
    let shown = path.display();
    let about = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refuse(
            format!("swap path {shown} does not exist"),
            "name a directory, a block device, a file made with `fallocate -l SIZE`, or a memory node (node:1)",
        ),
        _ => refuse(
            format!("cannot look at swap path {shown}: {error}"),
            "check the path and its permissions",
        ),
    })?;
    let kind = about.file_type();
    if !kind.is_dir() && !kind.is_file() && !kind.is_block_device() {
        return Err(refuse(
            format!("swap path {shown} is neither a directory, a file nor a block device"),
            "name one of these",
        ));
    }
    let writable = CString::new(path.as_os_str().as_bytes()).is_ok_and(|path| {
        // SAFETY: a terminated string.
        unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
    });
    if !writable {
        return Err(refuse(
            format!("swap path {shown} is not writable"),
            "check its permissions",
        ));
    }
    if kind.is_file()
        && let Some(wanted) = size_bytes
        && let needed = wanted.saturating_add(NamedPlace::START_BYTES)
        && about.len() < needed
    {
        return Err(refuse(
            format!(
                "swap file {shown} is too small: {} KiB where --swap-size is {}, and a header comes before it",
                about.len() >> 10,
                size::format(wanted)
            ),
            format!(
                "make it larger with `fallocate -l {}KiB`, or leave --swap-size out",
                needed.div_ceil(1 << 10)
            ),
        ));
    }
    if kind.is_dir()
        && let Some(wanted) = size_bytes
        && let Some(free) = free_bytes(path)
        && free < wanted
    {
        return Err(refuse(
            format!(
                "{shown} has {} MiB free where --swap-size is {} MiB",
                free >> 20,
                wanted >> 20
            ),
            "free some space, or name a larger place",
        ));
    }
    path.canonicalize()
        .map_err(|error| Error::file("find", path, error))
}

fn free_bytes(path: &Path) -> Option<u64> {
    let about = nix::sys::statvfs::statvfs(path).ok()?;
    Some(
        about
            .blocks_available()
            .saturating_mul(about.fragment_size()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &Path, size_bytes: Option<u64>) -> String {
        check(path, size_bytes).unwrap_err().to_string()
    }

    #[test]
    fn each_bad_path_has_its_message() {
        let directory = tempfile::tempdir().unwrap();
        assert!(check(directory.path(), Some(4096)).is_ok());
        assert!(said(&directory.path().join("none"), None).contains("does not exist"));
        assert!(said(Path::new("/dev/null"), None).contains("neither a directory"));
        assert!(said(directory.path(), Some(1 << 60)).contains("MiB free"));
        let file = directory.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        assert!(said(&file, Some(4096)).contains("too small"));
        // The header is not swapped to.
        std::fs::write(&file, vec![0; 8192]).unwrap();
        assert!(check(&file, Some(4096)).is_ok());
        assert!(said(&file, Some(8192)).contains("too small: 8 KiB where"));
        assert!(said(&file.join("below"), None).contains("cannot look at"));
    }

    #[test]
    fn places_have_a_size_for_all_or_one_each_and_are_named_once() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b, link] = ["a", "b", "link"].map(|name| directory.path().join(name));
        std::fs::create_dir(&a).unwrap();
        std::fs::write(&b, vec![0; 8192 + 4096]).unwrap();
        std::os::unix::fs::symlink(&b, &link).unwrap();
        let sizes = |given: &[u64]| {
            let found = places(&[a.clone(), b.clone()], given).unwrap();
            (found[0].bytes, found[1].bytes)
        };
        assert_eq!(sizes(&[]), (None, None));
        assert_eq!(sizes(&[4096]), (Some(4096), Some(4096)));
        assert_eq!(sizes(&[4096, 8192]), (Some(4096), Some(8192)));
        let said = |paths: &[&PathBuf], given: &[u64]| {
            let paths: Vec<_> = paths.iter().map(|&path| path.clone()).collect();
            places(&paths, given).unwrap_err().to_string()
        };
        assert!(said(&[&a, &b], &[1, 2, 3]).contains("3 times where --swap is given 2"));
        assert!(said(&[&b, &a, &link], &[]).contains("are the same place"));
        assert!(said(&[&a; 9], &[]).contains("--swap is given 9 times"));
    }

    #[test]
    fn a_memory_node_is_a_place_by_its_number() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let found = places(&paths(&["node:01", "node:2"]), &[4096, 8192]).unwrap();
        let shown: Vec<_> = (found.iter())
            .map(|place| (place.path.to_str().unwrap(), place.bytes))
            .collect();
        assert_eq!(shown, [("node:1", Some(4096)), ("node:2", Some(8192))]);
        assert!(found.iter().all(|place| place.node.is_some()));
        let said = |names: &[&str]| places(&paths(names), &[]).unwrap_err();
        let twice = said(&["node:1", "/tmp", "node:1"]).to_string();
        assert!(twice.contains("are the same place"), "{twice}");
        for name in ["node:", "node:x", "node:0-1", "node:5000"] {
            let error = said(&[name]);
            assert_eq!(error.status(), 2);
            let told = error.to_string();
            assert!(told.contains(&format!("swap place {name}: ")), "{told}");
            let next = error.next();
            assert!(next.starts_with("give one number"), "{next}");
        }
        // A file of such a name has its folder before it.
        assert!(said(&["./node:1"]).to_string().contains("does not exist"));
    }
}
