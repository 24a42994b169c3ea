//! A tombstone as bytes: what is its own, behind the number of its shape.
//!
//! Integers are short where they are small, and times and positions are differences from the ones
//! before. The bytes are memory's: no version, no checksum, free to change.

use std::sync::Arc;

use oncelog_format::control::{Accepted, AckPosition, JobLink, Outcome as Ending};
use oncelog_format::message::{
    BroadcastHeader, BroadcastId, Fingerprint, FingerprintField, Resource, Scope, TimeTick,
};

use super::super::fingerprint::{Fields, Stated};
use super::super::request::{Answer, Outcome};
use super::super::state::TaskState;
use super::shapes::Shape;
use crate::channel::Position;
use crate::lsn::Lsn;

/// Bits of a time tick below its milliseconds.
const TICK_BITS: u32 = 18;

/// Says whether a task is all that a tombstone holds, and no more.
pub(super) fn fits(task: &TaskState) -> bool {
    let accepted = &task.accepted;
    let bare = accepted.ends.is_empty()
        && accepted.properties.is_empty()
        && accepted.trace.is_none()
        && accepted.payload.is_empty();
    let linked = matches!(accepted.job, JobLink::None | JobLink::Starts);
    let ended = matches!(task.done, Some((Ending::Done | Ending::Failed(_), _)));
    let mut acks = (0..).zip(&task.acks);
    let placed = acks.all(|(at, ack)| ack.as_ref().is_none_or(|ack| ack.vchannel == at));
    let whole = task.acks.len() == accepted.header.vchannels.len();
    bare && linked && ended && task.parked.is_none() && placed && whole
}

/// Appends a task that fits.
pub(super) fn encode(task: &TaskState, scope: &Scope, shape: usize, out: &mut Vec<u8>) {
    let accepted = &task.accepted;
    let (ending, done_at_ms) = match &task.done {
        Some((ending, at_ms)) => (ending, *at_ms),
        None => return,
    };
    put(out, wide(shape));
    put(out, done_at_ms);
    put_bytes(out, &scope.client_key);
    put_bytes(out, scope.identity.as_bytes());
    put(out, scope.generation);
    put_difference(out, done_at_ms, task.accepted_at_ms);
    put_difference(out, task.accepted_at_ms, task.moved_at_ms);
    accepted.fingerprint.fields.iter().for_each(|field| out.extend_from_slice(&field.digest));
    put(out, wide(accepted.header.resources.len()));
    for resource in &accepted.header.resources {
        put_bytes(out, resource.domain.as_bytes());
        put_bytes(out, resource.key.as_bytes());
        out.push(u8::from(resource.shared));
    }
    let all = task.acks.iter().all(Option::is_some);
    out.push(u8::from(all));
    let mut before = (0, first_tick(task.accepted_at_ms));
    for ack in &task.acks {
        if !all {
            out.push(u8::from(ack.is_some()));
        }
        let Some(ack) = ack else { continue };
        put_difference(out, before.0, ack.lsn);
        put_difference(out, before.1, ack.time_tick.0);
        before = (ack.lsn, ack.time_tick.0);
    }
    match ending {
        Ending::Failed(reason) => {
            out.push(1);
            out.extend_from_slice(reason.as_bytes());
        }
        _ => out.push(0),
    }
}

/// The number of a record's shape, and what stands behind it.
pub(super) fn shape(mut record: &[u8]) -> Option<(usize, &[u8])> {
    let number = take(&mut record)?;
    Some((usize::try_from(number).ok()?, record))
}

/// Says whether what stands behind the shape is of a scope, as far as the shape does not say.
pub(super) fn is_own(mut rest: &[u8], scope: &Scope) -> Option<bool> {
    take(&mut rest)?;
    Some(
        take_bytes(&mut rest)? == scope.client_key
            && take_bytes(&mut rest)? == scope.identity.as_bytes()
            && take(&mut rest)? == scope.generation,
    )
}

/// A tombstone where it stands, read as far as a retry needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone<'a> {
    id: BroadcastId,
    shape: &'a Shape,
    done_at_ms: u64,
    accepted_at_ms: u64,
    digests: &'a [[u8; 32]],
    /// Behind the digests.
    rest: &'a [u8],
}

impl<'a> Tombstone<'a> {
    /// The one that was encoded behind its shape.
    pub(super) fn new(id: BroadcastId, shape: &'a Shape, mut rest: &'a [u8]) -> Option<Self> {
        let done_at_ms = take(&mut rest)?;
        take_bytes(&mut rest)?;
        take_bytes(&mut rest)?;
        take(&mut rest)?;
        let accepted_at_ms = take_difference(&mut rest, done_at_ms)?;
        take_difference(&mut rest, accepted_at_ms)?;
        let len = shape.print_names.len().checked_mul(32)?;
        let (digests, rest) = rest.split_at_checked(len)?;
        let (digests, _) = digests.as_chunks();
        Some(Self { id, shape, done_at_ms, accepted_at_ms, digests, rest })
    }

    pub(crate) fn id(&self) -> BroadcastId {
        self.id
    }

    /// Until when it is known, in milliseconds.
    pub(crate) fn until_ms(&self) -> u64 {
        self.done_at_ms.saturating_add(self.shape.lifetime_ms)
    }

