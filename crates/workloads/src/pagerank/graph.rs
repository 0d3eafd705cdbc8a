// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Synthetic graphs in compressed sparse rows, the same graphs that the GAP
//! Benchmark Suite generates (Beamer, Asanović, Patterson, arXiv:1508.03619):
//! edges in blocks of 2^18, each block with its own seed; made undirected; each
//! list of neighbours sorted, without repetitions and loops.
//!
//! Edges are generated twice, once to count and once to place them, instead of
//! being stored: half the memory of the published builder, the same result.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::mersenne::Mersenne;
use crate::Error;

const SEED: u32 = 27_491_095;
const BLOCK_EDGES: u64 = 1 << 18;

/// How edges are drawn.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// R-MAT with the parameters of Graph500, nodes renamed at random
    Kronecker,
    /// Both ends anywhere
    Uniform,
}

/// An undirected graph.
#[derive(Debug, PartialEq, Eq)]
pub struct Graph {
    /// Where a node's neighbours begin; one more entry than nodes
    pub offsets: Vec<u64>,
    /// Neighbours of all nodes
    pub neighbours: Vec<u32>,
}

/// Draws the edges of a graph, any block at any time.
struct Source {
    kind: Kind,
    scale: u32,
    edges: u64,
    /// New names of nodes; empty if they keep theirs
    names: Vec<u32>,
}

impl Source {
    fn new(kind: Kind, scale: u32, degree: u64) -> Self {
        let nodes = 1_u32 << scale;
        let mut names = Vec::new();
        if kind == Kind::Kronecker {
            names = (0..nodes).collect();
            Mersenne::new(SEED).shuffle(&mut names);
        }
        Self {
            kind,
            scale,
            edges: u64::from(nodes) * degree,
            names,
        }
    }

    fn blocks(&self) -> u64 {
        self.edges.div_ceil(BLOCK_EDGES)
    }

    fn each_of_block(&self, block: u64, mut edge: impl FnMut(u32, u32)) {
        let mut random = Mersenne::new(SEED.wrapping_add(block as u32));
        let first = block * BLOCK_EDGES;
        for _ in first..(first + BLOCK_EDGES).min(self.edges) {
            match self.kind {
                Kind::Kronecker => {
                    let (from, to) = self.kronecker(&mut random);
                    edge(self.names[from as usize], self.names[to as usize]);
                }
                Kind::Uniform => {
                    let nodes = 1 << self.scale;
                    edge(random.below(nodes), random.below(nodes));
                }
            }
        }
    }

    fn kronecker(&self, random: &mut Mersenne) -> (u32, u32) {
        const A: f32 = 0.57;
        const B: f32 = 0.19;
        const C: f32 = 0.19;
        let (mut from, mut to) = (0, 0);
        for _ in 0..self.scale {
            let point = random.unit();
            from <<= 1;
            to <<= 1;
            if point < A + B {
                to += u32::from(point > A);
            } else {
                from += 1;
                to += u32::from(point > A + B + C);
            }
        }
        (from, to)
    }

    /// Calls `edge` for all edges, blocks divided among threads.
    fn each(&self, threads: u64, edge: impl Fn(u32, u32) + Sync) {
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let block = next.fetch_add(1, Ordering::Relaxed);
                        if block >= self.blocks() {
                            return;
                        }
                        self.each_of_block(block, &edge);
                    }
                });
            }
        });
    }
}

impl Graph {
    /// Generates a graph of 2^`scale` nodes.
    pub fn generate(kind: Kind, scale: u32, degree: u64, threads: u64) -> Self {
        let source = Source::new(kind, scale, degree);
        let nodes = 1_usize << scale;
        let counts: Vec<AtomicU32> = (0..nodes).map(|_| AtomicU32::new(0)).collect();
        source.each(threads, |from, to| {
            counts[from as usize].fetch_add(1, Ordering::Relaxed);
            counts[to as usize].fetch_add(1, Ordering::Relaxed);
        });
        let mut offsets = Vec::with_capacity(nodes + 1);
        let mut total = 0_u64;
        for count in &counts {
            offsets.push(total);
            total += u64::from(count.swap(0, Ordering::Relaxed));
        }
        offsets.push(total);

        let placed: Vec<AtomicU32> = (0..total).map(|_| AtomicU32::new(0)).collect();
        let place = |node: u32, neighbour: u32| {
            let slot = offsets[node as usize]
                + u64::from(counts[node as usize].fetch_add(1, Ordering::Relaxed));
            placed[slot as usize].store(neighbour, Ordering::Relaxed);
        };
        source.each(threads, |from, to| {
            place(from, to);
            place(to, from);
        });
        drop((counts, source));
        let neighbours = placed.into_iter().map(AtomicU32::into_inner).collect();
        Self {
            offsets,
            neighbours,
        }
        .simplified()
    }

