// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What coordinator and worker say to each other. The worker has parsed what a hostile
//! guest wrote, so its own words count no more than that: [`News::check`] bounds them all.

use demeter_balloon::device::Traffic;
use demeter_balloon::node::Ended;
use demeter_balloon::statistics::Statistics;
use demeter_balloon::view::Confinement;
use demeter_balloon::wire::{MAX_NODES, PAGE_SHIFT};
use demeter_balloon::{Counters, Event};
use serde::{Deserialize, Serialize};

use crate::tiers::Known;

/// Most events in one message.
pub const MAX_HEARD: usize = 64;
/// Longest text, in characters.
pub const MAX_TEXT: usize = 1000;
/// Most pages of a node: what an address can reach.
pub const MAX_NODE_PAGES: u64 = 1 << (52 - PAGE_SHIFT);

/// The worker's first message: all that it is told of its guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// Of the threads.
    pub name: String,
    /// Its device has so many balloons.
    pub nr_nodes: u16,
    /// See [`demeter_balloon::Parameters`].
    pub instance: u64,
    /// As above.
    pub statistics_interval_ms: u32,
    /// As above.
    pub violation_limit: u64,
    /// A user of its own.
    pub uid: Option<u32>,
    /// By node, what was asked for last.
    pub wishes: Vec<Option<Wish>>,
}

/// A size that a balloon shall have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// In the balloon.
    pub balloon_pages: u64,
    /// Its number.
    pub ticket: u64,
}

/// To the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Serve; the listening socket comes with it.
    Begin(Begin),
    /// Ask for a size.
    Target {
        /// Which balloon.
        node: u16,
        /// How large.
        wish: Wish,
    },
    /// Ask for statistics.
    Statistics,
    /// Answer with news that are newer than this.
    Look(u64),
    /// Answer to [`Word::Which`].
    Known(Vec<Known>),
}

/// From the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Word {
    /// It is confined, and serves from now on.
    Ready(Confinement),
    /// A memory table has come: which memory is which tier?
    Which,
    /// Files of guest memory come with this, for measuring them.
    Files {
        /// Which tier each of them belongs to.
        nodes: Vec<u16>,
        /// They replace those that came before.
        first: bool,
    },
    /// How the guest is.
    News(Box<News>),
    /// It ends.
    Failed(String),
}

/// One balloon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeNews {
    /// See [`demeter_balloon::NodeView`].
    pub node_pages: u64,
    /// As above.
    pub held_pages: u64,
    /// As above.
    pub punching_pages: u64,
    /// Of the newest wish that the device knows.
    pub ticket: u64,
    /// As above.
    pub last: Option<Ended>,
    /// As above.
    pub has_driver: bool,
    /// As above.
    pub is_busy: bool,
    /// As above.
    pub traffic: Traffic,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Heard {
    /// A monitor came.
    Connected,
    /// It went.
    Disconnected,
    /// The device tells.
    Device(Event),
    /// Of the connection, for people.
    Note(String),
}

/// How the guest is, and what happened since the last news.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct News {
    /// The newest [`Order::Look`] that this answers.
    pub look: u64,
    /// A monitor is there.
    pub connected: bool,
    /// By node.
    pub nodes: Vec<NodeNews>,
    /// By reason.
    pub violations: Counters,
    /// The guest did wrong too often.
    pub disabled: bool,
    /// Its memory went away.
    pub lost: bool,
    /// What is wrong with its memory table.
    pub problem: Option<String>,
    /// Its own words.
    pub statistics: Option<Statistics>,
    /// How many of those came.
    pub statistics_count: u64,
    /// Its messages had to wait so often.
    pub held_back: u64,
    /// In this order.
    pub heard: Vec<Heard>,
    /// Events that found no place there.
    pub left_out: u64,
}

/// Why a worker's words are not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NewsError {
    /// More than can be.
    #[error("it tells of {0} where that cannot be")]
    Bound(&'static str),
}

