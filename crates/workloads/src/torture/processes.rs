// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Children, programs, short threads, the heap and the loader.

use std::process::{Command, Stdio};

use super::dice::Dice;
use super::mapping::Mapping;
use super::signals;
use super::trouble::{Check, Trouble};

/// Pages a child looks at and changes.
const CHILD_PAGES: usize = 200;

/// What the child of a fork is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// As its parent.
    Alike,
    /// It gives up what its parent may do, as daemons do.
    OfAnotherUser,
}

/// Nobody's number.
const NOBODY: libc::uid_t = 65534;

/// Gives up root's rights, if it has them. By system calls: the C library would tell threads
/// of which the child of a fork has none.
fn become_nobody() -> bool {
    // SAFETY: calls without pointers.
    unsafe {
        libc::geteuid() != 0
            || (libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0
                && libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0)
    }
}

/// A child sees what the parent had, both change their own copies, and neither
/// sees the other's.
pub fn fork(mappings: &mut [Mapping], kind: Child, dice: &mut Dice) -> Check<()> {
    // SAFETY: the child makes no allocation and calls only what is safe after a
    // fork of a process with threads.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(Trouble::of_call("fork"));
    }
    let is_child = child == 0;
    if is_child && kind == Child::OfAnotherUser && !become_nobody() {
        // SAFETY: as at the end.
        unsafe { libc::_exit(42) };
    }
    let mut wrong = 0;
    let mut index = dice.below(mappings.len());
    for _ in 0..CHILD_PAGES {
        index = (index + 1) % mappings.len();
        let mapping = &mut mappings[index];
        let page = dice.below(mapping.pages());
        wrong += u64::from(mapping.wrong_words(page) > 0);
        // Versions differ between the two from here on.
        mapping.renew(page);
        if is_child {
            mapping.renew(page);
        }
        wrong += u64::from(mapping.wrong_words(page) > 0);
    }
    if is_child {
        // SAFETY: leaves without running anything of the parent's.
        unsafe { libc::_exit(i32::from(wrong > 0) * 41) };
    }
    let mut status = 0;
    // SAFETY: the child made above; SA_RESTART is set on all handlers.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        return Err(Trouble::of_call("waitpid"));
    }
    if wrong > 0 {
        return Err(Trouble::Parent(wrong));
    }
    if status == 0 {
        Ok(())
    } else if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 41 {
        Err(Trouble::Wrong("the child of a fork found wrong pages"))
    } else if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42 {
        Err(Trouble::Wrong(
            "the child of a fork could not change its user",
        ))
    } else {
        Err(Trouble::Child(status))
    }
}

/// A program started the usual way (vfork inside), with output through a pipe.
pub fn spawn() -> Check<()> {
    let output = Command::new("/bin/echo")
        .arg("torture")
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| Trouble::Call {
            call: "/bin/echo".to_owned(),
            cause,
        })?;
    if output.status.success() && output.stdout == b"torture\n" {
        Ok(())
    } else {
        Err(Trouble::Program {
            output: output.stdout,
            status: output.status,
        })
    }
}

/// The heap: allocated, grown, shrunk.
pub fn heap(dice: &mut Dice) -> Check<()> {
    let words = (1 << 18) + dice.below(1 << 19);
    let salt = dice.below(1 << 30) as u64;
    let mut block: Vec<u64> = (0..words as u64).map(|word| word ^ salt).collect();
    block.reserve_exact(words);
    block.extend((words as u64..2 * words as u64).map(|word| word ^ salt));
    let right = |block: &[u64]| (0..).zip(block).all(|(word, &value)| word ^ salt == value);
    if !right(&block) {
        return Err(Trouble::Wrong("a grown heap block holds wrong words"));
    }
    block.truncate(words / 2);
    block.shrink_to_fit();
    if !right(&block) {
        return Err(Trouble::Wrong("a shrunk heap block holds wrong words"));
    }
    Ok(())
}

/// A thread that comes, uses memory of its own and of its maker, and goes.
pub fn thread(mapping: &mut Mapping, dice: &mut Dice) -> Check<()> {
    let pages: Vec<usize> = (0..64).map(|_| dice.below(mapping.pages())).collect();
    let mut inner = Dice::new(dice.below(1 << 30) as u64, 1);
    std::thread::scope(|scope| {
        let mapping = SendMut(mapping);
        scope
            .spawn(move || {
                let SendMut(mapping) = { mapping };
                let _stack = signals::AlternateStack::new()?;
                heap(&mut inner)?;
                pages.iter().try_for_each(|&page| mapping.rewrite(page))
            })
            .join()
            .map_err(|_| Trouble::Wrong("a short thread panicked"))?
    })
}

/// Lends a mapping to another thread.
struct SendMut<'a>(&'a mut Mapping);

// SAFETY: the mapping is ordinary memory, borrowed by one thread at a time.
unsafe impl Send for SendMut<'_> {}

/// Loads a library and unloads it.
pub fn load_library() -> Check<()> {
    // SAFETY: libm's constructors do nothing that matters; the handle is closed.
    unsafe {
        let handle = libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            return Err(Trouble::Wrong("dlopen of libm.so.6 failed"));
        }
        let symbol = libc::dlsym(handle, c"cbrt".as_ptr());
        if symbol.is_null() || libc::dlclose(handle) != 0 {
            return Err(Trouble::Wrong("libm.so.6 has no cbrt or cannot be closed"));
        }
    }
    Ok(())
}
