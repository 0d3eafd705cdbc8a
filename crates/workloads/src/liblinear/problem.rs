// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Classification problems as LIBLINEAR keeps them: sparse, sixteen bytes a
//! value, by instances as they are read and by features as the solver wants
//! them. The program keeps both all the time, though the solver uses the second
//! alone.
//!
//! Made ones follow the shape of the data set "kdda" (KDD Cup 2010): 36 values
//! an instance on average, 15 a feature; values of an instance have length one
//! together; features' popularity follows a power law.

use std::io::Write;

use crate::Error;
use crate::array::{Pages, filled, with_capacity};
use crate::random::Random;

/// Values of an instance: from 18 to 54.
const VALUES_LEAST: u64 = 18;
const VALUES_MOST: u64 = 54;
const VALUES_MEAN: u64 = 36;
/// Values of a feature, on average.
const VALUES_PER_FEATURE: u64 = 15;
/// So many that an instance finds different ones quickly.
const FEATURES_LEAST: u64 = 1024;
/// One feature in so many says something about the label.
const TELLING: u64 = 4;
/// One label in so many is wrong.
const WRONG: u64 = 10;

/// A value and where it belongs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Node {
    /// Of the feature in rows, of the instance in columns
    pub index: u32,
    pub value: f64,
}

/// A sparse matrix, row by row or column by column.
#[derive(Debug, PartialEq)]
pub struct Sparse {
    /// Where a line's nodes begin; one more entry than lines
    offsets: Vec<u64>,
    pub nodes: Vec<Node>,
}

impl Sparse {
    /// Number of rows, or columns.
    pub fn lines(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Nodes of a row, or column.
    #[inline(always)]
    pub fn line(&self, line: usize) -> &[Node] {
        &self.nodes[self.offsets[line] as usize..self.offsets[line + 1] as usize]
    }
}

/// Numbers of instances and features, and what decides all values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub instances: u64,
    pub features: u64,
    pub seed: u64,
}

impl Source {
    /// With as many values as fit if each takes `value_bytes`, each feature and
    /// each instance what is given.
    pub fn new(
        footprint_bytes: u64,
        value_bytes: u64,
        feature_bytes: u64,
        instance_bytes: u64,
        seed: u64,
    ) -> Result<Self, Error> {
        // Of one instance with its values and its share of features.
        let bytes = (VALUES_MEAN * value_bytes + instance_bytes) * VALUES_PER_FEATURE
            + VALUES_MEAN * feature_bytes;
        let instances = footprint_bytes / bytes * VALUES_PER_FEATURE;
        let features = instances * VALUES_MEAN / VALUES_PER_FEATURE;
        if features < FEATURES_LEAST {
            return Err(Error::Usage(format!(
                "a footprint of {footprint_bytes} bytes is too small; give 1M or more"
            )));
        }
        if instances.max(features) > 1 << 31 {
            return Err(Error::Usage("footprint is above 2 TiB".into()));
        }
        Ok(Self {
            instances,
            features,
            seed,
        })
    }

    /// Generator of an instance, after its number of values was drawn.
    fn instance(&self, instance: u64) -> (Random, usize) {
        let mut random = Random::new(self.seed, instance);
        let values = VALUES_LEAST + random.below(VALUES_MOST - VALUES_LEAST + 1);
        (random, values as usize)
    }

    /// Calls `row` for each instance with its number, label and nodes.
    pub fn each(&self, mut row: impl FnMut(usize, i8, &[Node])) {
        let mut features: Vec<u32> = Vec::with_capacity(VALUES_MOST as usize);
        let mut nodes = Vec::with_capacity(VALUES_MOST as usize);
        for instance in 0..self.instances {
            let (mut random, values) = self.instance(instance);
            features.clear();
            while features.len() < values {
                while features.len() < values {
                    features.push(self.feature(&mut random));
                }
                features.sort_unstable();
                features.dedup();
            }
            let score: i64 = features.iter().map(|&feature| self.hint(feature)).sum();
            let is_wrong = random.below(WRONG) == 0;
            let label = if (score > 0) != is_wrong { 1 } else { -1 };
            let value = 1.0 / (values as f64).sqrt();
            nodes.clear();
            nodes.extend(features.iter().map(|&index| Node { index, value }));
            row(instance as usize, label, &nodes);
        }
    }