impl News {
    /// All of it fits a guest with so many nodes; texts are made harmless.
    pub fn check(mut self, nr_nodes: usize) -> Result<Self, NewsError> {
        let bound = |fits: bool, what| {
            if fits {
                Ok(())
            } else {
                Err(NewsError::Bound(what))
            }
        };
        bound(
            nr_nodes <= MAX_NODES && self.nodes.len() == nr_nodes,
            "nodes",
        )?;
        bound(self.heard.len() <= MAX_HEARD, "events")?;
        for node in &self.nodes {
            bound(node.node_pages <= MAX_NODE_PAGES, "a node's size")?;
            bound(node.held_pages <= node.node_pages, "a balloon's size")?;
            bound(node.punching_pages <= node.node_pages, "holes")?;
            let ended = node.last.map_or(0, |last| last.target_pages);
            bound(ended <= MAX_NODE_PAGES, "a target")?;
        }
        let has = |node: u16| usize::from(node) < nr_nodes;
        for heard in &mut self.heard {
            match heard {
                Heard::Device(event) => match event {
                    Event::Hello { node, kept_pages } => {
                        bound(has(*node) && *kept_pages <= MAX_NODE_PAGES, "a driver")?;
                    }
                    Event::Done {
                        node, held_pages, ..
                    } => bound(has(*node) && *held_pages <= MAX_NODE_PAGES, "a balloon")?,
                    Event::TakenBack { node, nr_pages } => {
                        bound(has(*node) && *nr_pages <= MAX_NODE_PAGES, "pages")?;
                    }
                    Event::HostFailed { node, cause } => {
                        bound(has(*node), "a node")?;
                        *cause = harmless(cause);
                    }
                    Event::Statistics | Event::Violation { .. } | Event::Disabled => {}
                },
                Heard::Note(text) => *text = harmless(text),
                Heard::Connected | Heard::Disconnected => {}
            }
        }
        self.problem = self.problem.as_deref().map(harmless);
        let sizes: Vec<u64> = self.nodes.iter().map(|node| node.node_pages).collect();
        self.statistics = match self.statistics.take() {
            Some(said) => {
                let said = said.clamped(&sizes);
                Some(said.map_err(|_| NewsError::Bound("statistics"))?)
            }
            None => None,
        };
        Ok(self)
    }
}

/// A worker's text may go to logs, ledgers and terminals: one line of bounded length, that reads
/// in the order in which it is written.
pub fn harmless(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let plain = |c: char| if c.is_control() || turns(c) { ' ' } else { c };
    text.chars().take(MAX_TEXT).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_that_reads_as_it_is_written() {
        assert_eq!(harmless("a\u{1b}[2Jb\nc"), "a [2Jb c");
        assert_eq!(
            harmless("ok \u{202e}dlrow\u{2066} \u{fc}\u{20ac}"),
            "ok  dlrow  \u{fc}\u{20ac}"
        );
    }

    fn news() -> News {
        News {
            nodes: vec![
                NodeNews {
                    node_pages: 100,
                    held_pages: 10,
                    ..NodeNews::default()
                };
                2
            ],
            ..News::default()
        }
    }

    #[test]
    fn a_worker_cannot_tell_of_what_cannot_be() {
        assert!(news().check(2).is_ok());
        assert!(news().check(1).is_err());
        let wrong: [fn(&mut News); 8] = [
            |news| news.nodes[0].held_pages = 101,
            |news| news.nodes[0].punching_pages = 101,
            |news| news.nodes[1].node_pages = u64::MAX,
            |news| news.nodes.push(NodeNews::default()),
            |news| news.heard = vec![Heard::Connected; MAX_HEARD + 1],
            |news| {
                news.heard.push(Heard::Device(Event::Hello {
                    node: 2,
                    kept_pages: 0,
                }));
            },
            |news| {
                news.heard.push(Heard::Device(Event::TakenBack {
                    node: 0,
                    nr_pages: u64::MAX,
                }));
            },
            |news| {
                news.heard.push(Heard::Device(Event::Done {
                    node: 9,
                    ended: Ended {
                        ticket: 0,
                        target_pages: 0,
                        outcome: demeter_balloon::wire::Outcome::Reached,
                    },
                    held_pages: 0,
                }));
            },
        ];
        for (number, spoil) in wrong.iter().enumerate() {
            let mut news = news();
            spoil(&mut news);
            assert!(news.check(2).is_err(), "{number}");
        }
    }

    #[test]
    fn text_is_one_bounded_line() {
        let mut told = news();
        told.heard
            .push(Heard::Note("a\nERROR b\u{1b}[2J".repeat(100)));
        told.problem = Some("x".repeat(10_000));
        let told = told.check(2).unwrap();
        let Heard::Note(text) = &told.heard[0] else {
            panic!("{:?}", told.heard)
        };
        assert!(text.chars().count() == MAX_TEXT && !text.contains(char::is_control));
        assert_eq!(told.problem.unwrap().len(), MAX_TEXT);
    }

    #[test]
    fn news_survive_the_journey() {
        let mut told = news();
        told.violations.count(demeter_balloon::Reason::Ring);
        told.heard.push(Heard::Device(Event::Violation {
            reason: demeter_balloon::Reason::Ring,
        }));
        let text = serde_json::to_string(&Word::News(Box::new(told.clone()))).unwrap();
        let Word::News(back) = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(*back, told);
        let more = text.replacen("\"look\"", "\"colour\":1,\"look\"", 1);
        assert!(serde_json::from_str::<Word>(&more).is_err());
    }
}
