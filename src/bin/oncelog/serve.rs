//! `oncelog serve`: the HTTP service on a store.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncelog::broadcast::{Opening, Options};
use oncelog::gateway::{Gateway, Limits, Tls, Tokens};
use oncelog::import::{ImportRoots, Imports};
use oncelog::{CreateMode, StoreOptions};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::config;
use crate::failure::{Exit, Failure};
use crate::render::Out;
use crate::secret;
use crate::service::Service;
use crate::value::wait;

/// Serve imports and broadcasts over HTTP, until SIGTERM or SIGINT; SIGHUP reads tokens,
/// certificate and policy anew.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the store; made when it is absent or empty.
    dir: PathBuf,
    /// Address; with port 0 the system chooses one, which is printed.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Directory that files are imported from, absolute; may be given several times.
    #[arg(long, value_name = "PATH")]
    import_root: Vec<PathBuf>,
    /// A token a line, with its principal behind a space; others must not read it.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Chain of certificates (PEM): speaks TLS alone.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Key of the certificate (PEM); others must not read it.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Configuration file (TOML); the built-in policy and limits without it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Longest wait for another writer of the store to end, such as 30s [default: none].
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    lock_wait: Option<Duration>,
}

/// Threads for blocking work beside those of requests: the open, a refresh, the close.
const OWN_THREADS: usize = 4;

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let (policy, service) = match &args.config {
        Some(file) => config::load_whole(file).map(|(policy, of)| (Some(policy), of))?,
        None => (None, Service::default()),
    };
    let service = merged(service, args);
    let tokens = tokens_of(&service)?;
    let tls = tls_of(&service)?;
    let gateway = gateway(&service, tokens.clone(), tls.clone())?;
    let roots = ImportRoots::open(&service.import_roots)?;
    let threads = gateway.blocking_threads_max().saturating_add(OWN_THREADS);
    let runtime = runtime(threads)?;
    let at_once = usize::try_from(service.jobs_at_once).unwrap_or(usize::MAX);
    // Before the address is told, so that who ends it then is heard.
    let signals = runtime.block_on(async { Signals::new() })?;
    let imports = Imports::new().below(roots).at_once(at_once);
    let logs = oncelog::Options::new().lock_wait(args.lock_wait.unwrap_or_default());
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(logs);
    let jobs_max = usize::try_from(service.jobs_max).unwrap_or(usize::MAX);
    let options = Options::new().job_slots_max(jobs_max);
    // Without a configuration the store keeps its policy.
    let options = policy.into_iter().fold(options, Options::policy);
    let options = imports.types().into_iter().fold(options, Options::register);
    let opening = Opening::begin(&args.dir, store, options)?;
    let mut told = Told { out: Out::new(json), json };
    let scheme = if service.tls_certificate.is_some() { "https" } else { "http" };
    told.listening(scheme, gateway.address())?;
    let config = args.config.as_deref();
    let serving = Serving { opening: opening.clone(), config, service: &service, tokens, tls };
    let end = runtime.block_on(serving.until_told(gateway, imports, signals, &mut told));
    let closed = opening.broadcaster().and_then(|broadcaster| broadcaster.close());
    // Calls that wait still were ended by the close.
    runtime.shutdown_background();
    end?;
    closed.map_err(Failure::Unclosed)?;
    told.did("ended", "")?;
    Ok(Exit::Clean)
}

/// What the command line says counts.
fn merged(mut service: Service, args: &Args) -> Service {
    let paths = [
        (&mut service.token_file, &args.token_file),
        (&mut service.tls_certificate, &args.tls_certificate),
        (&mut service.tls_key, &args.tls_key),
    ];
    for (of_file, given) in paths {
        *of_file = given.clone().or_else(|| of_file.take());
    }
    service.listen = args.listen.clone().or(service.listen);
    if !args.import_root.is_empty() {
        service.import_roots.clone_from(&args.import_root);
    }
    service
}

fn needed(name: &str) -> Failure {
    Failure::usage(format!("--{name}, or its line in [gateway]"))
}

fn tokens_of(service: &Service) -> Result<Tokens, Failure> {
    let file = service.token_file.as_ref().ok_or_else(|| needed("token-file FILE"))?;
    let text = String::from_utf8(secret::read(file)?)
        .map_err(|_text| Failure::usage("the token file is not UTF-8"))?;
    Ok(Tokens::parse(&text)?)
}

fn tls_of(service: &Service) -> Result<Option<Tls>, Failure> {
    match (&service.tls_certificate, &service.tls_key) {
        (Some(certificate), Some(key)) => {
            Ok(Some(Tls::of_pem(&config::bytes_of(certificate)?, &secret::read(key)?)?))
        }
        (None, None) => Ok(None),
        _ => Err(Failure::usage("tls_certificate and tls_key: expected both or none")),
    }
}

fn gateway(service: &Service, tokens: Tokens, tls: Option<Tls>) -> Result<Gateway, Failure> {
    let listen = service.listen.as_ref().ok_or_else(|| needed("listen ADDR"))?;
    let address = listen.to_socket_addrs().ok().and_then(|mut all| all.next());
    let address =
        address.ok_or_else(|| Failure::usage("the address to listen on: expected HOST:PORT"))?;
    if service.import_roots.is_empty() {
        return Err(needed("import-root PATH"));
    }
    Ok(Gateway::bind(address, tokens)?.limits(limits(service)).tls(tls))
}

