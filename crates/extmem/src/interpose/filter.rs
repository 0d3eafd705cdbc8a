// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The filter: which system calls of the program are trapped.
//!
//! It outlives an exec, so it must do no harm to a program image that has no pager.
//! Calls are therefore trapped on one of three grounds only: an argument that may be a pointer
//! (`pointers.rs`) points into the arena (which exists nowhere else), or the call comes from the
//! text of the C library of *this* image (which lies elsewhere in the next), or from where handlers
//! end whose frames lie in the arena (`stub.rs`; nothing else lies there). Five calls are refused outright,
//! as an older kernel would: `clone3` (the C library falls back to `clone`, whose flags a
//! filter can see), the set-up of io_uring and kernel AIO, whose requests point to
//! memory that a filter cannot see, `process_madvise`, whose ranges it cannot see either:
//! of the own process (Linux 6.13 or later) the kernel would drop pages behind our back, and
//! `pkey_alloc`: signal handlers begin without the rights of their thread to memory with a key,
//! and it is in handlers that the pager makes the program's calls and reads pages that leave.
//! Allocators that use these go back to `madvise`; V8 leaves writable what it compiles.

use super::pointers;
use super::program::{
    AND_K, Instruction, JMP_JEQ, JMP_JGE, JMP_JGT, JMP_JSET, LD_IMM, LSH_X, Label, NEXT, Program,
    RET, TAX, TXA,
};
use crate::pager::{ARENA_BASE, ARENA_MOST_BYTES};
use crate::{descriptor, stub, syscall};

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

/// So many of these filters, and a few more, the kernel puts one on another.
pub const DEPTH: u32 = 130;

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
    libc::SYS_fork,
    libc::SYS_exit,
    libc::SYS_close_range,
    libc::SYS_mlockall,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigsuspend,
];

/// Calls looked at if the argument of that number is not zero.
const IF_GIVEN: [(u32, &[libc::c_long]); 4] = [
    (1, &[libc::SYS_rt_sigprocmask]),
    (3, &[libc::SYS_ppoll]),
    (4, &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2]),
    (5, &[libc::SYS_pselect6]),
];

/// Calls that name a descriptor in the argument of that number.
const CLOSING: [(u32, &[libc::c_long]); 2] = [
    (0, &[libc::SYS_close]),
    (1, &[libc::SYS_dup2, libc::SYS_dup3]),
];

/// Calls that we answer as a kernel does that has none of them.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_process_madvise,
    libc::SYS_pkey_alloc,
];

/// What the filter depends on.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Text of the C library: first and one past the last byte.
    pub library: (usize, usize),
    /// Where the kernel sees the library's brk() come from; 0: anywhere in its text. The loader
    /// and the library of each later image call brk before that image can take a trap, and in
    /// one of some 400,000 their texts share a page with this one: among the programs of a
    /// large build somebody would be ended. The very place is met by one in 2^28.
    pub break_site: usize,
    /// Anonymous mappings from this size on are the pager's.
    pub min_bytes: usize,
}

/// The filter's instructions; none, which the kernel refuses, if there were too many.
///
/// Filters of images that were made one of another are all in force, and the kernel counts
/// their instructions together: this one is to be short before all.
pub fn build(terms: Terms) -> Vec<Instruction> {
    let mut program = Program::default();
    let [allow, trap, refuse] = [(); 3].map(|()| program.label());
    program.load(OFFSET_ARCH);
    program.test(JMP_JEQ, AUDIT_ARCH_X86_64, NEXT, Some(allow));
    program.load(OFFSET_POINTER_HIGH);
    program.test(JMP_JEQ, stub::ADDRESS_HIGH, Some(allow), NEXT);
    program.test(JMP_JEQ, stub::RETURN_HIGH, Some(trap), NEXT);
    by_arguments(&mut program, allow, trap, refuse);
    only_from(&mut program, terms.library, allow);
    of_the_library(&mut program, terms, allow, trap);
    for (label, verdict) in [
        (trap, RET_TRAP),
        (allow, RET_ALLOW),
        (refuse, RET_ERRNO | libc::ENOSYS as u32),
    ] {
        program.here(label);
        program.push(RET, verdict);
    }
    program.finish().unwrap_or_default()
}

