// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parameters of the module, by the names that it has for them.

use crate::Error;

/// Parameters with their defaults and bounds, all numbers.
macro_rules! params {
    (
        $(#[$about:meta])* $params:ident;
        $($(#[$doc:meta])* $name:ident = $value:expr, $least:expr, $most:expr;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $params {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Default for $params {
            fn default() -> Self {
                Self { $($name: $value,)* }
            }
        }

        impl $params {
            /// Names of all.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            fn set_number(&mut self, name: &str, value: &str) -> Result<(), crate::Error> {
                match name {
                    $(stringify!($name) => {
                        self.$name = crate::params::number(name, value, $least, $most)?;
                    })*
                    _ => return Err(crate::params::not_simulated(name, Self::NAMES)),
                }
                Ok(())
            }
        }
    };
}
pub(crate) use params;

/// A parameter that is wrong.
pub(crate) fn wrong(name: &str, reason: String) -> Error {
    Error::Parameter {
        name: name.to_owned(),
        reason,
    }
}

pub(crate) fn not_simulated(name: &str, names: &[&str]) -> Error {
    wrong(
        name,
        format!("is not simulated; these are: {}", names.join(", ")),
    )
}

pub(crate) fn number(name: &str, value: &str, least: u64, most: u64) -> Result<u64, Error> {
    (value.parse().ok())
        .filter(|value| (least..=most).contains(value))
        .ok_or_else(|| {
            let reason = format!("takes a number from {least} to {most}, not `{value}`");
            wrong(name, reason)
        })
}

impl Params {
    /// Sets one by name.
    ///
    /// # Errors
    /// There is none of that name here, or the value is none for it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        if name == "latency_threshold_ns" {
            return Err(wrong(name, "is decided when accesses are recorded".into()));
        }
        self.set_number(name, value)?;
        if !self.granule_bytes.is_power_of_two() {
            return Err(wrong(name, "is no power of two".into()));
        }
        Ok(())
    }
}

params! {
    /// Parameters of demeter.ko that a simulation heeds; see `docs/abi`.
    Params;
    /// Accesses that one sample stands for.
    sample_period = 4093, 1u64, 1u64 << 31;
    /// A tick, the shortest epoch.
    epoch_ms = 500, 1u64, 60_000;
    /// Tau.
    split_samples = 15, 1u64, 0x100_0000;
    /// Alpha.
    significance = 2, 0u64, 1024;
    /// Epochs until neighbours that are alike merge.
    merge_epochs = 8, 1u64, 1u64 << 31;
    /// The smallest range.
    granule_bytes = 2 << 20, 4096u64, 1u64 << 40;
    /// How long a placement is expected to last.
    horizon_ms = 10_000, 1u64, 3_600_000;
    /// How much more than its cost a swap must gain.
    hysteresis_permille = 250, 0u64, 1_000_000;
    /// Pages relocated per second at most, 0: no cap.
    rate_pages_per_s = 262_144, 0u64, 1u64 << 40;
    /// SMEM latency less FMEM latency, 0: measured.
    latency_gap_ns = 0, 0u64, 1_000_000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_strangers_refused() {
        let mut params = Params::default();
        params.set("epoch_ms", "50").unwrap();
        assert_eq!(params.epoch_ms, 50);
        for (name, value, told) in [
            ("epoch_ms", "0", "from 1 to 60000"),
            ("epoch_ms", "x", "not `x`"),
            ("granule_bytes", "5000", "power of two"),
            ("finer", "1", "not simulated"),
            ("latency_threshold_ns", "64", "recorded"),
        ] {
            let error = params.set(name, value).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
