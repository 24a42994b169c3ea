//! What a client of the service waits, beside an import that runs.
//!
//! Two hundred clients keep their connections; each asks for an import of its own, looks at it until
//! it is over, and begins again. Clients and service share one process and its processors; no answer
//! may be an error.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncelog::broadcast::{Opening, Options};
use oncelog::gateway::{Gateway, Tokens};
use oncelog::import::{ImportRoots, Imports};
use oncelog::{CreateMode, StoreOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::client::{self, Client};
use crate::table::{Scale, Table, float, median, quantile, seconds};

/// Clients at once.
const CLIENTS: usize = 200;

/// Rows of the import that runs beside them.
const LARGE_ROWS: usize = 1_000_000;

/// Pauses of a client between two looks: one as an orchestrator makes, and none.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::ZERO];

/// The answers to clients, as they see them.
pub(crate) fn clients(scale: &Scale, table: &mut Table) {
    for pause in PAUSES {
        let (mut looks, mut creates, mut rates) = (Figures::default(), Figures::default(), vec![]);
        for _ in 0..scale.rounds() {
            let mut asked = Asked::default();
            let taken = seconds(|| asked = ask(scale, pause));
            rates.push(float(asked.looks.len()) / taken / 1e3);
            looks.take(&mut asked.looks);
            creates.take(&mut asked.creates);
        }
        let name = format!("{CLIENTS} clients, a look each {} ms", pause.as_millis());
        table.alone(format!("{name}: looks"), "k/s", median(rates));
        looks.print(&format!("{name}: describe"), table);
        creates.print(&format!("{name}: create"), table);
    }
}

/// What half of the answers, and 99 of 100, do not exceed, of each round, in milliseconds.
#[derive(Debug, Default)]
struct Figures {
    half: Vec<f64>,
    most: Vec<f64>,
}

impl Figures {
    fn take(&mut self, seconds: &mut [f64]) {
        self.half.push(quantile(seconds, 0.5) * 1e3);
        self.most.push(quantile(seconds, 0.99) * 1e3);
    }

    fn print(self, name: &str, table: &mut Table) {
        table.alone(format!("{name}, p50"), "ms", median(self.half));
        table.alone(format!("{name}, p99"), "ms", median(self.most));
    }
}

/// Seconds of each answer.
#[derive(Debug, Default)]
struct Asked {
    looks: Vec<f64>,
    creates: Vec<f64>,
}

/// A service on a new store, and its clients for a while.
fn ask(scale: &Scale, pause: Duration) -> Asked {
    let home = tempfile::tempdir().unwrap();
    write_rows(&home.path().join("small.csv"), 3);
    write_rows(&home.path().join("large.csv"), scale.count(LARGE_ROWS));
    let service = Service::start(home.path());
    let clients = runtime(1);
    let asked = clients.block_on(async {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let large = Arc::clone(&is_over);
        let address = service.address;
        tasks.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut number = 0;
            while !large.load(Ordering::Relaxed) {
                client.import(&format!("large {number}"), "large.csv", pause).await;
                number += 1;
            }
            Asked::default()
        });
        for number in 0..CLIENTS {
            let is_over = Arc::clone(&is_over);
            tasks.spawn(async move {
                let mut client = Client::connect(address).await;
                let mut turn = 0;
                while !is_over.load(Ordering::Relaxed) {
                    client.import(&format!("{number} {turn}"), "small.csv", pause).await;
                    turn += 1;
                }
                Asked { looks: client.looks, creates: client.creates }
            });
        }
        tokio::time::sleep(scale.round() * 8).await;
        is_over.store(true, Ordering::Relaxed);
        let mut asked = Asked::default();
        for mut one in tasks.join_all().await {
            asked.looks.append(&mut one.looks);
            asked.creates.append(&mut one.creates);
        }
        asked
    });
    service.end();
    asked
}

fn write_rows(path: &Path, rows: usize) {
    let lines: String = (0..rows).map(|row| format!("{row},name {row}\n")).collect();
    fs::write(path, format!("id,name\n{lines}")).unwrap();
}

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

/// A service that runs.
struct Service {
    address: SocketAddr,
    runtime: Runtime,
    opening: Opening,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<oncelog::Result<()>>,
}

impl Service {
    fn start(home: &Path) -> Self {
        let tokens = Tokens::parse(client::TOKEN).unwrap();
        let gateway = Gateway::bind(([127, 0, 0, 1], 0).into(), tokens).unwrap();
        let address = gateway.address();
        let imports = Imports::new().below(ImportRoots::open([home]).unwrap());
        let options = imports.types().into_iter().fold(Options::new(), Options::register);
        let store = StoreOptions::new().create(CreateMode::IfMissing);
        let opening = Opening::begin(home.join("store"), store, options).unwrap();
        opening.wait(None).expect("the store opens");
        let runtime = runtime(2);
        let (stop, stopped) = oneshot::channel();
        let until = async { drop(stopped.await) };
        let served = runtime.spawn(gateway.serve(opening.clone(), imports, until));
        Self { address, runtime, opening, stop, served }
    }

    fn end(self) {
        drop(self.stop);
        self.runtime.block_on(self.served).unwrap().unwrap();
        self.opening.wait(None).unwrap().close().unwrap();
    }
}
