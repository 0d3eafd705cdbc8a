// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From nothing to a pager, before the program's first instruction.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicUsize};

use crate::background::SEATS;
use crate::budget::Budget;
use crate::compressed::{CompressedOptions, CompressedTier};
use crate::config::{Compress, Config, Mode};
use crate::context::Contexts;
use crate::error::Error;
use crate::extents::{Extent, Extents};
use crate::forecast::Forecast;
use crate::gate::Gate;
use crate::interpose::{dispatch, filter, process, randomisation};
use crate::lock::Lock;
use crate::neighbours::Neighbours;
use crate::page::{BLOCK_PAGES, PageTable, State};
use crate::pager::{ARENA_BASE, ARENA_MOST_BYTES, Pager, ProgramBreak, install};
use crate::pipes::Pipes;
use crate::policy::{Policy, PolicyOptions, Services};
use crate::queue::{Window, WindowQueue};
use crate::region::{PAGE_BYTES, Region, round_up};
use crate::share::Share;
use crate::signal::{KEPT_SIGBUS, KEPT_SIGSYS, on_bus, take};
use crate::signal_stacks::SignalStacks;
use crate::statistics::{About, AboutSwap, Board, Log, MOST_SWAP_PLACES, Place, Statistics};
use crate::stream::Streams;
use crate::swap::{EngineChoice, MOST_PLACES, SwapOptions, SwapPlace, SwapStore};
use crate::uffd::{Delivery, Uffd};
use crate::victim::VictimCache;
use crate::worker::Seat;
use crate::{descriptor, fatal, library, signal_actions, stub, syscall, valgrind};

/// The break of a program does not get larger than 256 GiB.
const MOST_BREAK_PAGES: usize = (256 << 30) / PAGE_BYTES;

/// Runs as a constructor of the preloaded library.
extern "C" fn constructor() {
    if !crate::config::is_wanted() || !is_preloaded() {
        return;
    }
    if library::program_is_go() {
        // Others of the tree are managed, this one runs as it is.
        let mut line = fatal::Line::new();
        let _ = std::fmt::Write::write_fmt(
            &mut line,
            format_args!(
                "demeter extmem: {} is built by Go with cgo, which cannot be managed: it runs without the pager",
                command_name()
            ),
        );
        line.emit();
        return;
    }
    randomisation::begin_anew_if_fixed();
    let started =
        Config::from_env().and_then(|config| start(&config).inspect_err(|_| does_not_run(&config)));
    if let Err(error) = started {
        fatal::exit(fatal::EXIT_STATUS_START, format_args!("{error}"));
    }
}

