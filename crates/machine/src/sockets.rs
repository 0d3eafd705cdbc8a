// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets: which vCPUs and which parts of the tiers belong together.
//!
//! Each socket has vCPUs and a node of each tier. A tier's nodes lie one after the
//! other in its memory, those of the first socket first.

/// The sockets of a machine that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// By tier and socket: where its node ends in the tier's memory.
    ends: [Vec<u64>; 2],
    vcpus_each: usize,
}

impl Sockets {
    /// `node_bytes`: FMEM and SMEM of each socket; `None` where there is but one. The
    /// vCPUs are divided evenly, the first to the first socket.
    #[must_use]
    pub fn new(node_bytes: &[[u64; 2]], vcpus: usize) -> Option<Self> {
        if node_bytes.len() < 2 {
            return None;
        }
        let ends = [0, 1].map(|tier: usize| {
            let sizes = node_bytes.iter().map(|node| node[tier]);
            sizes
                .scan(0_u64, |end, bytes| {
                    *end = end.saturating_add(bytes);
                    Some(*end)
                })
                .collect()
        });
        Some(Self {
            ends,
            vcpus_each: vcpus.div_ceil(node_bytes.len()).max(1),
        })
    }

    /// Whether memory at `offset` of a tier is another socket's than `vcpu`.
    #[inline]
    #[must_use]
    pub fn is_remote(&self, vcpu: usize, tier: usize, offset: u64) -> bool {
        let ends = &self.ends[usize::from(tier > 0)];
        let socket = ends.iter().take_while(|&&end| end <= offset).count();
        socket != vcpu / self.vcpus_each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_socket_has_nothing_remote() {
        assert_eq!(Sockets::new(&[], 4), None);
        assert_eq!(Sockets::new(&[[1, 2]], 4), None);
    }

    #[test]
    fn nodes_and_vcpus_in_their_order() {
        let sockets = Sockets::new(&[[10, 100], [20, 200]], 4).unwrap();
        for (vcpu, own) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            for (tier, offset, socket) in [
                (0, 0, 0),
                (0, 9, 0),
                (0, 10, 1),
                (0, 29, 1),
                (1, 99, 0),
                (1, 100, 1),
            ] {
                let remote = sockets.is_remote(vcpu, tier, offset);
                assert_eq!(remote, own != socket, "vCPU {vcpu}, tier {tier}, {offset}");
            }
        }
    }
}
