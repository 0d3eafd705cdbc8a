// SPDX-License-Identifier: GPL-2.0-or-later
//! Everything that depends on QEMU's version.
//!
//! The plugin API is bound by hand for version 7 (QEMU 11.0 and 11.1): no
//! header is packaged, and crates stop at version 5. Every function is looked
//! up at start, so that an unknown QEMU ends in one clear message rather than
//! in the loader's. Beyond the API the charged clock needs QEMU's own
//! functions, which the binary exports, two fields of `timers_state` and one of a vCPU,
//! whose offsets are checked against those functions while the guest runs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// vCPUs that the model supports: their turns and TLBs are simulated one after the other.
pub const MAX_VCPUS: usize = 128;

/// Version of the plugin API this file was written for.
pub const API_VERSION: c_int = 7;

/// What is wrong with the QEMU that loaded us.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// A function is missing.
    #[error("this QEMU does not export `{0}`")]
    Symbol(&'static str),
    /// The plugin API has another version.
    #[error("this QEMU has plugin API {0}, not {API_VERSION}")]
    Api(c_int),
    /// Not an x86-64 system emulator.
    #[error("this is not qemu-system-x86_64")]
    Target,
    /// More vCPUs than the model supports.
    #[error("the machine has {0} vCPUs, the model supports {MAX_VCPUS}")]
    Vcpus(c_int),
    /// Several vCPUs cannot be run in a fixed order.
    #[error("QEMU does not let several vCPUs be told apart and kept in order ({0})")]
    RoundRobin(&'static str),
    /// Instruction counting is not set up as needed.
    #[error("QEMU does not count instructions with shift=0 (`-icount shift=0,sleep=off`)")]
    Icount,
    /// The clock hook did not take.
    #[error("the guest clock could not be hooked ({0})")]
    Hook(&'static str),
    /// `timers_state` or a vCPU is laid out differently.
    #[error("the layout of QEMU's timer state is unknown (offset check failed)")]
    Layout,
    /// QEMU's page walk cannot be replaced.
    #[error("QEMU's page walk could not be hooked ({0})")]
    PageWalk(&'static str),
    /// A helper is described differently.
    #[error("QEMU's helper for `{0}` could not be replaced")]
    Helper(&'static str),
    /// QEMU's TLB is laid out or kept differently.
    #[error("QEMU's own TLB is not as expected ({0})")]
    Tlb(&'static str),
    /// A register is missing.
    #[error("QEMU does not offer register `{0}`")]
    Register(&'static str),
}

pub type PluginId = u64;

#[repr(C)]
pub struct Versions {
    pub min: c_int,
    pub cur: c_int,
}

#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub version: Versions,
    pub system_emulation: bool,
    pub smp_vcpus: c_int,
    pub max_vcpus: c_int,
}

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub struct $name { _private: [u8; 0] })* };
}
opaque!(Tb TbInsn HwAddr Scoreboard Register);

/// `qemu_plugin_u64`: one word per vCPU, inside a scoreboard.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PerVcpu {
    pub scoreboard: *mut Scoreboard,
    pub offset: usize,
}

/// Public head of glib's GArray and GByteArray.
#[repr(C)]
pub struct GArray {
    pub data: *mut c_char,
    pub len: c_uint,
}

#[repr(C)]
struct RegisterDescriptor {
    handle: *mut Register,
    name: *const c_char,
    feature: *const c_char,
    is_readonly: bool,
}

pub type UdataCb = extern "C" fn(*mut c_void);
pub type VcpuCb = extern "C" fn(c_uint, *mut c_void);
pub type TbTransCb = extern "C" fn(*mut Tb, *mut c_void);
pub type MemCb = extern "C" fn(c_uint, u32, u64, *mut c_void);
pub type DisconCb = extern "C" fn(c_uint, c_int, u64, u64, *mut c_void);
pub type ClockFn = extern "C" fn() -> i64;
pub type IdleFn = extern "C" fn(*mut c_void) -> bool;

pub type FlushCb = extern "C" fn(*mut c_void);
pub type RunOnCpu = extern "C" fn(*mut c_void, *mut c_void);

/// Flags of a callback: whether it reads registers, or writes them and where to go on.
pub const NO_REGS: c_int = 0;
pub const READ_REGS: c_int = 1;
pub const WRITE_REGS_AND_PC: c_int = 3;
/// Loads and stores.
pub const MEM_W: c_int = 2;
pub const MEM_RW: c_int = 3;
/// Discontinuities: of an interrupt, of an exception.
pub const DISCON_INTERRUPT: c_int = 1;
pub const DISCON_EXCEPTION: c_int = 2;
/// Inline operation: add.
pub const INLINE_ADD: c_int = 0;
/// Condition of a callback: greater than or equal.
pub const GREATER_OR_EQUAL: c_int = 7;

/// `QEMU_CLOCK_VIRTUAL`.
const CLOCK_VIRTUAL: c_int = 1;

/// Offsets of `qemu_icount` and `qemu_icount_bias` in `timers_state`, QEMU 11.1.
const ICOUNT_OFFSET: usize = 0x40;
const BIAS_OFFSET: usize = 0x28;

/// Offset of `icount_budget` in a vCPU, QEMU 11.1.
const BUDGET_OFFSET: usize = 0xd8;

/// Slots of the class `tcg-accel-ops` searched for functions.
const CLASS_SLOTS: usize = 64;

/// Address of a symbol of QEMU's.
pub fn symbol(name: &'static CStr) -> Result<*mut c_void, QemuError> {
    // SAFETY: a NUL-terminated name; RTLD_DEFAULT searches the program and its libraries.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        Err(QemuError::Symbol(name.to_str().unwrap_or("?")))
    } else {
        Ok(address)
    }
}

