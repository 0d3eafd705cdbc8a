// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The five rules by which Graph500 judges a tree of parents, from the list of
//! edges alone.

use super::generate::Edge;
use super::graph::UNREACHED;

/// The rule that a tree breaks, and where.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Rule 1
    #[error("rule 1: going up from vertex {0} does not end at the root")]
    NoTree(usize),
    /// Rule 2; follows from how levels are told, but for the root's
    #[error("rule 2: vertex {0} is not one level below its parent")]
    Level(usize),
    /// Rule 3
    #[error("rule 3: edge {0} joins vertices more than one level apart")]
    Apart(usize),
    /// Rule 4
    #[error("rule 4: edge {0} leads out of the tree")]
    NotSpanning(usize),
    /// Rule 5
    #[error("rule 5: no edge joins vertex {0} to its parent")]
    NoEdge(usize),
}

/// Levels of all vertices; `u32::MAX` for those not in the tree.
fn levels(parents: &[u32], root: usize) -> Result<Vec<u32>, Broken> {
    let mut levels = vec![UNREACHED; parents.len()];
    if parents.get(root) != Some(&(root as u32)) {
        return Err(Broken::NoTree(root));
    }
    levels[root] = 0;
    let mut path = Vec::new();
    for vertex in 0..parents.len() {
        if parents[vertex] == UNREACHED {
            continue;
        }
        let mut at = vertex;
        while levels[at] == UNREACHED {
            path.push(at);
            let parent = parents[at] as usize;
            // A cycle is longer than any way to the root; a parent outside the
            // tree, or itself, leads nowhere.
            if path.len() > parents.len()
                || parent == at
                || parents.get(parent).is_none_or(|&above| above == UNREACHED)
            {
                return Err(Broken::NoTree(vertex));
            }
            at = parent;
        }
        let mut level = levels[at];
        while let Some(below) = path.pop() {
            level += 1;
            levels[below] = level;
        }
    }
    Ok(levels)
}

/// Checks a tree; returns the number of edges of its component, repetitions and
/// loops included: the edges that count as traversed.
pub fn traversed(edges: &[Edge], parents: &[u32], root: u64) -> Result<u64, Broken> {
    let root = root as usize;
    let levels = levels(parents, root)?;
    for (vertex, &parent) in parents.iter().enumerate() {
        if parent != UNREACHED && vertex != root && levels[vertex] != levels[parent as usize] + 1 {
            return Err(Broken::Level(vertex));
        }
    }
    let mut joined = vec![false; parents.len()];
    let mut count = 0;
    for (number, &(from, to)) in edges.iter().enumerate() {
        let (from, to) = (from as usize, to as usize);
        match (levels[from], levels[to]) {
            (UNREACHED, UNREACHED) => continue,
            (UNREACHED, _) | (_, UNREACHED) => return Err(Broken::NotSpanning(number)),
            (a, b) if a.abs_diff(b) > 1 => return Err(Broken::Apart(number)),
            _ => count += 1,
        }
        joined[from] |= parents[from] as usize == to;
        joined[to] |= parents[to] as usize == from;
    }
    joined[root] = true;
    let lonely = (0..parents.len()).find(|&vertex| parents[vertex] != UNREACHED && !joined[vertex]);
    lonely.map_or(Ok(count), |vertex| Err(Broken::NoEdge(vertex)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A square with a tail, 0-1-2-3-0 and 2-4; a pair apart, 5-6; and 7 alone.
    const EDGES: [Edge; 8] = [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 0),
        (2, 4),
        (5, 6),
        (4, 4),
        (0, 1),
    ];
    const GOOD: [u32; 8] = [0, 0, 1, 0, 2, UNREACHED, UNREACHED, UNREACHED];

    fn broken(changes: &[(usize, u32)]) -> Broken {
        let mut parents = GOOD;
        for &(vertex, parent) in changes {
            parents[vertex] = parent;
        }
        traversed(&EDGES, &parents, 0).unwrap_err()
    }

    #[test]
    fn a_good_tree_counts_loops_and_repetitions() {
        assert_eq!(traversed(&EDGES, &GOOD, 0), Ok(7));
    }

    #[test]
    fn each_rule_is_noticed() {
        // A cycle, a root that is none, and a parent outside.
        assert_eq!(broken(&[(2, 4)]), Broken::NoTree(2));
        assert_eq!(broken(&[(0, 1)]), Broken::NoTree(0));
        assert_eq!(broken(&[(4, 5)]), Broken::NoTree(4));
        assert_eq!(broken(&[(4, 4)]), Broken::NoTree(4));
        assert_eq!(broken(&[(4, 77)]), Broken::NoTree(4));
        // 0-1-2-3 as a path: the edge 3-0 then joins levels 3 and 0.
        assert_eq!(broken(&[(3, 2)]), Broken::Apart(3));
        assert_eq!(broken(&[(4, UNREACHED)]), Broken::NotSpanning(4));
        // 4 hangs on 1: no such edge, but levels 1 and 2 are right for all others.
        assert_eq!(broken(&[(4, 1)]), Broken::NoEdge(4));
    }
}
