// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's place among those whose modelled clocks wait for each other, when it is gone.

use std::fs::File;
use std::os::unix::fs::FileExt;

use demeter_machine::config::{POOL_LEFT, STEP_ENDED, StepConfig};

/// The guest is gone, in whatever way: nobody waits for its clock any more. What it said itself
/// when it left is what others still have to hear.
pub fn leave(step: &StepConfig) {
    let at = step.index as u64 * 8;
    let file = File::options().read(true).write(true).open(&step.path);
    // The directory may be gone too, and with it whoever would wait.
    let _ = file.and_then(|file| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at)?;
        if u64::from_ne_bytes(word) & POOL_LEFT == 0 {
            file.write_all_at(&STEP_ENDED.to_ne_bytes(), at)?;
        }
        Ok(())
    });
}

/// Which guests have come least far, of those for which others wait; none where all are gone.
pub fn behind(step: &StepConfig) -> Vec<usize> {
    let bytes = std::fs::read(&step.path).unwrap_or_default();
    let words = bytes.chunks_exact(8).take(step.guests).enumerate();
    let waited_for: Vec<(usize, u64)> = words
        .filter_map(|(guest, word)| Some((guest, u64::from_ne_bytes(word.try_into().ok()?))))
        .filter(|(_, word)| word & POOL_LEFT == 0)
        .collect();
    let least = waited_for.iter().map(|(_, word)| *word).min();
    let last = waited_for.iter().filter(|(_, word)| Some(*word) == least);
    last.map(|(guest, _)| *guest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_left_by_itself_is_left_alone() {
        let path = std::env::temp_dir().join(format!("demeter-leave-{}", std::process::id()));
        let words = [7, POOL_LEFT | 7, STEP_ENDED];
        let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_ne_bytes).collect();
        std::fs::write(&path, bytes).unwrap();
        for index in 0..4 {
            leave(&StepConfig {
                path: path.clone(),
                index,
                guests: 4,
                window_ns: 1,
            });
        }
        let bytes = std::fs::read(&path).unwrap();
        let after = bytes
            .chunks(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        assert_eq!(
            after.collect::<Vec<_>>(),
            [STEP_ENDED, POOL_LEFT | 7, STEP_ENDED]
        );
        std::fs::remove_file(&path).unwrap();
        leave(&StepConfig {
            path,
            index: 0,
            guests: 1,
            window_ns: 1,
        });
    }

    #[test]
    fn who_is_behind_is_named() {
        let path = std::env::temp_dir().join(format!("demeter-behind-{}", std::process::id()));
        let behind_of = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_ne_bytes).collect();
            std::fs::write(&path, bytes).unwrap();
            behind(&StepConfig {
                path: path.clone(),
                index: 0,
                guests: 4,
                window_ns: 1,
            })
        };
        assert_eq!(behind_of(&[9, 7, STEP_ENDED, POOL_LEFT | 3, 1]), [1]);
        assert_eq!(behind_of(&[0, 7, 0, 8]), [0, 2]);
        assert_eq!(behind_of(&[STEP_ENDED; 4]), [0; 0]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            behind(&StepConfig {
                path,
                index: 0,
                guests: 4,
                window_ns: 1
            }),
            [0; 0]
        );
    }
}
