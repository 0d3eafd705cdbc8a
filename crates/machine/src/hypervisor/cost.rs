// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a hypervisor that places pages is made of, what its work costs, and what it did.

use serde::{Deserialize, Serialize};

use crate::cache::LINE_BYTES;
use crate::config::{ConfigError, MachineConfig};
use crate::machine::TierCost;

const PAGE_BYTES: u64 = 4096;

/// Who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// TPP on the address space of the virtual machine monitor.
    #[default]
    Tpp,
    /// Bits of the table, read and cleared at intervals: RAMinate, HeteroVisor, HeteroOS.
    Abit,
    /// After vTMM: logs of the guest's page tables.
    Vtmm,
}

/// Numbers that only some managers read.
const TPP_ONLY: &[&str] = &[
    "hint_fault_ns",
    "repeat_faults",
    "repeat_fault_ns",
    "age_page_ns",
    "ageing_flush",
    "scan_delay_ms",
    "scan_period_min_ms",
    "scan_period_max_ms",
    "scan_size_mb",
    "scan_seed",
    "demote_basis_points",
    "wake_ms",
    "host_page_kib",
];
const INTERVAL_ONLY: &[&str] = &["interval_ms", "interval_moves"];
const ABIT_ONLY: &[&str] = &["dirty_bit", "by_frequency", "exchange", "trap_table_writes"];
const VTMM_ONLY: &[&str] = &["log_entries", "table_ns", "queues"];

impl Manager {
    /// Names of the numbers that it reads, less `fmem_bytes`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let others: &[&[&str]] = match self {
            Self::Tpp => &[INTERVAL_ONLY, ABIT_ONLY, VTMM_ONLY],
            Self::Abit => &[TPP_ONLY, VTMM_ONLY],
            Self::Vtmm => &[TPP_ONLY, ABIT_ONLY],
        };
        let all = HypervisorConfig::NAMES.iter().copied();
        all.filter(move |name| !others.iter().any(|of| of.contains(name)))
    }
}