/// Whether the machine, and with it every vCPU, stands still; not where that cannot be told.
pub fn vcpus_have_stopped() -> bool {
    let Ok(runs) = symbol(c"runstate_is_running") else {
        return false;
    };
    // SAFETY: QEMU's function of this type.
    let runs: unsafe extern "C" fn() -> bool = unsafe { std::mem::transmute(runs) };
    // SAFETY: it reads a word.
    unsafe { !runs() }
}

macro_rules! api {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// QEMU's functions, looked up by name.
        #[derive(Clone, Copy)]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            timers_state: *mut u8,
            use_icount: *const c_int,
            /// For what is passed by reference; on the vCPU thread only.
            buffer: *mut GArray,
        }

        impl Api {
            /// Looks every function up.
            pub fn load() -> Result<Self, QemuError> {
                const fn name(bytes: &'static [u8]) -> &'static CStr {
                    match CStr::from_bytes_with_nul(bytes) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }
                }
                let buffer = symbol(c"g_byte_array_new")?;
                // SAFETY: glib's function of this type; the array is never freed.
                let buffer = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut GArray>(buffer)()
                };
                Ok(Self {
                    buffer,
                    $($name: {
                        let address = symbol(name(concat!(stringify!($name), "\0").as_bytes()))?;
                        // SAFETY: the signature is that of API version 7, checked before use.
                        unsafe { std::mem::transmute::<*mut c_void,
                            unsafe extern "C" fn($($arg),*) $(-> $ret)?>(address) }
                    },)*
                    timers_state: symbol(c"timers_state")?.cast(),
                    use_icount: symbol(c"use_icount")?.cast(),
                })
            }
        }
    };
}