/// Traps what may point into the arena, whoever calls; goes on with the rest.
fn by_arguments(program: &mut Program, allow: Label, trap: Label, refuse: Label) {
    let clone = program.label();
    // Where so many of the first arguments are looked at.
    let reach = [(); 7].map(|()| program.label());
    // The bit of the number among 32, kept in the other register.
    program.load(OFFSET_NUMBER);
    program.push(AND_K, 31);
    program.push(TAX, 0);
    program.push(LD_IMM, 1);
    program.push(LSH_X, 0);
    program.push(TAX, 0);
    program.load(OFFSET_NUMBER);
    program.test(JMP_JGE, X32_BIT, Some(allow), NEXT);
    for &number in REFUSED {
        program.test(JMP_JEQ, number as u32, Some(refuse), NEXT);
    }
    program.test(JMP_JEQ, libc::SYS_clone as u32, Some(clone), NEXT);
    let arguments = pointers::arguments();
    let mut blocks: Vec<_> = arguments.chunks(32).map(Block::of).collect();
    // All numbers above, of which nothing is known.
    blocks.push(Block::of(&[]));
    find_block(program, &blocks, 0, &reach);
    let (first, last) = (
        (ARENA_BASE >> 32) as u32,
        ((ARENA_BASE + ARENA_MOST_BYTES - 1) >> 32) as u32,
    );
    program.here(clone);
    program.load(argument_low(0));
    let of_clone = arguments[libc::SYS_clone as usize] as usize;
    program.test(JMP_JSET, libc::CLONE_VM as u32, NEXT, Some(reach[of_clone]));
    // A child that its parent waits for, on a stack of its own if it is on one.
    let thread = program.label();
    program.test(JMP_JSET, libc::CLONE_VFORK as u32, NEXT, Some(thread));
    program.load(argument_low(1));
    program.test(JMP_JEQ, 0, Some(allow), Some(reach[2]));
    // A new thread, unless its stack lies in the arena.
    program.here(thread);
    program.load(argument_high(1));
    program.test(JMP_JGE, first, NEXT, Some(allow));
    program.test(JMP_JGT, last, Some(allow), Some(trap));
    // The pager makes some of these outside its own door, with SIGSYS blocked, where a trap
    // ends the process, too: the C library's clock, and lines that are written.
    for index in (0..6).rev() {
        let next = reach[index as usize];
        program.here(reach[index as usize + 1]);
        program.load(argument_high(index));
        program.test(JMP_JGE, first, NEXT, Some(next));
        program.test(JMP_JGT, last, NEXT, Some(trap));
    }
    program.here(reach[0]);
}

/// Which of 32 numbers have their pointers among so many arguments.
#[derive(Debug, PartialEq, Eq)]
struct Block([u32; 7]);

impl Block {
    fn of(arguments: &[u32]) -> Self {
        let mut masks = [0; 7];
        for bit in 0..32 {
            // All count of what is not known.
            let count = arguments.get(bit).map_or(6, |&count| count as usize);
            masks[count] |= 1 << bit;
        }
        Self(masks)
    }
}

/// Goes to where as many arguments are looked at as the call has pointers, by halves of what
/// blocks are left, of which the first one begins at the number 32 times `before`.
fn find_block(program: &mut Program, blocks: &[Block], before: usize, reach: &[Label; 7]) {
    let (lower, upper) = blocks.split_at(blocks.len() / 2);
    if !lower.is_empty() {
        let middle = (before + lower.len()) * 32;
        let is_known = |block: &Block| *block != Block::of(&[]);
        let second = match upper.iter().any(is_known) {
            true => program.label(),
            false => reach[6],
        };
        program.test(JMP_JGE, middle as u32, Some(second), NEXT);
        find_block(program, lower, before, reach);
        if second != reach[6] {
            program.here(second);
            find_block(program, upper, before + lower.len(), reach);
        }
        return;
    }
    let Some(Block(masks)) = upper.first() else {
        return;
    };
    let others = masks.iter().zip(reach).filter(|(mask, _)| **mask != 0);
    // The one with the highest bit, which as a constant would cost one more, is what is left.
    let (mut left, mut tested) = (reach[6], Vec::new());
    for (&mask, &label) in others {
        match mask >> 31 {
            1 => left = label,
            _ => tested.push((mask, label)),
        }
    }
    if !tested.is_empty() {
        program.push(TXA, 0);
    }
    for (mask, label) in tested {
        program.test(JMP_JSET, mask, Some(label), NEXT);
    }
    program.go(left);
}