/// A program that ends with an error did not run without the pager.
fn does_not_run(config: &Config) {
    if let Ok(board) = Board::at(statistics_place(config)) {
        board.departures().arrived(std::process::id());
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

/// False when this code is part of a program (the tests, say) and not of the library.
fn is_preloaded() -> bool {
    // SAFETY: zero is a Dl_info.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: asks about our own code.
    let found = unsafe { libc::dladdr(constructor as *const _, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return false;
    }
    // SAFETY: a C string of the loader.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    name.to_bytes().ends_with(b".so")
}

/// Sets everything up. On an error nothing of the program has been touched.
fn start(config: &Config) -> Result<(), Error> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Error::Architecture);
    }
    let text = library::text().ok_or(Error::Library)?;
    if valgrind::runs_us() {
        return Err(Error::Valgrind);
    }
    crate::clock::find();
    install_panic_line();
    // First of all: an exec leaves the filter of the image before in force, and only
    // calls from the stub are exempt.
    stub::install().map_err(|cause| match cause.raw_os_error() {
        Some(libc::EEXIST) => Error::PlaceTaken {
            address: stub::FIRST,
        },
        _ => Error::AddressSpace {
            bytes: stub::BYTES,
            cause,
        },
    })?;
    descriptor::keep_proc();
    let places: Vec<SwapPlace> = (config.swap.iter())
        .map(|swap| SwapPlace {
            handed: swap.handed,
            path: &swap.path,
            capacity_bytes: swap.bytes,
        })
        .collect();
    let prepared = SwapStore::prepare(&SwapOptions {
        places: &places,
        dram_bytes: config.dram_bytes,
        engine: EngineChoice::Auto,
        rings: 0,
        inject: config.inject,
    })?;
    let store = prepared.complete()?;
    for fd in store.descriptors() {
        descriptor::adopt(fd);
    }
    let dram_pages = config.dram_bytes / PAGE_BYTES as u64;
    let capacity_pages = store.capacity_slots();
    let (mode, uffd) = open_uffd(config.mode)?;
    let pages = arena_pages(dram_pages, capacity_pages);
    reserve_arena(pages)?;
    let break_pages = (pages / 4).min(MOST_BREAK_PAGES);
    // Page 0 stays free, so that nothing lies at the arena's very start. Mappings begin with a
    // block: one that nobody touches has no words then.
    let first_page = (break_pages + 1)
        .next_multiple_of(BLOCK_PAGES as usize)
        .min(pages);
    let share = config.handed_ledger.as_ref().and_then(Share::enroll);
    let budget = Budget::new(dram_pages, capacity_pages, share);
    let most_victims = (dram_pages / 4).min(1 << 22) as u32;
    let pager = Pager {
        mode,
        min_bytes: config.min_bytes,
        table: PageTable::new(ARENA_BASE, pages, map(PageTable::footprint_bytes(pages))?)
            .ok_or_else(out_of_room)?,
        gate: Gate::default(),
        contexts: Contexts::new(map(Contexts::footprint_bytes())?).ok_or_else(out_of_room)?,
        places: Lock::new(()),
        extents: Lock::new(
            Extents::new(
                map(Extents::footprint_bytes())?,
                Extent {
                    first: first_page as u32,
                    pages: (pages - first_page) as u32,
                },
            )
            .ok_or_else(out_of_room)?,
        ),
        policy: Policy::load(
            &PolicyOptions {
                spec: &config.policy,
                pages: pages as u32,
                dram_pages: dram_pages as u32,
            },
            Services {
                context: std::ptr::null_mut(),
                prefetch: prefetch_for_policy,
                state: state_for_policy,
            },
        )?,
        tier: compressed_tier(config)?,
        tier_pages: AtomicI64::new(0),
        neighbours: Neighbours::new(config.neighbours),
        forecast: Forecast::default(),
        streams: Streams::new(pages as u32, dram_pages, map(Streams::footprint_bytes())?)
            .ok_or_else(out_of_room)?,
        statistics: Statistics::open(
            statistics_place(config),
            &About {
                command: &command_name(),
                policy: &config.policy,
                mode: mode.name(),
                engine: if store.uses_uring() {
                    "io_uring"
                } else {
                    "plain"
                },
                dram_bytes: config.dram_bytes,
                swap_bytes: capacity_pages * PAGE_BYTES as u64,
                swap: about_swap(&store),
            },
        )?,
        log: config.log.as_deref().map(open_log).transpose()?,
        says_summary: config.verbose && config.statistics.is_none(),
        victims: victim_cache(&uffd, most_victims)?,
        windows: WindowQueue::default(),
        zeroes: zeroes()?,
        pipes: Pipes::new(uffd.never_waits()),
        memory_file: AtomicI32::new(descriptor::keep(process::open_memory_file())),
        program_break: Lock::new(ProgramBreak {
            start: ARENA_BASE + PAGE_BYTES,
            now: ARENA_BASE + PAGE_BYTES,
            limit: ARENA_BASE + break_pages * PAGE_BYTES,
        }),
        seats: seats()?,
        threads_started: AtomicBool::new(false),
        own_threads: AtomicU32::new(0),
        inline_eviction: crate::evict::who_evicts(),
        evict_wanted: AtomicU32::new(0),
        process: AtomicI32::new(std::process::id() as i32),
        locked_pages: AtomicI64::new(0),
        pinned_pages: AtomicI64::new(0),
        stacks: Lock::default(),
        signal_stacks: signal_stacks()?,
        misplaced: AtomicU32::new(0),
        most_pinned_bytes: AtomicUsize::new(crate::pager::most_pinned_bytes(&budget)),
        budget,
        uffd,
        store,
    };
    pager.size_victim_cache();
    // Code, tables of the store, ring tables: a fixed share.
    pager
        .budget
        .charge_overhead(128 + crate::stash::COPIES as i64);
    let code = filter::build(filter::Terms {
        library: text,
        break_site: library::break_site(text).unwrap_or(0),
        min_bytes: config.min_bytes,
    });
    let pager = install(pager);
    // In handler mode too: the program's own action is kept and called from there.
    let flags = libc::SA_ONSTACK;
    take(libc::SIGBUS, on_bus, flags, u64::MAX, &KEPT_SIGBUS).map_err(|errno| Error::Signal {
        signal: libc::SIGBUS,
        errno,
    })?;
    let trap = dispatch::on_trap;
    let blocked = signal_actions::UNTIL_MOVED;
    take(libc::SIGSYS, trap, flags, blocked, &KEPT_SIGSYS).map_err(|errno| Error::Signal {
        signal: libc::SIGSYS,
        errno,
    })?;
    let signals = crate::pager::block_signals();
    pager.start_handlers();
    signal_actions::adopt();
    crate::pager::restore_signals(signals & !signal_actions::NEVER_BLOCKED);
    if config.verbose {
        announce(pager);
    }
    filter::install(&code).map_err(|errno| match errno {
        libc::ENOMEM => Error::FilterDepth {
            most: filter::DEPTH,
        },
        errno => Error::Filter { errno },
    })?;
    forget_break();
    Ok(())
}

