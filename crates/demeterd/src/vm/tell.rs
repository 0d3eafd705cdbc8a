// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest does, told to log and ledger, neither of which a guest may fill.

use demeter_balloon::Event;
use demeter_balloon::view::tier_name;
use demeter_balloon::wire::PAGE_SHIFT;

use super::Vm;
use crate::ledger::{Entry, What};
use crate::message::Heard;

/// What happened, and where it may be repeated.
pub(super) struct Told {
    pub(super) event: Heard,
    pub(super) line: bool,
    /// With the number of entries that were left out before.
    pub(super) entry: Option<u64>,
}

/// Goes to the log because of the guest.
pub(super) fn is_line(heard: &Heard) -> bool {
    !matches!(
        heard,
        Heard::Device(Event::TakenBack { .. } | Event::Statistics)
    )
}

/// Goes to the ledger because of the guest.
pub(super) fn is_entry(heard: &Heard) -> bool {
    match heard {
        Heard::Device(event) => matches!(
            event,
            Event::Hello { .. } | Event::Done { .. } | Event::TakenBack { .. } | Event::Disabled
        ),
        Heard::Connected | Heard::Disconnected => true,
        Heard::Note(_) => false,
    }
}

impl Vm {
    /// A guest decides how often these happen; log and ledger do not follow it.
    pub(super) fn tell(&self, told: Told, violations: u64) {
        let vm = self.spec.name.as_str();
        let Told { event, line, entry } = told;
        let write = |what, node: Option<u16>, fill: &dyn Fn(&mut Entry)| {
            if let Some(left_out) = entry {
                let mut entry = Entry {
                    tier: node.map(tier_name),
                    left_out,
                    ..Entry::now(what)
                };
                fill(&mut entry);
                self.ledger.add(entry);
            }
        };
        let event = match event {
            Heard::Device(event) => event,
            Heard::Connected => {
                if line {
                    tracing::info!(vm, "connected");
                }
                return write(What::Connected, None, &|_| {});
            }
            Heard::Disconnected => {
                if line {
                    tracing::info!(vm, "disconnected");
                }
                return write(What::Disconnected, None, &|_| {});
            }
            Heard::Note(text) => {
                if line {
                    tracing::info!(vm, "{text}");
                }
                return;
            }
        };
        match event {
            Event::Hello { node, kept_pages } => {
                if line {
                    tracing::info!(vm, node, kept_pages, "driver");
                }
                write(What::Driver, Some(node), &|entry| {
                    entry.balloon_bytes = Some(kept_pages << PAGE_SHIFT);
                });
                // Whoever put it in, it is: who takes it out from now on wants it out, also
                // where we had not looked yet. Once for each note of ours, not for each HELLO.
                if let Some(bus) = self.ledger.taken_out() {
                    self.ledger.add(Entry {
                        bus: Some(bus),
                        ..Entry::now(What::PutIn)
                    });
                }
            }
            Event::Done {
                node,
                ended,
                held_pages,
            } => {
                if line {
                    tracing::info!(vm, node, held_pages, outcome = ?ended.outcome, "resized");
                }
                write(What::Ended, Some(node), &|entry| {
                    entry.balloon_bytes = Some(held_pages << PAGE_SHIFT);
                    entry.outcome = Some(ended.outcome);
                });
            }
            Event::TakenBack { node, nr_pages } => {
                write(What::TakenBack, Some(node), &|entry| {
                    entry.size_bytes = Some(nr_pages << PAGE_SHIFT);
                });
            }
            Event::Violation { reason } => {
                if line {
                    tracing::warn!(vm, reason = reason.name(), violations, "violation");
                }
            }
            Event::Disabled => {
                if line {
                    tracing::error!(vm, violations, "disabled until it is plugged in anew");
                }
                write(What::Disabled, None, &|_| {});
            }
            Event::HostFailed { node, cause } => {
                if line {
                    tracing::error!(vm, node, "cannot punch: {cause}");
                }
            }
            Event::Statistics => {}
        }
    }
}
