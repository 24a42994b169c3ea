//! One message to two vchannels, at most once per key: the second call gets the first one's answer.
//!
//! `cargo run --example broadcast -- DIR`.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;
use std::time::Duration;

use oncelog::broadcast::{Broadcaster, Options, Request, Scope};
use oncelog::{CreateMode, Store, StoreOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("a directory is missing")?;
    run(Path::new(&dir), &mut stdout())
}

/// Sends the same keyed message twice, as a caller does that saw no answer to the first.
pub(crate) fn run(dir: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let store = Store::open(dir, &StoreOptions::new().create(CreateMode::IfMissing))?;
    // `Noop` is there without being registered; its effect is its copies.
    let broadcaster = Broadcaster::open(store, Options::new())?;
    let vchannels = vec!["north".to_owned(), "south".to_owned()];
    broadcaster.ensure_vchannels(&vchannels)?;

    let scope = Scope {
        principal: "default".into(),
        message_type: "Noop".into(),
        domain: "flights".into(),
        identity: "EW101".into(),
        generation: 0,
        client_key: b"delay-1".to_vec(),
    };
    let request = Request::new("Noop", Some(scope), vchannels, b"10 minutes late".to_vec());
    for _ in 0..2 {
        let answer = broadcaster.submit(&request, Some(Duration::from_secs(30)))?;
        writeln!(out, "broadcast {}, duplicated: {}", answer.id, answer.duplicated)?;
        for (vchannel, at) in &answer.channels {
            writeln!(out, "  {vchannel} at LSN {}", at.lsn)?;
        }
    }
    broadcaster.close()?;
    Ok(())
}
