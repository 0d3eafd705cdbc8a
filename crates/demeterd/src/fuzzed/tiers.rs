// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A monitor's memory table, against tiers as an operator wrote them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use demeter_balloon::regions::Piece;
use demeter_balloon::wire::PAGE_SHIFT;

use super::Input;
use crate::spec::{Description, Tier};
use crate::tiers::{Handed, look, matched};

/// In pages; the last one ends inside a page.
const LENGTHS: [u64; 4] = [16, 16, 64, 8];

struct Ground {
    directory: tempfile::TempDir,
    files: Vec<Arc<File>>,
}

thread_local! {
    static GROUND: RefCell<Option<Ground>> = const { RefCell::new(None) };
}

impl Ground {
    fn new() -> Self {
        let directory = super::directory();
        let make = |(at, pages): (usize, &u64)| {
            let path = directory.path().join(at.to_string());
            let file = (File::options().create_new(true).read(true).write(true)).open(path);
            let file = file.expect("a memory file");
            let odd = u64::from(at == LENGTHS.len() - 1);
            file.set_len((pages << PAGE_SHIFT) + odd).expect("room");
            Arc::new(file)
        };
        let files = LENGTHS.iter().enumerate().map(make).collect();
        Self { directory, files }
    }
}

/// Whether all of it fitted.
pub fn run(data: &[u8]) -> bool {
    GROUND.with_borrow_mut(|ground| judge(ground.get_or_insert_with(Ground::new), data))
}

fn judge(ground: &Ground, data: &[u8]) -> bool {
    let mut input = Input(data);
    let folder = ground.directory.path().display().to_string();
    let tier = |input: &mut Input<'_>| {
        let kind = input.byte();
        let list: Vec<String> = (0..=kind >> 6)
            .map(|_| {
                let (from, pages) = (input.number(), input.number());
                let to = from.wrapping_add(pages).wrapping_mul(0x1000);
                format!("{:#x}-{to:#x}", from.wrapping_mul(0x1000))
            })
            .collect();
        match kind % 8 {
            0..=5 => format!("{folder}/{}", kind % 6),
            _ => format!("gpa:{}", list.join("+")),
        }
    };
    let line = format!(
        "a,socket=/s,fmem={},smem={}",
        tier(&mut input),
        tier(&mut input)
    );
    let Ok(spec) = Description::parse(&line).and_then(|words| words.finish(&BTreeMap::new()))
    else {
        return false;
    };
    let mut handed = Vec::new();
    while !input.is_empty() && handed.len() < 600 {
        let shape = input.byte();
        let unit = if shape & 4 == 0 { PAGE_SHIFT } else { 0 };
        handed.push(Handed {
            gpa: input.number().wrapping_shl(unit),
            length_bytes: input.number().wrapping_shl(unit),
            file: ground.files[usize::from(shape & 3)].clone(),
            offset_bytes: input.number().wrapping_shl(unit),
        });
    }
    let matched = matched(&look(&spec.tiers), &handed);
    let regions = matched.regions.as_slice();
    for (at, region) in regions.iter().enumerate() {
        let origin = &handed[region.backing];
        let metadata = origin.file.metadata().expect("a file");
        let length_bytes = region.nr_pages << PAGE_SHIFT;
        let gpa = region.first_page << PAGE_SHIFT;
        // Inside its file, at the place that the monitor said, and of a tier that names it.
        assert!(region.nr_pages > 0);
        assert!(region.offset_bytes + length_bytes <= metadata.len());
        assert!(gpa >= origin.gpa && gpa + length_bytes <= origin.gpa + origin.length_bytes);
        assert_eq!(region.offset_bytes - origin.offset_bytes, gpa - origin.gpa);
        match &spec.tiers[usize::from(region.node)] {
            Tier::Files(paths) => assert!(paths.iter().any(|path| {
                std::fs::metadata(path).is_ok_and(|named| named.ino() == metadata.ino())
            })),
            Tier::Addresses(ranges) => {
                assert!((ranges.iter()).any(|(from, to)| gpa >= *from && gpa + length_bytes <= *to))
            }
        }
        // No page of the guest is there twice.
        for other in &regions[..at] {
            let end =
                |region: &demeter_balloon::regions::Region| region.first_page + region.nr_pages;
            assert!(end(other) <= region.first_page || end(region) <= other.first_page);
        }
        let piece = Piece {
            backing: region.backing,
            offset_bytes: region.offset_bytes,
            length_bytes,
        };
        matched.files.punch(piece).expect("a hole in a file");
        assert_eq!(
            origin.file.metadata().expect("a file").len(),
            metadata.len()
        );
    }
    matched.problem.is_none()
}
