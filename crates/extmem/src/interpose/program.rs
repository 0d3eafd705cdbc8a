// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs for a seccomp filter, with names for where they go.

pub const LD_ABS: u16 = 0x20;
pub const LD_IMM: u16 = 0x00;
pub const LSH_X: u16 = 0x6c;
pub const AND_K: u16 = 0x54;
pub const TAX: u16 = 0x07;
pub const TXA: u16 = 0x87;
pub const JMP_JA: u16 = 0x05;
pub const JMP_JEQ: u16 = 0x15;
pub const JMP_JGT: u16 = 0x25;
pub const JMP_JGE: u16 = 0x35;
pub const JMP_JSET: u16 = 0x45;
pub const RET: u16 = 0x06;

/// One instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions passed over if a test holds.
    pub jump_true: u8,
    /// If not.
    pub jump_false: u8,
    /// A constant, or what a jump without a test passes over.
    pub value: u32,
}

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// The instruction after this one.
pub const NEXT: Option<Label> = None;

#[derive(Debug)]
struct Step {
    code: u16,
    value: u32,
    then: Option<Label>,
    otherwise: Option<Label>,
}

/// A program that is being written.
#[derive(Debug, Default)]
pub struct Program {
    steps: Vec<Step>,
    /// Of each label, once it is known.
    places: Vec<Option<usize>>,
}

impl Program {
    /// A name for a place that is still to come.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The name is that of the next instruction.
    pub fn here(&mut self, label: Label) {
        self.places[label.0] = Some(self.steps.len());
    }

    /// An instruction that goes on to the next one.
    pub fn push(&mut self, code: u16, value: u32) {
        self.test(code, value, NEXT, NEXT);
    }

    /// Loads a word of what is known of the call.
    pub fn load(&mut self, offset: u32) {
        self.push(LD_ABS, offset);
    }

    /// Goes one way or the other.
    pub fn test(&mut self, code: u16, value: u32, then: Option<Label>, otherwise: Option<Label>) {
        self.steps.push(Step {
            code,
            value,
            then,
            otherwise,
        });
    }

    /// Goes there.
    pub fn go(&mut self, label: Label) {
        self.test(JMP_JA, 0, Some(label), NEXT);
    }

    /// What the kernel is given. None if a label has no place behind all that lead to it, or
    /// one too far away: a test passes over 255 instructions at most.
    pub fn finish(&self) -> Option<Vec<Instruction>> {
        let distance = |from: usize, to: Option<Label>| match to {
            None => Some(0),
            Some(label) => self.places.get(label.0)?.as_ref()?.checked_sub(from + 1),
        };
        let instruction = |(at, step): (usize, &Step)| {
            let (then, otherwise) = (distance(at, step.then)?, distance(at, step.otherwise)?);
            if step.code == JMP_JA {
                return Some(Instruction {
                    code: JMP_JA,
                    jump_true: 0,
                    jump_false: 0,
                    value: u32::try_from(then).ok()?,
                });
            }
            Some(Instruction {
                code: step.code,
                jump_true: u8::try_from(then).ok()?,
                jump_false: u8::try_from(otherwise).ok()?,
                value: step.value,
            })
        };
        self.steps.iter().enumerate().map(instruction).collect()
    }
}
