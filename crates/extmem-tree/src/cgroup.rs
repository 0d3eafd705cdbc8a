// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the memory cgroups of this process leave it.
//!
//! Swap on a memory node counts there as the program's memory does, and whoever runs into that limit
//! is killed. A swap file on disk does not count.

use std::path::{Path, PathBuf};

/// Names of the files of a version.
struct Version {
    /// Where it is mounted.
    roots: &'static [&'static str],
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat` that the kernel takes back before it kills.
    cache: [&'static str; 2],
}

const FIRST: Version = Version {
    roots: &["/sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_active_file", "total_inactive_file"],
};
const SECOND: Version = Version {
    roots: &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
    limit: "memory.max",
    usage: "memory.current",
    cache: ["active_file", "inactive_file"],
};

/// What the tightest of them leaves; None without a limit.
pub fn room_bytes() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let rooms = own.lines().filter_map(|line| {
        let (version, path) = of_line(line)?;
        let roots = version.roots.iter().map(Path::new);
        roots.filter_map(|root| tightest(version, root, path)).min()
    });
    rooms.min()
}

/// Of a line of `/proc/self/cgroup`, if it is about memory.
fn of_line(line: &str) -> Option<(&'static Version, &str)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if number == "0" && controllers.is_empty() {
        return Some((&SECOND, path));
    }
    let mut controllers = controllers.split(',');
    controllers
        .any(|one| one == "memory")
        .then_some((&FIRST, path))
}

/// Of a cgroup and all those that it is in.
fn tightest(version: &Version, root: &Path, path: &str) -> Option<u64> {
    let mut folder: PathBuf = root.join(path.trim_start_matches('/'));
    let mut least = None;
    while folder.starts_with(root) {
        if let Some(room) = room_in(version, &folder) {
            least = Some(least.map_or(room, |least: u64| least.min(room)));
        }
        if !folder.pop() {
            break;
        }
    }
    least
}

fn room_in(version: &Version, folder: &Path) -> Option<u64> {
    let read = |name| std::fs::read_to_string(folder.join(name)).ok();
    // "max" is none.
    let limit: u64 = read(version.limit)?.trim().parse().ok()?;
    let usage: u64 = read(version.usage)?.trim().parse().ok()?;
    let about = read("memory.stat").unwrap_or_default();
    let cache = about
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| version.cache.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .fold(0, u64::saturating_add);
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_of_all_counts_and_cache_does_not() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, limit: &str, usage: u64| {
            std::fs::write(folder.join("memory.max"), format!("{limit}\n")).unwrap();
            std::fs::write(folder.join("memory.current"), format!("{usage}\n")).unwrap();
        };
        let room = || tightest(&SECOND, root.path(), "/a/b");
        assert_eq!(room(), None);
        write(&inner, "max", 5);
        assert_eq!(room(), None);
        write(&root.path().join("a"), "1000", 300);
        assert_eq!(room(), Some(700));
        write(&inner, "500", 450);
        assert_eq!(room(), Some(50));
        let about = "anon 10\nactive_file 100\ninactive_file 50\nfile 1\n";
        std::fs::write(inner.join("memory.stat"), about).unwrap();
        assert_eq!(room(), Some(200));
        write(&inner, "100", 450);
        assert_eq!(room(), Some(0));
    }

    #[test]
    fn lines_of_both_versions_are_known() {
        let path = |line| of_line(line).map(|(version, path)| (version.limit, path));
        assert_eq!(path("0::/a:b"), Some(("memory.max", "/a:b")));
        assert_eq!(
            path("4:cpu,memory:/x"),
            Some(("memory.limit_in_bytes", "/x"))
        );
        for line in ["", "3:cpu:/", "nonsense", "1:name=systemd:/", "0:"] {
            assert_eq!(path(line), None, "{line}");
        }
    }
}
