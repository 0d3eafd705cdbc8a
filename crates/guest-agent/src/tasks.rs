// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells the machine model how to see which task runs, so that the kernel's helpers
//! can be told apart from the program. The kernel stays as it is: the model looks on
//! as it calls its own function.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use demeter_agent::magic;

use crate::btf::{Btf, BtfError};

const SYMBOLS: &str = "/proc/kallsyms";
const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Called with the old task and the new one, for every switch.
const SWITCH: &str = "__switch_to_asm";

/// Why tasks cannot be told apart.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file is missing.
    #[error("cannot read {0}: {1}")]
    File(&'static str, std::io::Error),
    /// The kernel has no such function.
    #[error("{SYMBOLS} has no {SWITCH}")]
    Symbol,
    /// The kernel's types.
    #[error("{TYPES}: {0}")]
    Types(#[from] BtfError),
}

/// Tells the model.
pub fn announce() -> Result<(), TaskError> {
    let symbols = std::fs::File::open(SYMBOLS).map_err(|cause| TaskError::File(SYMBOLS, cause))?;
    let address =
        address_of(BufReader::with_capacity(1 << 16, symbols)).ok_or(TaskError::Symbol)?;
    let types = std::fs::read(TYPES).map_err(|cause| TaskError::File(TYPES, cause))?;
    let btf = Btf::parse(&types)?;
    let offset = |member: &str| {
        let bytes = btf.offset("task_struct", member)?;
        u16::try_from(bytes).map_err(|_| BtfError::Malformed)
    };
    magic::task_layout(offset("flags")?, offset("comm")?, offset("pid")?);
    magic::task_switch(address);
    // A switch, so that the model knows who runs before anything is measured.
    std::thread::sleep(Duration::from_millis(1));
    Ok(())
}

/// Reads no further than the symbol: there are some 200,000.
fn address_of(symbols: impl BufRead) -> Option<u64> {
    symbols.lines().map_while(Result::ok).find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        (words.nth(1)? == SWITCH && address != 0).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::address_of;

    #[test]
    fn the_symbol_and_no_other() {
        let symbols = "ffffffff81000010 T __switch_to_asm_x\n\
                       ffffffff81000020 T __switch_to_asm\n";
        assert_eq!(address_of(symbols.as_bytes()), Some(0xffff_ffff_8100_0020));
        let hidden = "0000000000000000 T __switch_to_asm\n";
        assert_eq!(address_of(hidden.as_bytes()), None);
    }
}