/// What is trapped of the calls of the C library.
fn of_the_library(program: &mut Program, terms: Terms, allow: Label, trap: Label) {
    let Terms {
        min_bytes,
        break_site,
        ..
    } = terms;
    program.load(OFFSET_NUMBER);
    for &number in NESTED.iter().chain(ALWAYS) {
        program.test(JMP_JEQ, number as u32, Some(trap), NEXT);
    }
    // What is left of clone makes a process.
    program.test(JMP_JEQ, libc::SYS_clone as u32, Some(trap), NEXT);
    let site = program.label();
    let of_break = if break_site == 0 { trap } else { site };
    program.test(JMP_JEQ, libc::SYS_brk as u32, Some(of_break), NEXT);
    let mut each = |(argument, calls): (u32, &[libc::c_long])| {
        let label = program.label();
        for &number in calls {
            program.test(JMP_JEQ, number as u32, Some(label), NEXT);
        }
        (argument, label)
    };
    let (given, closing) = (IF_GIVEN.map(&mut each), CLOSING.map(&mut each));
    program.test(JMP_JEQ, libc::SYS_mmap as u32, NEXT, Some(allow));

    program.load(argument_low(3));
    program.test(JMP_JSET, LEFT_ALONE as u32, Some(allow), NEXT);
    program.test(JMP_JSET, libc::MAP_ANONYMOUS as u32, NEXT, Some(allow));
    program.load(argument_low(2));
    program.test(JMP_JSET, libc::PROT_EXEC as u32, Some(allow), NEXT);
    program.load(argument_high(1));
    program.test(JMP_JEQ, 0, NEXT, Some(trap));
    program.load(argument_low(1));
    let smallest = u32::try_from(min_bytes).unwrap_or(u32::MAX);
    program.test(JMP_JGE, smallest, Some(trap), Some(allow));

    program.here(site);
    program.load(OFFSET_POINTER_LOW);
    program.test(JMP_JEQ, break_site as u32, Some(trap), Some(allow));

    // What decides in the end is there once: a test that goes away both ways counts twice.
    let descriptors = descriptor::block();
    let [named, upper] = [(); 2].map(|()| program.label());
    for (argument, label) in closing {
        program.here(label);
        program.load(argument_low(argument));
        program.go(named);
    }
    program.here(named);
    program.test(JMP_JGE, descriptors.start as u32, NEXT, Some(allow));
    program.test(JMP_JGE, descriptors.end as u32, Some(allow), Some(trap));
    for (argument, label) in given {
        program.here(label);
        program.load(argument_low(argument));
        program.test(JMP_JEQ, 0, NEXT, Some(trap));
        program.load(argument_high(argument));
        program.go(upper);
    }
    program.here(upper);
    program.test(JMP_JEQ, 0, Some(allow), Some(trap));
}

