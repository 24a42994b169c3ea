//! The HTTP service: imports and broadcasts for clients that speak HTTP/1.1.
//!
//! Two families of routes stand on the same calls: those of Milvus' REST interface for bulk import
//! (`/v2/vectordb/jobs/import/..`), so that its clients work as they are, and routes of its own
//! (`/v1/..`) with statuses and problem documents (RFC 9457). docs/gateway.md has all of them.
//!
//! It promises what the broadcaster does, and adds nothing to it: an answer leaves when its effect
//! is durable, and a request that a limit of the gateway refuses consumes no key. Whoever is not
//! allowed learns nothing. It neither opens a store nor reads a file; it does not decide when a
//! process ends.
//!
//! | where | what |
//! | --- | --- |
//! | `connection`, `tls`, `limits` | bytes of a client, within their bounds |
//! | `service`, `credentials`, `tokens`, `key`, `body`, `routes` | from a request to a call: who asks, what, with which key |
//! | `desk`, `calls` | the store that is open or being opened; calls off the threads of the runtime |
//! | `vectordb`; `imports`, `broadcasts`, `keys`, `channels`, `config` | the two families of routes |
//! | `page`, `history` | the page for people |
//! | `answer`, `refusal`, `openapi` | what is sent back |
//! | `counts`, `metered`, `exposition` | what it counts, and the text of `/metrics` |

mod answer;
mod body;
mod broadcasts;
mod calls;
mod channels;
mod config;
mod connection;
mod counts;
mod credentials;
mod desk;
mod exposition;
mod history;
mod imports;
mod key;
mod keys;
mod limits;
mod metered;
mod openapi;
mod page;
mod refusal;
mod routes;
mod service;
mod tls;
mod tokens;
mod vectordb;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use self::calls::Calls;
use self::connection::{converse, turn_away};
use self::desk::Desk;
use self::service::Service;

pub use self::counts::{GatewayCounts, GatewayStats, RouteStats};
pub use self::limits::Limits;
pub use self::metered::GatewayMeter;
pub use self::tls::Tls;
pub use self::tokens::Tokens;

use crate::broadcast::Opening;
use crate::error::{Error, ErrorKind, Result};
use crate::import::Imports;

/// Connections at once that are told that there is no place for them; others are closed at once.
const TURNED_AWAY_MAX: usize = 64;

/// Pause behind an accept that the system refused, for want of descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener that answers once it is told what to serve.
///
/// # Examples
///
/// ```
/// use oncelog::broadcast::{Opening, Options};
/// use oncelog::gateway::{Gateway, Tokens};
/// use oncelog::import::{ImportRoots, Imports};
/// use oncelog::{CreateMode, StoreOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let home = tempfile::tempdir()?;
/// let tokens = Tokens::parse("a-token billing")?;
/// let gateway = Gateway::bind("127.0.0.1:0".parse()?, tokens)?;
/// println!("listening on {}", gateway.address());
///
/// // The types of an embedder are registered as those of imports are.
/// let imports = Imports::new().below(ImportRoots::open([home.path()])?);
/// let options = imports.types().into_iter().fold(Options::new(), Options::register);
/// let store = StoreOptions::new().create(CreateMode::IfMissing);
/// let opening = Opening::begin(home.path().join("store"), store, options)?;
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # let until_told = async {};
/// runtime.block_on(gateway.serve(opening.clone(), imports, until_told))?;
/// opening.wait(None)?.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    tokens: Tokens,
    limits: Limits,
    tls: Option<Tls>,
    counts: GatewayCounts,
}

impl Gateway {
    /// Takes an address; port 0 is one that the system chooses.
    ///
    /// # Errors
    ///
    /// `Io` where the system does not give the address.
    pub fn bind(address: SocketAddr, tokens: Tokens) -> Result<Self> {
        let refused = |e| {
            let what = format!("cannot listen on {address}");
            Error::new(ErrorKind::Io, what).with_source(e)
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (limits, counts) = (Limits::default(), GatewayCounts::default());
        Ok(Self { listener, address, tokens, limits, tls: None, counts })
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Speaks TLS alone.
    #[must_use]
    pub fn tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counts, to be looked at while it serves.
    #[must_use]
    pub fn counts(&self) -> GatewayCounts {
        self.counts.clone()
    }

    /// Threads for blocking work that it takes of its runtime, at most.
    #[must_use]
    pub fn blocking_threads_max(&self) -> usize {
        Calls::threads_max(self.limits.waiting_max)
    }

    /// Answers requests until `until` resolves; then takes no new connection, and returns once the
    /// requests that are under way were answered, or their time is over. While the store is being
    /// opened, clients are told so.
    ///
    /// It is a task of a tokio runtime with I/O and time. The broadcaster stays open.
    ///
    /// # Errors
    ///
    /// `Io` where the runtime does not take the listener.
    pub async fn serve(
        self,
        opening: Opening,
        imports: Imports,
        until: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(|e| {
            Error::new(ErrorKind::Io, "the runtime does not take the listener").with_source(e)
        })?;
        let connections_max = u32::try_from(self.limits.connections_max).unwrap_or(u32::MAX);
        let drain_time_max = self.limits.drain_time_max;
        let places = usize::try_from(connections_max).unwrap_or(usize::MAX);
        let desk = Desk { opening, imports, limits: self.limits };
        let (end, ends) = watch::channel(false);
        let doorman = Doorman {
            service: Arc::new(Service::new(desk, self.tokens, self.counts.clone())),
            counts: self.counts,
            tls: self.tls,
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            turned_away: Arc::new(Semaphore::new(TURNED_AWAY_MAX)),
            ends,
        };
        let mut until = pin!(until);
        let mut looks = interval(history::EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = &mut until => break,
                _ = looks.tick() => {
                    let service = Arc::clone(&doorman.service);
                    tokio::spawn(async move { service.sample().await });
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => doorman.take(stream),
                    Err(_for_now) => sleep(ACCEPT_PAUSE).await,
                },
            }
        }
        drop(listener);
        doorman.service.drain();
        end.send_replace(true);
        let all = doorman.places.acquire_many(connections_max);
        // What is not answered by then is answered to its retry.
        drop(timeout(drain_time_max, all).await);
        Ok(())
    }
}

/// Gives connections their places.
#[derive(Debug)]
struct Doorman {
    service: Arc<Service>,
    counts: GatewayCounts,
    tls: Option<Tls>,
    places: Arc<Semaphore>,
    turned_away: Arc<Semaphore>,
    ends: watch::Receiver<bool>,
}

impl Doorman {
    fn take(&self, stream: TcpStream) {
        // Answers are small, and written whole.
        drop(stream.set_nodelay(true));
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.counts.turned_away();
            // A handshake for this would be worth more than the connection.
            if self.tls.is_none()
                && let Ok(place) = Arc::clone(&self.turned_away).try_acquire_owned()
            {
                tokio::spawn(async move {
                    turn_away(stream).await;
                    drop(place);
                });
            }
            return;
        };
        let (service, ends) = (Arc::clone(&self.service), self.ends.clone());
        let (tls, open) = (self.tls.clone(), self.counts.connection());
        tokio::spawn(async move {
            match tls {
                None => converse(stream, service, ends).await,
                Some(tls) => {
                    let handshake = tls.acceptor().accept(stream);
                    // Who does not finish it in time, or speaks something else, is left.
                    let time = service.limits().head_time_max;
                    if let Ok(Ok(stream)) = timeout(time, handshake).await {
                        converse(stream, service, ends).await;
                    }
                }
            }
            drop((open, place));
        });
    }
}
