// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control interface: JSON over HTTP on a Unix socket. An external policy
//! uses the same calls as a person with `demeter balloon`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path as UrlPath, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use demeter_balloon::TargetError;
use demeter_balloon::view::{PolicyView, Problem, SizeWish, Stage, VmView, tier_node};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;

use crate::args::Arguments;
use crate::fleet::{Fleet, FleetError, SetPolicyError, Steering};
use crate::history::HistoryView;
use crate::ledger::What;
use crate::refusals::{Interface, counted};
use crate::spec::Description;
use crate::spec::SpecError;
use crate::vm::{Vm, same_account};
use crate::{metrics, policy, replug};

/// Longest wait that a call may ask for.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// Watchers see changes at most so often.
const WATCH_PAUSE: Duration = Duration::from_millis(100);
/// No request has more to say.
const MAX_BODY_BYTES: usize = 64 << 10;
/// Newest decisions that are shown.
const DECISIONS: usize = 256;
/// Where all of this is described.
const SEE: &str = "see the control interface in docs/balloon-operation.md, or GET /v1/openapi.json";

/// Of a call.
pub type Answer<T> = Result<T, Failure>;

/// A refusal.
pub struct Failure(StatusCode, Problem);

impl Failure {
    /// In words, with what to do.
    pub fn words(&self) -> (&str, &str) {
        (&self.1.error, &self.1.next)
    }

    /// With that status.
    pub fn new(status: StatusCode, error: impl Into<String>, next: impl Into<String>) -> Self {
        Self(
            status,
            Problem {
                error: error.into(),
                next: next.into(),
            },
        )
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

/// Not what the call takes.
macro_rules! refuse {
    ($($rejection:ty),*) => {$(
        impl From<$rejection> for Failure {
            fn from(rejection: $rejection) -> Self {
                Self::new(rejection.status(), rejection.body_text(), SEE)
            }
        }
    )*};
}
refuse!(JsonRejection, PathRejection, QueryRejection);

/// The names in a path.
struct At<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let UrlPath(names) = UrlPath::from_request_parts(parts, state).await?;
        Ok(Self(names))
    }
}

impl From<FleetError> for Failure {
    fn from(error: FleetError) -> Self {
        let (status, next) = match &error {
            FleetError::Unknown { known, .. } if known.is_empty() => {
                (StatusCode::NOT_FOUND, "add it: POST /v1/vms".to_owned())
            }
            FleetError::Unknown { known, .. } => (
                StatusCode::NOT_FOUND,
                format!("choose from: {}", known.join(", ")),
            ),
            FleetError::Spec(SpecError::NameTwice(_) | SpecError::SocketTwice(_)) => (
                StatusCode::CONFLICT,
                "choose another, or remove that machine first".to_owned(),
            ),
            FleetError::Spec(_) => (
                StatusCode::BAD_REQUEST,
                "see the configuration file in docs/balloon-operation.md".to_owned(),
            ),
            FleetError::Configured(_) => (
                StatusCode::CONFLICT,
                "take it out of the file, then POST /v1/reload".to_owned(),
            ),
            error if error.is_silence() => (
                StatusCode::SERVICE_UNAVAILABLE,
                "look after the state directory and its disk, then ask again".to_owned(),
            ),
            FleetError::Start(error) => (StatusCode::CONFLICT, error.next()),
            FleetError::Store(_) | FleetError::Silent(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "check --state-dir, its permissions and its space".to_owned(),
            ),
        };
        Self::new(status, error.to_string(), next)
    }
}

impl From<SetPolicyError> for Failure {
    fn from(error: SetPolicyError) -> Self {
        let words = error.to_string();
        match error {
            SetPolicyError::Policy(error) => {
                Self::new(StatusCode::BAD_REQUEST, words, error.next())
            }
            SetPolicyError::Store(error) => FleetError::Store(error).into(),
        }
    }
}

/// What is served on TCP: metrics, and nothing that changes anything.
pub fn public_routes(fleet: Arc<Fleet>) -> Router {
    let refusals = fleet.refusals.clone();
    let routes = Router::new()
        .route("/metrics", get(prometheus))
        .with_state(fleet);
    counted(routes, refusals, Interface::Metrics)
}