    /// The fingerprint that it was accepted with.
    pub(crate) fn print(&self) -> Stated<'a> {
        let fields = Fields::Apart(&self.shape.print_names, self.digests);
        Stated { version: self.shape.print_version, fields }
    }

    /// What a retry is answered with.
    pub(crate) fn answer(&self) -> Option<Answer> {
        let (rest, shape) = (&mut &*self.rest, self.shape);
        for _ in 0..take(rest)? {
            take_bytes(rest)?;
            take_bytes(rest)?;
            take_flag(rest)?;
        }
        let acks = take_acks(rest, self.accepted_at_ms, shape.vchannels.len())?;
        let channels = shape.vchannels.iter().zip(acks).filter_map(|(name, ack)| {
            let ack = ack?;
            Some((name.clone(), Position::new(Lsn::new(ack.lsn)?, ack.time_tick)))
        });
        let channels = channels.collect();
        let outcome = if take_flag(rest)? {
            Outcome::Failed { reason: std::str::from_utf8(rest).ok()?.to_owned() }
        } else {
            Outcome::Done
        };
        Some(Answer {
            id: self.id,
            duplicated: true,
            accepted_at_ms: self.accepted_at_ms,
            done_at_ms: self.done_at_ms,
            expires_at_ms: shape.firm.then(|| self.until_ms()),
            outcome,
            channels,
            differs: Vec::new(),
            clock_held: false,
        })
    }
}

/// The task that was encoded behind its shape.
pub(super) fn decode(id: BroadcastId, shape: &Shape, rest: &mut &[u8]) -> Option<TaskState> {
    let done_at_ms = take(rest)?;
    let scope = Scope {
        principal: shape.principal.clone(),
        message_type: shape.scope_type.clone(),
        domain: shape.domain.clone(),
        client_key: take_bytes(rest)?.to_vec(),
        identity: take_text(rest)?,
        generation: take(rest)?,
    };
    let accepted_at_ms = take_difference(rest, done_at_ms)?;
    let moved_at_ms = take_difference(rest, accepted_at_ms)?;
    let mut fields = Vec::with_capacity(shape.print_names.len());
    for name in &shape.print_names {
        let (digest, behind) = rest.split_first_chunk::<32>()?;
        *rest = behind;
        fields.push(FingerprintField { name: name.clone(), digest: *digest });
    }
    let mut resources = Vec::new();
    for _ in 0..take(rest)? {
        let (domain, key) = (take_text(rest)?, take_text(rest)?);
        resources.push(Resource { domain, key, shared: take_flag(rest)? });
    }
    let acks = take_acks(rest, accepted_at_ms, shape.vchannels.len())?;
    let ending = if take_flag(rest)? {
        Ending::Failed(std::str::from_utf8(rest).ok()?.to_owned())
    } else {
        Ending::Done
    };
    let accepted = Accepted {
        header: BroadcastHeader {
            id,
            vchannels: shape.vchannels.clone(),
            resources,
            ack: shape.ack,
        },
        message_type: shape.message_type.clone(),
        scope: Some(scope),
        fingerprint: Fingerprint { version: shape.print_version, fields },
        ends: Vec::new(),
        lifetime_ms: shape.lifetime_ms,
        firm: shape.firm,
        job: if shape.starts_job { JobLink::Starts } else { JobLink::None },
        properties: Vec::new(),
        trace: None,
        payload: Vec::new(),
    };
    let done = Some((ending, done_at_ms));
    let accepted = Arc::new(accepted);
    Some(TaskState { accepted, accepted_at_ms, moved_at_ms, acks, parked: None, done })
}

fn take_acks(
    rest: &mut &[u8],
    accepted_at_ms: u64,
    count: usize,
) -> Option<Vec<Option<AckPosition>>> {
    let all = take_flag(rest)?;
    let mut before = (0, first_tick(accepted_at_ms));
    let mut acks = Vec::with_capacity(count);
    for vchannel in (0..).take(count) {
        if !all && !take_flag(rest)? {
            acks.push(None);
            continue;
        }
        before = (take_difference(rest, before.0)?, take_difference(rest, before.1)?);
        let (lsn, time_tick) = (before.0, TimeTick(before.1));
        acks.push(Some(AckPosition { vchannel, lsn, time_tick }));
    }
    Some(acks)
}

/// The tick that copies of an acceptance are near to.
fn first_tick(accepted_at_ms: u64) -> u64 {
    accepted_at_ms.wrapping_shl(TICK_BITS)
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Appends an integer, seven bits a byte, the low ones first.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(0x80 | value.to_le_bytes()[0]);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

pub(super) fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Appends what leads from one integer to another: little where they are near, either way.
fn put_difference(out: &mut Vec<u8>, from: u64, to: u64) {
    let by = to.wrapping_sub(from);
    put(out, if by >> 63 == 0 { by << 1 } else { !(by << 1) });
}

fn take_difference(rest: &mut &[u8], from: u64) -> Option<u64> {
    let by = take(rest)?;
    let by = if by & 1 == 0 { by >> 1 } else { !(by >> 1) };
    Some(from.wrapping_add(by))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, wide(bytes.len()));
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take(rest)?).ok()?;
    let (bytes, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(bytes)
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    Some(std::str::from_utf8(take_bytes(rest)?).ok()?.to_owned())
}

fn take_flag(rest: &mut &[u8]) -> Option<bool> {
    let (byte, behind) = rest.split_first()?;
    *rest = behind;
    Some(*byte != 0)
}
