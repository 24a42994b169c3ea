//! A store opened for writing, as every command that changes one opens it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oncelog::broadcast::{BroadcastId, Broadcaster, Options};
use oncelog::import::Imports;
use oncelog::{CreateMode, Store, StoreOptions};

use crate::config;
use crate::failure::Failure;
use crate::value::wait;

/// Options of every command that opens a store for writing.
#[derive(Debug, clap::Args)]
pub(crate) struct WriterArgs {
    /// Configuration file (TOML); without it the policy stays that the store has recorded.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// In whose name keys are used.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) principal: String,
    /// Longest wait for another writer of the store to end, such as 30s [default: none].
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    lock_wait: Option<Duration>,
}

/// An open store with its broadcaster, which knows imports.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) broadcaster: Broadcaster,
    pub(crate) imports: Imports,
}

impl Writer {
    /// Opens the store in `dir`.
    pub(crate) fn open(dir: &Path, args: &WriterArgs, create: CreateMode) -> Result<Self, Failure> {
        Self::open_with(dir, args, create, Options::new())
    }

    /// Opens the store in `dir` for an operator, who asks for one thing: nothing is forgotten beside
    /// it.
    pub(crate) fn open_unswept(dir: &Path, args: &WriterArgs) -> Result<Self, Failure> {
        Self::open_with(dir, args, CreateMode::Never, Options::new().unswept())
    }

    /// Opens the store in `dir` for what is to be done with one broadcast: work of types that this
    /// program does not know stays as it is.
    pub(crate) fn open_for(
        dir: &Path,
        args: &WriterArgs,
        id: BroadcastId,
    ) -> Result<Self, Failure> {
        Self::open_with(dir, args, CreateMode::Never, Options::new().only(id))
    }

    fn open_with(
        dir: &Path,
        args: &WriterArgs,
        create: CreateMode,
        options: Options,
    ) -> Result<Self, Failure> {
        let options = match &args.config {
            Some(file) => options.policy(config::load(file)?),
            None => options,
        };
        let logs = oncelog::Options::new().lock_wait(args.lock_wait.unwrap_or_default());
        let store = Store::open(dir, &StoreOptions::new().create(create).log(logs))?;
        let imports = Imports::new();
        let options = imports.types().into_iter().fold(options, Options::register);
        let broadcaster = Broadcaster::open(store, options)
            .map_err(|error| config::refused_by(error, args.config.as_deref()))?;
        Ok(Self { broadcaster, imports })
    }

    /// Runs work on the store, then closes it whatever came of the work. A close that fails behind
    /// work that did not is no failure of the work: a caller must not take its key for unused.
    pub(crate) fn run<T>(
        self,
        work: impl FnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let end = work(&self);
        let closed = self.broadcaster.close();
        let end = end?;
        closed.map_err(Failure::Unclosed)?;
        Ok(end)
    }
}
