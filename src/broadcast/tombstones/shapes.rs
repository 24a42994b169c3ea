//! What many tombstones have in common, kept once.

use std::collections::HashMap;
use std::sync::Arc;

use oncelog_format::control::{Accepted, JobLink};
use oncelog_format::message::{AckMode, Scope};

/// The part of an acceptance that others are like.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) message_type: String,
    pub(crate) principal: String,
    pub(crate) scope_type: String,
    pub(crate) domain: String,
    pub(crate) vchannels: Vec<String>,
    pub(crate) ack: AckMode,
    pub(crate) print_version: u32,
    pub(crate) print_names: Vec<String>,
    pub(crate) lifetime_ms: u64,
    pub(crate) firm: bool,
    pub(crate) starts_job: bool,
}

impl Shape {
    fn new(accepted: &Accepted, scope: &Scope) -> Self {
        let print = &accepted.fingerprint;
        Self {
            message_type: accepted.message_type.clone(),
            principal: scope.principal.clone(),
            scope_type: scope.message_type.clone(),
            domain: scope.domain.clone(),
            vchannels: accepted.header.vchannels.clone(),
            ack: accepted.header.ack,
            print_version: print.version,
            print_names: print.fields.iter().map(|field| field.name.clone()).collect(),
            lifetime_ms: accepted.lifetime_ms,
            firm: accepted.firm,
            starts_job: accepted.job == JobLink::Starts,
        }
    }

    /// Says whether an acceptance is of this shape.
    fn fits(&self, accepted: &Accepted, scope: &Scope) -> bool {
        let print = &accepted.fingerprint;
        let names = print.fields.iter().map(|field| &field.name);
        self.is_of(scope)
            && self.message_type == accepted.message_type
            && self.vchannels == accepted.header.vchannels
            && self.ack == accepted.header.ack
            && self.print_version == print.version
            && self.print_names.iter().eq(names)
            && self.lifetime_ms == accepted.lifetime_ms
            && self.firm == accepted.firm
            && self.starts_job == (accepted.job == JobLink::Starts)
    }

    /// Says whether a scope may be of this shape.
    pub(crate) fn is_of(&self, scope: &Scope) -> bool {
        self.principal == scope.principal
            && self.scope_type == scope.message_type
            && self.domain == scope.domain
    }
}

/// Shapes by number, each as long as a tombstone has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shapes {
    shapes: Vec<Option<(Arc<Shape>, usize)>>,
    numbers: HashMap<Arc<Shape>, usize>,
    /// Numbers below the greatest that are free.
    free: Vec<usize>,
    /// The one that was entered last: the next tombstone is mostly like it.
    last: usize,
}

impl Shapes {
    /// Counts one more tombstone of the shape of an acceptance; returns its number.
    pub(crate) fn enter(&mut self, accepted: &Accepted, scope: &Scope) -> usize {
        if self.shape(self.last).is_none_or(|shape| !shape.fits(accepted, scope)) {
            let shape = Shape::new(accepted, scope);
            self.last = match self.numbers.get(&shape) {
                Some(number) => *number,
                None => self.add(shape),
            };
        }
        if let Some(Some((_, count))) = self.shapes.get_mut(self.last) {
            *count += 1;
        }
        self.last
    }

    fn add(&mut self, shape: Shape) -> usize {
        let shape = Arc::new(shape);
        let entry = Some((Arc::clone(&shape), 0));
        let free = self.free.pop();
        let number = free.unwrap_or(self.shapes.len());
        match self.shapes.get_mut(number) {
            Some(place) => *place = entry,
            None => self.shapes.push(entry),
        }
        self.numbers.insert(shape, number);
        number
    }

    /// Counts one tombstone less; a shape that none has is forgotten.
    pub(crate) fn leave(&mut self, number: usize) {
        let Some(place) = self.shapes.get_mut(number) else { return };
        let Some((shape, count)) = place else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.numbers.remove(shape);
            *place = None;
            self.free.push(number);
        }
    }

    pub(crate) fn shape(&self, number: usize) -> Option<&Shape> {
        self.shapes.get(number)?.as_ref().map(|(shape, _)| &**shape)
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.shapes.iter().flatten().count()
    }
}
