// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The magic NOP of `uapi/demeter_model.h`: how guest code of any privilege
//! talks to the machine model. A plain NOP on every other machine.

/// One instruction: `0F 1F 84 00` with the operation in its displacement and
/// the argument in RDI.
macro_rules! magic {
    ($operation:literal, $argument:expr) => {{
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the bytes are an eight byte NOP; it reads and writes nothing.
        unsafe {
            core::arch::asm!(
                ".byte 0x0f, 0x1f, 0x84, 0x00",
                concat!(".long 0x5EB50000 + ", $operation),
                in("rdi") $argument,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _: u64 = $argument;
    }};
}

/// Starts modelling: time is charged and accesses are counted from here on.
#[inline]
pub fn model_on() {
    magic!("1", 0_u64);
}

/// Stops modelling.
#[inline]
pub fn model_off() {
    magic!("2", 0_u64);
}

/// Puts a label into the time series.
#[inline]
pub fn mark(label: u64) {
    magic!("3", label);
}

/// Puts the work done so far into the time series.
#[inline]
pub fn progress(done: u64) {
    magic!("4", done);
}

/// Charges time to the guest clock: the self-test of the clock.
#[inline]
pub fn charge_ns(time_ns: u64) {
    magic!("5", time_ns);
}

/// Says at which address the kernel switches tasks.
#[inline]
pub fn task_switch(address: u64) {
    magic!("6", address);
}

/// Says where flags, name and number of a task lie in the kernel's `task_struct`.
#[inline]
pub fn task_layout(flags: u16, comm: u16, pid: u16) {
    magic!(
        "7",
        u64::from(flags) | u64::from(comm) << 16 | u64::from(pid) << 32
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn harmless_without_the_model() {
        super::model_on();
        super::mark(1);
        super::progress(2);
        super::charge_ns(3);
        super::task_switch(4);
        super::task_layout(5, 6, 7);
        super::model_off();
    }
}