/// Lets everything pass that does not come from the library's text.
fn only_from(program: &mut Program, (start, end): (usize, usize), allow: Label) {
    let last = end - 1;
    let (start_high, last_high) = ((start >> 32) as u32, (last >> 32) as u32);
    program.load(OFFSET_POINTER_HIGH);
    if start_high == last_high {
        program.test(JMP_JEQ, start_high, NEXT, Some(allow));
        program.load(OFFSET_POINTER_LOW);
        program.test(JMP_JGE, start as u32, NEXT, Some(allow));
        program.test(JMP_JGT, last as u32, Some(allow), NEXT);
        return;
    }
    // The text crosses a 4 GiB line.
    let [upper, inside] = [(); 2].map(|()| program.label());
    program.test(JMP_JEQ, start_high, NEXT, Some(upper));
    program.load(OFFSET_POINTER_LOW);
    program.test(JMP_JGE, start as u32, Some(inside), Some(allow));
    program.here(upper);
    program.test(JMP_JEQ, last_high, NEXT, Some(allow));
    program.load(OFFSET_POINTER_LOW);
    program.test(JMP_JGT, last as u32, Some(allow), NEXT);
    program.here(inside);
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
    use crate::interpose::pointers::KNOWN;
    use crate::interpose::program::{JMP_JA, LD_ABS};

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
        let (mut at, mut loaded, mut kept) = (0, 0, 0u32);
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
                LD_IMM => {
                    loaded = value;
                    continue;
                }
                AND_K => {
                    loaded &= value;
                    continue;
                }
                LSH_X => {
                    loaded <<= kept;
                    continue;
                }
                TAX => {
                    kept = loaded;
                    continue;
                }
                TXA => {
                    loaded = kept;
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
            break_site: 0,
            min_bytes: 128 * 1024,
        })
    }

    fn filter_of_break(break_site: usize) -> Vec<Instruction> {
        build(Terms {
            library: LIBRARY,
            break_site,
            min_bytes: 128 * 1024,
        })
    }

    /// That of a later image's loader, which nobody could take, lies where the text was.
    #[test]
    fn the_break_is_trapped_at_one_place_of_the_library_only() {
        let code = filter_of_break(INSIDE);
        let brk = |from, to| verdict(&code, libc::SYS_brk, from, [to, 0, 0, 0, 0, 0]);
        assert_eq!(brk(INSIDE, 0), RET_TRAP);
        for from in [INSIDE - 1, INSIDE + 1, LIBRARY.0, LIBRARY.1 - 1, ELSEWHERE] {
            assert_eq!(brk(from, 0), RET_ALLOW);
            assert_eq!(brk(from, ARENA_BASE), RET_TRAP);
        }
    }

    /// As many are put one on another as images were made one of another.
    #[test]
    fn many_programs_can_start_each_other() {
        let code = filter_of_break(INSIDE);
        // SAFETY: the child makes system calls only and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut count = 0;
            while count < 255 && install(&code).is_ok() {
                count += 1;
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(count) };
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let count = libc::WEXITSTATUS(status);
        assert!(libc::WIFEXITED(status) && count >= DEPTH as i32, "{count}");
    }

    #[test]
    fn traps_what_points_into_the_arena_from_anywhere() {
        // Of a call that no kernel has yet every argument counts.
        for number in [479, 500, 4000] {
            let code = filter(LIBRARY);
            for position in 0..6 {
                for (address, expected) in [
                    (ARENA_BASE + 0x1234_5678, RET_TRAP),
                    (ARENA_BASE + ARENA_MOST_BYTES - 1, RET_TRAP),
                    (ARENA_BASE + ARENA_MOST_BYTES, RET_ALLOW),
                    (ARENA_BASE - 1, RET_ALLOW),
                ] {
                    let mut arguments = [1; 6];
                    arguments[position] = address;
                    assert_eq!(verdict(&code, number, ELSEWHERE, arguments), expected);
                }
            }
        }
    }

    #[test]
    fn what_is_left_in_registers_kills_nobody() {
        let code = filter(LIBRARY);
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
                let expected = if REFUSED.contains(&number) {
                    RET_ERRNO | libc::ENOSYS as u32
                } else if position < known.arguments as usize {
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

    /// Another return from a handler is the kernel's, wherever it comes from.
    #[test]
    fn traps_the_end_of_handlers_at_one_place() {
        let code = filter(LIBRARY);
        let end = |from| verdict(&code, libc::SYS_rt_sigreturn, from, [ARENA_BASE; 6]);
        assert_eq!(end(stub::RETURNED), RET_TRAP);
        for from in [INSIDE, ELSEWHERE, stub::ADDRESS + 24] {
            assert_eq!(end(from), RET_ALLOW);
        }
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

    /// Ranges may lie in arrays that do not.
    #[test]
    fn advice_by_descriptor_is_refused() {
        let code = filter(LIBRARY);
        let on_stack = [10, 0x7ffc_0000_0000, 1, 4, 0, 0];
        for from in [INSIDE, ELSEWHERE] {
            assert_eq!(
                verdict(&code, libc::SYS_process_madvise, from, on_stack),
                RET_ERRNO | libc::ENOSYS as u32
            );
        }
        // But for our own.
        let stub = (stub::ADDRESS_HIGH as usize) << 32;
        assert_eq!(
            verdict(&code, libc::SYS_process_madvise, stub + 24, on_stack),
            RET_ALLOW
        );
    }

    #[test]
    fn processes_are_trapped_threads_are_not() {
        let code = filter(LIBRARY);
        let sharing = |flags: i32, from: usize, stack: usize| {
            let flags = (flags | libc::CLONE_VM) as usize;
            verdict(&code, libc::SYS_clone, from, [flags, stack, 0, 0, 0, 0])
        };
        let stack = 0x7f12_0000_0000 + 0x5000;
        assert_eq!(sharing(libc::CLONE_THREAD, INSIDE, stack), RET_ALLOW);
        assert_eq!(sharing(libc::CLONE_VFORK, ELSEWHERE, stack), RET_ALLOW);
        assert_eq!(sharing(libc::CLONE_VFORK, INSIDE, 0), RET_ALLOW);
        // But for those whose frames of signals need another place.
        assert_eq!(sharing(libc::CLONE_VFORK, INSIDE, stack), RET_TRAP);
        assert_eq!(sharing(libc::CLONE_THREAD, INSIDE, ARENA_BASE), RET_TRAP);
        assert_eq!(sharing(libc::CLONE_THREAD, ELSEWHERE, ARENA_BASE), RET_TRAP);
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
