// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Host daemon of the double balloon: a worker process with a vhost-user backend for each
//! virtual machine; one coordinator with the policies that divide FMEM among them and the
//! control interface.

mod accounts;
mod address;
mod args;
mod backend;
mod by_page;
mod channel;
mod confine;
mod control;
mod error;
mod fleet;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod guest;
mod history;
mod keeper;
mod ledger;
mod lock;
mod lost;
mod measuring;
mod message;
mod metrics;
#[cfg(any(test, fuzzing))]
mod pair;
mod quota;
mod refusals;
mod replug;
mod ring;
mod scrape;
mod serve;
mod silent;
mod sockets;
mod spec;
mod state;
mod steer;
mod store;
mod tiers;
mod token;
mod untouched;
mod visits;
mod vm;
mod web;
mod worker;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use demeter_policy as policy;

use crate::args::{Arguments, Settings};
use crate::error::Error;
use crate::fleet::Fleet;
use crate::sockets::Access;
use crate::state::State;

/// An orderly stop waits so long for what is to be written: a disk that does not answer must
/// not keep us.
const KEEPING_LIMIT: Duration = Duration::from_secs(5);
/// Of the descriptor that a socket unit passes for the control interface.
const CONTROL_NAME: &str = "control";

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.worker {
        return worker::process();
    }
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
    // SAFETY: sets a number of this process. Sockets and files are ours alone until
    // we say otherwise.
    unsafe { libc::umask(0o077) };
    take_descriptors();
    match lost::install().and_then(|()| run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demeterd: error: {error}; next: {}", error.next());
            ExitCode::from(error.status())
        }
    }
}

/// As many as may be had: files of each guest, connections of strangers. The limit is low by
/// itself for programs that number them in sets of bits, which this is not.
fn take_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: limit lives until the end.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as above. If it fails there are as many as there were.
        let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

fn run(arguments: Arguments) -> Result<(), Error> {
    let settings = arguments.settings()?;
    // Before anything is made that a daemon which has the state already would miss.
    let state = settings.state_dir.as_deref().map(State::open).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|cause| Error::System {
            action: "start the runtime",
            cause,
        })?;
    let served = runtime.block_on(serve(settings, state.map(Arc::new), Arc::new(arguments)));
    // Whoever waits for a monitor's commands shall not keep us.
    runtime.shutdown_background();
    served
}

async fn serve(
    settings: Settings,
    state: Option<Arc<State>>,
    arguments: Arc<Arguments>,
) -> Result<(), Error> {
    let system = |action| move |cause| Error::System { action, cause };
    // Before the machines' sockets: whoever finds another daemon there must not
    // have taken its machines away.
    let (listener, control) = match sockets::passed(CONTROL_NAME)? {
        // Its file is the service manager's, and stays.
        Some(listener) => (listener, None),
        None => {
            let listener = sockets::listen(&settings.control, Access::OWNER)?;
            (listener, Some(settings.control.clone()))
        }
    };
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::UnixListener::from_std(listener))
        .map_err(system("serve the control interface"))?;
    let scraped = match settings.metrics_listen {
        Some(address) => Some(scrape::listen(address).await?),
        None => None,
    };
    let page = match &settings.web {
        Some(web) => Some(web::listen(web).await?),
        None => None,
    };
    {
        let fleet = Arc::new(Fleet::start(settings, state.clone())?);
        if let Some(state) = state {
            tokio::spawn(state.watch());
        }
        if let Some(listener) = scraped {
            tokio::spawn(scrape::serve(listener, fleet.clone()));
        }
        let page_path = page
            .as_ref()
            .and_then(|page| page.path())
            .map(Path::to_path_buf);
        if let Some(page) = page {
            tokio::spawn(page.serve(fleet.clone()));
        }
        tokio::spawn(steer::run(fleet.clone()));
        tokio::spawn(fleet.clone().record());
        tokio::spawn(fleet.clone().keep_trying());
        tokio::spawn(reload_on(
            catch(SignalKind::hangup())?,
            fleet.clone(),
            arguments.clone(),
        ));
        let ended = ended()?;
        // Without a socket a device that is taken out could not be put in again.
        let served = |vm: &Arc<vm::Vm>| fleet.is_served(&vm.spec.name);
        for vm in fleet.vms().into_iter().filter(served) {
            replug::look_after(vm);
        }
        match &control {
            Some(path) => tracing::info!(control = %path.display(), "ready"),
            None => tracing::info!("ready; the service manager passed the control interface"),
        }
        tell_manager(&[NotifyState::Ready]);
        // Watchers never end by themselves, so nobody waits for them.
        let served = tokio::select! {
            served = axum::serve(listener, control::routes(fleet.clone(), arguments)) => {
                served.map_err(system("serve the control interface"))
            }
            () = ended => {
                tell_manager(&[NotifyState::Stopping]);
                for path in [control, page_path].into_iter().flatten() {
                    let _ = std::fs::remove_file(path);
                }
                Ok(())
            }
        };
        keep_all(fleet).await;
        served
    }
}

/// For the next start. In a thread of its own: others may all wait for somebody.
async fn keep_all(fleet: Arc<Fleet>) {
    let (said, is_kept) = tokio::sync::oneshot::channel();
    let keeping = std::thread::Builder::new().spawn(move || {
        fleet.keep_all(KEEPING_LIMIT);
        let _ = said.send(());
    });
    match keeping {
        Ok(_) => {
            let _ = is_kept.await;
        }
        Err(error) => tracing::error!("accounts of guests are not written: {error}"),
    }
}

/// Whoever started us may wait for this; nobody does if it fails.
fn tell_manager(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}

fn catch(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|cause| Error::System {
        action: "catch signals",
        cause,
    })
}

/// SIGHUP reads the configuration anew, as POST /v1/reload does.
async fn reload_on(mut hangup: Signal, fleet: Arc<Fleet>, arguments: Arc<Arguments>) {
    while hangup.recv().await.is_some() {
        if let Err(failure) = control::reload(fleet.clone(), arguments.clone()).await {
            let (error, next) = failure.words();
            tracing::error!(
                "configuration not taken over, or not all of it: {error}; next: {next}"
            );
        }
    }
}

/// SIGTERM or SIGINT. The guests' balloons stay as they are: whoever serves them
/// next learns them from the guests.
fn ended() -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let mut terminate = catch(SignalKind::terminate())?;
    let mut interrupt = catch(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
