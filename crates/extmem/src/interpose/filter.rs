// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The filter: which system calls of the program are trapped.
//!
//! It outlives an exec, so it must do no harm to a program image that has no pager.
//! Calls are therefore trapped on one of two grounds only: an argument that may be a pointer
//! (`pointers.rs`) points into the arena (which exists nowhere else), or the call comes from the text of the C library
//! of *this* image (which lies elsewhere in the next). Three calls are refused outright,
//! as an older kernel would: `clone3` (the C library falls back to `clone`, whose flags a
//! filter can see) and the set-up of io_uring and kernel AIO, whose requests point to
//! memory that a filter cannot see.

use super::pointers::KNOWN;
use crate::pager::{ARENA_BASE, ARENA_MOST_BYTES};
use crate::{descriptor, stub, syscall};

const LD_ABS: u16 = 0x20;
const JMP_JA: u16 = 0x05;
const JMP_JEQ: u16 = 0x15;
const JMP_JGT: u16 = 0x25;
const JMP_JGE: u16 = 0x35;
const JMP_JSET: u16 = 0x45;
const RET: u16 = 0x06;

const RET_TRAP: u32 = 0x0003_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ALLOW: u32 = 0x7fff_0000;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const X32_BIT: u32 = 0x4000_0000;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_POINTER_LOW: u32 = 8;
const OFFSET_POINTER_HIGH: u32 = 12;

const fn argument_low(index: u32) -> u32 {
    16 + 8 * index
}

const fn argument_high(index: u32) -> u32 {
    20 + 8 * index
}

/// mmap flags that leave a mapping to the kernel.
const LEFT_ALONE: i32 = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_SHARED
    | libc::MAP_STACK
    | libc::MAP_GROWSDOWN
    | libc::MAP_LOCKED
    | libc::MAP_HUGETLB
    | libc::MAP_32BIT;

/// Calls whose arguments lead to further pointers: always looked at.
const NESTED: &[libc::c_long] = &[
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_vmsplice,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// Calls that are looked at whatever they say.
const ALWAYS: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_fork,
    libc::SYS_close_range,
    libc::SYS_mlockall,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigsuspend,
];

/// Calls looked at if the argument of that number is not zero.
const IF_GIVEN: &[(libc::c_long, u32)] = &[
    (libc::SYS_rt_sigprocmask, 1),
    (libc::SYS_rt_sigaction, 1),
    (libc::SYS_ppoll, 3),
    (libc::SYS_pselect6, 5),
    (libc::SYS_epoll_pwait, 4),
    (libc::SYS_epoll_pwait2, 4),
];

/// Calls that name a descriptor in the argument of that number.
const CLOSING: &[(libc::c_long, u32)] = &[
    (libc::SYS_close, 0),
    (libc::SYS_dup2, 1),
    (libc::SYS_dup3, 1),
];

/// Calls without pointers: what is left in argument registers means nothing.
const HARMLESS: &[libc::c_long] = &[
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_yield,
    libc::SYS_vfork,
    libc::SYS_pause,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_lseek,
    libc::SYS_restart_syscall,
];

/// One instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    value: u32,
}

/// Builds a program whose tests end in a verdict or fall through.
#[derive(Debug, Default)]
struct Program {
    code: Vec<Instruction>,
}

impl Program {
    fn push(&mut self, code: u16, jump_true: u8, jump_false: u8, value: u32) {
        self.code.push(Instruction {
            code,
            jump_true,
            jump_false,
            value,
        });
    }

    fn load(&mut self, offset: u32) {
        self.push(LD_ABS, 0, 0, offset);
    }

    fn verdict(&mut self, verdict: u32) {
        self.push(RET, 0, 0, verdict);
    }

    /// If the loaded word equals any of the numbers: the verdict.
    fn any_of(&mut self, numbers: &[libc::c_long], verdict: u32) {
        for &number in numbers {
            self.push(JMP_JEQ, 0, 1, number as u32);
            self.verdict(verdict);
        }
    }

