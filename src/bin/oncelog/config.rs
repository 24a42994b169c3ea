//! `oncelog config`: the configuration file, read and checked as one value.

use std::fmt;
use std::path::{Path, PathBuf};

use oncelog::broadcast::{Policy, Setting, Violation, WhenFull};
use oncelog::io::{Io, OpenHow};
use oncelog::{Error, ErrorKind};
use serde_json::json;
use toml::{Table, Value};

use crate::failure::{Exit, Failure};
use crate::render::{self, Out};
use crate::service::Service;

/// Read and check a configuration file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Explain the policy: exit 0, or 1 with every rule that it breaks.
    Check {
        /// The TOML file.
        file: PathBuf,
    },
}

/// A rule that a file breaks, with both values.
#[derive(Debug)]
struct Broken {
    name: String,
    rule: &'static str,
    expected: String,
    found: String,
}

impl From<Violation> for Broken {
    fn from(violation: Violation) -> Self {
        let Violation { name, rule, expected, found, .. } = violation;
        Self { name, rule, expected, found }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rule, expected, found } = self;
        write!(f, "{name}: {rule}: expected {expected}, found {found}")
    }
}

/// Largest configuration file, in bytes; real ones have a screen of lines.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let Verb::Check { file } = &args.verb;
    let (policy, service, broken) = read(file)?;
    let mut out = Out::new(json);
    for violation in &broken {
        if json {
            out.object(&json!({
                "name": violation.name,
                "rule": violation.rule,
                "expected": violation.expected,
                "found": violation.found,
            }))?;
        } else {
            out.line(&format!("broken: {violation}"))?;
        }
    }
    let (facts, of_service) = (explain(&policy), service.explain());
    if json {
        let (policy, gateway) = (values(&facts), values(&of_service));
        out.object(&json!({ "policy": policy, "gateway": gateway, "valid": broken.is_empty() }))?;
    } else {
        for (name, value, meaning) in facts.iter().chain(&of_service) {
            out.line(&format!("{name} = {value}: {meaning}"))?;
        }
    }
    out.flush()?;
    Ok(if broken.is_empty() { Exit::Clean } else { Exit::Failed })
}

type Fact = (&'static str, String, &'static str);

fn values(facts: &[Fact]) -> serde_json::Map<String, serde_json::Value> {
    facts.iter().map(|(name, value, _)| ((*name).to_owned(), json!(value))).collect()
}

/// The policy of a configuration file, where it breaks no rule.
pub(crate) fn load(file: &Path) -> Result<Policy, Failure> {
    load_whole(file).map(|(policy, _)| policy)
}

/// The same, with what the file says of the service.
pub(crate) fn load_whole(file: &Path) -> Result<(Policy, Service), Failure> {
    let (policy, service, broken) = read(file)?;
    if broken.is_empty() {
        return Ok((policy, service));
    }
    let rules: Vec<String> = broken.iter().map(ToString::to_string).collect();
    Err(refused(file, rules.join("; ")))
}

/// What a file states, and every rule that it breaks.
fn read(file: &Path) -> Result<(Policy, Service, Vec<Broken>), Failure> {
    let text = text_of(file)?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        refused(file, format!("not a TOML file: {}", one_line(&error, &text)))
    })?;
    let (mut policy, mut service) = (Policy::default(), Service::default());
    let mut broken = Vec::new();
    for (section, values) in &table {
        match (section.as_str(), values.as_table()) {
            ("retention", Some(values)) => {
                for (name, value) in values {
                    broken.extend(set(&mut policy, name, value).err().map(Broken::from));
                }
            }
            ("gateway", Some(values)) => {
                for (name, value) in values {
                    let Err((rule, expected)) = service.set(name, value) else { continue };
                    let (name, found) = (name.clone(), value.to_string());
                    broken.push(Broken { name, rule, expected, found });
                }
            }
            _ => broken.push(Broken {
                name: section.clone(),
                rule: "unknown name",
                expected: "the table [retention] or [gateway]".into(),
                found: section.clone(),
            }),
        }
    }
    broken.extend(policy.violations().into_iter().map(Broken::from));
    Ok((policy, service, broken))
}

