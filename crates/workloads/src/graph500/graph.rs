// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A graph as the reference's sequential code keeps it: the list of edges
//! first, then both directions of each in compressed sparse rows, all numbers
//! 64 bits wide; and the search over it.

use super::generate::{Edge, Generator};
use crate::Error;
use crate::array::{self, Pages};
use crate::random::Random;

/// Parent of a vertex that was not reached.
pub const NONE: u64 = u64::MAX;
/// The same in a result.
pub const UNREACHED: u32 = u32::MAX;

/// Edges, and rows of neighbours.
pub struct Graph {
    /// The input list, loops and repetitions included
    pub edges: Vec<Edge>,
    /// Where the row of a vertex begins and ends
    rows: Vec<(u64, u64)>,
    neighbours: Vec<u64>,
}

/// What a search works with; kept from one search to the next.
pub struct Search {
    parents: Vec<u64>,
    queue: Vec<u64>,
}

impl Graph {
    /// Generates the list of edges, then builds the rows.
    pub fn generate(scale: u32, edges: u64, seed: u64, pages: Pages) -> Result<Self, Error> {
        let generator = Generator::new(scale, seed);
        let mut list = array::with_capacity(usize::try_from(edges).unwrap_or(usize::MAX), pages)?;
        list.extend((0..edges).map(|number| generator.edge(number)));
        Self::build(list, 1 << scale, pages)
    }

    /// Builds the rows of a list of edges between numbers below `vertices`.
    pub fn build(edges: Vec<Edge>, vertices: usize, pages: Pages) -> Result<Self, Error> {
        let mut rows = array::filled((0_u64, 0_u64), vertices, pages)?;
        let no_loops = || edges.iter().filter(|(from, to)| from != to);
        for &(from, to) in no_loops() {
            rows[from as usize].1 += 1;
            rows[to as usize].1 += 1;
        }
        let mut total = 0;
        for row in &mut rows {
            let degree = row.1;
            *row = (total, total);
            total += degree;
        }
        let mut neighbours = array::filled(0, total as usize, pages)?;
        let mut place = |vertex: u64, neighbour: u64| {
            let end = &mut rows[vertex as usize].1;
            neighbours[*end as usize] = neighbour;
            *end += 1;
        };
        for &(from, to) in no_loops() {
            place(from, to);
            place(to, from);
        }
        let mut graph = Self {
            edges,
            rows,
            neighbours,
        };
        graph.pack();
        Ok(graph)
    }

    /// Sorts each row and removes repetitions; room that gets free stays, as in
    /// the reference.
    fn pack(&mut self) {
        for (first, end) in &mut self.rows {
            let row = &mut self.neighbours[*first as usize..*end as usize];
            row.sort_unstable();
            let mut kept = 0;
            for index in 0..row.len() {
                if kept == 0 || row[kept - 1] != row[index] {
                    row[kept] = row[index];
                    kept += 1;
                }
            }
            *end = *first + kept as u64;
        }
    }

    /// Number of vertices.
    pub fn vertices(&self) -> usize {
        self.rows.len()
    }

    /// Entries of all rows.
    pub fn entries(&self) -> u64 {
        self.rows.iter().map(|(first, end)| end - first).sum()
    }

    /// Bytes of edges and rows.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.edges[..])
            + size_of_val(&self.rows[..])
            + size_of_val(&self.neighbours[..])) as u64
    }

    #[inline(always)]
    fn of(&self, vertex: u64) -> &[u64] {
        let (first, end) = self.rows[vertex as usize];
        &self.neighbours[first as usize..end as usize]
    }

    /// Draws roots as the benchmark says: any vertices, each once, that have a
    /// neighbour other than themselves; fewer where the graph has no more.
    pub fn roots(&self, count: usize, seed: u64) -> Vec<u64> {
        let able = self.rows.iter().filter(|(first, end)| first < end).count();
        let mut random = Random::new(seed, u64::MAX);
        let mut roots = Vec::with_capacity(count.min(able));
        while roots.len() < count.min(able) {
            let vertex = random.below(self.vertices() as u64);
            if !self.of(vertex).is_empty() && !roots.contains(&vertex) {
                roots.push(vertex);
            }
        }
        roots
    }

    /// Searches breadth first, from the top down. Calls `reach` with the entries
    /// of rows seen so far.
    #[inline(never)]
    pub fn search(&self, search: &mut Search, root: u64, reach: impl Fn(u64)) {
        let Search { parents, queue } = search;
        parents.fill(NONE);
        parents[root as usize] = root;
        queue[0] = root;
        let (mut next, mut end) = (0, 1);
        let mut seen = 0;
        while next < end {
            let vertex = queue[next];
            next += 1;
            let row = self.of(vertex);
            for &neighbour in row {
                let parent = &mut parents[neighbour as usize];
                if *parent == NONE {
                    *parent = vertex;
                    queue[end] = neighbour;
                    end += 1;
                }
            }
            seen += row.len() as u64;
            reach(seen);
        }
    }
}

impl Search {
    /// For graphs of this many vertices.
    pub fn new(vertices: usize, pages: Pages) -> Result<Self, Error> {
        Ok(Self {
            parents: array::filled(NONE, vertices, pages)?,
            queue: array::filled(0, vertices, pages)?,
        })
    }

    /// Bytes of both arrays.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.parents[..]) + size_of_val(&self.queue[..])) as u64
    }

    /// Puts the parents by, for the check after all searches. Vertices are below 2^32 - 1.
    pub fn keep(&self, result: &mut [u32]) {
        for (kept, &parent) in result.iter_mut().zip(&self.parents) {
            // NONE becomes UNREACHED.
            *kept = parent as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_no_loops_and_no_repetitions() {
        let edges = vec![(0, 1), (1, 0), (2, 2), (3, 1), (1, 3), (0, 1)];
        let graph = Graph::build(edges, 5, Pages::System).unwrap();
        let rows: Vec<&[u64]> = (0..5).map(|vertex| graph.of(vertex)).collect();
        assert_eq!(rows, [&[1_u64][..], &[0, 3], &[], &[1], &[]]);
        assert_eq!(graph.entries(), 4);
    }

    #[test]
    fn roots_have_neighbours_and_come_once() {
        let edges = vec![(0, 1), (2, 2), (3, 1)];
        let graph = Graph::build(edges, 5, Pages::System).unwrap();
        let mut roots = graph.roots(64, 1);
        roots.sort_unstable();
        assert_eq!(roots, [0, 1, 3], "vertex 2 has itself only");
        assert_eq!(graph.roots(1, 1).len(), 1);
    }

    #[test]
    fn a_line_is_searched_from_end_to_end() {
        let edges = (0..9).map(|vertex| (vertex, vertex + 1)).collect();
        let graph = Graph::build(edges, 11, Pages::System).unwrap();
        let mut search = Search::new(11, Pages::System).unwrap();
        graph.search(&mut search, 0, |_| {});
        let mut parents = vec![0; 11];
        search.keep(&mut parents);
        assert_eq!(parents, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, UNREACHED]);
    }
}