    /// A feature: number r is drawn as often as r^(-3/4) is large.
    #[inline]
    fn feature(&self, random: &mut Random) -> u32 {
        let unit = random.unit();
        let square = unit * unit;
        (self.features as f64 * (square * square)) as u32
    }

    /// What a feature says about the label.
    fn hint(&self, feature: u32) -> i64 {
        let hash = Random::new(self.seed, u64::MAX - u64::from(feature)).word();
        if hash.is_multiple_of(TELLING) {
            (hash >> 48) as i64 - (1 << 15)
        } else {
            0
        }
    }

    /// All labels and rows.
    pub fn rows(&self, pages: Pages) -> Result<(Vec<i8>, Sparse), Error> {
        let values: usize = (0..self.instances).map(|i| self.instance(i).1).sum();
        let mut labels = with_capacity(self.instances as usize, pages)?;
        let mut offsets = with_capacity(self.instances as usize + 1, pages)?;
        let mut nodes = with_capacity(values, pages)?;
        self.each(|_, label, row| {
            labels.push(label);
            offsets.push(nodes.len() as u64);
            nodes.extend_from_slice(row);
        });
        offsets.push(nodes.len() as u64);
        Ok((labels, Sparse { offsets, nodes }))
    }

    /// All columns, from the rows where there are any, else generated anew.
    pub fn columns(&self, rows: Option<&Sparse>, pages: Pages) -> Result<Sparse, Error> {
        let mut offsets = filled(0_u64, self.features as usize + 1, pages)?;
        self.each_of(rows, |_, row| {
            for node in row {
                offsets[node.index as usize + 1] += 1;
            }
        });
        let mut total = 0;
        for offset in &mut offsets {
            total += *offset;
            *offset = total;
        }
        let nothing = Node {
            index: 0,
            value: 0.0,
        };
        let mut nodes = filled(nothing, total as usize, pages)?;
        // Each column's begin moves to its end, which is the next one's begin.
        self.each_of(rows, |instance, row| {
            for node in row {
                let slot = &mut offsets[node.index as usize];
                nodes[*slot as usize] = Node {
                    index: instance as u32,
                    value: node.value,
                };
                *slot += 1;
            }
        });
        offsets.rotate_right(1);
        offsets[0] = 0;
        Ok(Sparse { offsets, nodes })
    }

    /// Labels alone.
    pub fn labels(&self, pages: Pages) -> Result<Vec<i8>, Error> {
        let mut labels = with_capacity(self.instances as usize, pages)?;
        self.each(|_, label, _| labels.push(label));
        Ok(labels)
    }

    /// Calls `row` for each instance.
    pub fn each_of(&self, rows: Option<&Sparse>, mut row: impl FnMut(usize, &[Node])) {
        match rows {
            Some(rows) => (0..rows.lines()).for_each(|line| row(line, rows.line(line))),
            None => self.each(|instance, _, nodes| row(instance, nodes)),
        }
    }

    /// Writes the problem in libsvm's text form, every digit of the values.
    pub fn save(&self, mut out: impl Write) -> std::io::Result<()> {
        let mut outcome = Ok(());
        self.each(|_, label, nodes| {
            if outcome.is_ok() {
                outcome = write_row(&mut out, label, nodes);
            }
        });
        outcome.and_then(|()| out.flush())
    }
}