    /// If the loaded word equals `number`: the instructions of `then`, which may fall
    /// out at their end with another word loaded; `reload` is loaded then.
    fn when(&mut self, number: libc::c_long, then: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        then(&mut inner);
        inner.load(OFFSET_NUMBER);
        let skip = inner.code.len();
        if skip < 256 {
            self.push(JMP_JEQ, 0, skip as u8, number as u32);
        } else {
            self.push(JMP_JEQ, 1, 0, number as u32);
            self.push(JMP_JA, 0, 0, skip as u32);
        }
        self.code.extend(inner.code);
    }
}

/// What the filter depends on.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Text of the C library: first and one past the last byte.
    pub library: (usize, usize),
    /// Anonymous mappings from this size on are the pager's.
    pub min_bytes: usize,
}

/// The filter's instructions.
pub fn build(terms: Terms) -> Vec<Instruction> {
    let mut program = Program::default();
    program.load(OFFSET_ARCH);
    program.push(JMP_JEQ, 1, 0, AUDIT_ARCH_X86_64);
    program.verdict(RET_ALLOW);
    program.load(OFFSET_POINTER_HIGH);
    program.push(JMP_JEQ, 0, 1, stub::ADDRESS_HIGH);
    program.verdict(RET_ALLOW);
    program.load(OFFSET_NUMBER);
    program.push(JMP_JSET, 0, 1, X32_BIT);
    program.verdict(RET_ALLOW);
    program.any_of(HARMLESS, RET_ALLOW);
    program.any_of(
        &[
            libc::SYS_clone3,
            libc::SYS_io_uring_setup,
            libc::SYS_io_setup,
        ],
        RET_ERRNO | libc::ENOSYS as u32,
    );
    // A new thread: its stack may lie in the arena, which a trap could not honour.
    program.when(libc::SYS_clone, |then| {
        then.load(argument_low(0));
        then.push(JMP_JSET, 0, 1, libc::CLONE_VM as u32);
        then.verdict(RET_ALLOW);
    });
    let (first, last) = ((ARENA_BASE >> 32) as u32, {
        ((ARENA_BASE + ARENA_MOST_BYTES - 1) >> 32) as u32
    });
    let trap_arena = |arguments| {
        let mut program = Program::default();
        for index in 0..arguments {
            program.load(argument_high(index));
            program.push(JMP_JGE, 0, 2, first);
            program.push(JMP_JGT, 1, 0, last);
            program.verdict(RET_TRAP);
        }
        program
    };
    // The pager makes some of these outside its own door, with SIGSYS blocked, where a trap
    // ends the process, too: the C library's clock, and lines that are written.
    let mut rest = trap_arena(6);
    for known in KNOWN.iter().rev() {
        let mut block = trap_arena(known.arguments);
        // Past what is looked at in calls that are not known.
        block.push(JMP_JA, 0, 0, rest.code.len() as u32);
        let mut group = Program::default();
        for (at, &number) in known.calls.iter().enumerate() {
            // To the block, past the numbers that are left and the jump behind them.
            group.push(JMP_JEQ, (known.calls.len() - at) as u8, 0, number as u32);
        }
        group.push(JMP_JA, 0, 0, block.code.len() as u32);
        group.code.extend(block.code);
        group.code.extend(rest.code);
        rest = group;
    }
    program.code.extend(rest.code);
    only_from(&mut program, terms.library);
    program.load(OFFSET_NUMBER);
    program.any_of(NESTED, RET_TRAP);
    program.any_of(ALWAYS, RET_TRAP);
    // What is left of clone makes a process.
    program.any_of(&[libc::SYS_clone], RET_TRAP);
    for &(number, argument) in IF_GIVEN {
        program.when(number, |then| {
            then.load(argument_low(argument));
            then.push(JMP_JEQ, 1, 0, 0);
            then.verdict(RET_TRAP);
            then.load(argument_high(argument));
            then.push(JMP_JEQ, 1, 0, 0);
            then.verdict(RET_TRAP);
        });
    }
    // Even a question about these two must not be answered with our handlers.
    program.when(libc::SYS_rt_sigaction, |then| {
        then.load(argument_low(0));
        then.any_of(&[libc::SIGBUS.into(), libc::SIGSYS.into()], RET_TRAP);
    });
    let descriptors = descriptor::block();
    for &(number, argument) in CLOSING {
        program.when(number, |then| {
            then.load(argument_low(argument));
            then.push(JMP_JGE, 0, 2, descriptors.start as u32);
            then.push(JMP_JGE, 1, 0, descriptors.end as u32);
            then.verdict(RET_TRAP);
        });
    }
    program.when(libc::SYS_mmap, |then| {
        then.load(argument_low(3));
        then.push(JMP_JSET, 0, 1, LEFT_ALONE as u32);
        then.verdict(RET_ALLOW);
        then.push(JMP_JSET, 1, 0, libc::MAP_ANONYMOUS as u32);
        then.verdict(RET_ALLOW);
        then.load(argument_low(2));
        then.push(JMP_JSET, 0, 1, libc::PROT_EXEC as u32);
        then.verdict(RET_ALLOW);
        then.load(argument_high(1));
        then.push(JMP_JEQ, 1, 0, 0);
        then.verdict(RET_TRAP);
        then.load(argument_low(1));
        let smallest = u32::try_from(terms.min_bytes).unwrap_or(u32::MAX);
        then.push(JMP_JGE, 0, 1, smallest);
        then.verdict(RET_TRAP);
    });
    program.verdict(RET_ALLOW);
    program.code
}

