// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A B+-tree of order 6 whose leaves lead to records, and these to elements.
//!
//! A node takes three cache lines (what it is, its keys, its links), as the
//! three allocations of a node in the tree that the published benchmark uses.

use crate::Error;
use crate::array::{self, Pages};
use crate::page::mix;

/// Children of an inner node at most.
pub const ORDER: usize = 6;
/// Keys of a node at most.
const KEYS: usize = ORDER - 1;
/// Children of an inner node, and keys of a leaf, at least; but for the root.
const HALF: usize = ORDER / 2;
/// Levels at most: nodes are numbered by 32 bits and have at least three children.
const LEVELS: usize = 24;
const NONE: u32 = u32::MAX;
/// Nodes for each element after insertions in random order, as measured; see
/// the test `nodes_are_as_many_as_sizes_are_computed_with`.
pub const NODES_PER_ELEMENT: f64 = 0.3508;

#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
struct Head {
    leaf: bool,
    count: u32,
    /// The leaf after this one
    next: u32,
}

#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
struct Line([u64; 8]);

#[derive(Clone, Debug, Default)]
#[repr(C)]
struct Node {
    head: Head,
    keys: Line,
    /// Children of an inner node, records of a leaf
    links: Line,
}

/// What a leaf leads to.
#[derive(Clone, Debug)]
#[repr(C, align(32))]
struct Record {
    key: u64,
    element: u64,
}

/// What is looked for: 64 bytes.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Element {
    /// Its key
    pub key: u64,
    body: [u64; 7],
}

impl Element {
    /// The element of a key; every word follows from it.
    pub fn of(key: u64) -> Self {
        Self {
            key,
            body: std::array::from_fn(|word| mix(key ^ ((word as u64 + 1) << 56))),
        }
    }

    /// A word that follows from the key.
    pub fn word(&self) -> u64 {
        self.body[(self.key >> 1) as usize % self.body.len()]
    }

    fn is_whole(&self) -> bool {
        self.body == Self::of(self.key).body
    }
}

/// The tree and all that it leads to.
pub struct Tree {
    elements: Vec<Element>,
    records: Vec<Record>,
    nodes: Vec<Node>,
    root: u32,
}

/// Bytes of a tree of this many elements.
pub fn bytes_of(elements: u64) -> u64 {
    let node_bytes = NODES_PER_ELEMENT * size_of::<Node>() as f64;
    let each = (size_of::<Element>() + size_of::<Record>()) as f64 + node_bytes;
    (elements as f64 * each) as u64
}

/// Elements of a tree of this size.
pub fn elements_of(bytes: u64) -> u64 {
    (bytes as f64 / (bytes_of(1 << 20) as f64) * f64::from(1 << 20)) as u64
}

/// What is wrong with a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disorder {
    /// More levels than a tree of that many elements can have.
    #[error("{0} levels")]
    Levels(usize),
    /// Leaves are not linked in their order.
    #[error("leaf {0} leads to the wrong next leaf")]
    NextLeaf(u32),
    /// Keys do not ascend.
    #[error("key {0} is out of order")]
    Order(u64),
    /// Its record or element is another's, or damaged.
    #[error("key {0} leads to a wrong element")]
    Element(u64),
    /// A link to nothing.
    #[error("node {0} does not exist")]
    NoNode(u32),
    /// Too few keys, or too many.
    #[error("node {0} has {1} keys")]
    Keys(u32, usize),
    /// A key that belongs elsewhere.
    #[error("node {0} has a key of another node")]
    ForeignKey(u32),
    /// Not all paths are of one length.
    #[error("node {0} has children of several depths")]
    Depths(u32),
}

impl Tree {
    /// Makes elements of the keys 0, 2, 4 and so on and an empty tree.
    pub fn new(elements: u64, pages: Pages) -> Result<Self, Error> {
        let count = usize::try_from(elements).unwrap_or(usize::MAX);
        let mut all = array::with_capacity(count, pages)?;
        all.extend((0..elements).map(|index| Element::of(2 * index)));
        // A half more than is usual: not touched, so not used.
        let mut nodes = array::with_capacity(count / 5 * 3 + 16, pages)?;
        nodes.push(Node {
            head: Head {
                leaf: true,
                count: 0,
                next: NONE,
            },
            ..Node::default()
        });
        Ok(Self {
            elements: all,
            records: array::with_capacity(count, pages)?,
            nodes,
            root: 0,
        })
    }

