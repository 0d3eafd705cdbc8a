// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record played once, for any number of simulations.

use std::path::Path;

use demeter_machine::MachineConfig;
use demeter_recording::{Block, Reader, Window};

use crate::simulation::{Simulation, dearer_ps};
use crate::{Error, Header, Manager, PAGE_SHIFT, Report, Tally};

/// What differs from the recorded guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// FMEM that the program may use.
    pub fmem_bytes: u64,
    /// The machine: what its tiers cost.
    pub machine: MachineConfig,
    /// Who manages.
    pub manager: Manager,
    /// Of the draw of samples.
    pub seed: u64,
}

/// What a record came to.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The recorded guest.
    pub header: Header,
    /// What the recorded part took in the guest.
    pub recorded_s: f64,
    /// Windows.
    pub windows: u64,
    /// Line fills.
    pub fills: u64,
    /// Pages that had any.
    pub pages: u64,
    /// Of each variant, in order.
    pub reports: Vec<Report>,
}

/// Plays a record for the variants that `choose` makes of its header.
///
/// # Errors
/// The record is cut short, damaged or foreign, or the core refuses a variant.
pub fn replay(
    path: &Path,
    choose: impl FnOnce(&Header) -> Result<Vec<Variant>, Error>,
) -> Result<Replayed, Error> {
    let mut reader = Reader::open(path)?;
    let header = Header::parse(reader.header())?;
    let variants = choose(&header)?;
    let simulation = |variant: &Variant, manager| {
        let (fmem_bytes, machine) = (variant.fmem_bytes, &variant.machine);
        Simulation::new(&header, fmem_bytes, machine, manager, variant.seed)
    };
    // What shares refer to: first touch, once for each machine and FMEM.
    let mut grounds: Vec<(&Variant, Simulation)> = Vec::new();
    for variant in &variants {
        if ground_of(&grounds, variant).is_none() {
            grounds.push((variant, simulation(variant, Manager::None)));
        }
    }
    let mut managed: Vec<Option<Simulation>> = (variants.iter())
        .map(|variant| match variant.manager {
            Manager::None => None,
            manager => Some(simulation(variant, manager)),
        })
        .collect();
    let mut tally = Tally::default();
    let mut window = Window::default();
    let (mut windows, mut fills, mut recorded_ps) = (0, 0, 0);
    loop {
        let block = reader.next_block(&mut window)?;
        let grounds = grounds.iter_mut().map(|(_, simulation)| simulation);
        let mut all = grounds.chain(managed.iter_mut().flatten());
        match block {
            Block::End => break,
            Block::Resident => all.for_each(|one| one.resident(reader.resident())),
            Block::Window => {
                windows += 1;
                recorded_ps = u64::saturating_add(recorded_ps, window.elapsed_ps);
                let eligible = window.rows.iter().map(|row| u64::from(row.eligible)).sum();
                let each =
                    |row: &demeter_recording::Row| u64::from(row.random) + u64::from(row.streamed);
                fills += window.rows.iter().map(each).sum::<u64>();
                tally.window(&window);
                all.try_for_each(|one| one.window(&window, eligible))?;
            }
        }
    }
    let bases: Vec<(&Variant, Report)> = (grounds.into_iter())
        .map(|(variant, simulation)| (variant, simulation.finish()))
        .collect();
    let mut reports = Vec::new();
    for (variant, simulation) in variants.iter().zip(managed) {
        let base = (bases.iter())
            .find(|(other, _)| same_ground(other, variant))
            .map(|(_, report)| report);
        let Some(base) = base else {
            continue;
        };
        let mut report = simulation.map_or_else(|| base.clone(), Simulation::finish);
        let pages = variant.fmem_bytes >> PAGE_SHIFT;
        let ideal_s = tally.ideal_ps(pages, dearer_ps(&variant.machine)) as f64 * 1e-12;
        report.compare(base.time_s, Some(ideal_s));
        reports.push(report);
    }
    Ok(Replayed {
        recorded_s: recorded_ps as f64 * 1e-12,
        windows,
        fills,
        pages: tally.pages(),
        header,
        reports,
    })
}

fn same_ground(a: &Variant, b: &Variant) -> bool {
    a.fmem_bytes == b.fmem_bytes && a.machine == b.machine
}

fn ground_of<'a>(
    grounds: &'a [(&Variant, Simulation)],
    variant: &Variant,
) -> Option<&'a Simulation> {
    (grounds.iter())
        .find(|(other, _)| same_ground(other, variant))
        .map(|(_, simulation)| simulation)
}
