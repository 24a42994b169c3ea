//! `oncelog tasks`: what an operator does with parked work.

use std::path::PathBuf;

use oncelog::broadcast::{BroadcastId, Noop};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::render::Out;
use crate::writer::{Writer, WriterArgs};

/// Let parked work go on, or end it; `stats` names what is parked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Take a parked task up again.
    Resume(Target),
    /// End a parked task as failed; refused until a copy stands on every vchannel.
    Skip(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Directory of the store.
    dir: PathBuf,
    /// The broadcast.
    id: u64,
    /// Why; recorded in the log.
    #[arg(long, value_name = "TEXT", default_value = "by an operator")]
    reason: String,
    #[command(flatten)]
    writer: WriterArgs,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let (target, verb) = match &args.verb {
        Verb::Resume(target) => (target, "resumed"),
        Verb::Skip(target) => (target, "skipped"),
    };
    let id = BroadcastId(target.id);
    let writer = Writer::open_for(&target.dir, &target.writer, id)?;
    writer.run(|writer| {
        match &args.verb {
            Verb::Resume(_) => {
                check_type(writer, id)?;
                writer.broadcaster.resume(id, &target.reason)?;
            }
            Verb::Skip(_) => writer.broadcaster.skip(id, &target.reason)?,
        }
        let mut out = Out::new(json);
        if out.is_json() {
            out.object(&json!({ "broadcast_id": id.to_string(), "did": verb }))?;
        } else {
            out.line(&format!("broadcast {id} is {verb}"))?;
        }
        out.flush()?;
        Ok(Exit::Clean)
    })
}

/// A task of a type that this program does not know would be parked again at once.
fn check_type(writer: &Writer, id: BroadcastId) -> Result<(), Failure> {
    let name = writer
        .broadcaster
        .read(|state, _| state.task(id).map(|task| task.accepted.message_type.clone()));
    let Some(name) = name else { return Ok(()) };
    let types = writer.imports.types();
    if name == Noop::NAME || types.iter().any(|kind| kind.name() == name) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "broadcast {id} is of type {name}, which the program that registers it resumes"
    )))
}
