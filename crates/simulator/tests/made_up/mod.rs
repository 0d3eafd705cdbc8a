// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records that no guest has made. Not every test uses all of this.
#![allow(dead_code)]

use std::path::Path;

use demeter_machine::{MachineConfig, Preset};
use demeter_recording::{First, Resident, Row, Run, Window, Writer};
use demeter_simulator::{Costs, Header, Manager, Params, Variant};

pub const CHUNK_PAGES: u64 = 512;
pub const SPACE: u64 = 3;
pub const WINDOW_PS: u64 = 10_000_000_000;

pub struct Shape {
    pub chunks: u64,
    /// These are accessed much more than all others together.
    pub hot: std::ops::Range<u64>,
    /// The first ones are in FMEM, huge.
    pub fmem_chunks: u64,
    pub windows: u64,
    /// Of these, only every so many is ever accessed.
    pub cold_step: u64,
    /// After so many windows the hot part is one to the left or back, 0: it stays.
    pub flip_windows: u64,
    /// Line fills of a hot page in a window.
    pub hot_fills: u32,
}

pub const SMALL: Shape = Shape {
    chunks: 64,
    hot: 56..60,
    fmem_chunks: 8,
    windows: 100,
    cold_step: 1,
    flip_windows: 0,
    hot_fills: 20,
};

impl Shape {
    pub fn header(&self) -> Header {
        let bytes = |chunks: u64| chunks << 21;
        Header {
            command: vec!["made-up".into()],
            tier_bytes: [self.fmem_chunks, self.chunks - self.fmem_chunks].map(bytes),
            node_bytes: [self.fmem_chunks + 64, self.chunks].map(bytes),
            huge_pages: true,
            window_ns: WINDOW_PS / 1000,
            threshold_ns: 64,
            machine: MachineConfig::preset(Preset::Pmem),
        }
    }

    pub fn write(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header()).unwrap();
        let mut writer = Writer::create(path, &header).unwrap();
        let run = |from: u64, to: u64, slow| Run {
            page: from * CHUNK_PAGES,
            pages: (to - from) * CHUNK_PAGES,
            first: First { slow, huge: true },
        };
        let resident = Resident {
            space: SPACE,
            runs: vec![
                run(0, self.fmem_chunks, false),
                run(self.fmem_chunks, self.chunks, true),
            ],
        };
        writer.resident(&resident).unwrap();
        let row = |page, count| Row {
            page,
            random: count,
            streamed: 0,
            eligible: count,
            first: None,
        };
        for number in 0..self.windows {
            let mut rows = Vec::new();
            let hot = match number.checked_div(self.flip_windows) {
                Some(flips) if flips % 2 == 1 => {
                    let chunks = self.hot.end - self.hot.start;
                    self.hot.start - chunks..self.hot.start
                }
                _ => self.hot.clone(),
            };
            for chunk in (0..self.chunks).step_by(self.cold_step as usize) {
                if !hot.contains(&chunk) {
                    rows.push(row(chunk * CHUNK_PAGES + number % CHUNK_PAGES, 60));
                }
            }
            for page in hot.start * CHUNK_PAGES..hot.end * CHUNK_PAGES {
                rows.push(row(page, self.hot_fills));
            }
            rows.sort_by_key(|row| row.page);
            let window = Window {
                base_ps: WINDOW_PS,
                elapsed_ps: 2 * WINDOW_PS,
                walks: [(0, 0); 2],
                spaces: vec![(SPACE, rows.len())],
                rows,
            };
            writer.window(&window).unwrap();
        }
        writer.finish().unwrap();
    }
}

pub fn params() -> Params {
    Params {
        epoch_ms: 50,
        sample_period: 401,
        ..Params::default()
    }
}

pub fn demeter(header: &Header, fmem_bytes: u64) -> Variant {
    Variant {
        fmem_bytes,
        machine: header.machine.clone(),
        manager: Manager::Demeter(params(), Costs::testbed(&header.machine)),
        seed: 0,
    }
}

pub fn recorded(shape: &Shape) -> (tempfile::TempDir, std::path::PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("accesses.bin");
    shape.write(&path);
    (place, path)
}
