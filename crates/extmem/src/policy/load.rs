// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finding a policy: a built-in one by name, others by path.

use libloading::os::unix::Library;

use super::PolicyError;
use super::abi::{self, EntryPoint};

/// A policy's table, and what to call it in messages.
#[derive(Debug)]
pub struct Source {
    pub table: abi::Policy,
    pub path: String,
}

/// A name without a slash is built in; a path is loaded and stays loaded.
pub fn find(name: &str) -> Result<Source, PolicyError> {
    let path = name.to_owned();
    if !name.contains('/') {
        return match demeter_extmem_policy::built_in(name) {
            Some(table) => Ok(Source {
                table: *table,
                path,
            }),
            None => Err(PolicyError::Unknown { name: path }),
        };
    }
    // SAFETY: loading runs the file's constructors: the user named it to be run.
    let library = unsafe { Library::new(name) }.map_err(|error| PolicyError::Load {
        path: path.clone(),
        cause: one_line(&error),
    })?;
    let pointer = {
        // SAFETY: the contract's type for a symbol of this name.
        let entry = unsafe { library.get::<EntryPoint>(b"demeter_extmem_policy\0") };
        let Ok(entry) = entry else {
            return Err(PolicyError::NoEntry { path });
        };
        // SAFETY: as the contract says.
        unsafe { entry(abi::ABI) }
    };
    if pointer.is_null() {
        return Err(PolicyError::Version { path });
    }
    // SAFETY: a table begins with its version and size.
    let (version, size) = unsafe { ((*pointer).abi, (*pointer).size as usize) };
    if version != abi::ABI {
        return Err(PolicyError::Version { path });
    }
    let table = copy(pointer, size);
    match missing(&table) {
        Some(function) => Err(PolicyError::Incomplete { path, function }),
        None => {
            // Its code is called until the process ends.
            std::mem::forget(library);
            Ok(Source { table, path })
        }
    }
}

/// As much of the table as the policy has; the rest is absent.
fn copy(pointer: *const abi::Policy, size: usize) -> abi::Policy {
    let mut table = abi::Policy {
        abi: abi::ABI,
        size: 0,
        name: std::ptr::null(),
        memory_bytes: None,
        start: None,
        mapped: None,
        unmapped: None,
        arrived: None,
        choose: None,
        returned: None,
        evicted: None,
        hint: None,
        victim_cache_pages: None,
        staying: None,
    };
    // SAFETY: the policy has `size` bytes of table, and ours takes what is copied; absent
    // functions are null, which is None.
    unsafe {
        std::ptr::copy_nonoverlapping(
            pointer.cast::<u8>(),
            (&raw mut table).cast::<u8>(),
            size.min(size_of::<abi::Policy>()),
        );
    }
    table
}

fn missing(table: &abi::Policy) -> Option<&'static str> {
    [
        (table.memory_bytes.is_none(), "memory_bytes"),
        (table.start.is_none(), "start"),
        (table.unmapped.is_none(), "unmapped"),
        (table.arrived.is_none(), "arrived"),
        (table.choose.is_none(), "choose"),
        (table.returned.is_none(), "returned"),
    ]
    .into_iter()
    .find_map(|(missing, name)| missing.then_some(name))
}

fn one_line(error: &dyn std::error::Error) -> String {
    let text = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    text.replace('\n', " ")
}
