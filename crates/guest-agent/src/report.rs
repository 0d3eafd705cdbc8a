// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Speaks to the host: records on the third serial port, snapshots of the
//! kernel's counters, trouble in the kernel log.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use demeter_agent::protocol::{Record, When};
use nix::sys::termios::{SetArg, cfmakeraw, tcdrain, tcgetattr, tcsetattr};

const RECORD_PORT: &str = "/dev/ttyS2";
/// Not reported: `demeter why` reads it, in the guest; here it would be the larger
/// part of every result.
const LEFT_OUT: [&str; 1] = ["ledger"];
/// Files larger than this are not reported.
const FILE_LIMIT_BYTES: u64 = 256 << 10;

/// What a kernel in trouble writes.
const TROUBLE: [&str; 10] = [
    "BUG:",
    "WARNING:",
    "Oops",
    "Bad page",
    "bad page",
    "Bad rss-counter",
    "general protection",
    "Unable to handle",
    "soft lockup",
    "Out of memory",
];

/// Opens a serial port for bytes as they are: no line discipline between
/// COMMAND and the file on the host.
pub fn open_port(path: &str) -> Option<File> {
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)
        .ok()?;
    if let Ok(mut settings) = tcgetattr(&port) {
        cfmakeraw(&mut settings);
        let _ = tcsetattr(&port, SetArg::TCSANOW, &settings);
    }
    Some(port)
}

/// Writes records.
pub struct Reporter {
    port: Option<File>,
}

impl Reporter {
    /// Opens the port; without it records go to the console.
    pub fn open() -> Self {
        Self {
            port: open_port(RECORD_PORT),
        }
    }

    /// Sends one record.
    pub fn send(&mut self, record: &Record) {
        let Ok(mut line) = serde_json::to_string(record) else {
            return;
        };
        line.push('\n');
        match &mut self.port {
            Some(port) => {
                let _ = port.write_all(line.as_bytes());
            }
            None => eprint!("{line}"),
        }
    }

    /// Waits until the host has everything.
    pub fn finish(&mut self) {
        if let Some(port) = &self.port {
            let _ = tcdrain(port);
        }
    }
}

/// `uname -r`.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Sends vmstat and every node's meminfo.
pub fn snapshot(when: When, reporter: &mut Reporter) {
    let _ = fs::write("/proc/sys/vm/stat_refresh", "1");
    let counters = fs::read_to_string("/proc/vmstat")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        })
        .collect();
    reporter.send(&Record::Vmstat { when, counters });
    for node in 0..64 {
        let bytes = node_meminfo(node);
        if !bytes.is_empty() {
            reporter.send(&Record::Meminfo { when, node, bytes });
        }
    }
}

/// A node's meminfo in bytes; empty when there is no such node.
pub fn node_meminfo(node: u32) -> BTreeMap<String, u64> {
    parse_node_meminfo(
        &fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo"))
            .unwrap_or_default(),
    )
}

fn parse_node_meminfo(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let name = name.split_whitespace().nth(2)?;
            let mut words = value.split_whitespace();
            let number: u64 = words.next()?.parse().ok()?;
            let scale = if words.next() == Some("kB") { 1024 } else { 1 };
            Some((name.to_owned(), number * scale))
        })
        .collect()
}

/// Free memory of a node: its free lists and the per-CPU lists in front of
/// them, which the kernel does not count as free though anyone may have them.
pub fn node_free_bytes(node: u32) -> u64 {
    // Folds the per-CPU differences of the counters in.
    let _ = fs::write("/proc/sys/vm/stat_refresh", "1");
    parse_free_bytes(
        &fs::read_to_string("/proc/zoneinfo").unwrap_or_default(),
        node,
    )
}

fn parse_free_bytes(zoneinfo: &str, node: u32) -> u64 {
    let head = format!("Node {node},");
    let mut inside = false;
    let mut pages = 0;
    for line in zoneinfo.lines() {
        if line.starts_with("Node ") {
            inside = line.starts_with(&head);
        }
        let mut words = line.split_whitespace();
        let number = match (words.next(), words.next(), words.next()) {
            (Some("pages"), Some("free"), Some(number)) => number,
            (Some("count:"), Some(number), None) => number,
            _ => continue,
        };
        if inside {
            pages += number.parse().unwrap_or(0);
        }
    }
    pages * 4096
}