    /// Bytes of nodes, records and elements.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.nodes[..])
            + size_of_val(&self.records[..])
            + size_of_val(&self.elements[..])) as u64
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Makes a record of an element and puts it into the tree; a key that is
    /// there already stays as it is.
    pub fn insert(&mut self, element: u64) {
        let key = self.elements[element as usize].key;
        let mut path = [(0_u32, 0_usize); LEVELS];
        let mut depth = 0;
        let mut at = self.root;
        loop {
            let node = &self.nodes[at as usize];
            if node.head.leaf {
                break;
            }
            let slot = node.slot_for(key);
            path[depth] = (at, slot);
            depth += 1;
            at = node.links.0[slot] as u32;
        }
        let leaf = &self.nodes[at as usize];
        let place = leaf.keys().partition_point(|&other| other < key);
        if leaf.keys().get(place) == Some(&key) {
            return;
        }
        let record = self.records.len() as u64;
        self.records.push(Record { key, element });
        if let Some((mut key, mut right)) = self.insert_into_leaf(at, place, key, record) {
            loop {
                if depth == 0 {
                    self.root = self.grow(key, right);
                    return;
                }
                depth -= 1;
                let (parent, slot) = path[depth];
                match self.insert_into_inner(parent, slot, key, right) {
                    Some((up, node)) => (key, right) = (up, node),
                    None => return,
                }
            }
        }
    }

    /// Returns the first key and the number of a new right neighbour, if the leaf was full.
    fn insert_into_leaf(
        &mut self,
        at: u32,
        place: usize,
        key: u64,
        record: u64,
    ) -> Option<(u64, u32)> {
        let new = self.nodes.len() as u32;
        let leaf = &mut self.nodes[at as usize];
        let count = leaf.head.count as usize;
        // Room for one more than a node may keep.
        leaf.keys.0.copy_within(place..count, place + 1);
        leaf.links.0.copy_within(place..count, place + 1);
        leaf.keys.0[place] = key;
        leaf.links.0[place] = record;
        leaf.head.count += 1;
        if count < KEYS {
            return None;
        }
        let mut right = Node {
            head: Head {
                leaf: true,
                count: (count + 1 - HALF) as u32,
                next: leaf.head.next,
            },
            ..Node::default()
        };
        right.keys.0[..count + 1 - HALF].copy_from_slice(&leaf.keys.0[HALF..=count]);
        right.links.0[..count + 1 - HALF].copy_from_slice(&leaf.links.0[HALF..=count]);
        leaf.head.count = HALF as u32;
        leaf.head.next = new;
        let first = right.keys.0[0];
        self.nodes.push(right);
        Some((first, new))
    }

    /// Puts `right`, whose keys begin at `key`, behind child `slot`. Returns the
    /// key and number of a new right neighbour, if the node was full.
    fn insert_into_inner(
        &mut self,
        at: u32,
        slot: usize,
        key: u64,
        right: u32,
    ) -> Option<(u64, u32)> {
        let new = self.nodes.len() as u32;
        let node = &mut self.nodes[at as usize];
        let count = node.head.count as usize;
        node.keys.0.copy_within(slot..count, slot + 1);
        node.links.0.copy_within(slot + 1..count + 1, slot + 2);
        node.keys.0[slot] = key;
        node.links.0[slot + 1] = u64::from(right);
        node.head.count += 1;
        if count < KEYS {
            return None;
        }
        // Six keys and seven children: three keys stay, one goes up, two go right.
        let mut other = Node::default();
        let moved = count - HALF;
        other.head.count = moved as u32;
        other.keys.0[..moved].copy_from_slice(&node.keys.0[HALF + 1..=count]);
        other.links.0[..=moved].copy_from_slice(&node.links.0[HALF + 1..=count + 1]);
        node.head.count = HALF as u32;
        let up = node.keys.0[HALF];
        self.nodes.push(other);
        Some((up, new))
    }

    fn grow(&mut self, key: u64, right: u32) -> u32 {
        let mut root = Node::default();
        root.head.count = 1;
        root.keys.0[0] = key;
        root.links.0[..2].copy_from_slice(&[u64::from(self.root), u64::from(right)]);
        self.nodes.push(root);
        self.nodes.len() as u32 - 1
    }

    /// The element of a key.
    #[inline]
    pub fn find(&self, key: u64) -> Option<&Element> {
        let mut node = &self.nodes[self.root as usize];
        while !node.head.leaf {
            node = &self.nodes[node.links.0[node.slot_for(key)] as usize];
        }
        let place = node.keys().iter().position(|&other| other == key)?;
        let record = &self.records[node.links.0[place] as usize];
        Some(&self.elements[record.element as usize])
    }

    /// Walks the whole tree; returns the number of elements that are reached in
    /// ascending order, or what is wrong.
    pub fn check(&self) -> Result<u64, Disorder> {
        let mut leaves = Vec::new();
        let depth = self.check_below(self.root, 0, u64::MAX, true, &mut leaves)?;
        if depth > LEVELS {
            return Err(Disorder::Levels(depth));
        }
        let mut last = None;
        let mut count = 0;
        for (index, &at) in leaves.iter().enumerate() {
            let leaf = &self.nodes[at as usize];
            if leaf.head.next != leaves.get(index + 1).copied().unwrap_or(NONE) {
                return Err(Disorder::NextLeaf(at));
            }
            for (key, &link) in leaf.keys().iter().zip(&leaf.links.0) {
                if last.is_some_and(|last| last >= *key) {
                    return Err(Disorder::Order(*key));
                }
                last = Some(*key);
                let element = self
                    .records
                    .get(link as usize)
                    .filter(|record| record.key == *key)
                    .and_then(|record| self.elements.get(record.element as usize));
                if !element.is_some_and(|element| element.key == *key && element.is_whole()) {
                    return Err(Disorder::Element(*key));
                }
                count += 1;
            }
        }
        Ok(count)
    }

    /// Checks a node and all below; returns the number of levels.
    fn check_below(
        &self,
        at: u32,
        from: u64,
        to: u64,
        root: bool,
        leaves: &mut Vec<u32>,
    ) -> Result<usize, Disorder> {
        let node = self.nodes.get(at as usize).ok_or(Disorder::NoNode(at))?;
        let count = node.head.count as usize;
        let least = match (root, node.head.leaf) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => HALF,
            (false, false) => HALF - 1,
        };
        if count < least || count > KEYS {
            return Err(Disorder::Keys(at, count));
        }
        if node.keys().iter().any(|&key| key < from || key >= to) {
            return Err(Disorder::ForeignKey(at));
        }
        if node.head.leaf {
            leaves.push(at);
            return Ok(1);
        }
        let mut depth = None;
        for slot in 0..=count {
            let low = if slot == 0 {
                from
            } else {
                node.keys.0[slot - 1]
            };
            let high = node.keys().get(slot).copied().unwrap_or(to);
            let child = node.links.0[slot] as u32;
            let below = self.check_below(child, low, high, false, leaves)?;
            if depth.is_some_and(|depth| depth != below) {
                return Err(Disorder::Depths(at));
            }
            depth = Some(below);
        }
        Ok(depth.unwrap_or(0) + 1)
    }
}