/// Defines [`HypervisorConfig`], its defaults and the names of its numbers from one list.
macro_rules! hypervisor_config {
    ($($(#[$doc:meta])* $name:ident = $default:literal, $least:literal ..= $most:literal;)*) => {
        /// A hypervisor that decides which tier the guest's pages lie in.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct HypervisorConfig {
            /// Who decides.
            pub manager: Manager,
            /// FMEM for what user addresses reach: as much as guests with a manager of their own have.
            pub fmem_bytes: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Default for HypervisorConfig {
            fn default() -> Self {
                Self { manager: Manager::default(), fmem_bytes: 0, $($name: $default,)* }
            }
        }

        impl HypervisorConfig {
            /// Names of its numbers, less `fmem_bytes`.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];

            /// Sets the number of that name; false if there is none.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            fn check(&self) -> Result<(), ConfigError> {
                $(if !($least..=$most).contains(&self.$name) {
                    return Err(ConfigError::Value {
                        field: stringify!($name),
                        value: self.$name,
                        reason: concat!("not between ", stringify!($least), " and ", stringify!($most)),
                    });
                })*
                Ok(())
            }
        }
    };
}

hypervisor_config! {
    /// FMEM in thousandths of what guests with a manager of their own have. The paper's
    /// host had 1250 (36 GiB against 28.8). Chosen: 1000, the same for all.
    fmem_permille = 1000, 100..=10_000;
    /// From the guest to the host and back: a violation, an IPI to a vCPU. Chosen: 1 µs,
    /// 3,000 to 4,000 cycles at 3.3 GHz (Linux commit b0b6a8d3be16).
    exit_ns = 1000, 0..=1_000_000;
    /// What the host does for a page that it has to map again. Chosen: 1 µs, as much as
    /// the exit: finding the slot and the host's own mapping, the lock, the entry.
    violation_ns = 1000, 0..=1_000_000;
    /// What the host's own fault adds where it has taken its mapping away. Chosen: what a
    /// hint fault takes in a guest (1000) less the exception (317); see the row `tpp-charged`.
    hint_fault_ns = 683, 0..=1_000_000;
    /// Faults that repeat while an inactive page waits for a batch of 15 to be activated.
    /// 0: a page is marked at its first hint fault, active at the second, promoted at the third.
    repeat_faults = 15, 0..=1000;
    /// What each of them costs. Chosen: 0, as in the row `tpp`: it is at most this fast.
    repeat_fault_ns = 0, 0..=1_000_000;
    /// What moving a page takes besides copying it. Chosen: 2500, somewhat less than the row
    /// `tpp` takes for it where it measures (docs/model.md).
    migrate_ns = 2500, 0..=1_000_000;
    /// INVEPT on a vCPU, on top of the exit that makes it. Chosen: as a full flush by the guest.
    invept_ns = 106, 0..=1_000_000;
    /// Taking away the mapping of a page, the host's and the guest's. Chosen: 50 ns.
    scan_page_ns = 50, 0..=1_000_000;
    /// Finding and clearing the young bit of a page, less the flush. Chosen: 500 ns: a
    /// walk from the page to its mapping, two locks.
    age_page_ns = 500, 1..=1_000_000;
    /// Whether each young page that ageing meets costs a whole flush on every vCPU (KVM
    /// before 6.13) or none.
    ageing_flush = 1, 0..=1;
    /// Share of host time that the guest pays for: 1000 is as if all cores were rented and
    /// the host had none to spare, 0 the bound.
    steal_permille = 1000, 0..=1000;
    /// Until the first scan. A tenth of Linux's, as in the guest rows.
    scan_delay_ms = 100, 0..=1_000_000;
    /// Between scans while hint faults happen, a tenth of Linux's.
    scan_period_min_ms = 100, 1..=1_000_000;
    /// It doubles up to this while none do.
    scan_period_max_ms = 6000, 1..=1_000_000;
    /// Memory scanned at once: a 25.6th of Linux's.
    scan_size_mb = 10, 1..=1_000_000;
    /// Up to which share of FMEM the host demotes, in 0.01 %: published 2 %.
    demote_basis_points = 200, 0..=5_000;
    /// How often a reclaimer that found nothing looks again, as in the row `tpp`.
    wake_ms = 10, 1..=1_000_000;
    /// Where the scan begins, from which a place is drawn; 0 is the start of memory. In the
    /// published system it has gone round for longer than a guest here lives.
    scan_seed = 0, 0..=1_000_000_000;
    /// The host's pages: 4, or 2048 as where its huge pages back the guest. They move whole.
    host_page_kib = 4, 4..=2048;
    /// How often bits or logs are looked at.
    interval_ms = 50, 1..=1_000_000;
    /// Pages that may come to FMEM in one interval. 0: the host watches only.
    interval_moves = 1_000_000, 0..=1_000_000_000;
    /// Which bit of the table tells: 0 accessed, 1 dirty.
    dirty_bit = 0, 0..=1;
    /// What ranks pages: 0 how recently the bit was found set, 1 how often.
    by_frequency = 0, 0..=1;
    /// 1: two pages change places, with one flush. 0: one goes, the other comes.
    exchange = 0, 0..=1;
    /// Whether each write to the guest's page tables is an exit, the walker's included.
    trap_table_writes = 0, 0..=1;
    /// Writes to pages that a vCPU logs until it leaves the guest (SDM vol. 3, 29.3.6).
    log_entries = 512, 1..=1_000_000;
    /// Reading a page table of the guest's, 64 lines. Chosen: 1 µs.
    table_ns = 1000, 0..=1_000_000;
    /// Queues of page tables: those of each are looked at half as often as those before.
    queues = 3, 1..=8;
}

impl HypervisorConfig {
    /// Checks every number.
    ///
    /// # Errors
    /// The first out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.fmem_bytes < PAGE_BYTES || self.fmem_bytes > 1 << 40 {
            return Err(ConfigError::Value {
                field: "fmem_bytes",
                value: self.fmem_bytes,
                reason: "not between a page and 1 TiB",
            });
        }
        if self.scan_period_max_ms < self.scan_period_min_ms {
            return Err(ConfigError::Value {
                field: "scan_period_max_ms",
                value: self.scan_period_max_ms,
                reason: "below scan_period_min_ms",
            });
        }
        self.check()?;
        if !matches!(self.host_page_kib, 4 | 2048)
            || (self.host_page_kib != 4 && self.manager != Manager::Tpp)
        {
            return Err(ConfigError::Value {
                field: "host_page_kib",
                value: self.host_page_kib,
                reason: "not 4, nor 2048 under TPP",
            });
        }
        if self.pool_bytes() < self.page_bytes() {
            return Err(ConfigError::Value {
                field: "fmem_bytes",
                value: self.fmem_bytes,
                reason: "less than a page of the host's",
            });
        }
        Ok(())
    }

    /// Size of the host's pages.
    #[must_use]
    pub const fn page_bytes(&self) -> u64 {
        self.host_page_kib << 10
    }

    /// Whether the table has pages of 2 MiB.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        self.host_page_kib == 2048
    }

    /// Checks the machine that it runs on: its table's pages are those moved.
    ///
    /// # Errors
    /// The number of the machine that does not fit.
    pub fn fits(&self, machine: &MachineConfig) -> Result<(), ConfigError> {
        let large = u64::from(self.is_large());
        for (field, value, wanted) in [
            ("nested", machine.nested, 1),
            ("ept_2m", machine.ept_2m, large),
        ] {
            if value != wanted {
                return Err(ConfigError::Value {
                    field,
                    value,
                    reason: "a hypervisor that places pages needs nested 1, and ept_2m 0 unless \
                             its own are of 2 MiB",
                });
            }
        }
        Ok(())
    }

    /// That of one of several guests that share FMEM. Monitors' scans have no common clock: they are
    /// spread over a period here, as equal ones would ask kswapd for room all at once.
    #[must_use]
    pub fn of_guest(&self, index: u64, guests: u64) -> Self {
        let phase_ms = self.scan_period_min_ms * index / guests.max(1);
        Self {
            scan_delay_ms: self.scan_delay_ms + phase_ms,
            ..self.clone()
        }
    }

    /// FMEM for managed pages.
    #[must_use]
    pub const fn pool_bytes(&self) -> u64 {
        self.fmem_bytes * self.fmem_permille / 1000
    }
}

