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
use crate::array::{self, Pages};
use crate::random::Random;

/// The seed that the suite uses.
pub const SEED: u32 = 27_491_095;
const BLOCK_EDGES: u64 = 1 << 18;
/// Shares of the quarters of the adjacency matrix; the last is the rest.
const A: f32 = 0.57;
const B: f32 = 0.19;
const C: f32 = 0.19;

/// How edges are drawn.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// R-MAT with the parameters of Graph500, nodes renamed at random
    Kronecker,
    /// Both ends anywhere
    Uniform,
}

/// What nodes are called.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Renamed at random, as in the suite
    Permuted,
    /// As drawn: nodes of many edges have small numbers
    Generated,
}

/// What a graph is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// How edges are drawn
    pub kind: Kind,
    /// There are 2^scale nodes
    pub scale: u32,
    /// Edges that are drawn; repetitions and loops are not kept
    pub edges: u64,
    /// What nodes are called, of a Kronecker graph
    pub names: Names,
    /// Seed of all draws
    pub seed: u32,
    /// Draw Kronecker edges with a quicker generator than the suite's: the same
    /// kind of graph, but not edge by edge. In a guest the suite's takes minutes.
    pub quick: bool,
}

/// Which edges the row of a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Edges in both directions
    Undirected,
    /// Where edges lead to
    Out,
}

impl Recipe {
    /// Entries that the rows of such a graph have on average. Edges are
    /// independent, so a pair of nodes that is drawn with probability p is
    /// there with 1 - (1 - p)^edges; pairs of equal p are counted together.
    pub fn entries(&self, rows: Rows) -> f64 {
        let draws = match rows {
            // Drawn either way round.
            Rows::Undirected => 2.0 * self.edges as f64,
            Rows::Out => self.edges as f64,
        };
        let present = |probability: f64| -f64::exp_m1(-draws * probability);
        let nodes = f64::from(self.scale).exp2();
        if self.kind == Kind::Uniform {
            return nodes * (nodes - 1.0) * present(1.0 / (nodes * nodes));
        }
        let (diagonal, off) = (f64::from(A), f64::from(B));
        let rest = 1.0 - f64::from(A + B + C);
        let scale = self.scale as i32;
        let mut entries = 0.0;
        // So many bits that differ; with none it is a loop. Of the others, so
        // many are zero in both names.
        for differ in 1..=scale {
            for zeros in 0..=scale - differ {
                let pairs =
                    choose(scale, differ) * choose(scale - differ, zeros) * 2_f64.powi(differ);
                let ones = scale - differ - zeros;
                let probability = diagonal.powi(zeros) * off.powi(differ) * rest.powi(ones);
                entries += pairs * present(probability);
            }
        }
        entries
    }
}

/// Number of ways to choose `part` of `all`.
fn choose(all: i32, part: i32) -> f64 {
    (0..part).fold(1.0, |ways, at| {
        ways * f64::from(all - at) / f64::from(at + 1)
    })
}

/// A graph, or one direction of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Graph {
    /// Where a node's neighbours begin; one more entry than nodes
    pub offsets: Vec<u64>,
    /// Neighbours of all nodes
    pub neighbours: Vec<u32>,
}

/// Draws the edges of a graph, any block at any time.
struct Source {
    recipe: Recipe,
    /// New names of nodes; empty if they keep theirs
    names: Vec<u32>,
}

impl Source {
    fn new(recipe: Recipe) -> Self {
        let mut names: Vec<u32> = Vec::new();
        if recipe.kind == Kind::Kronecker {
            names = (0..1 << recipe.scale).collect();
            if recipe.names == Names::Permuted {
                Mersenne::new(recipe.seed).shuffle(&mut names);
            }
        }
        Self { recipe, names }
    }

    fn blocks(&self) -> u64 {
        self.recipe.edges.div_ceil(BLOCK_EDGES)
    }