/// Every readable file below `dir`, by path relative to it.
pub fn readable_files(dir: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    collect(dir, dir, &mut files, 0);
    files
}

fn collect(root: &Path, dir: &Path, files: &mut BTreeMap<String, String>, depth: u32) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
            continue;
        };
        if kind.is_dir() && depth < 8 {
            collect(root, &path, files, depth + 1);
        } else if kind.is_file()
            && !LEFT_OUT.iter().any(|name| entry.file_name() == *name)
            && let Some(content) = content_of(&path)
            && let Ok(name) = path.strip_prefix(root)
        {
            files.insert(name.display().to_string(), content);
        }
    }
}

fn content_of(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(FILE_LIMIT_BYTES)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => text.trim_end().to_owned(),
        Ok(text) => hex(text.as_bytes()),
        Err(error) => hex(error.as_bytes()),
    })
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(4 + bytes.len() * 2);
    text.push_str("hex:");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The kernel log from a point in time on.
pub struct KernelLog {
    file: Option<File>,
}

impl KernelLog {
    /// Everything the kernel says after this call.
    pub fn from_here() -> Self {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")
            .ok();
        if let Some(file) = &mut file {
            let _ = file.seek(SeekFrom::End(0));
        }
        Self { file }
    }

    /// Lines that tell of trouble.
    pub fn trouble(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [0_u8; 8192];
        let Some(file) = &mut self.file else {
            return lines;
        };
        // One record a read; the end shows as "would block".
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&buffer[..bytes]);
                    let message = text.split_once(';').map_or(&*text, |(_, message)| message);
                    let line = message.lines().next().unwrap_or_default();
                    if tells_of_trouble(line) {
                        lines.push(line.to_owned());
                    }
                }
                // The oldest records were overwritten; go on with the next.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        lines
    }
}

/// Warnings of stock kernels that have nothing to do with a manager: when
/// reclaim ages pages, Linux 6.12 warns once about mapped DAX pages (here the
/// programs of the guest root) and goes on correctly.
const KNOWN: [&str; 1] = ["get_pte_pfn"];

fn tells_of_trouble(line: &str) -> bool {
    let kernel = TROUBLE.iter().any(|word| line.contains(word));
    let known = KNOWN.iter().any(|word| line.contains(word));
    (kernel && !known) || is_advice(line)
}

/// Whether the module says what somebody has to do about something.
pub fn is_advice(line: &str) -> bool {
    line.starts_with("demeter: ") && line.contains("; next: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_in_bytes() {
        let parsed =
            parse_node_meminfo("Node 0 MemTotal:  2048 kB\nNode 0 HugePages_Total:  3\njunk\n");
        assert_eq!(parsed["MemTotal"], 2048 * 1024);
        assert_eq!(parsed["HugePages_Total"], 3);
        assert_eq!(parsed.len(), 2);
    }

    #[test]
    fn free_memory_with_the_lists_of_the_cpus() {
        let zoneinfo = "Node 0, zone      DMA\n  per-node stats\n  pages free     10\n        min 3\n  \
                        pagesets\n    cpu: 0\n              count:    2\n              high:  7\n\
                        Node 0, zone    DMA32\n  pages free     100\n    cpu: 0\n   count: 1\n\
                        Node 1, zone    DMA32\n  pages free     5\n";
        assert_eq!(parse_free_bytes(zoneinfo, 0), 113 * 4096);
        assert_eq!(parse_free_bytes(zoneinfo, 1), 5 * 4096);
        assert_eq!(parse_free_bytes(zoneinfo, 2), 0);
    }

    #[test]
    fn finds_trouble() {
        assert!(tells_of_trouble("BUG: Bad page state in process x"));
        assert!(!tells_of_trouble(
            "demeter: loading out-of-tree module taints kernel."
        ));
        assert!(tells_of_trouble(
            "demeter: sampler pebs cannot be used: the PMU has no PEBS; next: in a VM, use another"
        ));
        assert!(!tells_of_trouble("demeter: disabled"));
        assert!(!tells_of_trouble("init: something else; next: nothing"));
    }

    #[test]
    fn binary_files_become_hex() {
        assert_eq!(hex(&[0, 255, 16]), "hex:00ff10");
    }
}