impl Node {
    fn keys(&self) -> &[u64] {
        &self.keys.0[..(self.head.count as usize).min(self.keys.0.len())]
    }

    /// The child that `key` belongs to.
    #[inline(always)]
    fn slot_for(&self, key: u64) -> usize {
        self.keys()
            .iter()
            .take_while(|&&other| other <= key)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permutation::Permutation;

    fn tree(elements: u64, seed: u64) -> Tree {
        let mut tree = Tree::new(elements, Pages::System).unwrap();
        let order = Permutation::new(elements, seed);
        (0..elements).for_each(|index| tree.insert(order.of(index)));
        tree
    }

    #[test]
    fn all_sizes_are_whole_and_find_all() {
        for elements in [1, 2, 5, 6, 7, 50, 1000] {
            let mut tree = tree(elements, 3);
            assert_eq!(tree.check(), Ok(elements));
            for index in 0..elements {
                assert_eq!(tree.find(2 * index).unwrap().key, 2 * index);
                assert!(tree.find(2 * index + 1).is_none());
            }
            (0..elements).for_each(|index| tree.insert(index));
            assert_eq!(tree.check(), Ok(elements), "keys are there once");
        }
    }

    #[test]
    fn nodes_are_as_many_as_sizes_are_computed_with() {
        assert_eq!(size_of::<Node>(), 192);
        assert_eq!(size_of::<Element>(), 64);
        for seed in [1, 2] {
            let tree = tree(200_000, seed);
            let ratio = tree.nodes() as f64 / 200_000.0;
            assert!((ratio / NODES_PER_ELEMENT - 1.0).abs() < 0.01, "{ratio}");
            assert!((tree.bytes() as f64 / bytes_of(200_000) as f64 - 1.0).abs() < 0.01);
        }
    }

    #[test]
    fn the_walk_notices_damage() {
        let check = |damage: &dyn Fn(&mut Tree)| {
            let mut tree = tree(1000, 1);
            damage(&mut tree);
            assert!(tree.check().is_err());
        };
        check(&|tree| tree.elements[500].body[3] ^= 1);
        check(&|tree| tree.elements[500].key = 2);
        check(&|tree| tree.records[7].element ^= 1);
        check(&|tree| tree.nodes[3].keys.0[1] += 1);
        check(&|tree| tree.nodes[3].head.next = 0);
        check(&|tree| tree.nodes[3].head.count -= 3);
        check(&|tree| {
            let root = tree.root as usize;
            tree.nodes[root].links.0[0] = u64::from(u32::MAX);
        });
    }
}