/// Costs in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub(crate) exit_ps: u64,
    pub(crate) violation_ps: u64,
    pub(crate) hint_fault_ps: u64,
    pub(crate) repeat_fault_ps: u64,
    /// Moving a page, in either direction: lines are read from one tier and filled in the other.
    pub(crate) move_ps: u64,
    pub(crate) invept_ps: u64,
    pub(crate) scan_page_ps: u64,
    pub(crate) age_page_ps: u64,
    pub(crate) table_ps: u64,
    pub(crate) steal_permille: u64,
}

impl Costs {
    /// Of a hypervisor on a machine.
    #[must_use]
    pub fn new(config: &HypervisorConfig, machine: &MachineConfig) -> Self {
        let lines = config.page_bytes() / LINE_BYTES;
        let [fmem, smem] = TierCost::both(machine);
        Self {
            exit_ps: config.exit_ns * 1000,
            violation_ps: config.violation_ns * 1000,
            hint_fault_ps: config.hint_fault_ns * 1000,
            repeat_fault_ps: config.repeat_fault_ns * 1000,
            move_ps: config.migrate_ns * 1000 + lines * (fmem.fill_ps(true) + smem.fill_ps(true)),
            invept_ps: config.invept_ns * 1000,
            scan_page_ps: config.scan_page_ns * 1000,
            age_page_ps: config.age_page_ns * 1000,
            table_ps: config.table_ns * 1000,
            steal_permille: config.steal_permille,
        }
    }
}

/// Defines [`HypervisorCounters`] and its sum from one list.
macro_rules! hypervisor_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the hypervisor did, cumulative like the machine's counters, and what its guest has.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct HypervisorCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl HypervisorCounters {
            /// Adds what another did.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