/// Runs when the process ends in order.
extern "C" fn destructor() {
    let Some(pager) = crate::pager::pager() else {
        return;
    };
    if !pager.is_this_process() {
        return;
    }
    crate::pager::bring_in_stack();
    let operation = pager.enter();
    operation.on_own_stack(&mut || pager.sample());
    drop(operation);
    pager.statistics.finish();
    if pager.says_summary {
        crate::statistics::write_line(pager.statistics.block(), 2);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn prefetch_for_policy(_: *mut c_void, first: u32, pages: u32, flags: u32) {
    let Some(pager) = crate::pager::pager() else {
        return;
    };
    pager.start_threads();
    let mut step = 0;
    while step < pages {
        pager.windows.push(Window {
            first: first.saturating_add(step),
            pages: (pages - step).min(64),
            write: flags & 1 != 0,
        });
        step += 64;
    }
}

extern "C" fn state_for_policy(_: *mut c_void, page: u32) -> u32 {
    let Some(pager) = crate::pager::pager().filter(|pager| (page as usize) < pager.table.pages())
    else {
        return 0;
    };
    let entry = pager.table.load(page);
    match entry.state() {
        State::Clean | State::Unpacked | State::Guarded | State::Dirty => {
            u32::from(entry.is_evictable())
        }
        State::Swapped | State::Compressed | State::Victim => 2,
        _ => 0,
    }
}

fn compressed_tier(config: &Config) -> Result<Option<CompressedTier>, Error> {
    if config.compress == Compress::Off {
        return Ok(None);
    }
    // Whatever does not fit costs a read from swap, ten times the price of decompressing:
    // resident pages must only be enough for what the program uses at one time.
    let most_bytes = (config.dram_bytes / 4 * 3) as usize;
    let options = CompressedOptions {
        pool_bytes: most_bytes,
        always_on: config.compress == Compress::On,
    };
    let region = map(CompressedTier::footprint_bytes(&options))?;
    let tier = CompressedTier::new(&options, region)?;
    tier.set_limit_bytes(most_bytes);
    Ok(Some(tier))
}

/// By descriptor if that was handed on and is still there, else by path.
fn statistics_place(config: &Config) -> Place<'_> {
    match (config.handed_statistics, config.statistics.as_deref()) {
        (Some(handed), _) if handed.is_there() => {
            descriptor::inherit(handed.descriptor);
            Place::Descriptor(handed.descriptor)
        }
        // Somebody closed it, and the path may lead nowhere here.
        (Some(_), Some(path)) => Place::PathIfThere(path),
        (_, Some(path)) => Place::Path(path),
        (_, None) => Place::Private,
    }
}

fn open_log(path: &std::path::Path) -> Result<Log, Error> {
    Log::open(path).map_err(|cause| Error::Log {
        path: path.to_owned(),
        cause,
    })
}

fn command_name() -> String {
    std::env::args_os().next().map_or_else(String::new, |name| {
        std::path::Path::new(&name)
            .file_name()
            .unwrap_or(&name)
            .to_string_lossy()
            .into_owned()
    })
}

fn about_swap(store: &SwapStore) -> [AboutSwap<'static>; MOST_SWAP_PLACES] {
    const { assert!(MOST_SWAP_PLACES == MOST_PLACES) };
    let mut places = store.places().zip(store.descriptors());
    std::array::from_fn(|_| match places.next() {
        Some(((path, slots, _), file)) => AboutSwap {
            path,
            file: descriptor::identity(file),
            size_bytes: slots * PAGE_BYTES as u64,
        },
        None => AboutSwap::default(),
    })
}

impl Pager {
    /// What the statistics say of a process.
    pub fn about<'a>(&'a self, command: &'a str) -> About<'a> {
        About {
            command,
            policy: self.policy.name(),
            mode: self.mode.name(),
            engine: if self.store.uses_uring() {
                "io_uring"
            } else {
                "plain"
            },
            dram_bytes: self.budget.dram_pages() as u64 * PAGE_BYTES as u64,
            swap_bytes: self.budget.capacity_pages() as u64 * PAGE_BYTES as u64,
            swap: about_swap(&self.store),
        }
    }
}

/// The fault interface, by signal if nothing else is asked for.
fn open_uffd(wanted: Option<Mode>) -> Result<(Mode, Uffd), Error> {
    let attempt = |mode| {
        let delivery = match mode {
            Mode::Inline => Delivery::Signal,
            Mode::Handler => Delivery::Message,
        };
        Uffd::open(delivery).map(|uffd| (mode, uffd))
    };
    match wanted {
        Some(mode) => attempt(mode),
        None => attempt(Mode::Inline).or_else(|_| attempt(Mode::Handler)),
    }
    .map_err(|errno| match errno {
        libc::EMFILE | libc::ENFILE => Error::Descriptors { errno },
        _ => Error::Userfaultfd { errno },
    })
}

/// Room for what may be promised, several times over: programs reserve more address
/// space than they use, and holes form. As much as there can be, for reservations of
/// terabytes, where tables that are hardly touched cost nothing.
fn arena_pages(dram_pages: u64, capacity_pages: u64) -> usize {
    const LEAST: u64 = 64 << 30;
    let most = (ARENA_MOST_BYTES / PAGE_BYTES) as u64;
    if !counts_address_space() {
        return most as usize;
    }
    let wanted = (dram_pages + capacity_pages) * 8;
    wanted.clamp(LEAST / PAGE_BYTES as u64, most) as usize
}

/// Whether memory that is mapped and not touched counts for somebody.
fn counts_address_space() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: fills one rlimit each.
    let limited = [libc::RLIMIT_AS, libc::RLIMIT_DATA]
        .into_iter()
        .any(|what| unsafe {
            libc::getrlimit(what, &raw mut limit) == 0 && limit.rlim_cur != libc::RLIM_INFINITY
        });
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory")
        .is_ok_and(|mode| mode.trim() == "2");
    limited || strict
}

