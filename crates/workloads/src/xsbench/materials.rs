// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The twelve materials of the Hoogenboom-Martin reactor: their nuclides, how
//! often a particle is in them, and how much of each nuclide they hold.

use super::lcg::Lcg;

/// Number of materials.
pub const COUNT: usize = 12;
/// Nuclides of the small reactor.
pub const SMALL_NUCLIDES: usize = 68;
/// Nuclides of the large reactor.
pub const LARGE_NUCLIDES: usize = 355;
/// Fuel nuclides of the large reactor.
const LARGE_FUEL: usize = 321;

const FUEL: [u32; 34] = [
    58, 59, 60, 61, 40, 42, 43, 44, 45, 46, 1, 2, 3, 7, 8, 9, 10, 29, 57, 47, 48, 0, 62, 15, 33,
    34, 52, 53, 54, 55, 56, 18, 23, 41,
];
const CLADDING: [u32; 5] = [63, 64, 65, 66, 67];
const BORATED_WATER: [u32; 4] = [24, 41, 4, 5];
const VESSEL: [u32; 27] = [
    19, 20, 21, 22, 35, 36, 37, 38, 39, 25, 27, 28, 29, 30, 31, 32, 26, 49, 50, 51, 11, 12, 13, 14,
    6, 16, 17,
];
const REFLECTOR: [u32; 21] = [
    24, 41, 4, 5, 19, 20, 21, 22, 35, 36, 37, 38, 39, 25, 49, 50, 51, 11, 12, 13, 14,
];
const ASSEMBLY_ENDS: [u32; 9] = [24, 41, 4, 5, 63, 64, 65, 66, 67];

/// Share of the core's volume, by material.
const VOLUME: [f64; COUNT] = [
    0.140, 0.052, 0.275, 0.134, 0.154, 0.064, 0.066, 0.055, 0.008, 0.015, 0.025, 0.013,
];

/// What one material is made of.
#[derive(Clone, Debug, Default)]
pub struct Material {
    /// Nuclides and their concentrations
    pub nuclides: Vec<(u32, f64)>,
}

/// All materials of a reactor with this number of nuclides.
pub fn all(nuclides: usize, seed: u64) -> Vec<Material> {
    let mut fuel = FUEL.to_vec();
    if nuclides != SMALL_NUCLIDES {
        let more = LARGE_FUEL - FUEL.len();
        fuel.extend((SMALL_NUCLIDES..SMALL_NUCLIDES + more).map(|nuclide| nuclide as u32));
    }
    let lists: [&[u32]; COUNT] = [
        &fuel,
        &CLADDING,
        &BORATED_WATER,
        &BORATED_WATER,
        &VESSEL,
        &REFLECTOR,
        &REFLECTOR,
        &REFLECTOR,
        &REFLECTOR,
        &REFLECTOR,
        &ASSEMBLY_ENDS,
        &ASSEMBLY_ENDS,
    ];
    let mut random = Lcg(seed);
    lists
        .iter()
        .map(|list| Material {
            nuclides: list
                .iter()
                .map(|&nuclide| (nuclide, random.unit()))
                .collect(),
        })
        .collect()
}

/// The material a particle is in. As published, fuel is what the others leave,
/// and shares are added up from the last material down: the rounding is part of
/// the checksum.
#[inline]
pub fn pick(random: &mut Lcg) -> usize {
    const UP_TO: [f64; COUNT] = {
        let mut up_to = [0.0; COUNT];
        let mut material = 1;
        while material < COUNT {
            let mut added = material;
            while added > 0 {
                up_to[material] += VOLUME[added];
                added -= 1;
            }
            material += 1;
        }
        up_to
    };
    let roll = random.unit();
    UP_TO.iter().position(|&up_to| roll < up_to).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nuclides_exist_and_are_named_once() {
        for (nuclides, fuel) in [(SMALL_NUCLIDES, 34), (LARGE_NUCLIDES, 321)] {
            let materials = all(nuclides, 1);
            assert_eq!(materials[0].nuclides.len(), fuel);
            for material in &materials {
                let mut names: Vec<u32> = material.nuclides.iter().map(|one| one.0).collect();
                assert!(names.iter().all(|&name| (name as usize) < nuclides));
                names.sort_unstable();
                assert!(names.is_sorted_by(|a, b| a < b));
            }
        }
    }
}
