// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The index: a B+-tree of 256-byte nodes that is read without locks. Every
//! node has a version, odd while the node changes; a reader goes by versions
//! and starts again when one has changed under it (Leis et al., "The ART of
//! Practical Synchronization", DaMoN 2016). Those who insert wait for each
//! other, which Silo's do not; readers never wait for them long.
//!
//! Versions also tell a transaction that a range it has scanned has got new
//! keys.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Error;
use crate::array::{self, Pages};
use crate::memory::Region;

/// Keys of a node.
const KEYS: usize = 14;
const NODE_WORDS: usize = 32;
const NODE_BYTES: u64 = NODE_WORDS as u64 * 8;
const VERSION: usize = 0;
/// Number of keys; the highest bit says that the node is a leaf
const META: usize = 1;
/// The leaf after this one, or `NONE`
const NEXT: usize = 2;
const FIRST_KEY: usize = 3;
const FIRST_LINK: usize = FIRST_KEY + KEYS;
const LEAF: u64 = 1 << 63;
/// No node.
const NONE: u64 = u64::MAX;

/// The tree; keys lead to numbers of records.
pub struct Tree {
    region: Region,
    root: AtomicU64,
    nodes: AtomicU64,
    /// Held by whoever inserts
    writer: Mutex<()>,
}

/// A leaf as it was at some time.
pub struct Leaf {
    /// Number of the node
    pub node: u64,
    /// Its version
    pub version: u64,
    /// Its keys and records, ascending
    pub entries: [(u64, u64); KEYS],
    /// How many of them count
    pub count: usize,
    next: u64,
}

impl Leaf {
    /// Its keys and records.
    pub fn entries(&self) -> &[(u64, u64)] {
        &self.entries[..self.count]
    }
}

/// A node that an insertion has changed.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The node
    pub node: u64,
    /// Its version before
    pub before: u64,
    /// Its version now
    pub after: u64,
    /// A new node that took some of its keys, and that node's version
    pub split: Option<(u64, u64)>,
}

/// Nodes of a tree that so many ascending keys were put into.
pub fn nodes_of(records: u64) -> u64 {
    let mut level = records.div_ceil(KEYS as u64).max(1);
    let mut nodes = level;
    while level > 1 {
        level = level.div_ceil(KEYS as u64 + 1);
        nodes += level;
    }
    nodes
}

/// Bytes of as many nodes.
pub fn bytes_of(nodes: u64) -> u64 {
    nodes * NODE_BYTES
}

type Node = [AtomicU64; NODE_WORDS];

/// Number of keys.
#[inline(always)]
fn count_of(node: &Node) -> usize {
    ((node[META].load(Ordering::Relaxed) & !LEAF) as usize).min(KEYS)
}

fn is_leaf(node: &Node) -> bool {
    node[META].load(Ordering::Relaxed) & LEAF != 0
}

/// The child that `key` belongs to.
#[inline(always)]
fn slot_for(node: &Node, key: u64) -> usize {
    node[FIRST_KEY..FIRST_KEY + count_of(node)]
        .iter()
        .take_while(|other| other.load(Ordering::Relaxed) <= key)
        .count()
}

impl Tree {
    /// An empty tree with room for so many nodes.
    pub fn new(most_nodes: u64, pages: Pages) -> Result<Self, Error> {
        let tree = Self {
            region: array::region(most_nodes.max(1).saturating_mul(NODE_BYTES), pages)?,
            root: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            writer: Mutex::new(()),
        };
        let root = tree.make(LEAF);
        tree.node(root)[NEXT].store(NONE, Ordering::Relaxed);
        Ok(tree)
    }

