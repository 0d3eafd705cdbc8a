// SPDX-License-Identifier: GPL-2.0-or-later
//! How much a guest may ask for. Any code of the guest may execute the control NOP, so
//! that each request that costs the host something has an end.

/// Marks and progress: rows of the time series, a kilobyte or two each.
const MAX_ROWS: u64 = 1 << 16;
/// Switching the model on or off: translations are made anew, and the summary is written.
const MAX_SWITCHES: u64 = 1 << 12;
/// Saying where tasks are switched: translations are made anew.
const MAX_ANNOUNCEMENTS: u64 = 1 << 8;
/// Time that a guest charges itself, in all and at once.
const MAX_CHARGES_NS: u64 = 3_600_000_000_000;
const MAX_CHARGE_NS: u64 = 10_000_000_000;

/// What to do about [`Excess`].
pub const NEXT: &str = "look in the guest for who executes the control NOP so often \
    (docs/spec/model-bar.md)";

/// A guest asked too often.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest has asked for {what} by the control NOP, and no more is done for one guest")]
pub struct Excess {
    what: &'static str,
}

/// What a guest has asked for so far.
#[derive(Debug, Default)]
pub struct Requests {
    rows: u64,
    switches: u64,
    announcements: u64,
    charged_ns: u64,
}

fn count(asked: &mut u64, by: u64, most: u64, what: &'static str) -> Result<(), Excess> {
    *asked = asked.saturating_add(by);
    if *asked > most {
        return Err(Excess { what });
    }
    Ok(())
}

impl Requests {
    /// A row of the time series.
    pub fn row(&mut self) -> Result<(), Excess> {
        count(&mut self.rows, 1, MAX_ROWS, "65536 marks")
    }

    /// The model on or off.
    pub fn switch(&mut self) -> Result<(), Excess> {
        count(
            &mut self.switches,
            1,
            MAX_SWITCHES,
            "the model to be switched 4096 times",
        )
    }

    /// Where tasks are switched.
    pub fn announcement(&mut self) -> Result<(), Excess> {
        count(
            &mut self.announcements,
            1,
            MAX_ANNOUNCEMENTS,
            "tasks to be told apart 256 times",
        )
    }

    /// Time; how much of it is charged.
    pub fn charge_ns(&mut self, ns: u64) -> Result<u64, Excess> {
        let ns = ns.min(MAX_CHARGE_NS);
        count(
            &mut self.charged_ns,
            ns,
            MAX_CHARGES_NS,
            "an hour of time to be charged",
        )?;
        Ok(ns)
    }

    /// All that was charged.
    pub const fn charged_ns(&self) -> u64 {
        self.charged_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_an_end() {
        type Ask = fn(&mut Requests) -> Result<(), Excess>;
        let asks: [(Ask, u64); 4] = [
            (Requests::row, 65_536),
            (Requests::switch, 4096),
            (Requests::announcement, 256),
            (|asked| asked.charge_ns(u64::MAX).map(drop), 360),
        ];
        for (ask, most) in asks {
            let mut requests = Requests::default();
            for _ in 0..most {
                assert_eq!(ask(&mut requests), Ok(()));
            }
            let excess = ask(&mut requests).unwrap_err().to_string();
            assert!(excess.contains("by the control NOP"), "{excess}");
        }
    }

    #[test]
    fn a_charge_is_cut() {
        let mut requests = Requests::default();
        assert_eq!(requests.charge_ns(5), Ok(5));
        assert_eq!(requests.charge_ns(u64::MAX), Ok(MAX_CHARGE_NS));
        assert_eq!(requests.charged_ns(), 5 + MAX_CHARGE_NS);
    }
}