/// Lets everything pass that does not come from the library's text.
fn only_from(program: &mut Program, (start, end): (usize, usize)) {
    let last = end - 1;
    let (start_high, last_high) = ((start >> 32) as u32, (last >> 32) as u32);
    program.load(OFFSET_POINTER_HIGH);
    if start_high == last_high {
        program.push(JMP_JEQ, 1, 0, start_high);
        program.verdict(RET_ALLOW);
        program.load(OFFSET_POINTER_LOW);
        program.push(JMP_JGE, 1, 0, start as u32);
        program.verdict(RET_ALLOW);
        program.push(JMP_JGT, 0, 1, last as u32);
        program.verdict(RET_ALLOW);
        return;
    }
    // The text crosses a 4 GiB line.
    program.push(JMP_JEQ, 0, 4, start_high);
    program.load(OFFSET_POINTER_LOW);
    program.push(JMP_JGE, 1, 0, start as u32);
    program.verdict(RET_ALLOW);
    program.push(JMP_JA, 0, 0, 5);
    program.push(JMP_JEQ, 1, 0, last_high);
    program.verdict(RET_ALLOW);
    program.load(OFFSET_POINTER_LOW);
    program.push(JMP_JGT, 0, 1, last as u32);
    program.verdict(RET_ALLOW);
}