    /// Bytes of all nodes.
    pub fn bytes(&self) -> u64 {
        bytes_of(self.nodes.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn node(&self, number: u64) -> &Node {
        let first = number as usize * NODE_WORDS;
        match self.region.atomics()[first..].first_chunk() {
            Some(node) => node,
            None => unreachable!("node {number} lies beyond the mapping"),
        }
    }

    fn make(&self, meta: u64) -> u64 {
        let number = self.nodes.fetch_add(1, Ordering::Relaxed);
        self.node(number)[META].store(meta, Ordering::Relaxed);
        number
    }

    /// The version of a node, when it is not changing.
    #[inline(always)]
    fn stable(&self, number: u64) -> u64 {
        loop {
            let version = self.node(number)[VERSION].load(Ordering::Acquire);
            if version & 1 == 0 {
                return version;
            }
            std::thread::yield_now();
        }
    }

    /// A node still has this version.
    #[inline(always)]
    pub fn is_unchanged(&self, number: u64, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.node(number)[VERSION].load(Ordering::Relaxed) == version
    }

    /// Calls `use_leaf` with the leaf of a key and its version; what it returns
    /// counts only if the leaf has not changed meanwhile, otherwise all is done again.
    #[inline(always)]
    fn at_leaf<T>(&self, key: u64, use_leaf: impl Fn(&Node) -> T) -> (u64, u64, T) {
        'again: loop {
            let mut at = self.root.load(Ordering::Acquire);
            let mut version = self.stable(at);
            if self.root.load(Ordering::Acquire) != at {
                continue;
            }
            loop {
                let node = self.node(at);
                if is_leaf(node) {
                    let found = use_leaf(node);
                    if !self.is_unchanged(at, version) {
                        continue 'again;
                    }
                    return (at, version, found);
                }
                let child = node[FIRST_LINK + slot_for(node, key)].load(Ordering::Relaxed);
                // Before the child's number is used, and after its version is
                // known: in between it may have given keys away.
                if !self.is_unchanged(at, version) {
                    continue 'again;
                }
                let child_version = self.stable(child);
                if !self.is_unchanged(at, version) {
                    continue 'again;
                }
                (at, version) = (child, child_version);
            }
        }
    }

    /// The record of a key; else the leaf where it would be, and its version.
    #[inline]
    pub fn find(&self, key: u64) -> Result<u64, (u64, u64)> {
        let (node, version, found) = self.at_leaf(key, |leaf| {
            (0..count_of(leaf))
                .find(|place| leaf[FIRST_KEY + place].load(Ordering::Relaxed) == key)
                .map(|place| leaf[FIRST_LINK + place].load(Ordering::Relaxed))
        });
        found.ok_or((node, version))
    }

    fn copy_of(leaf: &Node) -> ([(u64, u64); KEYS], usize, u64) {
        let mut entries = [(0, 0); KEYS];
        let count = count_of(leaf);
        for (place, entry) in entries.iter_mut().enumerate().take(count) {
            *entry = (
                leaf[FIRST_KEY + place].load(Ordering::Relaxed),
                leaf[FIRST_LINK + place].load(Ordering::Relaxed),
            );
        }
        (entries, count, leaf[NEXT].load(Ordering::Relaxed))
    }

    /// The leaf of a key.
    pub fn leaf(&self, key: u64) -> Leaf {
        let (node, version, (entries, count, next)) = self.at_leaf(key, Self::copy_of);
        Leaf {
            node,
            version,
            entries,
            count,
            next,
        }
    }

    /// The leaf after another.
    pub fn next(&self, leaf: &Leaf) -> Option<Leaf> {
        if leaf.next == NONE {
            return None;
        }
        loop {
            let version = self.stable(leaf.next);
            let (entries, count, next) = Self::copy_of(self.node(leaf.next));
            if self.is_unchanged(leaf.next, version) {
                return Some(Leaf {
                    node: leaf.next,
                    version,
                    entries,
                    count,
                    next,
                });
            }
        }
    }

    /// Puts a key into the tree and calls `changed` for each leaf that this
    /// changes. A key that is there stays as it is; its record is the error.
    pub fn insert(
        &self,
        key: u64,
        record: u64,
        mut changed: impl FnMut(Change),
    ) -> Result<(), u64> {
        // A writer that panicked has left the tree unusable; so has the process.
        let _writer = match self.writer.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        // The way down; nobody else changes anything.
        let mut path = Vec::with_capacity(16);
        let mut at = self.root.load(Ordering::Relaxed);
        while !is_leaf(self.node(at)) {
            let node = self.node(at);
            let slot = slot_for(node, key);
            path.push((at, slot));
            at = node[FIRST_LINK + slot].load(Ordering::Relaxed);
        }
        let leaf = self.node(at);
        let keys = count_of(leaf);
        let place = (0..keys)
            .find(|place| leaf[FIRST_KEY + place].load(Ordering::Relaxed) >= key)
            .unwrap_or(keys);
        if place < keys && leaf[FIRST_KEY + place].load(Ordering::Relaxed) == key {
            return Err(leaf[FIRST_LINK + place].load(Ordering::Relaxed));
        }
        // All nodes that change are odd until the last of them is done.
        let full = path
            .iter()
            .rev()
            .take_while(|(node, _)| count_of(self.node(*node)) == KEYS)
            .count();
        let mut changing = vec![at];
        if keys == KEYS {
            let above = path.iter().rev().map(|(node, _)| *node);
            changing.extend(above.take(full + 1));
        }
        for &node in &changing {
            let word = &self.node(node)[VERSION];
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        let before = leaf[VERSION].load(Ordering::Relaxed) - 1;
        let split = self.add(at, place, place, key, record);
        let mut up = split;
        while let Some((separator, right)) = up {
            up = match path.pop() {
                Some((parent, slot)) => self.add(parent, slot, slot + 1, separator, right),
                None => {
                    let root = self.make(1);
                    let node = self.node(root);
                    node[FIRST_KEY].store(separator, Ordering::Relaxed);
                    let old = self.root.load(Ordering::Relaxed);
                    node[FIRST_LINK].store(old, Ordering::Relaxed);
                    node[FIRST_LINK + 1].store(right, Ordering::Relaxed);
                    self.root.store(root, Ordering::Release);
                    None
                }
            };
        }
        for &node in changing.iter().rev() {
            let word = &self.node(node)[VERSION];
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        changed(Change {
            node: at,
            before,
            after: before + 2,
            split: split.map(|(_, right)| (right, 0)),
        });
        Ok(())
    }

    /// Adds a key and a link to a node; if it is full, splits it and returns
    /// what its parent needs to know of the right half.
    fn add(
        &self,
        number: u64,
        place: usize,
        link_place: usize,
        key: u64,
        link: u64,
    ) -> Option<(u64, u64)> {
        let node = self.node(number);
        let leaf = is_leaf(node);
        let count = count_of(node);
        let links = count + usize::from(!leaf);
        let mut keys: [u64; KEYS + 1] = [0; KEYS + 1];
        let mut all_links: [u64; KEYS + 2] = [0; KEYS + 2];
        let load = |word: usize| node[word].load(Ordering::Relaxed);
        (0..count).for_each(|at| keys[at + usize::from(at >= place)] = load(FIRST_KEY + at));
        (0..links).for_each(|at| {
            all_links[at + usize::from(at >= link_place)] = load(FIRST_LINK + at);
        });
        keys[place] = key;
        all_links[link_place] = link;
        let put = |node: &Node, keys: &[u64], links: &[u64]| {
            for (word, key) in node[FIRST_KEY..].iter().zip(keys) {
                word.store(*key, Ordering::Relaxed);
            }
            for (word, link) in node[FIRST_LINK..].iter().zip(links) {
                word.store(*link, Ordering::Relaxed);
            }
            let leaf = if leaf { LEAF } else { 0 };
            node[META].store(leaf | keys.len() as u64, Ordering::Relaxed);
        };
        if count < KEYS {
            put(node, &keys[..count + 1], &all_links[..links + 1]);
            return None;
        }
        // A key at the end is most often one of many: the left node stays full.
        let stay = if place == KEYS { KEYS } else { KEYS / 2 };
        let other_number = self.make(0);
        let other = self.node(other_number);
        let separator = keys[stay];
        if leaf {
            put(other, &keys[stay..], &all_links[stay..=KEYS]);
            other[NEXT].store(load(NEXT), Ordering::Relaxed);
            put(node, &keys[..stay], &all_links[..stay]);
            node[NEXT].store(other_number, Ordering::Relaxed);
        } else {
            put(other, &keys[stay + 1..], &all_links[stay + 1..]);
            put(node, &keys[..stay], &all_links[..stay + 1]);
        }
        Some((separator, other_number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permutation::Permutation;

    fn walk(tree: &Tree) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let mut leaf = Some(tree.leaf(0));
        while let Some(one) = leaf {
            all.extend_from_slice(one.entries());
            leaf = tree.next(&one);
        }
        all
    }

    #[test]
    fn all_orders_of_insertion_give_the_same_walk() {
        for count in [1, 14, 15, 16, 500, 5000] {
            let expected: Vec<(u64, u64)> = (0..count).map(|key| (key, key + 7)).collect();
            let order = Permutation::new(count, 2);
            let orders: [&dyn Fn(u64) -> u64; 3] =
                [&|at| at, &|at| count - 1 - at, &|at| order.of(at)];
            for of in orders {
                let tree = Tree::new(count, Pages::System).unwrap();
                for at in 0..count {
                    tree.insert(of(at), of(at) + 7, |_| {}).unwrap();
                }
                assert_eq!(walk(&tree), expected);
                assert!((0..count).all(|key| tree.find(key) == Ok(key + 7)));
                assert!(tree.find(count).is_err());
                assert_eq!(tree.insert(0, 99, |_| {}), Err(7));
            }
        }
    }

    #[test]
    fn ascending_keys_fill_as_many_nodes_as_computed() {
        for count in [1, 14, 15, 1000, 10_000] {
            let tree = Tree::new(count, Pages::System).unwrap();
            (0..count).for_each(|key| tree.insert(key, key, |_| {}).unwrap());
            let nodes = tree.nodes.load(Ordering::Relaxed);
            assert!(nodes.abs_diff(nodes_of(count)) <= 1, "{count}: {nodes}");
        }
    }

    #[test]
    fn changes_name_the_leaves_that_changed() {
        let tree = Tree::new(1000, Pages::System).unwrap();
        for key in 0..500_u64 {
            let key = key * 7919 % 1000;
            let leaf = tree.leaf(key);
            tree.insert(key, key, |change| {
                assert_eq!((change.node, change.before), (leaf.node, leaf.version));
                assert!(tree.is_unchanged(change.node, change.after));
                assert_eq!(change.split.is_some(), leaf.count == KEYS);
                if let Some((node, version)) = change.split {
                    assert!(tree.is_unchanged(node, version));
                }
            })
            .unwrap();
            assert!(!tree.is_unchanged(leaf.node, leaf.version));
        }
    }

    #[test]
    fn readers_find_all_while_others_insert() {
        const COUNT: u64 = 20_000;
        let tree = Tree::new(COUNT, Pages::System).unwrap();
        let order = Permutation::new(COUNT, 9);
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (tree, order, done) = (&tree, &order, &done);
                scope.spawn(move || {
                    for at in (thread..COUNT).step_by(2) {
                        tree.insert(order.of(at), at, |_| {}).unwrap();
                        // Every other one below is in the tree.
                        if thread == 0 {
                            done.store(at + 1, Ordering::Release);
                        }
                    }
                });
            }
            let mut at = 0;
            while at < COUNT - 2 {
                let until = done.load(Ordering::Acquire);
                for known in (0..until).step_by(2) {
                    assert_eq!(tree.find(order.of(known)), Ok(known));
                }
                let keys: Vec<u64> = walk(&tree).into_iter().map(|entry| entry.0).collect();
                assert!(keys.is_sorted_by(|a, b| a < b));
                at = until;
            }
        });
        assert_eq!(walk(&tree).len() as u64, COUNT);
    }
}
