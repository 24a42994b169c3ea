//! Arguments and configurations as the program takes them, by its own sources.
//!
//! Commands that read run on a log that stands still; those that write are parsed alone. A command
//! that follows, or that imports, is not run.

#![no_main]
#![allow(dead_code, reason = "the program uses the rest")]

#[path = "../../src/bin/oncelog"]
mod program {
    pub(crate) mod append;
    pub(crate) mod config;
    pub(crate) mod dump;
    pub(crate) mod failure;
    pub(crate) mod inspect;
    pub(crate) mod keys;
    pub(crate) mod logs;
    pub(crate) mod record;
    pub(crate) mod render;
    pub(crate) mod service;
    pub(crate) mod stats;
    pub(crate) mod value;
    pub(crate) mod verify;
    pub(crate) mod work;
}

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Parser;
use program::{
    append, config, dump, failure, inspect, keys, logs, record, render, service, stats, value, verify,
    work,
};

#[derive(Debug, Parser)]
#[command(name = "oncelog")]
enum Command {
    Append(append::Args),
    Config(config::Args),
    Dump(dump::Args),
    Inspect(inspect::Args),
    Keys(keys::Args),
    Stats(stats::Args),
    Verify(verify::Args),
}

/// A directory with a log, and a place for a configuration.
fn place() -> &'static PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let place = std::env::temp_dir().join(format!("oncelog-fuzz-{}", std::process::id()));
        let create = oncelog::CreateMode::IfMissing;
        std::fs::create_dir_all(&place).expect("a directory");
        let options = oncelog::Options::new().segment_bytes_max(65_536).create(create);
        let (log, _) = oncelog::Log::open(place.join("log"), &options).expect("a log");
        for record in [&b"one"[..], b"", b"\xFF\x1B[31m", b"{\"a\":1}"] {
            log.append(record).expect("a record");
        }
        log.close().expect("a close");
        place
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Arguments a line, an empty line, and the configuration.
    let text = String::from_utf8_lossy(data);
    let (words, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let place = place();
    let argument = |word: &str| match word {
        "LOG" => place.join("log").display().to_string(),
        "FILE" => place.join("file").display().to_string(),
        word => word.to_owned(),
    };
    let words = words.split('\n').map(argument);
    let json = rest.len() % 2 == 1;
    let Ok(command) = Command::try_parse_from(std::iter::once("oncelog".to_owned()).chain(words))
    else {
        return;
    };
    let shown = format!("{command:?}");
    let end = match command {
        Command::Config(args) => {
            std::fs::write(place.join("file"), rest).expect("a file");
            config::run(&args, json)
        }
        Command::Dump(args) if !shown.contains("follow: true") => dump::run(&args, json),
        Command::Inspect(args) => inspect::run(&args, json),
        Command::Keys(args) => keys::run(&args, json),
        Command::Stats(args) => stats::run(&args, json),
        Command::Verify(args) => verify::run(&args, json),
        Command::Append(_) | Command::Dump(_) => return,
    };
    if let Err(failure) = end {
        for one in failure.each() {
            let _line = render::failure(one, json);
        }
    }
});
