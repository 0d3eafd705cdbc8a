// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the few x86-64 instructions the model must see: those that change
//! translations, and the control NOP.

use demeter_machine::bar::Op;

/// Register number as instructions encode it: 0 = RAX, 7 = RDI, 15 = R15.
pub type Gpr = u8;

/// An instruction of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insn {
    /// `mov %reg, %cr3`.
    WriteCr3(Gpr),
    /// `mov %reg, %cr4`.
    WriteCr4(Gpr),
    /// `invlpg mem`.
    Invlpg(Operand),
    /// `invpcid mem, %reg`: the register holds the kind.
    Invpcid(Gpr),
    /// The control NOP.
    Control(Op),
    /// `rdpmc`.
    ReadCounter,
    /// `pause`.
    Pause,
    /// `hlt`.
    Halt,
}

/// A memory operand: base + index * scale + displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Base register.
    pub base: Option<Gpr>,
    /// Index register and the logarithm of its scale.
    pub index: Option<(Gpr, u8)>,
    /// Displacement.
    pub displacement: i32,
}

impl Operand {
    /// The address, given the registers.
    pub fn address(self, mut register: impl FnMut(Gpr) -> u64) -> u64 {
        let base = self.base.map_or(0, &mut register);
        let index = self
            .index
            .map_or(0, |(index, scale)| register(index) << scale);
        base.wrapping_add(index)
            .wrapping_add(i64::from(self.displacement) as u64)
    }

    /// As one word, for a callback's argument.
    pub fn pack(self) -> u64 {
        let base = self.base.map_or(31, u64::from);
        let (index, scale) = self.index.map_or((31, 0), |(index, scale)| {
            (u64::from(index), u64::from(scale))
        });
        u64::from(self.displacement as u32) << 32 | scale << 10 | index << 5 | base
    }

    /// The inverse of [`Operand::pack`].
    pub fn unpack(word: u64) -> Self {
        let register = |bits: u64| (bits & 31 != 31).then_some((bits & 15) as Gpr);
        Self {
            base: register(word),
            index: register(word >> 5).map(|index| (index, (word >> 10 & 3) as u8)),
            displacement: (word >> 32) as u32 as i32,
        }
    }
}

/// Decodes one instruction; `None` for all others.
pub fn decode(bytes: &[u8]) -> Option<Insn> {
    let mut rest = bytes;
    let mut operand_size = false;
    let mut repeat = false;
    let mut elsewhere = false;
    while let [
        prefix @ (0x66 | 0x67 | 0xf2 | 0xf3 | 0xf0 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65),
        tail @ ..,
    ] = rest
    {
        operand_size |= *prefix == 0x66;
        repeat |= *prefix == 0xf3;
        // Addresses of 32 bits, or relative to FS or GS.
        elsewhere |= matches!(*prefix, 0x67 | 0x64 | 0x65);
        rest = tail;
    }
    let mut rex = 0;
    if let [byte @ 0x40..=0x4f, tail @ ..] = rest {
        rex = *byte;
        rest = tail;
    }
    let rex_b = (rex & 1) << 3;
    let rex_r = (rex & 4) << 1;
    match *rest {
        [0x0f, 0x1f, 0x84, 0x00, a, b, c, d] => {
            Op::from_immediate(u32::from_le_bytes([a, b, c, d])).map(Insn::Control)
        }
        [0x0f, 0x22, modrm, ..] => {
            let register = (modrm & 7) | rex_b;
            match (modrm >> 3 & 7) | rex_r {
                3 => Some(Insn::WriteCr3(register)),
                4 => Some(Insn::WriteCr4(register)),
                _ => None,
            }
        }
        [0x0f, 0x01, modrm, ref tail @ ..] if modrm >> 3 & 7 == 7 && modrm >> 6 != 3 => {
            let operand = operand(modrm, tail, rex).filter(|_| !elsewhere);
            Some(Insn::Invlpg(operand.unwrap_or(UNKNOWN_OPERAND)))
        }
        [0x0f, 0x38, 0x82, modrm, ..] if operand_size => {
            Some(Insn::Invpcid((modrm >> 3 & 7) | rex_r))
        }
        [0x0f, 0x33, ..] => Some(Insn::ReadCounter),
        [0x90] if repeat && rex & 1 == 0 => Some(Insn::Pause),
        [0xf4] => Some(Insn::Halt),
        _ => None,
    }
}

/// Of an INVLPG whose operand is not decoded: it flushes everything.
pub const UNKNOWN_OPERAND: Operand = Operand {
    base: None,
    index: None,
    displacement: 0,
};