fn reserve_arena(pages: usize) -> Result<(), Error> {
    let bytes = pages * PAGE_BYTES;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: address space that nobody uses (NOREPLACE).
    let result = unsafe {
        syscall::call(
            libc::SYS_mmap,
            [ARENA_BASE, bytes, 0, flags as usize, usize::MAX, 0],
        )
    };
    let errno = match result {
        error if error < 0 => -error as i32,
        address if address as usize != ARENA_BASE => libc::EEXIST,
        _ => {
            // The same everywhere from the start: mappings that differ do not merge.
            // SAFETY: advice on the reservation; failure changes nothing.
            unsafe {
                syscall::call(
                    libc::SYS_madvise,
                    [ARENA_BASE, bytes, libc::MADV_NOHUGEPAGE as usize, 0, 0, 0],
                );
            }
            return Ok(());
        }
    };
    if errno == libc::EEXIST {
        return Err(Error::PlaceTaken {
            address: ARENA_BASE,
        });
    }
    Err(Error::AddressSpace {
        bytes,
        cause: std::io::Error::from_raw_os_error(errno),
    })
}

fn map(bytes: usize) -> Result<Region, Error> {
    Region::map_anonymous(bytes).map_err(|cause| Error::AddressSpace { bytes, cause })
}

fn out_of_room() -> Error {
    Error::AddressSpace {
        bytes: 0,
        cause: std::io::Error::from_raw_os_error(libc::ENOMEM),
    }
}