/// What changes nothing and ends: served to whoever may look.
pub fn views() -> Router<Arc<Fleet>> {
    Router::new()
        .route("/v1/vms", get(list))
        .route("/v1/vms/{vm}", get(one))
        .route("/v1/vms/{vm}/history", get(history))
        .route("/v1/vms/{vm}/ledger", get(ledger))
        .route("/v1/decisions", get(decisions))
        .route("/v1/policy", get(get_policy))
        .route("/v1/openapi.json", get(description))
}

/// All routes. `arguments` are read anew when somebody asks for that.
pub fn routes(fleet: Arc<Fleet>, arguments: Arc<Arguments>) -> Router {
    let refusals = fleet.refusals.clone();
    let again = move |State(fleet): State<Arc<Fleet>>| reload(fleet, arguments.clone());
    let routes = views()
        .route("/v1/vms", post(add))
        .route("/v1/vms/{vm}", delete(remove))
        .route("/v1/reload", post(again))
        .route("/v1/vms/{vm}/tiers/{tier}", put(resize))
        .route("/v1/vms/{vm}/statistics", post(ask_statistics))
        .route("/v1/watch", get(watch))
        .route("/v1/policy", put(put_policy))
        .route("/metrics", get(prometheus));
    let routes = with_refusals(routes)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(fleet);
    counted(routes, refusals, Interface::Control)
}

/// Refuses calls that there are not, in JSON.
pub fn with_refusals(routes: Router<Arc<Fleet>>) -> Router<Arc<Fleet>> {
    routes
        .fallback(|| async { Failure::new(StatusCode::NOT_FOUND, "no such call", SEE) })
        .method_not_allowed_fallback(|| async {
            Failure::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "the call does not know this method",
                SEE,
            )
        })
}

/// All calls, for programs.
async fn description() -> impl IntoResponse {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, include_str!("openapi.json"))
}

async fn list(State(fleet): State<Arc<Fleet>>) -> Json<Vec<VmView>> {
    Json(fleet.views().await)
}

fn find(fleet: &Fleet, name: &str) -> Answer<Arc<Vm>> {
    Ok(fleet.vm(name)?)
}

/// Runs what may wait for threads and disks.
async fn aside<T: Send + 'static>(
    body: impl FnOnce() -> Result<T, FleetError> + Send + 'static,
) -> Answer<T> {
    match tokio::task::spawn_blocking(body).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(Failure::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
            "report it",
        )),
    }
}

async fn add(
    State(fleet): State<Arc<Fleet>>,
    wish: Result<Json<Description>, JsonRejection>,
) -> Answer<(StatusCode, Json<VmView>)> {
    let Json(description) = wish?;
    let adding = fleet.clone();
    let vm = aside(move || adding.add(description)).await?;
    replug::look_after(vm.clone());
    Ok((StatusCode::CREATED, Json(fleet.view_of(&vm).await)))
}