api! {
    qemu_plugin_register_vcpu_tb_trans_cb: fn(PluginId, TbTransCb, *mut c_void);
    qemu_plugin_register_vcpu_init_cb: fn(PluginId, VcpuCb, *mut c_void);
    qemu_plugin_register_atexit_cb: fn(PluginId, UdataCb, *mut c_void);
    qemu_plugin_register_vcpu_discon_cb: fn(PluginId, c_int, DisconCb, *mut c_void);
    qemu_plugin_tb_n_insns: fn(*const Tb) -> usize;
    qemu_plugin_tb_vaddr: fn(*const Tb) -> u64;
    qemu_plugin_tb_get_insn: fn(*const Tb, usize) -> *mut TbInsn;
    qemu_plugin_insn_data: fn(*const TbInsn, *mut c_void, usize) -> usize;
    qemu_plugin_insn_vaddr: fn(*const TbInsn) -> u64;
    qemu_plugin_register_vcpu_mem_cb: fn(*mut TbInsn, MemCb, c_int, c_int, *mut c_void);
    qemu_plugin_register_vcpu_insn_exec_cb: fn(*mut TbInsn, VcpuCb, c_int, *mut c_void);
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu: fn(*mut Tb, c_int, PerVcpu, u64);
    qemu_plugin_register_vcpu_tb_exec_cond_cb: fn(*mut Tb, VcpuCb, c_int, c_int, PerVcpu, u64, *mut c_void);
    qemu_plugin_register_flush_cb: fn(PluginId, FlushCb, *mut c_void);
    qemu_plugin_get_hwaddr: fn(u32, u64) -> *mut HwAddr;
    qemu_plugin_hwaddr_is_io: fn(*const HwAddr) -> bool;
    qemu_plugin_hwaddr_phys_addr: fn(*const HwAddr) -> u64;
    qemu_plugin_mem_is_store: fn(u32) -> bool;
    qemu_plugin_scoreboard_new: fn(usize) -> *mut Scoreboard;
    qemu_plugin_u64_get: fn(PerVcpu, c_uint) -> u64;
    qemu_plugin_u64_set: fn(PerVcpu, c_uint, u64);
    qemu_plugin_write_register: fn(*mut Register, *mut GArray) -> bool;
    qemu_plugin_set_pc: fn(u64);
    qemu_plugin_read_memory_hwaddr: fn(u64, *mut GArray, usize) -> c_int;
    qemu_plugin_write_memory_hwaddr: fn(u64, *mut GArray) -> c_int;
    async_run_on_cpu: fn(*mut c_void, RunOnCpu, *mut c_void);
    cpu_interrupt: fn(*mut c_void, c_int);
    qemu_plugin_get_registers: fn() -> *mut GArray;
    qemu_plugin_read_register: fn(*mut Register, *mut GArray) -> bool;
    g_byte_array_new: fn() -> *mut GArray;
    g_byte_array_set_size: fn(*mut GArray, c_uint) -> *mut GArray;
    g_byte_array_append: fn(*mut GArray, *const c_void, c_uint) -> *mut GArray;
    g_array_free: fn(*mut GArray, c_int) -> *mut c_char;
    icount_get: fn() -> i64;
    icount_get_raw: fn() -> i64;
    icount_update: fn(*mut c_void);
    icount_to_ns: fn(i64) -> i64;
    qemu_clock_get_ns: fn(c_int) -> i64;
    object_class_by_name: fn(*const c_char) -> *mut *mut c_void;
    qemu_get_cpu: fn(c_int) -> *mut c_void;
    queue_tb_flush: fn(*mut c_void);
    object_get_class: fn(*mut c_void) -> *mut *mut c_void;
    tlb_flush: fn(*mut c_void);
    cpu_exit: fn(*mut c_void);
    cpu_loop_exit_noexc: fn(*mut c_void) -> !;
}