hypervisor_counters! {
    /// 4 KiB pages of FMEM that the guest has now, of those that the hypervisor places.
    fmem_pages,
    /// Accesses to pages that the table did not map.
    violations,
    /// The part of them at pages of SMEM whose mapping the host had taken away.
    hint_faults,
    /// Faults that would have repeated until the page was active.
    repeat_faults,
    /// 4 KiB pages.
    promoted_pages,
    /// The part of them that had been demoted before.
    promoted_again_pages,
    /// 4 KiB pages.
    demoted_pages,
    /// 4 KiB pages for which FMEM had no room.
    refused_pages,
    /// Pages whose young bit was looked at.
    aged_pages,
    /// The part of them that was young.
    young_pages,
    /// Whole flushes asked for by scans.
    flush_scan,
    /// By ageing.
    flush_ageing,
    /// By moving pages.
    flush_move,
    /// Whole flushes carried out, one for each vCPU and request; by a vCPU that had halted,
    /// one when it goes on.
    invept,
    /// Exits for full logs.
    log_exits,
    /// Page tables that were logged.
    logged_tables,
    /// Exits for writes to the guest's page tables.
    table_write_exits,
    /// Lines of FMEM and SMEM that stores made dirty in the L1, where stores are followed.
    fmem_store_lines,
    /// Of SMEM.
    smem_store_lines,
    /// Time of the host's threads in scans.
    host_scan_ps,
    /// In ageing.
    host_ageing_ps,
    /// In demotion.
    host_demotion_ps,
    /// In promotion that the guest does not wait for.
    host_promotion_ps,
    /// The part of these that the guest paid.
    stolen_ps,
    /// What the guest paid for violations, promotions that it waits for, and exits of its own.
    violation_ps,
    /// What the guest paid for flushes, refills not included.
    invept_ps,
}

impl HypervisorCounters {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whole flushes asked for.
    #[must_use]
    pub const fn flushes(&self) -> u64 {
        self.flush_scan + self.flush_ageing + self.flush_move
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_ranges_and_names() {
        let mut config = HypervisorConfig {
            fmem_bytes: 128 << 20,
            ..HypervisorConfig::default()
        };
        assert_eq!(config.validate(), Ok(()));
        for name in HypervisorConfig::NAMES {
            let mut wrong = config.clone();
            assert!(wrong.set(name, u64::MAX));
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(!config.set("nonsense", 1));
        config.set("scan_period_min_ms", 7000);
        assert!(config.validate().is_err());
        assert!(HypervisorConfig::default().validate().is_err(), "no FMEM");
        let mut machine = MachineConfig::default();
        assert!(config.fits(&machine).is_err());
        machine.ept_2m = 0;
        assert_eq!(config.fits(&machine), Ok(()));
        machine.nested = 0;
        assert!(config.fits(&machine).is_err());
        assert!(serde_json::from_str::<HypervisorConfig>("{\"nonsense\":1}").is_err());
    }

    #[test]
    fn pages_of_the_host_are_of_two_sizes() {
        let mut config = HypervisorConfig {
            fmem_bytes: 128 << 20,
            host_page_kib: 2048,
            ..HypervisorConfig::default()
        };
        assert_eq!(config.validate(), Ok(()));
        let mut machine = MachineConfig {
            ept_2m: 1,
            ..MachineConfig::default()
        };
        assert_eq!(config.fits(&machine), Ok(()));
        machine.ept_2m = 0;
        assert!(config.fits(&machine).is_err());
        config.host_page_kib = 64;
        assert!(config.validate().is_err());
        config.host_page_kib = 2048;
        config.fmem_bytes = 1 << 20;
        assert!(config.validate().is_err(), "not one page");
        config.fmem_bytes = 128 << 20;
        config.manager = Manager::Vtmm;
        assert!(config.validate().is_err(), "the others' are of 4 KiB");
    }

    #[test]
    fn scans_of_several_guests_are_spread() {
        let config = HypervisorConfig::default();
        let delays = [0, 1, 2, 3].map(|index| config.of_guest(index, 4).scan_delay_ms);
        assert_eq!(delays, [100, 125, 150, 175]);
        assert_eq!(config.of_guest(0, 1), config);
    }

    #[test]
    fn a_manager_has_its_own_numbers() {
        let has = |manager: Manager, name| manager.names().any(|of| of == name);
        for manager in [Manager::Tpp, Manager::Abit, Manager::Vtmm] {
            assert!(has(manager, "exit_ns") && has(manager, "fmem_permille"));
            for name in manager.names() {
                assert!(HypervisorConfig::NAMES.contains(&name), "{name}");
            }
        }
        for (name, of) in [
            ("ageing_flush", [true, false, false]),
            ("interval_ms", [false, true, true]),
            ("dirty_bit", [false, true, false]),
            ("queues", [false, false, true]),
        ] {
            assert_eq!(
                [Manager::Tpp, Manager::Abit, Manager::Vtmm].map(|m| has(m, name)),
                of
            );
        }
        let only = [TPP_ONLY, INTERVAL_ONLY, ABIT_ONLY, VTMM_ONLY].concat();
        assert!(
            only.iter()
                .all(|name| HypervisorConfig::NAMES.contains(name))
        );
    }
}
