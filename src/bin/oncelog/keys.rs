//! `oncelog keys`: the idempotency window of a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oncelog::SystemClock;
use oncelog::broadcast::{
    KeyHistory, KeyInfo, LogTimes, Scope, StoreView, WindowSummary, check_client_key,
};
use oncelog::io::fs::FsIo;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::render::{self, Out, count};
use crate::value::scope;

/// Show what is known of keys; never writes, works beside a live writer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the store.
    dir: PathBuf,
    /// The key; all keys of the principal without it.
    #[arg(allow_hyphen_values = true)]
    key: Option<String>,
    /// Only in this scope.
    #[arg(long, value_name = "DOMAIN:ID", value_parser = scope)]
    scope: Option<(String, String)>,
    /// The window at a glance.
    #[arg(long, conflicts_with = "key")]
    summary: bool,
    /// Rebuild each checkpoint from the records before it, and compare.
    #[arg(long, conflicts_with_all = ["key", "summary"])]
    verify: bool,
    /// As it was, or will be, at this time of the log; refused for a time of which its records no
    /// longer tell.
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Whose keys.
    #[arg(long, value_name = "NAME", default_value = "default")]
    principal: String,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    if let Some(key) = &args.key {
        check_client_key(key.as_bytes())?;
    }
    let view = StoreView::open(&args.dir, Arc::new(FsIo::new()))?;
    let at_ms = args.at.map(|at| u64::try_from(at.as_millisecond()).unwrap_or(0));
    if let Some(at_ms) = at_ms {
        check_told(&view, args, at_ms)?;
    }
    let mut out = Out::new(json);
    if args.verify {
        let compared = view.verify_checkpoints()?;
        let line = format!("{compared} checkpoints are what the records before them come to");
        if json {
            out.object(&json!({ "checkpoints_compared": compared }))?;
        } else {
            out.line(&line)?;
        }
    } else if args.summary {
        let window = match at_ms {
            Some(at_ms) => view.window(at_ms)?,
            None => view.window_by(&now(&view)),
        };
        print_summary(&window, &mut out)?;
    } else {
        for info in keys(&view, args, at_ms)? {
            let object = object(&info);
            if json { out.object(&object)? } else { out.line(&line(&info))? }
        }
    }
    out.flush()?;
    Ok(Exit::Clean)
}

fn now(view: &StoreView) -> LogTimes {
    view.times(Arc::new(SystemClock::new()))
}

/// A time of which the records do not tell everything is not answered by what they tell of later.
fn check_told(view: &StoreView, args: &Args, at_ms: u64) -> Result<(), Failure> {
    let from_ms = if at_ms < view.newest_ms() { view.told_from_ms()? } else { 0 };
    if at_ms >= from_ms {
        return Ok(());
    }
    let message = format!(
        "the records tell of no time before {}: control was trimmed",
        render::time(from_ms)
    );
    Err(Failure::Untold { message, path: args.dir.clone() })
}

/// The keys that were asked for; one unknown key when there are none.
fn keys(view: &StoreView, args: &Args, at_ms: Option<u64>) -> Result<Vec<KeyInfo>, Failure> {
    let key = args.key.as_ref().map(String::as_bytes);
    let mut keys = match at_ms {
        Some(at_ms) => view.keys(&args.principal, key, at_ms)?,
        None => view.keys_by(&args.principal, key, &now(view))?,
    };
    if let Some((domain, identity)) = &args.scope {
        let is_wanted = |scope: &Scope| scope.domain == *domain && scope.identity == *identity;
        keys.retain(|info| info.scope.as_ref().is_none_or(is_wanted));
    }
    if keys.is_empty() && key.is_some() {
        let nothing = KeyHistory::new(&args.principal, key);
        let at_ms = at_ms.unwrap_or(u64::MAX);
        keys = nothing.into_keys(&*view.state_at(at_ms)?, at_ms);
    }
    Ok(keys)
}

fn object(info: &KeyInfo) -> Value {
    json!({
        "scope": info.scope.as_ref().map(shown),
        "type": info.scope.as_ref().map(|scope| &scope.message_type),
        "principal": info.scope.as_ref().map(|scope| &scope.principal),
        "key": String::from_utf8_lossy(&info.key),
        "state": info.state.name(),
        "broadcast_id": info.id.map(|id| id.to_string()),
        "accepted_at": info.accepted_at_ms.map(render::time),
        "done_at": info.done_at_ms.map(render::time),
        "expires_at": info.expires_at_ms.map(render::time),
        "cause": info.cause,
        "probably_seen": info.probably_seen,
        "unsure": info.unsure,
    })
}

fn shown(scope: &Scope) -> String {
    format!("{}:{}", scope.domain, scope.identity)
}

fn line(info: &KeyInfo) -> String {
    let mut line = format!("{}: {}", String::from_utf8_lossy(&info.key), info.state.name());
    if let Some(scope) = &info.scope {
        render::write_to(&mut line, format_args!(" in {} ({})", shown(scope), scope.message_type));
    }
    if let Some(id) = info.id {
        render::write_to(&mut line, format_args!(", broadcast {id}"));
    }
    for (name, at_ms) in [
        ("accepted", info.accepted_at_ms),
        ("done", info.done_at_ms),
        ("expires", info.expires_at_ms),
    ] {
        if let Some(at_ms) = at_ms {
            render::write_to(&mut line, format_args!(", {name} {}", render::time(at_ms)));
        }
    }
    if let Some(cause) = &info.cause {
        render::write_to(&mut line, format_args!(": {cause}"));
    }
    if info.unsure {
        render::write_to(&mut line, format_args!(" ({UNSURE})"));
    }
    line
}

/// What a look from outside cannot tell.
const UNSURE: &str = "or not: a process that has the store open may not believe this clock yet";

fn print_summary(window: &WindowSummary, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() {
        return out.object(&json!({
            "live_count": window.live_count,
            "count_max": window.count_max,
            "lifetime_ms": window.lifetime_ms,
            "effective_ms": window.effective_ms,
            "expired_count": window.expired_count,
            "evicted_count": window.evicted_count,
            "unsure": window.unsure,
        }));
    }
    let live = u64::try_from(window.live_count).unwrap_or(u64::MAX);
    let unsure = if window.unsure { format!(" ({UNSURE})") } else { String::new() };
    out.line(&format!("{} of {} keys{unsure}", count(live), count(window.count_max)))?;
    out.line(&format!(
        "a key is known for {}, by the policy {}",
        render::duration(Duration::from_millis(window.effective_ms)),
        render::duration(Duration::from_millis(window.lifetime_ms))
    ))?;
    out.line(&format!(
        "dropped: {} expired, {} evicted",
        count(window.expired_count),
        count(window.evicted_count)
    ))
}
