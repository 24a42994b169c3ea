//! A small key-value database: raft (openraft) keeps its nodes alike, oncelog keeps what raft must
//! not forget. It survives `kill -9` and a power loss at any instant.
//!
//! ```sh
//! cargo run --features openraft --example kv -- DIR set color blue
//! cargo run --features openraft --example kv -- DIR get color
//! cargo run --features openraft --example kv -- DIR            # commands from standard input
//! cargo run --features openraft --example kv -- --nodes 3 DIR  # three nodes, in this process
//! ```
//!
//! Each node has two logs: `DIR/log-N` is its raft log, for which [`RaftLog`] is all that is needed;
//! `DIR/snapshots-N` belongs to its state machine. Values are in memory alone: a start reads the
//! snapshot, and openraft applies the entries behind it.

mod machine;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{BufRead, Cursor, ErrorKind, Write, stdin, stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncelog::io::{Io as _, fs::FsIo};
use oncelog::raft::RaftLog;
use oncelog::{CreateMode, Log, Options};
use openraft::error::RaftError;
use openraft::{Config, EmptyNode, Raft, SnapshotPolicy};
use serde::{Deserialize, Serialize};
use tokio::time::interval;

pub(crate) use self::machine::Machine;
use self::network::Router;

type Failure = Box<dyn Error + Send + Sync>;

/// What an entry of the raft log says. It answers with the value that was there before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    Set { key: String, value: String },
    Remove { key: String },
}

openraft::declare_raft_types!(
    pub(crate) Kv: D = Command, R = Option<String>, NodeId = u64, Node = EmptyNode,
);

struct Node {
    raft: Raft<Kv>,
    machine: Machine,
    log: Log,
}

pub(crate) struct Database {
    nodes: BTreeMap<u64, Node>,
}

impl Database {
    /// Opens the nodes that are there, and makes those that are missing of `count`: all of them the
    /// first time, and later ones are no members.
    pub(crate) async fn open(dir: &Path, count: u64) -> Result<Self, Failure> {
        make_dir(dir)?;
        let is_there = |id: &u64| dir.join(format!("log-{id}")).exists();
        let count = count.max((1..).take_while(is_there).last().unwrap_or(0));
        let (router, mut nodes) = (Router::default(), BTreeMap::new());
        let config = Config {
            snapshot_policy: SnapshotPolicy::LogsSinceLast(500),
            max_in_snapshot_log_to_keep: 100,
            // Patient: a slow disk or a busy machine is no reason for an election.
            heartbeat_interval: 250,
            election_timeout_min: 1000,
            election_timeout_max: 2000,
            ..Config::default()
        };
        let config = Arc::new(config.validate()?);
        let options = Options::new().create(CreateMode::IfMissing);
        for id in 1..=count {
            let (raft_log, _) = RaftLog::open(dir.join(format!("log-{id}")), &options)?;
            let machine = Machine::open(&dir.join(format!("snapshots-{id}")), &options)?;
            let log = raft_log.log().clone();
            let network = router.clone();
            let raft = Raft::new(id, Arc::clone(&config), network, raft_log, machine.clone());
            let raft = raft.await?;
            router.join(id, raft.clone());
            nodes.insert(id, Node { raft, machine, log });
        }
        if let Some(Node { raft, .. }) = nodes.get(&1) {
            if !raft.is_initialized().await? {
                raft.initialize((1..=count).collect::<BTreeSet<_>>()).await?;
            }
            raft.trigger().elect().await?; // rather than wait for a time-out
        }
        Ok(Self { nodes })
    }

    /// Asks the node that leads; again, where leadership has just moved or most nodes are late.
    async fn ask<T, E: Error + Send + Sync + 'static>(
        &self,
        call: impl AsyncFn(&Node) -> Result<T, RaftError<u64, E>>,
    ) -> Result<T, Failure> {
        let first = self.nodes.get(&1).ok_or("no node")?;
        let mut pause = interval(Duration::from_millis(50));
        let mut tries_left = 200;
        loop {
            pause.tick().await;
            let led = first.raft.wait(Some(Duration::from_secs(10)));
            let metrics = led.metrics(|node| node.current_leader.is_some(), "a leader").await?;
            let leader = metrics.current_leader.and_then(|id| self.nodes.get(&id));
            match call(leader.ok_or("a node that is not here leads")?).await {
                Err(RaftError::APIError(_)) if tries_left > 0 => tries_left -= 1,
                called => return Ok(called?),
            }
        }
    }

    /// Once this returns, the command is in the logs of most nodes and survives a power loss of all
    /// of them. After an error it may have been applied or not.
    pub(crate) async fn write(&self, command: Command) -> Result<Option<String>, Failure> {
        let written = self.ask(async |leader| leader.raft.client_write(command.clone()).await);
        Ok(written.await?.data)
    }

    /// Reads what every write that returned before has left.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<String>, Failure> {
        let read = self.ask(async |leader| {
            leader.raft.ensure_linearizable().await?;
            Ok(leader.machine.value(key))
        });
        read.await
    }

    /// Ends the nodes, and releases their directories.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        for node in self.nodes.into_values() {
            node.raft.shutdown().await?;
            node.log.close_async().await?;
            node.machine.close().await?;
        }
        Ok(())
    }
}

/// Makes the directory durable under its name; the logs do so for theirs.
fn make_dir(dir: &Path) -> std::io::Result<()> {
    let files = FsIo::new();
    match files.create_dir(dir) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    files.sync_dir(parent.unwrap_or_else(|| Path::new(".")))
}

async fn answer(database: &Database, words: &[&str]) -> Result<String, Failure> {
    let owned = |word: &str| word.to_owned();
    match *words {
        ["set", key, value] => {
            database.write(Command::Set { key: owned(key), value: owned(value) }).await?;
            Ok("ok".to_owned())
        }
        ["remove", key] => {
            let before = database.write(Command::Remove { key: owned(key) }).await?;
            Ok(before.unwrap_or_else(|| "(none)".to_owned()))
        }
        ["get", key] => Ok(database.get(key).await?.unwrap_or_else(|| "(none)".to_owned())),
        _ => Err("expected: set KEY VALUE, get KEY or remove KEY".into()),
    }
}

/// Runs the command of the arguments, or those of the input, one a line; answers each with a line.
pub(crate) fn run(args: &[&str], input: impl BufRead, out: &mut dyn Write) -> Result<(), Failure> {
    let (count, args) = match args {
        ["--nodes", count, rest @ ..] => (count.parse()?, rest),
        all => (1, all),
    };
    let (dir, command) = args.split_first().ok_or("usage: kv [--nodes N] DIR [COMMAND]")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let database = runtime.block_on(Database::open(Path::new(dir), count))?;
    let mut tell = |words: &[&str]| -> Result<(), Failure> {
        writeln!(out, "{}", runtime.block_on(answer(&database, words))?)?;
        Ok(out.flush()?)
    };
    if command.is_empty() {
        for line in input.lines() {
            tell(&line?.split_whitespace().collect::<Vec<_>>())?;
        }
    } else {
        tell(command)?;
    }
    runtime.block_on(database.close())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run(&args, stdin().lock(), &mut stdout())
}