async fn remove(State(fleet): State<Arc<Fleet>>, At(name): At<String>) -> Answer<StatusCode> {
    aside(move || fleet.remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads arguments and configuration file anew.
pub async fn reload(fleet: Arc<Fleet>, arguments: Arc<Arguments>) -> Answer<Json<Vec<VmView>>> {
    let again = fleet.clone();
    let reloaded = aside(move || again.reload(arguments.settings()?)).await;
    // One that cannot be served costs the others nothing.
    let views = fleet.views().await;
    for view in views.iter().filter(|view| view.stage == Stage::Waiting) {
        if let Ok(vm) = fleet.vm(&view.name)
            && fleet.is_served(&view.name)
        {
            replug::look_after(vm);
        }
    }
    reloaded?;
    Ok(Json(views))
}

async fn one(State(fleet): State<Arc<Fleet>>, At(name): At<String>) -> Answer<Json<VmView>> {
    let vm = find(&fleet, &name)?;
    Ok(Json(fleet.view_of(&vm).await))
}

async fn ledger(
    State(fleet): State<Arc<Fleet>>,
    At(name): At<String>,
) -> Answer<Json<Vec<crate::ledger::Entry>>> {
    Ok(Json(find(&fleet, &name)?.ledger.recent()))
}

/// Which points.
#[derive(Deserialize)]
struct Behind {
    #[serde(default)]
    after: u64,
}

async fn history(
    State(fleet): State<Arc<Fleet>>,
    At(name): At<String>,
    behind: Result<Query<Behind>, QueryRejection>,
) -> Answer<Json<HistoryView>> {
    let Query(behind) = behind?;
    let vm = find(&fleet, &name)?;
    Ok(Json(fleet.history.view(&vm.spec.name, behind.after)))
}

/// A size that was asked for.
#[derive(Serialize)]
struct Decision {
    unix_ms: u64,
    vm: String,
    tier: String,
    size_bytes: u64,
    why: String,
}

/// Newest last, of all machines; each of their ledgers remembers some of its own.
async fn decisions(State(fleet): State<Arc<Fleet>>) -> Json<Vec<Decision>> {
    let mut all = Vec::new();
    for vm in fleet.vms() {
        let entries = vm.ledger.recent().into_iter();
        all.extend(
            entries
                .filter(|entry| entry.what == What::Asked)
                .filter_map(|entry| {
                    Some(Decision {
                        unix_ms: entry.unix_ms,
                        vm: vm.spec.name.clone(),
                        tier: entry.tier?,
                        size_bytes: entry.size_bytes?,
                        why: entry.why.unwrap_or_default(),
                    })
                }),
        );
    }
    all.sort_by_key(|decision| decision.unix_ms);
    all.drain(..all.len().saturating_sub(DECISIONS));
    Json(all)
}

async fn ask_statistics(
    State(fleet): State<Arc<Fleet>>,
    At(name): At<String>,
) -> Answer<StatusCode> {
    find(&fleet, &name)?.ask_statistics();
    Ok(StatusCode::ACCEPTED)
}

async fn resize(
    State(fleet): State<Arc<Fleet>>,
    At((name, tier)): At<(String, String)>,
    wish: Result<Json<SizeWish>, JsonRejection>,
) -> Answer<Json<VmView>> {
    let Json(wish) = wish?;
    let vm = find(&fleet, &name)?;
    let generation = fleet.with_steering(|steering| by_hand(steering))?;
    let node = tier_node(&tier)
        .filter(|node| usize::from(*node) < vm.spec.tiers.len())
        .ok_or_else(|| {
            Failure::new(
                StatusCode::NOT_FOUND,
                format!("machine '{name}' has no tier '{tier}'"),
                "fmem and smem are tiers",
            )
        })?;
    // With what its worker knows now: a wish is measured against that.
    let seen = fleet.view_of(&vm);
    let ticket = ask_by(&fleet, generation, &vm, node, &wish, seen).await?;
    if wish.wait_ms > 0 {
        let limit = Duration::from_millis(wish.wait_ms).min(MAX_WAIT);
        let mut changes = fleet.changes();
        let ended = async {
            loop {
                let view = vm.view();
                let tier = view.tiers.get(usize::from(node));
                if tier.is_none_or(|tier| tier.ended_ticket >= ticket) {
                    return;
                }
                if view.stage == Stage::Waiting || view.stage == Stage::Disabled {
                    return;
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        // Not there yet is an answer as well: the view says so.
        let _ = tokio::time::timeout(limit, ended).await;
    }
    let view = fleet.view_of(&vm).await;
    // Somebody took the machine away meanwhile, and maybe added another one of that name.
    same_machine(&vm, &find(&fleet, &name)?)?;
    Ok(Json(view))
}

/// Sizes are asked for by hand; what whoever steers has said by now, by its number.
fn by_hand(steering: &Steering) -> Answer<u64> {
    let Some(policy) = &steering.policy else {
        return Ok(steering.generation);
    };
    Err(Failure::new(
        StatusCode::CONFLICT,
        format!("the policy '{}' decides sizes", policy.name()),
        "hand over first: demeter balloon policy external",
    ))
}

/// Asks for a size by what is seen when somebody has looked, which takes its time where a worker
/// does not answer. What was said meanwhile about who decides is the later word: it stands.
async fn ask_by(
    fleet: &Fleet,
    generation: u64,
    vm: &Arc<Vm>,
    node: u16,
    wish: &SizeWish,
    seen: impl Future<Output = VmView>,
) -> Answer<u64> {
    let seen = seen.await;
    // One that was taken away meanwhile has no worker either, and nobody is to start it for that.
    same_machine(vm, &find(fleet, &vm.spec.name)?)?;
    if seen.stage == Stage::Waiting {
        return Err(Failure::new(
            StatusCode::CONFLICT,
            format!("machine '{}' is not connected", vm.spec.name),
            "start it, or replug its device: demeter balloon replug --qmp PATH",
        ));
    }
    let why = wish.why.as_deref().unwrap_or("control interface");
    let why: String = why.chars().take(200).collect();
    fleet.with_steering(|steering| {
        if by_hand(steering)? != generation {
            return Err(Failure::new(
                StatusCode::CONFLICT,
                "who decides sizes was said anew after this size was asked for",
                "look at the machine's sizes, then ask again",
            ));
        }
        vm.ask(node, wish.size_bytes, &why).map_err(|error| {
            let next = match error {
                TargetError::Disabled => {
                    "replug its device: demeter balloon replug --qmp PATH".to_owned()
                }
                TargetError::Size { node_pages, .. } => {
                    format!("the tier has {} bytes", node_pages << 12)
                }
                TargetError::Node { .. } => "fmem and smem are tiers".to_owned(),
            };
            Failure::new(StatusCode::CONFLICT, error.to_string(), next)
        })
    })
}

/// Is that the machine of this name still?
fn same_machine(asked: &Arc<Vm>, now: &Arc<Vm>) -> Answer<()> {
    if Arc::ptr_eq(asked, now) {
        return Ok(());
    }
    let name = &asked.spec.name;
    Err(Failure::new(
        StatusCode::NOT_FOUND,
        format!("machine '{name}' was removed, and another one added"),
        "ask again for the new one",
    ))
}

/// One line a machine at first, then one for each that changed.
async fn watch(State(fleet): State<Arc<Fleet>>) -> Response {
    let mut last: Vec<VmView> = Vec::new();
    let lines = WatchStream::new(fleet.changes())
        .throttle(WATCH_PAUSE)
        .then(move |_| {
            let fleet = fleet.clone();
            async move { fleet.views().await }
        })
        .map(move |views| {
            let mut text = Vec::new();
            for view in &views {
                let known = last.iter().any(|old| same(old, view));
                if !known && serde_json::to_writer(&mut text, view).is_ok() {
                    text.push(b'\n');
                }
            }
            last = views;
            Ok::<_, Infallible>(Bytes::from(text))
        });
    (
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response()
}

/// Nothing but time has passed.
fn same(old: &VmView, new: &VmView) -> bool {
    let mut old = old.clone();
    old.statistics_age_ms = new.statistics_age_ms;
    if same_account(old.account, new.account) {
        old.account = new.account;
    }
    old == *new
}

async fn get_policy(State(fleet): State<Arc<Fleet>>) -> Json<PolicyView> {
    Json(fleet.policy_view())
}

async fn put_policy(
    State(fleet): State<Arc<Fleet>>,
    wish: Result<Json<PolicyView>, JsonRejection>,
) -> Answer<Json<PolicyView>> {
    let Json(wish) = wish?;
    let changed = fleet.clone();
    let done = tokio::task::spawn_blocking(move || changed.set_policy(&wish)).await;
    done.map_err(|error| {
        Failure::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
            "report it",
        )
    })??;
    Ok(Json(fleet.policy_view()))
}

async fn prometheus(State(fleet): State<Arc<Fleet>>) -> Response {
    let decided = fleet.with_steering(|steering| metrics::Decided {
        policy: (steering.policy.as_ref()).map_or(policy::EXTERNAL, |policy| policy.name()),
        pool_bytes: steering.fmem_pool_bytes,
        decisions: steering.decisions,
        deciding: steering.deciding,
        disk_silent: fleet.disk_silent_for(),
        unwritten_entries: fleet.unwritten_entries(),
        refused_calls: fleet.refusals.calls(),
        wrong_tokens: fleet.refusals.wrong_tokens(),
    });
    match metrics::text(&fleet.views().await, decided) {
        Ok(text) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(error) => Failure::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
            "report it",
        )
        .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_of_the_same_name_is_not_the_one_that_was_asked_for() {
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [old, new] = directories
            .each_ref()
            .map(|directory| crate::pair::driven(directory.path(), "web").vm);
        assert!(same_machine(&old, &old.clone()).is_ok());
        let failure = same_machine(&old, &new).unwrap_err();
        assert_eq!(
            failure.words().0,
            "machine 'web' was removed, and another one added"
        );
    }

    fn settings(policy: &str) -> crate::args::Settings {
        let text = format!("[policy]\nname = '{policy}'\nfmem-pool = '1G'");
        crate::args::settings_of("file".as_ref(), &text).unwrap()
    }

    fn wanted_pages(vm: &Vm) -> Option<u64> {
        let wanted = vm.view().tiers[0].wanted_size_bytes;
        wanted.map(|bytes| bytes >> 12)
    }

    #[tokio::test]
    async fn a_machine_that_goes_while_a_size_is_asked_for_is_not_there() {
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [old, new] = directories
            .each_ref()
            .map(|directory| crate::pair::driven(directory.path(), "web").vm);
        let fleet = Fleet::start(settings("external"), None).unwrap();
        let generation = fleet.with_steering(|steering| steering.generation);
        let wish: SizeWish = serde_json::from_str(r#"{"size_bytes": 40960}"#).unwrap();
        let ask = async |meanwhile: &dyn Fn()| {
            fleet.put(&old);
            let seen = async {
                meanwhile();
                old.view()
            };
            let asked = ask_by(&fleet, generation, &old, 0, &wish, seen).await;
            let Failure(status, problem) = asked.map(drop).unwrap_err();
            (status, problem.error)
        };
        let (status, words) = ask(&|| fleet.put(&new)).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(words, "machine 'web' was removed, and another one added");
        assert_eq!([&old, &new].map(|vm| wanted_pages(vm)), [Some(12); 2]);
        // Its worker ends with it.
        let (status, words) = ask(&|| {
            fleet.remove("web").unwrap();
            old.worker_gone(None);
        })
        .await;
        assert_eq!(
            (status, &*words),
            (StatusCode::NOT_FOUND, "no machine 'web'")
        );
    }

    #[tokio::test]
    async fn a_size_that_was_asked_for_before_a_policy_was_chosen_does_not_undo_what_that_says() {
        let directory = tempfile::tempdir().unwrap();
        let vm = crate::pair::driven(directory.path(), "web").vm;
        let fleet = Fleet::start(settings("external"), None).unwrap();
        fleet.put(&vm);
        let choose = |policy: &str| fleet.set_policy(&settings(policy).policy).unwrap();
        let taken = || fleet.with_steering(|steering| by_hand(steering));
        let wish: SizeWish = serde_json::from_str(r#"{"size_bytes": 40960}"#).unwrap();
        let ask = async |generation, meanwhile: &[&str]| {
            let seen = async {
                for policy in meanwhile {
                    choose(policy);
                    let _ = vm.ask(0, 8 << 12, policy);
                }
                vm.view()
            };
            let asked = ask_by(&fleet, generation, &vm, 0, &wish, seen).await;
            asked
                .map(drop)
                .map_err(|failure| failure.words().0.to_owned())
        };
        // While it looks somebody hands over to a policy, which decides, and maybe takes back.
        let generation = taken().ok().unwrap();
        let refused = ask(generation, &["static"]).await.unwrap_err();
        assert_eq!(refused, "the policy 'static' decides sizes");
        assert_eq!(wanted_pages(&vm), Some(8));
        assert!(taken().is_err());
        choose("external");
        // Nor need it have been a policy: a reload may say another pool.
        for meanwhile in [&["static", "external"][..], &["external"]] {
            let generation = taken().ok().unwrap();
            let refused = ask(generation, meanwhile).await.unwrap_err();
            assert_eq!(
                refused,
                "who decides sizes was said anew after this size was asked for"
            );
            assert_eq!(wanted_pages(&vm), Some(8));
        }
        // The later word is this one.
        let generation = taken().ok().unwrap();
        assert_eq!(ask(generation, &[]).await, Ok(()));
        assert_eq!(wanted_pages(&vm), Some(10));
    }
}