fn limits(service: &Service) -> Limits {
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let mut limits = Limits::default();
    limits.head_bytes_max = count(service.head_bytes_max);
    limits.body_bytes_max = count(service.body_bytes_max);
    limits.connections_max = count(service.connections_max);
    limits.waiting_max = count(service.waiting_max);
    limits.files_max = count(service.files_max);
    limits.head_time_max = service.head_time_max;
    limits.body_time_max = service.body_time_max;
    limits.stall_time_max = service.stall_time_max;
    limits.wait_max = service.wait_max;
    limits.drain_time_max = service.drain_time_max;
    limits
}

fn runtime(blocking_threads: usize) -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    builder.max_blocking_threads(blocking_threads).enable_all();
    builder.build().map_err(|source| system("cannot start threads", source))
}

fn system(message: &str, source: std::io::Error) -> Failure {
    Failure::Stream { message: message.into(), path: None, source }
}

/// The signals that a service heeds.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let heed = |kind| signal(kind).map_err(|source| system("cannot heed signals", source));
        Ok(Self {
            terminate: heed(SignalKind::terminate())?,
            interrupt: heed(SignalKind::interrupt())?,
            hang_up: heed(SignalKind::hangup())?,
        })
    }
}

struct Serving<'a> {
    opening: Opening,
    config: Option<&'a Path>,
    service: &'a Service,
    tokens: Tokens,
    tls: Option<Tls>,
}

impl Serving<'_> {
    /// Serves until a signal ends it, or the store does not open.
    async fn until_told(
        &self,
        gateway: Gateway,
        imports: Imports,
        mut signals: Signals,
        told: &mut Told,
    ) -> Result<(), Failure> {
        let (stop, stopped) = oneshot::channel::<()>();
        let until = async {
            // A sender that is gone says the same.
            drop(stopped.await);
        };
        let served = tokio::spawn(gateway.serve(self.opening.clone(), imports, until));
        let opening = self.opening.clone();
        let mut opened = tokio::task::spawn_blocking(move || opening.wait(None).map(drop));
        let mut is_open = false;
        let end = loop {
            tokio::select! {
                open = &mut opened, if !is_open => match open {
                    Ok(Ok(())) => {
                        is_open = true;
                        told.did("ready", "")?;
                    }
                    Ok(Err(error)) => break Err(config::refused_by(error, self.config)),
                    Err(_ended) => break Ok(()),
                },
                _ = signals.terminate.recv() => break Ok(()),
                _ = signals.interrupt.recv() => break Ok(()),
                _ = signals.hang_up.recv() => match self.refresh().await {
                    Ok(()) => told.did("refreshed", "")?,
                    Err(why) => told.did("refused", &why)?,
                },
            }
        };
        drop(stop);
        if let Ok(served) = served.await {
            served?;
        }
        end
    }

    /// Puts the tokens and the certificate of their files in force, and the policy of the
    /// configuration. One that is refused leaves what was in force as it is, and the others are not
    /// held up by it.
    async fn refresh(&self) -> Result<(), String> {
        let tokens = tokens_of(self.service).map(|read| self.tokens.replace(&read));
        let certificate = tls_of(self.service).map(|read| {
            if let (Some(own), Some(read)) = (&self.tls, &read) {
                own.replace(read);
            }
        });
        let told = |failure| crate::render::failure(&failure, false);
        let refused = [
            ("the tokens stay", tokens.map_err(told)),
            ("the certificate stays", certificate.map_err(told)),
            ("the policy stays", self.refresh_policy().await),
        ];
        let refused: Vec<String> = (refused.into_iter())
            .filter_map(|(what, end)| end.err().map(|why| format!("{what}: {why}")))
            .collect();
        if refused.is_empty() { Ok(()) } else { Err(refused.join("; ")) }
    }

    async fn refresh_policy(&self) -> Result<(), String> {
        let told = |failure: Failure| crate::render::failure(&failure, false);
        let Some(file) = self.config else { return Ok(()) };
        let policy = config::load(file).map_err(told)?;
        let opening = self.opening.clone();
        let refresh = move || opening.broadcaster()?.refresh(policy);
        let end = tokio::task::spawn_blocking(refresh).await;
        end.map_err(|e| e.to_string())?.map_err(|e| told(e.into()))
    }
}

/// What an operator is told, a line each.
struct Told {
    out: Out,
    json: bool,
}

impl Told {
    fn listening(&mut self, scheme: &str, address: SocketAddr) -> Result<(), Failure> {
        let url = format!("{scheme}://{address}");
        if self.json {
            self.out.object(&json!({
                "did": "listening",
                "address": address.to_string(),
                "url": url,
            }))?;
        } else {
            self.out.line(&format!("listening on {url}"))?;
        }
        self.out.flush()
    }

    fn did(&mut self, what: &str, why: &str) -> Result<(), Failure> {
        if self.json {
            let why = (!why.is_empty()).then_some(why);
            self.out.object(&json!({ "did": what, "reason": why }))?;
        } else {
            let gap = if why.is_empty() { "" } else { ": " };
            self.out.line(&format!("{what}{gap}{why}"))?;
        }
        self.out.flush()
    }
}
