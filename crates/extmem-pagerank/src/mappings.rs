// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages are edges.

/// Mappings that are remembered: the largest ones.
const ROOM: usize = 64;

#[derive(Debug, Clone, Copy, Default)]
struct Range {
    first: u32,
    /// First page behind it; the range is unused when not above `first`.
    end: u32,
    /// Edges, when a hint said so.
    edges: bool,
}

impl Range {
    fn new(first: u32, pages: u32, edges: bool) -> Self {
        Self {
            first,
            end: first.saturating_add(pages),
            edges,
        }
    }

    fn pages(&self) -> u32 {
        self.end.saturating_sub(self.first)
    }

    fn contains(&self, page: u32) -> bool {
        (self.first..self.end).contains(&page)
    }

    /// Without `other`; of two rests the larger.
    fn without(self, other: Self) -> Self {
        let below = Self {
            end: self.end.min(other.first),
            ..self
        };
        let above = Self {
            first: self.first.max(other.end),
            ..self
        };
        if below.pages() >= above.pages() {
            below
        } else {
            above
        }
    }
}

/// The program's mappings, and what it said of them.
#[derive(Debug)]
pub struct Mappings {
    mapped: [Range; ROOM],
    named: [Range; ROOM],
    largest: Range,
    /// Some range was named as edges: then only those are.
    edges_named: bool,
}

impl Default for Mappings {
    fn default() -> Self {
        Self {
            mapped: [Range::default(); ROOM],
            named: [Range::default(); ROOM],
            largest: Range::default(),
            edges_named: false,
        }
    }
}

impl Mappings {
    /// A mapping came.
    pub fn add(&mut self, first: u32, pages: u32) {
        insert(&mut self.mapped, Range::new(first, pages, false));
        self.update();
    }

    /// A range went.
    pub fn remove(&mut self, first: u32, pages: u32) {
        let gone = Range::new(first, pages, false);
        for range in self.mapped.iter_mut().chain(&mut self.named) {
            *range = range.without(gone);
        }
        self.update();
    }

    /// The program says what a range is.
    pub fn name(&mut self, first: u32, pages: u32, edges: bool) {
        self.unname(first, pages);
        insert(&mut self.named, Range::new(first, pages, edges));
        self.update();
    }

    /// The program says that a range is nothing special.
    pub fn unname(&mut self, first: u32, pages: u32) {
        let gone = Range::new(first, pages, false);
        for range in &mut self.named {
            *range = range.without(gone);
        }
        self.update();
    }

    /// Whether a page is of the edges.
    pub fn is_edge(&self, page: u32) -> bool {
        let named = self.named.iter().find(|range| range.contains(page));
        match named {
            Some(range) => range.edges,
            None => !self.edges_named && self.largest.contains(page),
        }
    }

    fn update(&mut self) {
        self.largest = self
            .mapped
            .iter()
            .copied()
            .max_by_key(Range::pages)
            .unwrap_or_default();
        self.edges_named = self
            .named
            .iter()
            .any(|range| range.edges && range.pages() > 0);
    }
}

/// Into the smallest place, if that is smaller.
fn insert(ranges: &mut [Range; ROOM], range: Range) {
    if let Some(smallest) = ranges.iter_mut().min_by_key(|range| range.pages())
        && smallest.pages() < range.pages()
    {
        *smallest = range;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_mapping_is_the_edges_until_told_otherwise() {
        let mut mappings = Mappings::default();
        assert!(!mappings.is_edge(0));
        mappings.add(0, 10);
        mappings.add(100, 50);
        assert!(mappings.is_edge(149) && !mappings.is_edge(150) && !mappings.is_edge(5));
        mappings.remove(100, 45);
        assert!(!mappings.is_edge(147) && mappings.is_edge(5));
        mappings.name(200, 5, true);
        assert!(mappings.is_edge(204) && !mappings.is_edge(5));
        mappings.unname(200, 5);
        mappings.name(0, 3, false);
        assert!(!mappings.is_edge(2) && mappings.is_edge(3));
        mappings.remove(0, 300);
        assert!((0..300).all(|page| !mappings.is_edge(page)));
    }

    #[test]
    fn many_small_mappings_do_not_displace_the_largest() {
        let mut mappings = Mappings::default();
        mappings.add(0, 1000);
        (0..500).for_each(|index| mappings.add(10_000 + index * 10, 5));
        assert!(mappings.is_edge(500));
    }
}
