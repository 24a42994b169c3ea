//! `oncelog keys`: the idempotency window of a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oncelog::broadcast::{KeyHistory, KeyInfo, Scope, StoreView, WindowSummary, check_client_key};
use oncelog::io::fs::FsIo;
use oncelog::{Clock, ClockLimits, LogTime, SystemClock};
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
    /// As it was, or will be, at this time of the log.
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
    let at_ms = match args.at {
        Some(at) => u64::try_from(at.as_millisecond()).unwrap_or(0),
        None => log_time_ms(&view),
    };
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
        print_summary(&view.window(at_ms), &mut out)?;
    } else {
        for info in keys(&view, args, at_ms)? {
            let object = object(&info);
            if json { out.object(&object)? } else { out.line(&line(&info))? }
        }
    }
    out.flush()?;
    Ok(Exit::Clean)
}

/// Log time now, as a writer that opens the store would have it.
pub(crate) fn log_time_ms(view: &StoreView) -> u64 {
    let time = LogTime::new(Arc::new(SystemClock::new()), ClockLimits::new());
    time.start(Some(view.newest_ms()));
    time.wall_ms()
}

/// The keys that were asked for; one unknown key when there are none.
fn keys(view: &StoreView, args: &Args, at_ms: u64) -> Result<Vec<KeyInfo>, Failure> {
    let key = args.key.as_ref().map(String::as_bytes);
    let mut keys = view.keys(&args.principal, key, at_ms)?;
    if let Some((domain, identity)) = &args.scope {
        let is_wanted = |scope: &Scope| scope.domain == *domain && scope.identity == *identity;
        keys.retain(|info| info.scope.as_ref().is_none_or(is_wanted));
    }
    if keys.is_empty() && key.is_some() {
        let nothing = KeyHistory::new(&args.principal, key);
        keys = nothing.into_keys(view.state(), at_ms);
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
    line
}

fn print_summary(window: &WindowSummary, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() {
        return out.object(&json!({
            "live_count": window.live_count,
            "count_max": window.count_max,
            "lifetime_ms": window.lifetime_ms,
            "effective_ms": window.effective_ms,
            "expired_count": window.expired_count,
            "evicted_count": window.evicted_count,
        }));
    }
    let live = u64::try_from(window.live_count).unwrap_or(u64::MAX);
    out.line(&format!("{} of {} keys", count(live), count(window.count_max)))?;
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
