// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes of slots: so many that little is lost inside a slot, each chosen so that a span
//! holds a whole number of slots and hardly anything else.

use super::MOST_BYTES;

/// Bytes of a span.
pub const SPAN_BYTES: usize = 64 << 10;
/// What of a slot is before the object: the header of `slab.rs`.
pub const HEADER_BYTES: usize = 16;
/// The smallest slot.
const LEAST_BYTES: usize = 64;
/// Slots of a span at most.
pub const MOST_SLOTS: usize = SPAN_BYTES / LEAST_BYTES;
/// Sizes are multiples of this.
const UNIT_BYTES: usize = 8;
/// The next size is larger by this, or by one part in `STEP_SHARE`.
const STEP_BYTES: usize = 24;
const STEP_SHARE: usize = 64;

/// Number of classes.
pub const CLASSES: usize = count();
/// Bytes of a slot, by class.
const SIZES: [u16; CLASSES] = sizes();

/// The size after `size_bytes`.
const fn next(size_bytes: usize) -> usize {
    let step = if size_bytes / STEP_SHARE > STEP_BYTES {
        size_bytes / STEP_SHARE
    } else {
        STEP_BYTES
    };
    let slots = SPAN_BYTES / (size_bytes + step);
    SPAN_BYTES / slots / UNIT_BYTES * UNIT_BYTES
}

const fn count() -> usize {
    let mut size_bytes = LEAST_BYTES;
    let mut count = 1;
    while size_bytes < MOST_BYTES + HEADER_BYTES {
        size_bytes = next(size_bytes);
        count += 1;
    }
    count
}

const fn sizes() -> [u16; CLASSES] {
    let mut sizes = [LEAST_BYTES as u16; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        sizes[class] = next(sizes[class - 1] as usize) as u16;
        class += 1;
    }
    sizes
}

/// The class for so many bytes, header included.
pub fn class_for(bytes: usize) -> usize {
    SIZES.partition_point(|&size| usize::from(size) < bytes)
}

/// Bytes of a slot.
pub fn slot_bytes(class: usize) -> usize {
    usize::from(SIZES[class])
}

/// Slots of a span.
pub fn slots(class: usize) -> usize {
    SPAN_BYTES / slot_bytes(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_lost_inside_slots_and_at_the_end_of_spans() {
        let largest = MOST_BYTES + HEADER_BYTES;
        let (mut lost, mut stored) = (0, 0);
        for bytes in LEAST_BYTES..=largest {
            let class = class_for(bytes);
            assert!(slot_bytes(class) >= bytes);
            assert!(class == 0 || slot_bytes(class - 1) < bytes);
            assert!(slots(class) <= MOST_SLOTS);
            let taken = SPAN_BYTES / slots(class);
            lost += taken - bytes;
            stored += taken;
            assert!((taken - bytes) * 3 < taken, "{bytes}");
        }
        assert!(lost * 100 < stored * 4, "{lost} of {stored}");
    }
}