fn set(policy: &mut Policy, name: &str, value: &Value) -> Result<(), Violation> {
    let shown = value.to_string();
    let setting = match value {
        Value::String(text) => Setting::Text(text),
        Value::Integer(number) => Setting::Integer(*number),
        Value::Boolean(flag) => Setting::Flag(*flag),
        _ => Setting::Text(&shown),
    };
    policy.set(name, setting)
}

fn text_of(file: &Path) -> Result<String, Failure> {
    String::from_utf8(bytes_of(file)?).map_err(|error| {
        refused(file, format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    })
}

/// The bytes of a file of moderate size.
pub(crate) fn bytes_of(file: &Path) -> Result<Vec<u8>, Failure> {
    let fail = |source| Failure::Stream {
        message: "cannot read the configuration".into(),
        path: Some(file.to_path_buf()),
        source,
    };
    let source = oncelog::io::fs::FsIo::new().open(file, OpenHow::Read).map_err(fail)?;
    let len = source.len().map_err(fail)?;
    if len > FILE_BYTES_MAX {
        let message = format!("expected at most {FILE_BYTES_MAX} bytes, found {len}");
        return Err(refused(file, message));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    let read = source.read_full_at(&mut bytes, 0).map_err(fail)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// What is wrong with a configuration: the command line that names it is right.
fn refused(file: &Path, message: String) -> Failure {
    Failure::Config { message, path: file.to_path_buf() }
}

/// What a store says of the policy of a file: where it is refused, the file is to be changed.
pub(crate) fn refused_by(error: Error, file: Option<&Path>) -> Failure {
    let is_named = |field: &String| Policy::NAMES.contains(&field.as_str());
    let of_policy = !error.fields().is_empty() && error.fields().iter().all(is_named);
    match file {
        Some(file) if of_policy && error.kind() == ErrorKind::InvalidInput => {
            refused(file, error.to_string())
        }
        _ => error.into(),
    }
}

/// What a parser says, with the line it speaks of.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().and_then(|span| text.get(..span.start)).map(|before| {
        let number = before.matches('\n').count() + 1;
        format!("line {number}: ")
    });
    format!("{}{}", line.unwrap_or_default(), error.message())
}

/// Each value, and what it means for a caller.
fn explain(policy: &Policy) -> Vec<Fact> {
    let (full, meaning) = match policy.window_full {
        WhenFull::EvictOldest => {
            ("evict_oldest", "a full window drops its oldest key; keys promise no instant")
        }
        _ => ("refuse", "a full window refuses new keys; every accepted key keeps its promise"),
    };
    let rate = policy.broadcasts_per_hour_max.map_or_else(|| "-".into(), |rate| rate.to_string());
    vec![
        (
            "window_lifetime",
            render::duration(policy.window_lifetime),
            "a finished key answers retries for so long",
        ),
        ("window_count_max", policy.window_count_max.to_string(), "keys at most, live ones all"),
        (
            "principal_share_max",
            format!("{}%", policy.principal_share_max),
            "of the keys for one principal beside others",
        ),
        (
            "task_retention",
            render::duration(policy.task_retention),
            "a finished job is kept for so long",
        ),
        (
            "check_interval",
            render::duration(policy.check_interval),
            "between two sweeps of expired keys",
        ),
        ("window_full", full.into(), meaning),
        (
            "retry_age_max",
            render::duration(policy.retry_age_max),
            "a task is retried for so long, then parked",
        ),
        ("broadcasts_per_hour_max", rate, "keyed broadcasts that the operator expects"),
        (
            "history",
            if policy.history_warns { "warn" } else { "refuse" }.into(),
            "what a bound below the keys that are kept is",
        ),
    ]
}
