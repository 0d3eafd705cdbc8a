// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a program that knows of the pager can tell it.

use std::ffi::{c_int, c_void};

use crate::pager::{bring_in_stack, pager};

/// Tells the policy what a range of memory is for (the kinds are in
/// `demeter_extmem_policy.h`). Look it up with `dlsym`: it is there only under the pager.
/// Returns 0, or -1 if the range is not managed.
#[unsafe(no_mangle)]
pub extern "C" fn demeter_extmem_hint(address: *mut c_void, bytes: usize, hint: c_int) -> c_int {
    let Some((pager, pages)) =
        pager().and_then(|pager| Some((pager, pager.pages_in(address as usize, bytes)?)))
    else {
        return -1;
    };
    let Ok(hint) = u32::try_from(hint) else {
        return -1;
    };
    bring_in_stack();
    let operation = pager.enter();
    operation.on_own_stack(&mut || pager.policy.hint(pages.first, pages.count, hint));
    drop(operation);
    0
}
