//! The workloads of a broadcaster, beside the raw limit of the same disk in the same run.
//!
//! `cargo bench --bench broadcast` prints one table; `-- B1 B2` runs those alone, and `-- --test`
//! runs all of them once, small, for rot and never for figures. Rounds of the raw limit, one write
//! and one sync, take turns with rounds of the broadcaster, as in the workloads of the log.
#![expect(clippy::disallowed_methods, reason = "the raw limits go to the file system directly")]
#![expect(clippy::print_stdout, reason = "the table is what this is for")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bench that fails must stop")]

mod keys;
mod made;
#[path = "../log/raw.rs"]
mod raw;
mod submits;
#[path = "../log/table.rs"]
mod table;

use std::path::Path;

use oncelog::broadcast::{Broadcaster, Noop, Options, Request, Scope};
use oncelog::{CreateMode, Store, StoreOptions};

use self::table::Workload;

/// The vchannels of every broadcast, on one pchannel.
pub(crate) const VCHANNELS: [&str; 2] = ["v0", "v1"];

const WORKLOADS: [Workload; 5] = [
    ("B1", submits::lone),
    ("B2", submits::crowd),
    ("B3", keys::lookups),
    ("B4", keys::restarts),
    ("B5", keys::expiry),
];

fn main() {
    table::play(&WORKLOADS);
}

/// Opens the store in `dir`, which is made where there is none; checkpoints come when a workload asks
/// for one.
pub(crate) fn open(dir: &Path) -> Broadcaster {
    let options = StoreOptions::new().create(CreateMode::IfMissing);
    let store = Store::open(dir.join("store"), &options).unwrap();
    let broadcaster = Broadcaster::open(store, Options::new().checkpoint_bytes(u64::MAX)).unwrap();
    broadcaster.ensure_vchannels(&VCHANNELS.map(str::to_owned)).unwrap();
    broadcaster
}

pub(crate) fn scope(key: u64) -> Scope {
    Scope {
        principal: "default".to_owned(),
        message_type: Noop::NAME.to_owned(),
        domain: "store".to_owned(),
        identity: "0".to_owned(),
        generation: 0,
        client_key: format!("nightly-{key:08}").into_bytes(),
    }
}

/// A broadcast of 100 bytes to two vchannels under a key.
pub(crate) fn request(key: u64) -> Request {
    let payload = vec![b'.'; 100];
    Request::new(Noop::NAME, Some(scope(key)), VCHANNELS.map(str::to_owned).to_vec(), payload)
}