fn operand(modrm: u8, tail: &[u8], rex: u8) -> Option<Operand> {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let mut tail = tail;
    let mut base = Some(rm | (rex & 1) << 3);
    let mut index = None;
    let mut wide = mode == 2;
    if rm == 4 {
        let [sib, rest @ ..] = tail else { return None };
        tail = rest;
        base = Some((sib & 7) | (rex & 1) << 3);
        let number = (sib >> 3 & 7) | (rex & 2) << 2;
        if number != 4 {
            index = Some((number, sib >> 6));
        }
        if sib & 7 == 5 && mode == 0 {
            base = None;
            wide = true;
        }
    } else if rm == 5 && mode == 0 {
        // Relative to RIP: Linux has no such INVLPG.
        return Some(UNKNOWN_OPERAND);
    }
    let displacement = match (wide, mode) {
        (true, _) => i32::from_le_bytes(tail.get(..4)?.try_into().ok()?),
        (false, 1) => i32::from(*tail.first()? as i8),
        _ => 0,
    };
    Some(Operand {
        base,
        index,
        displacement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_registers() {
        assert_eq!(decode(&[0x0f, 0x22, 0xdf]), Some(Insn::WriteCr3(7))); // mov %rdi,%cr3
        assert_eq!(decode(&[0x41, 0x0f, 0x22, 0xdc]), Some(Insn::WriteCr3(12))); // mov %r12,%cr3
        assert_eq!(decode(&[0x0f, 0x22, 0xe0]), Some(Insn::WriteCr4(0))); // mov %rax,%cr4
        assert_eq!(decode(&[0x44, 0x0f, 0x22, 0xc0]), None); // mov %rax,%cr8
        assert_eq!(decode(&[0x0f, 0x20, 0xd8]), None); // mov %cr3,%rax
    }

    #[test]
    fn invalidations() {
        let simple = |base| {
            Insn::Invlpg(Operand {
                base: Some(base),
                index: None,
                displacement: 0,
            })
        };
        assert_eq!(decode(&[0x0f, 0x01, 0x3f]), Some(simple(7))); // invlpg (%rdi)
        assert_eq!(decode(&[0x41, 0x0f, 0x01, 0x3c, 0x24]), Some(simple(12))); // invlpg (%r12)
        assert_eq!(
            decode(&[0x0f, 0x01, 0x7c, 0x88, 0xf0]), // invlpg -16(%rax,%rcx,4)
            Some(Insn::Invlpg(Operand {
                base: Some(0),
                index: Some((1, 2)),
                displacement: -16
            }))
        );
        assert_eq!(
            decode(&[0x0f, 0x01, 0xb8 | 3, 0, 1, 0, 0]), // invlpg 0x100(%rbx)
            Some(Insn::Invlpg(Operand {
                base: Some(3),
                index: None,
                displacement: 256
            }))
        );
        assert_eq!(decode(&[0x0f, 0x01, 0xf8]), None); // swapgs
        assert_eq!(decode(&[0x67, 0x0f, 0x01, 0xf8]), None);
        assert_eq!(
            decode(&[0x66, 0x0f, 0x38, 0x82, 0x04, 0x24]),
            Some(Insn::Invpcid(0))
        );
    }

    #[test]
    fn an_operand_that_is_not_understood_flushes() {
        for bytes in [
            &[0x67, 0x0f, 0x01, 0x38][..], // invlpg (%eax)
            &[0x65, 0x0f, 0x01, 0x38],     // invlpg %gs:(%rax)
            &[0x64, 0x67, 0x0f, 0x01, 0x38],
            &[0x0f, 0x01, 0x3d, 0, 0, 0, 0], // invlpg 0(%rip)
            &[0x0f, 0x01, 0x3c],             // cut short
            &[0x0f, 0x01, 0x78],
            &[0x0f, 0x01, 0xb8, 0, 0],
        ] {
            let found = decode(bytes);
            assert_eq!(found, Some(Insn::Invlpg(UNKNOWN_OPERAND)), "{bytes:x?}");
        }
    }

    #[test]
    fn control_nop() {
        assert_eq!(
            decode(&[0x0f, 0x1f, 0x84, 0x00, 0x01, 0x00, 0xb5, 0x5e]),
            Some(Insn::Control(Op::ModelOn))
        );
        assert_eq!(decode(&[0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0]), None);
    }

    #[test]
    fn pause_is_told_from_its_relatives() {
        assert_eq!(decode(&[0xf3, 0x90]), Some(Insn::Pause));
        assert_eq!(decode(&[0xf4]), Some(Insn::Halt));
        assert_eq!(decode(&[0x0f, 0xf4, 0xc1]), None); // pmuludq
        assert_eq!(decode(&[0x90]), None); // nop
        assert_eq!(decode(&[0xf3, 0x41, 0x90]), None); // xchg %rax,%r8
    }

    #[test]
    fn address_of_an_operand() {
        let operand = Operand {
            base: Some(0),
            index: Some((1, 3)),
            displacement: -8,
        };
        assert_eq!(
            operand.address(|register| if register == 0 { 0x1000 } else { 2 }),
            0x1008
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..16)) {
            if let Some(Insn::Invlpg(operand)) = decode(&bytes) {
                prop_assert_eq!(Operand::unpack(operand.pack()), operand);
            }
        }
    }
}
