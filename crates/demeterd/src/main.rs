// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Host daemon of the double balloon: one vhost-user backend a virtual machine,
//! policies that divide FMEM among them, a control interface.

mod args;
mod backend;
mod control;
mod error;
mod fleet;
mod ledger;
mod metrics;
mod policy;
mod serve;
mod size;
mod spec;
mod steer;
mod tiers;
mod vm;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use demeter_balloon::view::PolicyClock;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::args::{Arguments, Settings};
use crate::error::Error;
use crate::fleet::{Fleet, Steering};
use crate::ledger::Ledger;
use crate::vm::Vm;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.print_capabilities {
        println!("{}", args::capabilities());
        return ExitCode::SUCCESS;
    }
    let filter = EnvFilter::try_from_env("DEMETERD_LOG").unwrap_or_else(|_| {
        // The queues' own crate speaks up at every wrong descriptor.
        EnvFilter::new("info,virtio_queue=off,vhost=warn,vhost_user_backend=warn")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    match arguments.settings().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demeterd: error: {error}; next: {}", error.next());
            ExitCode::from(error.status())
        }
    }
}

fn run(settings: Settings) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|cause| Error::System {
            action: "start the runtime",
            cause,
        })?;
    runtime.block_on(serve(settings))
}

async fn serve(settings: Settings) -> Result<(), Error> {
    if let Some(directory) = &settings.state_dir {
        std::fs::create_dir_all(directory)
            .map_err(|cause| Error::file("create", directory, cause))?;
    }
    // Before the machines' sockets: whoever finds another daemon there must not
    // have taken its machines away.
    let listener = control::listen(&settings.control)?;
    let (changes, _) = watch::channel(0);
    let mut vms = Vec::new();
    for spec in settings.vms {
        let ledger = Ledger::open(settings.state_dir.as_deref(), &spec.name).map_err(|cause| {
            let directory = settings.state_dir.clone().unwrap_or_default();
            Error::file("write a ledger in", directory, cause)
        })?;
        let vm = Vm::new(spec, settings.parameters, ledger, changes.clone());
        vms.push(Arc::new(vm));
    }
    for vm in &vms {
        serve::start(vm.clone())?;
    }
    let steering = Steering {
        policy: policy::by_name(&settings.policy).flatten(),
        fmem_pool_bytes: settings.fmem_pool_bytes,
        interval_ms: settings.interval_ms,
        clock: PolicyClock::Host,
        decisions: 0,
    };
    let fleet = Arc::new(Fleet::new(vms, changes, steering));
    tokio::spawn(steer::run(fleet.clone()));
    tracing::info!(control = %settings.control.display(), "ready");
    let ended = ended()?;
    // Watchers never end by themselves, so nobody waits for them.
    tokio::select! {
        served = axum::serve(listener, control::routes(fleet)) => served.map_err(|cause| {
            Error::System {
                action: "serve the control interface",
                cause,
            }
        }),
        () = ended => {
            let _ = std::fs::remove_file(&settings.control);
            Ok(())
        }
    }
}

/// SIGTERM or SIGINT. The guests' balloons stay as they are: whoever serves them
/// next learns them from the guests.
fn ended() -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let install = |kind| {
        signal(kind).map_err(|cause| Error::System {
            action: "catch signals",
            cause,
        })
    };
    let mut terminate = install(SignalKind::terminate())?;
    let mut interrupt = install(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
