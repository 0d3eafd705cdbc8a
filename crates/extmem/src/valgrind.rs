// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is it valgrind that executes this program, and not a processor?

/// Asks in valgrind's own way (`RUNNING_ON_VALGRIND` of its `valgrind.h`): by instructions
/// that do nothing, and that it looks for.
#[cfg(target_arch = "x86_64")]
pub fn runs_us() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: u64;
    // SAFETY: turns rdi round by 128 bits and exchanges rbx with itself; valgrind reads the
    // request, and writes rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0u64 => answer,
            options(nostack),
        );
    }
    answer > 0
}

/// Where there is no pager, nobody asks.
#[cfg(not(target_arch = "x86_64"))]
pub fn runs_us() -> bool {
    false
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_processor_runs_the_tests() {
        assert!(!super::runs_us());
    }
}