    fn each_of_block(&self, block: u64, mut edge: impl FnMut(u32, u32)) {
        let first = block * BLOCK_EDGES;
        let edges = first..(first + BLOCK_EDGES).min(self.recipe.edges);
        if self.recipe.quick && self.recipe.kind == Kind::Kronecker {
            let mut random = Random::new(u64::from(self.recipe.seed), block);
            for _ in edges {
                let (from, to) = self.quick_kronecker(&mut random);
                edge(self.names[from as usize], self.names[to as usize]);
            }
            return;
        }
        let mut random = Mersenne::new(self.recipe.seed.wrapping_add(block as u32));
        for _ in edges {
            match self.recipe.kind {
                Kind::Kronecker => {
                    let (from, to) = self.kronecker(&mut random);
                    edge(self.names[from as usize], self.names[to as usize]);
                }
                Kind::Uniform => {
                    let nodes = 1 << self.recipe.scale;
                    edge(random.below(nodes), random.below(nodes));
                }
            }
        }
    }

    fn kronecker(&self, random: &mut Mersenne) -> (u32, u32) {
        let (mut from, mut to) = (0, 0);
        for _ in 0..self.recipe.scale {
            let point = random.unit();
            // Without branches, which nobody could predict.
            let lower = point >= A + B;
            let limit = if lower { A + B + C } else { A };
            from = from << 1 | u32::from(lower);
            to = to << 1 | u32::from(point > limit);
        }
        (from, to)
    }