    /// Sorts lists of neighbours and removes repetitions and loops, in place.
    fn simplified(mut self) -> Self {
        let mut kept = 0;
        for node in 0..self.nodes() {
            let (first, end) = (self.offsets[node] as usize, self.offsets[node + 1] as usize);
            self.neighbours[first..end].sort_unstable();
            self.offsets[node] = kept as u64;
            let begin = kept;
            for index in first..end {
                let neighbour = self.neighbours[index];
                let repeated = kept > begin && self.neighbours[kept - 1] == neighbour;
                if neighbour as usize != node && !repeated {
                    self.neighbours[kept] = neighbour;
                    kept += 1;
                }
            }
        }
        let nodes = self.nodes();
        self.offsets[nodes] = kept as u64;
        self.neighbours.truncate(kept);
        self.neighbours.shrink_to_fit();
        self
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of undirected edges.
    pub fn edges(&self) -> u64 {
        self.neighbours.len() as u64 / 2
    }

    /// Neighbours of a node.
    #[inline(always)]
    pub fn of(&self, node: usize) -> &[u32] {
        &self.neighbours[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }

    /// Number of neighbours of a node.
    #[inline(always)]
    pub fn degree(&self, node: usize) -> u64 {
        self.offsets[node + 1] - self.offsets[node]
    }

    /// Writes the graph in GAP's serialised form (`.sg`).
    pub fn save(&self, mut out: impl Write) -> std::io::Result<()> {
        out.write_all(&[0])?; // not directed
        out.write_all(&(self.neighbours.len() as u64).to_le_bytes())?;
        out.write_all(&(self.nodes() as u64).to_le_bytes())?;
        for offset in &self.offsets {
            out.write_all(&offset.to_le_bytes())?;
        }
        for neighbour in &self.neighbours {
            out.write_all(&neighbour.to_le_bytes())?;
        }
        out.flush()
    }

    /// Reads a graph in GAP's serialised form; only undirected ones.
    pub fn load(mut input: impl Read) -> Result<Self, Error> {
        let bad = |what: &str| Error::Graph(what.to_owned());
        let cut = |_| bad("the file is cut short");
        let mut directed = [0];
        input.read_exact(&mut directed).map_err(cut)?;
        if directed != [0] {
            return Err(bad("the graph is directed"));
        }
        let mut word = [0; 8];
        let mut number = || -> Result<u64, Error> {
            input.read_exact(&mut word).map_err(cut)?;
            Ok(u64::from_le_bytes(word))
        };
        let (ends, nodes) = (number()?, number()?);
        if nodes == 0 || nodes > u64::from(u32::MAX) || ends > 1 << 40 {
            return Err(bad("the number of nodes or edges makes no sense"));
        }
        // Grows as the file proves to be that long.
        let mut offsets = Vec::new();
        for _ in 0..=nodes {
            let offset = number()?;
            if offset < offsets.last().copied().unwrap_or(0) || offset > ends {
                return Err(bad("offsets do not ascend"));
            }
            offsets.push(offset);
        }
        if offsets.first() != Some(&0) || offsets.last() != Some(&ends) {
            return Err(bad("offsets do not span the edges"));
        }
        let mut neighbours: Vec<u32> = Vec::new();
        neighbours
            .try_reserve_exact(ends as usize)
            .map_err(|_| bad("it does not fit into memory"))?;
        let mut chunk = vec![0; 1 << 20];
        while (neighbours.len() as u64) < ends {
            let bytes = chunk
                .len()
                .min(usize::try_from(ends - neighbours.len() as u64).unwrap_or(usize::MAX) * 4);
            input.read_exact(&mut chunk[..bytes]).map_err(cut)?;
            neighbours.extend(
                chunk[..bytes]
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|word| u32::from_le_bytes(*word)),
            );
        }
        if neighbours.iter().any(|&node| u64::from(node) >= nodes) {
            return Err(bad("an edge leads to no node"));
        }
        Ok(Self {
            offsets,
            neighbours,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Edge counts that the published code prints for these graphs.
    #[test]
    fn edge_counts_are_the_published_ones() {
        assert_eq!(Graph::generate(Kind::Kronecker, 10, 16, 1).edges(), 10_496);
        assert_eq!(Graph::generate(Kind::Uniform, 10, 16, 1).edges(), 16_103);
    }

    #[test]
    fn threads_do_not_change_the_graph() {
        for kind in [Kind::Kronecker, Kind::Uniform] {
            let one = Graph::generate(kind, 15, 20, 1);
            assert_eq!(one, Graph::generate(kind, 15, 20, 3));
            assert!(one.nodes() == 1 << 15 && one.edges() > 1 << 17);
        }
    }

    #[test]
    fn neighbours_are_mutual() {
        let graph = Graph::generate(Kind::Kronecker, 8, 16, 2);
        for node in 0..graph.nodes() {
            let neighbours = graph.of(node);
            assert!(neighbours.is_sorted_by(|a, b| a < b));
            for &other in neighbours {
                assert!(other as usize != node);
                assert!(graph.of(other as usize).contains(&(node as u32)));
            }
        }
    }

    #[test]
    fn files_go_both_ways_and_bad_ones_are_refused() {
        let graph = Graph::generate(Kind::Uniform, 6, 4, 1);
        let mut file = Vec::new();
        graph.save(&mut file).unwrap();
        assert_eq!(Graph::load(&file[..]).unwrap(), graph);
        for cut in [0, 1, 9, 17, 100, file.len() - 1] {
            assert!(Graph::load(&file[..cut]).is_err(), "{cut}");
        }
        for (byte, value) in [(0, 1), (9, 0xff), (17 + 8, 0xff), (8, 0xff)] {
            let mut bad = file.clone();
            bad[byte] = value;
            assert!(Graph::load(&bad[..]).is_err(), "{byte}");
        }
        let last = file.len() - 1;
        file[last] = 0x7f;
        assert!(Graph::load(&file[..]).is_err());
    }
}
