// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Has the machine brought to its sizes by the host, before COMMAND.
//!
//! All waiting here is busy: the clock of a guest that sleeps jumps from timer
//! to timer, hours of it while the host does a millisecond's work.

use demeter_agent::protocol::{Record, Resize};

use crate::clock;
use crate::error::Error;
use crate::manager;
use crate::report::{Reporter, node_free_bytes, node_meminfo};

/// A host that makes no progress for so long (guest time) will not.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Loads the driver, and waits for the memory that it brings. Returns the number
/// of memory blocks without that.
pub fn load(resize: &Resize) -> Result<usize, Error> {
    let blocks = memory_blocks();
    let wanted: Vec<u64> = (node_bytes(resize).iter())
        .zip(&resize.plugged_bytes)
        .map(|(bytes, plugged)| bytes + plugged)
        .collect();
    manager::load(&resize.module.path, &resize.module.params)?;
    wait(resize, &wanted, |now, wanted| {
        now.iter().zip(wanted).all(|(now, wanted)| now >= wanted)
    })?;
    Ok(blocks)
}

/// Tells the host that it can begin, and waits until the memory is gone, and
/// with it its blocks where it came in blocks: they go last, and watermarks change.
pub fn carry_out(resize: &Resize, blocks: usize, reporter: &mut Reporter) -> Result<(), Error> {
    let wanted: Vec<u64> = (node_bytes(resize).iter())
        .zip(&resize.taken_bytes)
        .map(|(bytes, taken)| bytes.saturating_sub(*taken))
        .collect();
    let began_ns = clock::now_ns();
    reporter.send(&Record::Resizable);
    wait(resize, &wanted, |now, wanted| {
        if resize.by_node {
            now.iter().zip(wanted).all(|(now, wanted)| now <= wanted) && memory_blocks() <= blocks
        } else {
            now.iter().sum::<u64>() <= wanted.iter().sum()
        }
    })?;
    reporter.send(&Record::Resized {
        node_bytes: node_bytes(resize),
        free_bytes: nodes(resize).map(node_free_bytes).collect(),
        guest_ns: clock::now_ns() - began_ns,
    });
    Ok(())
}

fn nodes(resize: &Resize) -> std::ops::Range<u32> {
    0..resize.taken_bytes.len() as u32
}

/// What the kernel manages, by node: every kind of balloon takes from that.
fn node_bytes(resize: &Resize) -> Vec<u64> {
    nodes(resize)
        .map(|node| node_meminfo(node).get("MemTotal").copied().unwrap_or(0))
        .collect()
}

fn memory_blocks() -> usize {
    std::fs::read_dir("/sys/devices/system/memory").map_or(0, |entries| entries.count())
}

fn wait(
    resize: &Resize,
    wanted: &[u64],
    done: impl Fn(&[u64], &[u64]) -> bool,
) -> Result<(), Error> {
    let mut last = Vec::new();
    let mut moved_ns = clock::now_ns();
    loop {
        let now = node_bytes(resize);
        if done(&now, wanted) {
            return Ok(());
        }
        if now != last {
            last = now;
            moved_ns = clock::now_ns();
        } else if clock::now_ns() - moved_ns > PATIENCE_NS {
            return Err(Error::Resize {
                now_bytes: last,
                wanted_bytes: wanted.to_vec(),
            });
        }
        std::thread::yield_now();
    }
}