fn signal_stacks() -> Result<SignalStacks, Error> {
    let bytes = SignalStacks::footprint_bytes();
    let region = Region::reserve(bytes).map_err(|cause| Error::AddressSpace { bytes, cause })?;
    SignalStacks::new(&region).ok_or_else(out_of_room)
}

fn zeroes() -> Result<*const u8, Error> {
    let mut region = map(crate::context::BATCH_PAGES * PAGE_BYTES)?;
    // SAFETY: zero is a u8. Never written, so every page of it is the kernel's zero page.
    let memory = unsafe { region.carve::<u8>(crate::context::BATCH_PAGES * PAGE_BYTES) };
    Ok(memory.ok_or_else(out_of_room)?.as_ptr())
}

fn victim_cache(uffd: &Uffd, most_pages: u32) -> Result<VictimCache, Error> {
    let bytes = VictimCache::memory_bytes(most_pages);
    let mut region = map(bytes)?;
    // SAFETY: zero is a u8.
    let memory = unsafe { region.carve::<u8>(bytes) }.ok_or_else(out_of_room)?;
    let base = NonNull::from(memory).cast::<u8>().as_ptr() as usize;
    uffd.register(base, bytes)
        .map_err(|errno| Error::Userfaultfd { errno })?;
    VictimCache::new(
        base,
        most_pages,
        map(VictimCache::footprint_bytes(most_pages))?,
    )
    .ok_or_else(out_of_room)
}

fn seats() -> Result<Vec<Seat>, Error> {
    let mut region = map(round_up(SEATS * Seat::footprint_bytes(), PAGE_BYTES) + PAGE_BYTES)?;
    (0..SEATS)
        .map(|_| Seat::new(&mut region).ok_or_else(out_of_room))
        .collect()
}

/// Makes the C library ask for its break again: from now on it lies in the arena. What
/// it has of the old one it keeps, like any break that somebody else moved.
fn forget_break() {
    unsafe extern "C" {
        static mut __curbrk: *mut u8;
    }
    // SAFETY: the C library's own variable; null means "not asked yet". The process has
    // one thread that runs the program's code, and it is here.
    unsafe { __curbrk = std::ptr::null_mut() };
}

/// A panic is a defect; it must not unwind through the program or take locks.
fn install_panic_line() {
    std::panic::set_hook(Box::new(|information| {
        let (file, line) = information
            .location()
            .map_or(("?", 0), |location| (location.file(), location.line()));
        fatal!("internal error at {file}:{line}; next: report this");
    }));
}

fn announce(pager: &Pager) {
    use std::fmt::Write;
    let mut line = fatal::Line::new();
    let _ = write!(
        line,
        "demeter extmem: mode {}, policy {}, DRAM {} MiB, swap {} MiB (",
        pager.mode.name(),
        pager.policy.name(),
        pager.budget.limit_pages() / 256,
        pager.budget.capacity_pages() / 256,
    );
    for (at, kind) in pager.store.kinds().enumerate() {
        let _ = write!(line, "{}{kind}", if at > 0 { ", " } else { "" });
    }
    let engine = if pager.store.uses_uring() {
        ", io_uring"
    } else {
        ""
    };
    let _ = write!(line, "{engine})");
    line.emit();
}