/// One line; features count from 1.
fn write_row(out: &mut impl Write, label: i8, nodes: &[Node]) -> std::io::Result<()> {
    write!(out, "{label:+}")?;
    for node in nodes {
        write!(out, " {}:{}", node.index + 1, node.value)?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source {
        instances: 5000,
        features: 12_000,
        seed: 1,
    };

    #[test]
    fn rows_are_as_described() {
        let (labels, rows) = SOURCE.rows(Pages::System).unwrap();
        assert_eq!(rows.lines(), 5000);
        let mean = rows.nodes.len() as f64 / 5000.0;
        assert!((35.0..37.0).contains(&mean), "{mean}");
        for line in 0..rows.lines() {
            let row = rows.line(line);
            assert!((18..=54).contains(&row.len()));
            assert!(row.is_sorted_by(|a, b| a.index < b.index));
            assert!(row.iter().all(|node| node.index < 12_000));
            let square: f64 = row.iter().map(|node| node.value * node.value).sum();
            assert!((square - 1.0).abs() < 1e-12);
        }
        let ones = labels.iter().filter(|&&label| label == 1).count();
        assert!((1000..4000).contains(&ones), "{ones}");
        assert_eq!(labels, SOURCE.labels(Pages::System).unwrap());
        let other = Source { seed: 2, ..SOURCE };
        assert_ne!(other.rows(Pages::System).unwrap().1, rows);
    }

    #[test]
    fn popularity_follows_the_power_law() {
        let mut random = Random::new(3, 0);
        let drawn: Vec<u32> = (0..100_000).map(|_| SOURCE.feature(&mut random)).collect();
        // A share s of the features, the most popular ones, has s^(1/4) of the draws.
        for share in [0.01_f64, 0.1, 0.5] {
            let first = (share * 12_000.0) as u32;
            let found = drawn.iter().filter(|&&feature| feature < first).count();
            let expected = share.powf(0.25) * 1e5;
            assert!((found as f64 / expected - 1.0).abs() < 0.02, "{share}");
        }
        assert!(drawn.iter().all(|&feature| feature < 12_000));
        // Rows draw repetitions again: the order stays.
        let columns = SOURCE.columns(None, Pages::System).unwrap();
        let values = |part: usize| columns.offsets[part + 2400] - columns.offsets[part];
        assert!((0..4).all(|fifth| values(2400 * fifth) > values(2400 * (fifth + 1))));
    }

    #[test]
    fn columns_are_the_rows_turned() {
        let (_, rows) = SOURCE.rows(Pages::System).unwrap();
        let columns = SOURCE.columns(Some(&rows), Pages::System).unwrap();
        assert_eq!(columns, SOURCE.columns(None, Pages::System).unwrap());
        assert_eq!(columns.lines(), 12_000);
        assert_eq!(columns.nodes.len(), rows.nodes.len());
        for feature in 0..columns.lines() {
            let column = columns.line(feature);
            assert!(column.is_sorted_by(|a, b| a.index < b.index));
            for node in column {
                let row = rows.line(node.index as usize);
                let twin = row.iter().find(|twin| twin.index as usize == feature);
                assert_eq!(twin.map(|twin| twin.value), Some(node.value));
            }
        }
    }

    #[test]
    fn text_form() {
        let source = Source {
            instances: 3,
            features: 1024,
            seed: 1,
        };
        let mut text = Vec::new();
        source.save(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let (labels, rows) = source.rows(Pages::System).unwrap();
        for (line, text) in text.lines().enumerate() {
            let mut words = text.split(' ');
            assert_eq!(words.next().unwrap().parse(), Ok(labels[line]));
            let nodes: Vec<Node> = words
                .map(|word| {
                    let (index, value) = word.split_once(':').unwrap();
                    Node {
                        index: index.parse::<u32>().unwrap() - 1,
                        value: value.parse().unwrap(),
                    }
                })
                .collect();
            assert_eq!(nodes, rows.line(line));
        }
        assert_eq!(text.lines().count(), 3);
    }
}
