// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's NUMA nodes: with one socket FMEM is node 0 and SMEM node 1; with
//! several each has its share of the vCPUs and of both tiers, those of FMEM first.

use serde::Serialize;

use super::sizing::Method;
use super::tmm::Tmm;
use crate::error::Error;

/// What firmware says of a node and itself, of SMEM and the FMEM of its socket, of
/// FMEM of two sockets, and of all other pairs: as found on two-socket servers with
/// persistent memory.
const DISTANCE_OWN: u32 = 10;
const DISTANCE_SLOW: u32 = 17;
const DISTANCE_SOCKETS: u32 = 21;
const DISTANCE_FAR: u32 = 28;

/// A socket's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Socket {
    /// What COMMAND finds free, of FMEM and of SMEM.
    pub tier_bytes: [u64; 2],
    /// Sizes of the two nodes on boot.
    pub node_bytes: [u64; 2],
}

/// A node of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// 0 FMEM, 1 SMEM.
    pub tier: usize,
    /// Its socket.
    pub socket: u32,
    /// What COMMAND finds free.
    pub free_bytes: u64,
    /// Its size on boot.
    pub bytes: u64,
    /// Where it begins in its tier's memory.
    pub offset: u64,
}

/// Refuses what knows two nodes only.
pub fn check(sockets: u32, vcpus: u32, balloon: Method, tmm: Tmm) -> Result<(), Error> {
    let refused = |cause: String, next: &str| {
        Err(Error::Usage {
            cause,
            next: next.into(),
        })
    };
    if sockets < 2 {
        return Ok(());
    }
    if !vcpus.is_multiple_of(sockets) {
        return refused(
            format!("--vcpus {vcpus} are not the same for --sockets {sockets}"),
            "give every socket as many vCPUs, for example --vcpus 2 --sockets 2",
        );
    }
    if balloon != Method::None {
        return refused(
            "--balloon knows one node a tier".into(),
            "leave out --balloon or --sockets",
        );
    }
    if matches!(
        tmm,
        Tmm::Damon | Tmm::DamonAuto | Tmm::Oracle | Tmm::Peer(_)
    ) {
        return refused(
            format!("--tmm {} is set up for one node a tier", tmm.row()),
            "leave out --sockets, or use none, nbt, fast, ideal or demeter",
        );
    }
    Ok(())
}

/// The nodes of these sockets, by their numbers.
pub fn nodes(sockets: &[Socket]) -> Vec<Node> {
    let mut nodes = Vec::new();
    for tier in 0..2 {
        let mut offset = 0;
        for (number, socket) in (0..).zip(sockets) {
            nodes.push(Node {
                tier,
                socket: number,
                free_bytes: socket.tier_bytes[tier],
                bytes: socket.node_bytes[tier],
                offset,
            });
            offset += socket.node_bytes[tier];
        }
    }
    nodes
}

/// What firmware says of the distance between two nodes.
pub fn distance(one: &Node, other: &Node) -> u32 {
    match (one.tier == other.tier, one.socket == other.socket) {
        (true, true) => DISTANCE_OWN,
        (false, true) => DISTANCE_SLOW,
        (true, false) if one.tier == 0 => DISTANCE_SOCKETS,
        _ => DISTANCE_FAR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::settings::Settings;
    use crate::vm::settings::tests::options;

    const MIB: u64 = 1 << 20;

    fn settings(line: &str, tmm: Tmm) -> Result<Settings, Error> {
        options(line).settings(tmm, &["true".into()])
    }

    #[test]
    fn two_sockets_have_half_each() {
        let line = "--sockets 2 --vcpus 2 --fmem 64M --smem 256M";
        let settings = settings(line, Tmm::Demeter).unwrap();
        let nodes = settings.nodes();
        let shape: Vec<_> = nodes.iter().map(|node| (node.tier, node.socket)).collect();
        assert_eq!(shape, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        for (node, free) in nodes.iter().zip([32, 32, 128, 128]) {
            assert_eq!(node.free_bytes, free * MIB);
            assert!(node.bytes > node.free_bytes && node.bytes % (2 * MIB) == 0);
        }
        for tier in 0..2 {
            assert_eq!(nodes[2 * tier].offset, 0);
            assert_eq!(nodes[2 * tier + 1].offset, nodes[2 * tier].bytes);
            let sum = nodes[2 * tier].bytes + nodes[2 * tier + 1].bytes;
            assert_eq!(settings.node_bytes[tier], sum);
        }
        assert_eq!(distance(&nodes[0], &nodes[1]), 21);
        assert_eq!(distance(&nodes[3], &nodes[1]), 17);
        assert_eq!(distance(&nodes[3], &nodes[0]), 28);
        assert_eq!(distance(&nodes[2], &nodes[3]), 28);
    }

    #[test]
    fn one_socket_is_as_ever() {
        let settings = settings("", Tmm::Demeter).unwrap();
        assert!(settings.sockets.is_empty());
        assert_eq!(settings.nodes().len(), 2);
        assert_eq!(settings.nodes()[1].bytes, settings.node_bytes[1]);
    }

    #[test]
    fn what_knows_two_nodes_is_refused() {
        for (line, tmm) in [
            ("--sockets 2", Tmm::None),
            ("--sockets 2 --vcpus 3", Tmm::None),
            ("--sockets 2 --vcpus 2 --balloon demeter", Tmm::None),
            ("--sockets 2 --vcpus 2", Tmm::Damon),
            ("--sockets 2 --vcpus 2", Tmm::Oracle),
            ("--sockets 2 --vcpus 2 --fmem 24M", Tmm::None),
        ] {
            assert!(settings(line, tmm).is_err(), "{line}");
        }
        assert!(settings("--sockets 2 --vcpus 4", Tmm::Nbt).is_ok());
    }
}