    /// The same with 16 random bits a level, four levels a number.
    fn quick_kronecker(&self, random: &mut Random) -> (u32, u32) {
        const SPAN: f32 = 65_536.0;
        const LOWER: u16 = ((A + B) * SPAN) as u16;
        const RIGHT: [u16; 2] = [(A * SPAN) as u16, ((A + B + C) * SPAN) as u16];
        let (mut from, mut to, mut bits) = (0, 0, 0_u64);
        for level in 0..self.recipe.scale {
            if level.is_multiple_of(4) {
                bits = random.word();
            }
            let point = bits as u16;
            bits >>= 16;
            let lower = point >= LOWER;
            let limit = if lower { RIGHT[1] } else { RIGHT[0] };
            from = from << 1 | u32::from(lower);
            to = to << 1 | u32::from(point >= limit);
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
    /// Generates a graph.
    pub fn generate(recipe: Recipe, rows: Rows, threads: u64, pages: Pages) -> Result<Self, Error> {
        let source = Source::new(recipe);
        let nodes = 1_usize << recipe.scale;
        let counts: Vec<AtomicU32> = (0..nodes).map(|_| AtomicU32::new(0)).collect();
        let back = rows == Rows::Undirected;
        source.each(threads, |from, to| {
            counts[from as usize].fetch_add(1, Ordering::Relaxed);
            if back {
                counts[to as usize].fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut offsets = array::with_capacity(nodes + 1, pages)?;
        let mut total = 0_u64;
        for count in &counts {
            offsets.push(total);
            total += u64::from(count.swap(0, Ordering::Relaxed));
        }
        offsets.push(total);

        let mut placed = array::with_capacity(total as usize, pages)?;
        placed.extend((0..total).map(|_| AtomicU32::new(0)));
        let place = |node: u32, neighbour: u32| {
            let slot = offsets[node as usize]
                + u64::from(counts[node as usize].fetch_add(1, Ordering::Relaxed));
            placed[slot as usize].store(neighbour, Ordering::Relaxed);
        };
        source.each(threads, |from, to| {
            place(from, to);
            if back {
                place(to, from);
            }
        });
        drop((counts, source));
        let neighbours = placed.into_iter().map(AtomicU32::into_inner).collect();
        Ok(Self {
            offsets,
            neighbours,
        }
        .simplified())
    }

    /// The same edges by where they lead to.
    pub fn transposed(&self, pages: Pages) -> Result<Self, Error> {
        let mut next = vec![0_u64; self.nodes()];
        for &to in &self.neighbours {
            next[to as usize] += 1;
        }
        let mut offsets = array::with_capacity(self.nodes() + 1, pages)?;
        let mut total = 0;
        for first in &mut next {
            offsets.push(total);
            total += std::mem::replace(first, total);
        }
        offsets.push(total);
        // Nodes come in order, so rows get sorted, and have no repetitions as
        // there are none.
        let mut neighbours = array::filled(0, self.neighbours.len(), pages)?;
        for node in 0..self.nodes() {
            for &to in self.of(node) {
                let slot = &mut next[to as usize];
                neighbours[*slot as usize] = node as u32;
                *slot += 1;
            }
        }
        Ok(Self {
            offsets,
            neighbours,
        })
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

    /// Entries of all rows: an undirected edge is in two.
    pub fn entries(&self) -> u64 {
        self.neighbours.len() as u64
    }

    /// Bytes of rows and offsets.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.offsets[..]) + size_of_val(&self.neighbours[..])) as u64
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

    fn graph(kind: Kind, scale: u32, degree: u64, threads: u64) -> Graph {
        rows(kind, scale, degree, threads, Rows::Undirected)
    }

    fn recipe(kind: Kind, scale: u32, degree: u64) -> Recipe {
        Recipe {
            kind,
            scale,
            edges: degree << scale,
            names: Names::Permuted,
            seed: SEED,
            quick: false,
        }
    }

    fn rows(kind: Kind, scale: u32, degree: u64, threads: u64, rows: Rows) -> Graph {
        Graph::generate(recipe(kind, scale, degree), rows, threads, Pages::System).unwrap()
    }

    /// Edge counts that the published code prints for these graphs.
    #[test]
    fn edge_counts_are_the_published_ones() {
        assert_eq!(graph(Kind::Kronecker, 10, 16, 1).entries() / 2, 10_496);
        assert_eq!(graph(Kind::Uniform, 10, 16, 1).entries() / 2, 16_103);
    }

    #[test]
    fn threads_do_not_change_the_graph() {
        for kind in [Kind::Kronecker, Kind::Uniform] {
            let one = graph(kind, 15, 20, 1);
            assert_eq!(one, graph(kind, 15, 20, 3));
            assert!(one.nodes() == 1 << 15 && one.entries() > 1 << 18);
        }
    }

    #[test]
    fn neighbours_are_mutual() {
        let graph = graph(Kind::Kronecker, 8, 16, 2);
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
    fn directions_are_two_views_of_the_same_edges() {
        let out = rows(Kind::Kronecker, 8, 16, 1, Rows::Out);
        let into = out.transposed(Pages::System).unwrap();
        let both = graph(Kind::Kronecker, 8, 16, 1);
        assert_eq!(out.entries(), into.entries());
        assert_eq!(into.transposed(Pages::Huge).unwrap(), out);
        for node in 0..out.nodes() {
            for &other in out.of(node) {
                assert!(into.of(other as usize).contains(&(node as u32)));
                assert!(both.of(node).contains(&other));
            }
        }
        assert!(both.entries() < 2 * out.entries());
    }

    #[test]
    fn entries_are_as_many_as_expected() {
        for kind in [Kind::Kronecker, Kind::Uniform] {
            for (scale, degree) in [(10, 16), (13, 8), (13, 30)] {
                for direction in [Rows::Undirected, Rows::Out] {
                    for quick in [false, true] {
                        let recipe = Recipe {
                            quick,
                            ..recipe(kind, scale, degree)
                        };
                        let graph = Graph::generate(recipe, direction, 2, Pages::System).unwrap();
                        let off = graph.entries() as f64 / recipe.entries(direction) - 1.0;
                        assert!(off.abs() < 0.01, "{recipe:?} {direction:?}: {off}");
                    }
                }
            }
        }
    }

    #[test]
    fn unless_renamed_the_first_nodes_have_most_edges() {
        let graph = |names| {
            let recipe = Recipe {
                names,
                ..recipe(Kind::Kronecker, 12, 16)
            };
            Graph::generate(recipe, Rows::Undirected, 1, Pages::Huge).unwrap()
        };
        let first = |graph: &Graph| graph.offsets[graph.nodes() / 16];
        let (permuted, generated) = (graph(Names::Permuted), graph(Names::Generated));
        assert!(first(&generated) > 3 * first(&permuted));
        assert_eq!(permuted.entries(), generated.entries());
    }

    #[test]
    fn files_go_both_ways_and_bad_ones_are_refused() {
        let graph = graph(Kind::Uniform, 6, 4, 1);
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
