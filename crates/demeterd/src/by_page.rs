// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Does the host allocate a file of guest memory page by page, as the guest touches it? Only then
//! is what it has allocated beyond a guest's size the guest's doing: huge pages cover what is in
//! the balloon as well, and file systems on disks allocate for themselves.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use demeter_balloon::wire::PAGE_SHIFT;

const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";
const MOUNTS: &str = "/proc/self/mountinfo";

/// A file of tmpfs (a memfd is one) that has no huge pages. It may have to wait for a file that
/// somebody else's program serves.
pub fn is_by_page(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    is_tmpfs(file)
        && metadata.blksize() == 1 << PAGE_SHIFT
        && !host_has_huge(Path::new(TRANSPARENT))
        && fs::read_to_string(MOUNTS)
            .is_ok_and(|mounts| !mount_has_huge(&mounts, device(metadata.dev())))
}

fn is_tmpfs(file: &File) -> bool {
    let mut known = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the place for the answer
    // lives until the end.
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), known.as_mut_ptr()) };
    // SAFETY: all zeros are a valid value, whatever the call has written.
    let known = unsafe { known.assume_init() };
    status == 0 && known.f_type == libc::TMPFS_MAGIC
}

/// Major and minor number, as in the list of mounts.
fn device(dev: u64) -> String {
    format!("{}:{}", libc::major(dev), libc::minor(dev))
}

/// May files have huge pages that belong to no mount, or to one without a word of its own?
fn host_has_huge(transparent: &Path) -> bool {
    let has = |path: &Path, none: [&str; 2]| match fs::read_to_string(path) {
        Ok(words) => !none.contains(&chosen(&words)),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    let sizes = match fs::read_dir(transparent) {
        Ok(sizes) => sizes,
        // A kernel without them, unless nothing of the kernel's can be seen here.
        Err(error) => {
            let is_seen = transparent.parent().is_some_and(Path::is_dir);
            return error.kind() != io::ErrorKind::NotFound || !is_seen;
        }
    };
    has(&transparent.join("shmem_enabled"), ["never", "deny"])
        || sizes.flatten().any(|size| {
            let is_size = (size.file_name().as_encoded_bytes()).starts_with(b"hugepages-");
            is_size && has(&size.path().join("shmem_enabled"), ["never", "inherit"])
        })
}

/// Of a setting of the kernel's, the word in brackets.
fn chosen(words: &str) -> &str {
    let inside = words
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or("", |(word, _)| word)
}

/// Is there a mount of that device that may have huge pages? The kernel shows the option where
/// that is so. A memfd has no mount.
fn mount_has_huge(mounts: &str, device: String) -> bool {
    mounts.lines().any(|line| {
        let is_there = line.split(' ').nth(2) == Some(device.as_str());
        let options = line.split_once(" - ").map_or("", |(_, rest)| rest);
        let options = options.rsplit(' ').next().unwrap_or("");
        let is_huge = |option: &str| option.starts_with("huge=") && option != "huge=never";
        is_there && options.split(',').any(is_huge)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_with_huge_pages_is_told_from_others() {
        let mounts = "25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684084k\n\
                      27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
                      90 1 0:77 / /mnt/a\\040b rw shared:1 - tmpfs none rw,huge=advise,size=1k\n\
                      91 1 0:78 / /mnt/c rw - tmpfs none rw,huge=never\n";
        let has = |device: &str| mount_has_huge(mounts, device.to_owned());
        assert!(has("0:77"));
        assert!(!has("0:23") && !has("0:78") && !has("0:7") && !has("254:0"));
        assert_eq!(device(libc::makedev(254, 3)), "254:3");
    }

    #[test]
    fn the_host_has_huge_pages_if_some_size_may_be_used() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        assert!(!host_has_huge(&at.join("absent")));
        // Without /sys nobody knows.
        assert!(host_has_huge(&at.join("absent/absent")));
        let set = |size: &str, words: &str| {
            fs::create_dir_all(at.join(size)).unwrap();
            fs::write(at.join(size).join("shmem_enabled"), words).unwrap();
            host_has_huge(at)
        };
        let all = "always within_size advise never deny force\n";
        let choose = |word: &str| all.replacen(word, &format!("[{word}]"), 1);
        for (word, has) in [("always", true), ("advise", true), ("force", true)]
            .into_iter()
            .chain([("deny", false), ("never", false)])
        {
            assert_eq!(set("", &choose(word)), has, "{word}");
        }
        assert!(!set(
            "hugepages-64kB",
            "always [inherit] within_size advise never\n"
        ));
        assert!(set(
            "hugepages-2048kB",
            "always inherit within_size [advise] never\n"
        ));
        // What cannot be understood may be anything.
        assert!(set("", "other words\n"));
    }

    #[test]
    fn a_file_of_tmpfs_is_by_page_where_the_kernel_gives_it_no_huge_pages() {
        let memory = tempfile::tempfile_in("/dev/shm").unwrap();
        let of_sizes = fs::read_dir(TRANSPARENT).into_iter().flatten().flatten();
        let none = ["[never]", "[deny]", "[inherit]"];
        // One setting for all sizes, and one for each that may leave it to that.
        let has_none = std::iter::once(Path::new(TRANSPARENT).to_owned())
            .chain(of_sizes.map(|size| size.path()))
            .filter_map(|place| fs::read_to_string(place.join("shmem_enabled")).ok())
            .all(|words| none.iter().any(|word| words.contains(word)));
        assert_eq!(is_by_page(&memory), has_none);
    }

    #[test]
    fn a_file_on_a_disk_is_not_allocated_by_the_guest_alone() {
        let other = File::open("/proc/self/mountinfo").unwrap();
        assert!(!is_by_page(&other));
    }
}