impl Api {
    /// Reads a word of a device of the vCPU that runs, by its physical address.
    pub fn read_device_word(&self, address: u64) -> Option<u32> {
        let mut bytes = [0u8; 4];
        // SAFETY: on the vCPU thread; after success the array holds what was asked for.
        unsafe {
            let done = (self.qemu_plugin_read_memory_hwaddr)(address, self.buffer, bytes.len());
            if done != 0 || ((*self.buffer).len as usize) < bytes.len() {
                return None;
            }
            std::ptr::copy_nonoverlapping(
                (*self.buffer).data.cast::<u8>(),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
        Some(u32::from_le_bytes(bytes))
    }

    /// Writes one.
    pub fn write_device_word(&self, address: u64, word: u32) {
        let bytes = word.to_le_bytes();
        // SAFETY: on the vCPU thread; `append` copies the bytes.
        unsafe {
            (self.g_byte_array_set_size)(self.buffer, 0);
            (self.g_byte_array_append)(self.buffer, bytes.as_ptr().cast(), bytes.len() as c_uint);
            (self.qemu_plugin_write_memory_hwaddr)(address, self.buffer);
        }
    }

    /// Checks the QEMU described by `info`; the number of its vCPUs.
    pub fn check_machine(info: &Info) -> Result<usize, QemuError> {
        if info.version.cur < API_VERSION || info.version.min > API_VERSION {
            return Err(QemuError::Api(info.version.cur));
        }
        // SAFETY: QEMU passes a NUL-terminated name that lives as long as the process.
        let target = unsafe { CStr::from_ptr(info.target_name) };
        if target != c"x86_64" || !info.system_emulation {
            return Err(QemuError::Target);
        }
        // Those plugged in later would have no part in the model.
        usize::try_from(info.max_vcpus)
            .ok()
            .filter(|vcpus| (1..=MAX_VCPUS).contains(vcpus))
            .ok_or(QemuError::Vcpus(info.max_vcpus))
    }

    /// Instructions executed so far; exact as of the last [`Api::settle`].
    pub fn raw_icount(&self) -> i64 {
        // SAFETY: an aligned word inside `timers_state`, whose place `check_layout` verifies.
        unsafe {
            self.timers_state
                .add(ICOUNT_OFFSET)
                .cast::<i64>()
                .read_volatile()
        }
    }

    /// Nanoseconds the clock was put forward by while every vCPU was idle.
    pub fn bias_ns(&self) -> i64 {
        // SAFETY: as above.
        unsafe {
            self.timers_state
                .add(BIAS_OFFSET)
                .cast::<i64>()
                .read_volatile()
        }
    }

    /// Adds what `cpu` executed since QEMU last looked to the count.
    ///
    /// # Safety
    /// On the vCPU's own thread, `cpu` from [`Api::qemu_get_cpu`].
    ///
    /// # Errors
    /// What was counted did not come out of the budget: vCPUs are laid out differently.
    pub unsafe fn settle(&self, cpu: *mut c_void) -> Result<(), QemuError> {
        // SAFETY: the caller's promise. QEMU itself calls `icount_update` at any clock read of
        // a running vCPU; unlike `icount_get_raw` it does not insist on an I/O boundary.
        let (budget, left, counted) = unsafe {
            let (budget, before) = (Self::budget(cpu), self.raw_icount());
            (self.icount_update)(cpu);
            let counted = self.raw_icount().wrapping_sub(before);
            (budget, Self::budget(cpu), counted)
        };
        if left >= 0 && budget.wrapping_sub(left) == counted {
            Ok(())
        } else {
            Err(QemuError::Layout)
        }
    }

    /// Whether the offsets into `timers_state` agree with QEMU's functions.
    /// Only on the vCPU thread: elsewhere the two could differ by a race.
    pub fn layout_agrees(&self) -> bool {
        // SAFETY: no arguments; the caller is in a place where QEMU reads its clock.
        let (raw, clock) = unsafe { ((self.icount_get_raw)(), (self.icount_get)()) };
        raw == self.raw_icount() && clock == self.bias_ns() + raw
    }

    /// Instructions that `cpu` may execute until QEMU counts them at the latest, as of
    /// when it last looked; 0 when all it executed is counted.
    ///
    /// # Safety
    /// `cpu` from [`Api::qemu_get_cpu`] or passed by QEMU.
    pub unsafe fn budget(cpu: *mut c_void) -> i64 {
        // SAFETY: an aligned word inside the vCPU, whose place `settle` verifies.
        unsafe {
            cpu.cast::<u8>()
                .add(BUDGET_OFFSET)
                .cast::<i64>()
                .read_volatile()
        }
    }

    /// Places of functions in the class `tcg-accel-ops`.
    fn accelerator_slots(
        &self,
    ) -> Result<impl Iterator<Item = *mut *mut c_void> + Clone + use<>, QemuError> {
        // SAFETY: a name that ends in NUL.
        let class = unsafe { (self.object_class_by_name)(c"tcg-accel-ops".as_ptr()) };
        if class.is_null() {
            return Err(QemuError::Hook("no class tcg-accel-ops"));
        }
        // The class is larger than this in every known version, and it is on the heap with
        // more after it: reading on is harmless.
        Ok((0..CLASS_SLOTS).map(move |slot| class.wrapping_add(slot)))
    }

    /// QEMU asks `idle` about a vCPU that has halted and has no work.
    pub fn hook_idle(&self, idle: IdleFn) -> Result<(), QemuError> {
        let kick = symbol(c"rr_kick_vcpu_thread")?;
        // The function to kick vCPUs is followed by the one that is asked whether they are
        // idle, which TCG does without.
        let slots = self.accelerator_slots()?;
        for (slot, next) in slots.clone().zip(slots.skip(1)) {
            // SAFETY: slots of the class, as in `hook_clock`.
            unsafe {
                // Whether QEMU asks is checked once the guest has run: `idle::check`.
                if *slot == kick && (*next).is_null() {
                    *next = idle as *mut c_void;
                    return Ok(());
                }
            }
        }
        Err(QemuError::Hook("no place for the question for idle vCPUs"))
    }

    /// Replaces QEMU's clock by `clock` and checks that QEMU now asks it.
    /// `asked` says how often `clock` was called.
    pub fn hook_clock(&self, clock: ClockFn, asked: impl Fn() -> u64) -> Result<(), QemuError> {
        // SAFETY: `use_icount` is an int of QEMU's; the others take plain integers.
        unsafe {
            if self.use_icount.read_volatile() != 1 || (self.icount_to_ns)(1) != 1 {
                return Err(QemuError::Icount);
            }
            let mut replaced = 0;
            for slot in self.accelerator_slots()? {
                if *slot == self.icount_get as *mut c_void {
                    *slot = clock as *mut c_void;
                    replaced += 1;
                }
            }
            if replaced == 0 {
                return Err(QemuError::Hook(
                    "clock functions not found in tcg-accel-ops",
                ));
            }
            let before = asked();
            (self.qemu_clock_get_ns)(CLOCK_VIRTUAL);
            if asked() == before {
                return Err(QemuError::Hook("QEMU does not ask the hooked clock"));
            }
        }
        Ok(())
    }
}

/// The registers callbacks read, of one vCPU.
pub struct Registers {
    handles: [*mut Register; 16],
    cr3: *mut Register,
    buffer: *mut GArray,
}

const GPR_NAMES: [&CStr; 16] = [
    c"rax", c"rcx", c"rdx", c"rbx", c"rsp", c"rbp", c"rsi", c"rdi", c"r8", c"r9", c"r10", c"r11",
    c"r12", c"r13", c"r14", c"r15",
];

impl Registers {
    /// Finds the registers; in a vCPU's init callback.
    pub fn find(api: &Api) -> Result<Self, QemuError> {
        let mut found = Self {
            handles: [std::ptr::null_mut(); 16],
            cr3: std::ptr::null_mut(),
            buffer: std::ptr::null_mut(),
        };
        // SAFETY: QEMU returns a GArray of descriptors, which the caller frees;
        // names live as long as the vCPU.
        unsafe {
            let list = (api.qemu_plugin_get_registers)();
            if !list.is_null() {
                let descriptors = (*list).data.cast::<RegisterDescriptor>();
                for index in 0..(*list).len as usize {
                    let descriptor = &*descriptors.add(index);
                    let name = CStr::from_ptr(descriptor.name);
                    if let Some(gpr) = GPR_NAMES.iter().position(|gpr| *gpr == name) {
                        found.handles[gpr] = descriptor.handle;
                    } else if name == c"cr3" {
                        found.cr3 = descriptor.handle;
                    }
                }
                (api.g_array_free)(list, 1);
            }
            found.buffer = (api.g_byte_array_new)();
        }
        match found.handles.iter().position(|handle| handle.is_null()) {
            Some(missing) => Err(QemuError::Register(
                GPR_NAMES[missing].to_str().unwrap_or("?"),
            )),
            None if found.cr3.is_null() => Err(QemuError::Register("cr3")),
            None => Ok(found),
        }
    }

    /// A general register's value; in a callback registered with [`READ_REGS`].
    pub fn gpr(&self, api: &Api, gpr: u8) -> u64 {
        self.read(api, self.handles[usize::from(gpr & 15)])
    }

    /// Writes a general register; in a callback registered with [`WRITE_REGS_AND_PC`].
    pub fn set_gpr(&self, api: &Api, gpr: u8, value: u64) {
        let bytes = value.to_le_bytes();
        // SAFETY: `buffer` comes from glib and is never freed; `append` copies.
        unsafe {
            (api.g_byte_array_set_size)(self.buffer, 0);
            (api.g_byte_array_append)(self.buffer, bytes.as_ptr().cast(), bytes.len() as c_uint);
            (api.qemu_plugin_write_register)(self.handles[usize::from(gpr & 15)], self.buffer);
        }
    }

    /// Where `cpu` keeps its general registers: the place inside it that follows what is
    /// written through the API. In its init callback.
    ///
    /// # Errors
    /// There is no such place.
    pub fn find_env(&self, api: &Api, cpu: *mut c_void) -> Result<*mut u64, QemuError> {
        /// The first registers of `CPUX86State`, with values that nothing else has: 32 bits,
        /// as the vCPU is in real mode.
        const PLANTED: [u64; 4] = [0x5a11_7701, 0x5a11_7702, 0x5a11_7703, 0x5a11_7704];
        /// A vCPU is larger than this, and the registers are in its first half.
        const SEARCHED_WORDS: usize = 0x8000 / 8;
        let before = [0, 1, 2, 3].map(|gpr| self.gpr(api, gpr));
        let plant = |values: [u64; 4]| {
            for (gpr, value) in (0..).zip(values) {
                self.set_gpr(api, gpr, value);
            }
        };
        plant(PLANTED);
        let words = cpu.cast::<u64>();
        let found = (0..SEARCHED_WORDS - PLANTED.len()).find(|&at| {
            // SAFETY: inside the vCPU, aligned.
            (0..PLANTED.len()).all(|index| unsafe { *words.add(at + index) } == PLANTED[index])
        });
        plant(before);
        // SAFETY: inside the vCPU.
        found
            .map(|at| unsafe { words.add(at) })
            .ok_or(QemuError::Hook(
                "the registers were not found inside a vCPU",
            ))
    }

    /// CR3.
    pub fn cr3(&self, api: &Api) -> u64 {
        self.read(api, self.cr3)
    }

    fn read(&self, api: &Api, register: *mut Register) -> u64 {
        let mut value = [0u8; 8];
        // SAFETY: `register` and `buffer` come from QEMU and glib and are never
        // freed; after the read `data` holds `len` bytes.
        unsafe {
            (api.g_byte_array_set_size)(self.buffer, 0);
            if (api.qemu_plugin_read_register)(register, self.buffer) {
                let bytes = ((*self.buffer).len as usize).min(value.len());
                std::ptr::copy_nonoverlapping(
                    (*self.buffer).data.cast::<u8>(),
                    value.as_mut_ptr(),
                    bytes,
                );
            }
        }
        u64::from_le_bytes(value)
    }
}