/// Puts the filter in force for all threads, for good.
pub fn install(code: &[Instruction]) -> Result<(), i32> {
    #[repr(C)]
    struct Handed {
        length: u16,
        code: *const Instruction,
    }
    const SET_MODE_FILTER: usize = 1;
    const FLAG_TSYNC: usize = 1;
    let handed = Handed {
        length: code.len() as u16,
        code: code.as_ptr(),
    };
    let attempt = || {
        // SAFETY: a valid program of that length.
        unsafe {
            syscall::call(
                libc::SYS_seccomp,
                [
                    SET_MODE_FILTER,
                    FLAG_TSYNC,
                    &raw const handed as usize,
                    0,
                    0,
                    0,
                ],
            )
        }
    };
    let mut result = attempt();
    if result == -(libc::EACCES as isize) {
        // Unprivileged: only with a promise to gain no privileges through exec.
        // SAFETY: no pointers.
        unsafe {
            syscall::call(
                libc::SYS_prctl,
                [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0],
            );
        }
        result = attempt();
    }
    match result {
        0 => Ok(()),
        // With TSYNC a positive result is a thread that could not follow.
        1.. => Err(libc::ESRCH),
        error => Err(-error as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: (usize, usize) = (0x7f12_3450_0000, 0x7f12_3468_0000);
    const INSIDE: usize = 0x7f12_3455_1234;
    const ELSEWHERE: usize = 0x5555_0000_1234;

    /// What the kernel would do with the filter.
    fn verdict(
        code: &[Instruction],
        number: libc::c_long,
        from: usize,
        arguments: [usize; 6],
    ) -> u32 {
        let word = |offset: u32| -> u32 {
            match offset {
                OFFSET_NUMBER => number as u32,
                OFFSET_ARCH => AUDIT_ARCH_X86_64,
                OFFSET_POINTER_LOW => from as u32,
                OFFSET_POINTER_HIGH => (from >> 32) as u32,
                _ => {
                    let argument = arguments[(offset as usize - 16) / 8];
                    if offset.is_multiple_of(8) {
                        argument as u32
                    } else {
                        (argument >> 32) as u32
                    }
                }
            }
        };
        let (mut at, mut loaded) = (0, 0);
        loop {
            let Instruction {
                code,
                jump_true,
                jump_false,
                value,
            } = code[at];
            at += 1;
            let test = match code {
                LD_ABS => {
                    loaded = word(value);
                    continue;
                }
                RET => return value,
                JMP_JA => {
                    at += value as usize;
                    continue;
                }
                JMP_JEQ => loaded == value,
                JMP_JGT => loaded > value,
                JMP_JGE => loaded >= value,
                JMP_JSET => loaded & value != 0,
                other => panic!("instruction {other:#x}"),
            };
            at += usize::from(if test { jump_true } else { jump_false });
        }
    }

    fn filter(library: (usize, usize)) -> Vec<Instruction> {
        build(Terms {
            library,
            min_bytes: 128 * 1024,
        })
    }

    #[test]
    fn traps_what_points_into_the_arena_from_anywhere() {
        let code = filter(LIBRARY);
        // As many are put one on another as images that were made one of another.
        assert!(code.len() < 512, "{}", code.len());
        for position in 0..6 {
            for (address, expected) in [
                (ARENA_BASE + 0x1234_5678, RET_TRAP),
                (ARENA_BASE + ARENA_MOST_BYTES - 1, RET_TRAP),
                (ARENA_BASE + ARENA_MOST_BYTES, RET_ALLOW),
                (ARENA_BASE - 1, RET_ALLOW),
            ] {
                let mut arguments = [1; 6];
                arguments[position] = address;
                assert_eq!(
                    verdict(&code, libc::SYS_futex, ELSEWHERE, arguments),
                    expected
                );
            }
        }
    }

    #[test]
    fn what_is_left_in_registers_kills_nobody() {
        let code = filter(LIBRARY);
        let mut numbers: Vec<_> = KNOWN.iter().flat_map(|known| known.calls).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        // "extmem", as a register has it that letters of a path went through.
        let letters = usize::from_le_bytes(*b"extmem\0\0");
        for known in KNOWN {
            for (&number, position) in known
                .calls
                .iter()
                .flat_map(|call| (0..6).map(move |at| (call, at)))
            {
                let mut arguments = [1; 6];
                arguments[position] = letters;
                let expected = if position < known.arguments as usize {
                    RET_TRAP
                } else {
                    RET_ALLOW
                };
                assert_eq!(
                    verdict(&code, number, ELSEWHERE, arguments),
                    expected,
                    "system call {number}, argument {position}"
                );
            }
        }
    }

    #[test]
    fn lets_the_stub_through() {
        let code = filter(LIBRARY);
        let stub = (stub::ADDRESS_HIGH as usize) << 32;
        assert_eq!(
            verdict(
                &code,
                libc::SYS_read,
                stub + 24,
                [0, ARENA_BASE, 1, 0, 0, 0]
            ),
            RET_ALLOW
        );
        assert_eq!(
            verdict(&code, libc::SYS_io_uring_setup, stub + 24, [0; 6]),
            RET_ALLOW
        );
    }

    #[test]
    fn the_next_image_is_left_alone() {
        let code = filter(LIBRARY);
        for number in 0..470 {
            let verdict = verdict(
                &code,
                number,
                ELSEWHERE,
                [7, 0x7ffc_0000_0000, 1 << 30, 0x22, 1023, 0],
            );
            assert_ne!(verdict, RET_TRAP, "system call {number}");
        }
    }

    #[test]
    fn traps_large_anonymous_mappings_only() {
        let code = filter(LIBRARY);
        let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let map = |bytes: usize, protection: i32, flags: usize| {
            verdict(
                &code,
                libc::SYS_mmap,
                INSIDE,
                [0, bytes, protection as usize, flags, usize::MAX, 0],
            )
        };
        let data = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(map(128 * 1024, data, private), RET_TRAP);
        assert_eq!(map(1 << 40, 0, private), RET_TRAP);
        assert_eq!(map(1 << 32, data, private), RET_TRAP);
        assert_eq!(map(64 * 1024, data, private), RET_ALLOW);
        assert_eq!(map(1 << 30, data, libc::MAP_PRIVATE as usize), RET_ALLOW);
        assert_eq!(map(1 << 30, data | libc::PROT_EXEC, private), RET_ALLOW);
        assert_eq!(
            map(1 << 30, data, private | libc::MAP_STACK as usize),
            RET_ALLOW
        );
        assert_eq!(
            map(1 << 30, data, private | libc::MAP_FIXED as usize),
            RET_ALLOW
        );
        assert_eq!(
            map(
                1 << 30,
                data,
                (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize
            ),
            RET_ALLOW
        );
    }

    #[test]
    fn processes_are_trapped_threads_are_not() {
        let code = filter(LIBRARY);
        let clone = |flags: i32| {
            verdict(
                &code,
                libc::SYS_clone,
                INSIDE,
                [flags as usize, ARENA_BASE, 0, 0, 0, 0],
            )
        };
        assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD), RET_ALLOW);
        assert_eq!(
            verdict(
                &code,
                libc::SYS_clone,
                INSIDE,
                [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]
            ),
            RET_TRAP
        );
        assert_eq!(
            verdict(&code, libc::SYS_clone3, INSIDE, [0; 6]),
            RET_ERRNO | libc::ENOSYS as u32
        );
    }

    #[test]
    fn our_descriptors_cannot_be_closed() {
        let code = filter(LIBRARY);
        let block = descriptor::block();
        let close = |fd: i32| verdict(&code, libc::SYS_close, INSIDE, [fd as usize, 0, 0, 0, 0, 0]);
        assert_eq!(close(block.start), RET_TRAP);
        assert_eq!(close(block.end - 1), RET_TRAP);
        assert_eq!(close(block.end), RET_ALLOW);
        assert_eq!(close(3), RET_ALLOW);
        assert_eq!(
            verdict(
                &code,
                libc::SYS_dup2,
                INSIDE,
                [1, block.start as usize, 0, 0, 0, 0]
            ),
            RET_TRAP
        );
    }

    #[test]
    fn a_library_across_a_four_gibibyte_line() {
        let code = filter((0x7f12_ffff_0000, 0x7f13_0010_0000));
        let brk = |from| verdict(&code, libc::SYS_brk, from, [0; 6]);
        assert_eq!(brk(0x7f12_ffff_0000), RET_TRAP);
        assert_eq!(brk(0x7f12_fffe_ffff), RET_ALLOW);
        assert_eq!(brk(0x7f13_000f_ffff), RET_TRAP);
        assert_eq!(brk(0x7f13_0010_0000), RET_ALLOW);
        assert_eq!(brk(0x7f14_0000_0000), RET_ALLOW);
    }
}
