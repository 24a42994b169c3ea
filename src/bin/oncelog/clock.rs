//! `oncelog clock`: what an operator does about a wall clock that is not believed.

use std::path::PathBuf;

use oncelog::broadcast::BroadcastId;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::render::{Out, time};
use crate::writer::{Writer, WriterArgs};

/// Say that the wall clock of this machine is right, however far it is ahead of the log.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Believe the wall clock from now on, and record that; what is over by it expires.
    Rebase(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Directory of the store.
    dir: PathBuf,
    #[command(flatten)]
    writer: WriterArgs,
}

/// The identity of no broadcast: work that is not done stays as it is.
const NONE: BroadcastId = BroadcastId(0);

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let Verb::Rebase(target) = &args.verb;
    let writer = Writer::open_for(&target.dir, &target.writer, NONE)?;
    writer.run(|writer| {
        let held = writer.broadcaster.stats().clock_held;
        let now = time(writer.broadcaster.rebase_clock()?);
        let mut out = Out::new(json);
        if out.is_json() {
            out.object(&json!({ "did": "rebased", "clock_held": held, "now": now }))?;
        } else {
            let was = if held { "was not believed" } else { "was believed" };
            out.line(&format!("log time is {now}; the wall clock {was} before"))?;
        }
        out.flush()?;
        Ok(Exit::Clean)
    })
}
