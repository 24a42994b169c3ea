//! The `oncelog` command: parses arguments, runs one subcommand, and turns its end into an exit
//! code.
//!
//! Everything it knows about logs and stores comes through the public API of the library.
//! Besides `render`, this is the only file that prints.

mod append;
mod backup;
mod broadcast;
mod clock;
mod config;
mod dump;
mod failure;
mod import;
mod inspect;
mod jobs;
mod keys;
mod logs;
mod record;
mod render;
mod replay;
mod secret;
mod serve;
mod service;
mod stats;
mod tasks;
mod value;
mod verify;
mod work;
mod writer;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::{Exit, Failure};

/// A write-ahead log with exactly-once broadcast.
#[derive(Debug, Parser)]
#[command(name = "oncelog", version, about, max_term_width = 100)]
struct Cli {
    /// One JSON object a line on standard output; an error is one object on standard error.
    #[arg(long, global = true, display_order = 900)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Append(append::Args),
    Backup(backup::Args),
    Broadcast(broadcast::Args),
    Clock(clock::Args),
    Config(config::Args),
    Dump(dump::Args),
    Import(import::Args),
    Inspect(inspect::Args),
    Jobs(jobs::Args),
    Keys(keys::Args),
    Replay(replay::Args),
    Serve(serve::Args),
    Stats(stats::Args),
    Tasks(tasks::Args),
    Verify(verify::Args),
}

fn main() -> ExitCode {
    tell_bugs_alone();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error),
    };
    let json = cli.json;
    let end = match cli.command {
        Command::Append(args) => append::run(&args),
        Command::Backup(args) => backup::run(&args, json),
        Command::Broadcast(args) => broadcast::run(&args, json),
        Command::Clock(args) => clock::run(&args, json),
        Command::Config(args) => config::run(&args, json),
        Command::Dump(args) => dump::run(&args, json),
        Command::Import(args) => import::run(&args, json),
        Command::Inspect(args) => inspect::run(&args, json),
        Command::Jobs(args) => jobs::run(&args, json),
        Command::Keys(args) => keys::run(&args, json),
        Command::Replay(args) => replay::run(&args, json),
        Command::Serve(args) => serve::run(&args, json),
        Command::Stats(args) => stats::run(&args, json),
        Command::Tasks(args) => tasks::run(&args, json),
        Command::Verify(args) => verify::run(&args, json),
    };
    match end {
        Ok(exit) => exit.into(),
        Err(failure) => {
            for one in failure.each() {
                tell(&render::failure(one, json));
            }
            failure.exit().into()
        }
    }
}

/// Says what failed. Where standard error is closed or full the exit code alone is left to tell it.
fn tell(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// A panic that becomes the error of a hostile file is not shown besides.
fn tell_bugs_alone() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !oncelog::import::is_decoding() {
            shown(panic);
        }
    }));
}

/// Help and version are no errors; anything else is usage, told in the form that was asked for.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    let asks_json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    if !error.use_stderr() || !asks_json {
        // A closed terminal leaves nobody to tell.
        return if error.print().is_err() || error.use_stderr() {
            Exit::Usage.into()
        } else {
            Exit::Clean.into()
        };
    }
    // What is wrong takes several lines; usage and hints follow behind an empty one.
    let text = error.to_string();
    let lines: Vec<&str> =
        text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = lines.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let failure = Failure::usage(message);
    tell(&render::failure(&failure, true));
    failure.exit().into()
}
