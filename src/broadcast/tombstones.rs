//! Tombstones: done broadcasts with a key, kept in few bytes each, so that a window of a million
//! keys is no burden.
//!
//! What many of them share (names, vchannels, the kind of promise) is kept once, as a shape; what
//! is one's own is encoded, 64 identities to a page. It is memory alone, in no file and no
//! checkpoint, and says nothing that a [`TaskState`] does not: one that does not fit is given back,
//! and kept whole by the state.

use oncelog_format::message::{BroadcastId, Scope};

use super::state::TaskState;
use super::window::Class;

mod pages;
mod record;
mod shapes;

use self::pages::Pages;
pub(crate) use self::record::Tombstone;
use self::shapes::Shapes;

/// Done broadcasts by identity.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tombstones {
    pages: Pages,
    shapes: Shapes,
}

impl Tombstones {
    /// Takes a task in that is done; gives it back where it holds what no tombstone does.
    pub(crate) fn insert(&mut self, task: TaskState) -> Result<(), TaskState> {
        let id = task.accepted.id();
        let (true, Some(scope)) = (record::fits(&task), &task.accepted.scope) else {
            return Err(task);
        };
        let shape = self.shapes.enter(&task.accepted, scope);
        let mut bytes = Vec::with_capacity(192);
        record::encode(&task, scope, shape, &mut bytes);
        self.pages.insert(id.0, &bytes);
        Ok(())
    }

    /// Returns a tombstone as the task that it was.
    pub(crate) fn task(&self, id: BroadcastId) -> Option<TaskState> {
        let (number, mut rest) = record::shape(self.pages.record(id.0)?)?;
        record::decode(id, self.shapes.shape(number)?, &mut rest)
    }

    /// Takes a tombstone out.
    pub(crate) fn remove(&mut self, id: BroadcastId) -> Option<TaskState> {
        let task = self.task(id)?;
        let (number, _) = record::shape(self.pages.record(id.0)?)?;
        self.shapes.leave(number);
        self.pages.remove(id.0);
        Some(task)
    }

    pub(crate) fn holds(&self, id: BroadcastId) -> bool {
        self.pages.record(id.0).is_some()
    }

    /// A tombstone of this scope; `None` of another.
    pub(crate) fn known(&self, id: BroadcastId, scope: &Scope) -> Option<Tombstone<'_>> {
        let (number, rest) = record::shape(self.pages.record(id.0)?)?;
        let shape = self.shapes.shape(number)?;
        if !shape.is_of(scope) || !record::is_own(rest, scope)? {
            return None;
        }
        Tombstone::new(id, shape, rest)
    }

    /// Whose key it is, when it was done in milliseconds, and its class in the window.
    pub(crate) fn ending(&self, id: BroadcastId) -> Option<(&str, u64, Class)> {
        let (number, mut rest) = record::shape(self.pages.record(id.0)?)?;
        let shape = self.shapes.shape(number)?;
        Some((&shape.principal, record::take(&mut rest)?, (shape.lifetime_ms, shape.firm)))
    }

    /// Says whether a tombstone is of this scope.
    pub(crate) fn is_of(&self, id: BroadcastId, scope: &Scope) -> bool {
        let of = || {
            let (number, rest) = record::shape(self.pages.record(id.0)?)?;
            let shape = self.shapes.shape(number)?;
            Some(shape.is_of(scope) && record::is_own(rest, scope)?)
        };
        of().unwrap_or(false)
    }

    /// The first identity from `id` on.
    pub(crate) fn first_from(&self, id: BroadcastId) -> Option<BroadcastId> {
        self.pages.first_from(id.0).map(BroadcastId)
    }

    pub(crate) fn count(&self) -> usize {
        self.pages.count()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = BroadcastId> {
        self.pages.numbers().map(BroadcastId)
    }
}

#[cfg(test)]
mod tests;
