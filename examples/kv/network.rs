//! The network: nodes of one process call each other. Over a wire each call would be a message.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, Raft, RaftNetwork, RaftNetworkFactory};

use super::Kv;

type Called<T, E> = Result<T, RPCError<u64, EmptyNode, E>>;

#[derive(Clone, Default)]
pub(crate) struct Router(Arc<Mutex<BTreeMap<u64, Raft<Kv>>>>);

impl Router {
    pub(crate) fn join(&self, id: u64, node: Raft<Kv>) {
        self.lock().insert(id, node);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Raft<Kv>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to a node.
pub(crate) struct Link {
    target: u64,
    router: Router,
}

impl Link {
    fn peer(&self) -> Result<Raft<Kv>, Unreachable> {
        let absent = || Unreachable::new(&io::Error::from(io::ErrorKind::NotConnected));
        self.router.lock().get(&self.target).cloned().ok_or_else(absent)
    }

    fn remote<E: Error>(&self, e: E) -> RPCError<u64, EmptyNode, E> {
        RPCError::RemoteError(RemoteError::new(self.target, e))
    }
}

impl RaftNetworkFactory<Kv> for Router {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &EmptyNode) -> Link {
        Link { target, router: self.clone() }
    }
}

impl RaftNetwork<Kv> for Link {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Kv>,
        _: RPCOption,
    ) -> Called<AppendEntriesResponse<u64>, RaftError<u64>> {
        self.peer()?.append_entries(rpc).await.map_err(|e| self.remote(e))
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Kv>,
        _: RPCOption,
    ) -> Called<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>> {
        self.peer()?.install_snapshot(rpc).await.map_err(|e| self.remote(e))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        _: RPCOption,
    ) -> Called<VoteResponse<u64>, RaftError<u64>> {
        self.peer()?.vote(rpc).await.map_err(|e| self.remote(e))
    }
}
