//! What control says besides broadcasts: vchannels, collections, the policy in force.

use std::collections::HashSet;
use std::sync::Arc;

use oncelog_format::control::{Body, Channel, Collection, PolicyRecord};
use oncelog_format::limits::VCHANNEL_NAME_LEN_MAX;

use super::core::{Core, Inner};
use super::deciding::DECISION_LEN;
use super::options::CollectionSpec;
use super::policy::{Policy, Violation};
use super::refusal;
use super::state::State;
use super::told::Told;
use crate::error::{ErrorKind, Result};
use crate::log::Pending;

/// More than the record of a vchannel adds to its name, in bytes, with its frame.
const NAME_LEN: usize = 128;

impl Inner {
    /// Has it told where more keys are kept than the policy in force allows, as it said it may.
    pub(super) fn warn_of_keys(&self, core: &mut Core) {
        if let Some(kept) = core.policy.kept_beyond(&core.state) {
            let bound = core.policy.window_count_max;
            self.keep_told(core, Told::Beyond { kept, bound });
        }
    }

    pub(super) fn refresh(&self, policy: &Policy) -> Result<()> {
        let (pending, _) = self.with_room(|| {
            let mut core = self.lock_to_take_in(DECISION_LEN);
            core.usable()?;
            check_policy(policy, &core.state)?;
            let handed = self.hand_over(&mut core, vec![Body::Policy(policy.record())])?;
            core.policy = policy.clone();
            self.warn_of_keys(&mut core);
            self.turned.notify_all();
            Ok(handed)
        })?;
        self.settle(pending)
    }

    /// Records the policy in force where another one was recorded last.
    pub(super) fn note_policy(&self) -> Result<()> {
        self.warn_of_keys(&mut self.lock());
        self.tell_kept();
        let handed = self.with_room(|| {
            // While it opens, nobody looks.
            let mut core = self.lock();
            let record: PolicyRecord = core.policy.record();
            if core.state.policy() == Some(&record) {
                return Ok(None);
            }
            self.hand_over(&mut core, vec![Body::Policy(record)]).map(Some)
        });
        match handed {
            Ok(handed) => handed.map_or(Ok(()), |(pending, _)| self.settle(pending)),
            // Opening needs no free byte; the policy holds in this process all the same.
            Err(e) if e.kind() == ErrorKind::StoreFull => Ok(()),
            Err(e) => Err(e),
        }
    }

    pub(super) fn missing_vchannels(&self, core: &Core, names: &[String]) -> Result<Vec<Body>> {
        let max = usize::try_from(VCHANNEL_NAME_LEN_MAX).unwrap_or(usize::MAX);
        let (mut missing, mut named) = (Vec::new(), HashSet::new());
        for name in names {
            if name.is_empty() || name.len() > max {
                let len = name.len();
                let message = format!("a vchannel: expected 1 to {max} bytes, found {len}");
                return Err(refusal::invalid(message));
            }
            if core.state.pchannel_of(name).is_none() && named.insert(name) {
                missing.push(name);
            }
        }
        let pchannels: Vec<&str> = self.store.pchannels().collect();
        // Known, and not counted: there may be a million.
        let begin = core.state.vchannels().len();
        let round = pchannels.iter().cycle().skip(begin % pchannels.len().max(1));
        let record = |(vchannel, pchannel): (&String, &&str)| {
            let (vchannel, pchannel) = (vchannel.clone(), (*pchannel).to_owned());
            Body::Channel(Channel { vchannel, pchannel })
        };
        Ok(missing.into_iter().zip(round).map(record).collect())
    }

    pub(super) fn ensure_collection(&self, spec: &CollectionSpec) -> Result<Arc<Collection>> {
        if spec.name.is_empty() || spec.vchannels.is_empty() {
            return Err(refusal::invalid("a collection needs a name and a vchannel"));
        }
        let (collection, handed) = self.with_room(|| self.make_collection(spec))?;
        handed.map_or_else(|| self.settle_before(), |pending| self.settle(pending))?;
        Ok(collection)
    }

    /// Makes the vchannels that do not exist; what was handed over for them.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name that is none, and those of handing over.
    pub(super) fn make_vchannels(&self, names: &[String]) -> Result<Option<Pending>> {
        let is_missing = |core: &Core| {
            core.usable()?;
            self.missing_vchannels(core, names)
        };
        if is_missing(&self.lock())?.is_empty() {
            return Ok(None);
        }
        let mut core = self.lock_to_take_in(names_len(names) + DECISION_LEN);
        let bodies = is_missing(&core)?;
        if bodies.is_empty() {
            return Ok(None);
        }
        self.hand_over(&mut core, bodies).map(|(pending, _)| Some(pending))
    }

    /// The collection of a name, and what was handed over where it is made.
    fn make_collection(&self, spec: &CollectionSpec) -> Result<(Arc<Collection>, Option<Pending>)> {
        let found = |core: &Core| {
            core.usable()?;
            Ok(core.state.collection_named(&spec.name).map(Arc::clone))
        };
        if let Some(found) = found(&self.lock())? {
            return Ok((found, None));
        }
        let carried = spec.schema.len() + names_len(&spec.vchannels);
        let mut core = self.lock_to_take_in(carried + DECISION_LEN);
        if let Some(found) = found(&core)? {
            return Ok((found, None));
        }
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::DecidedBesideBatch) {
            // What is decided meanwhile is not looked at.
            let moment = std::time::Duration::from_millis(20);
            core = self.wait(core, &self.handed, self.deadline(Some(moment))).0;
        }
        let mut bodies = self.missing_vchannels(&core, &spec.vchannels)?;
        let collection = spec.collection(core.state.next_collection_id());
        bodies.push(Body::Collection(Arc::clone(&collection)));
        let (pending, _) = self.hand_over(&mut core, bodies)?;
        Ok((collection, Some(pending)))
    }

    /// Records a collection that was made of `was`, unless another one stands by now.
    pub(super) fn update_collection(&self, was: &Collection, next: Collection) -> Result<bool> {
        if next.id != was.id {
            let (expected, found) = (was.id, next.id);
            let what = format!("a collection keeps its id: expected {expected}, found {found}");
            return Err(refusal::invalid(what));
        }
        let next = Arc::new(next);
        let carried = next.schema.len() + names_len(&next.vchannels);
        let handed = self.with_room(|| {
            let mut core = self.lock_to_take_in(carried + DECISION_LEN);
            core.usable()?;
            let stands = core.state.collection(next.id);
            let unknown = || refusal::invalid(format!("unknown collection {}", next.id));
            if **stands.ok_or_else(unknown)? != *was {
                return Ok(None);
            }
            self.hand_over(&mut core, vec![Body::Collection(Arc::clone(&next))]).map(Some)
        })?;
        let Some((pending, _)) = handed else { return Ok(false) };
        self.settle(pending)?;
        Ok(true)
    }
}

/// More than vchannels take that are made, and that a collection names, in bytes, where names have
/// usual lengths.
fn names_len(names: &[String]) -> usize {
    names.iter().map(|name| 2 * name.len() + NAME_LEN).sum()
}

impl CollectionSpec {
    /// The collection that is made of it.
    pub(crate) fn collection(&self, id: u64) -> Arc<Collection> {
        Arc::new(Collection {
            id,
            name: self.name.clone(),
            generation: 0,
            schema: self.schema.clone(),
            primary_key: self.primary_key.clone(),
            partition_function: 1,
            partition_version: 1,
            vchannels: self.vchannels.clone(),
        })
    }
}

/// The policy that an open puts in force: the one that it is given; else the one that was recorded
/// last, as who opens a store without a word about it changes nothing; else the default.
///
/// # Errors
///
/// `InvalidInput` for one that breaks a rule. What was recorded is not held against the keys that
/// are kept: it was, where it was given.
pub(super) fn policy_in_force(given: Option<&Policy>, state: &State) -> Result<Policy> {
    let recorded = state.policy().map(Policy::of_record).filter(|_| given.is_none());
    if let Some(recorded) = recorded {
        return refuse(&recorded.violations()).map(|()| recorded);
    }
    let policy = given.cloned().unwrap_or_default();
    check_policy(&policy, state).map(|()| policy)
}

pub(super) fn check_policy(policy: &Policy, state: &State) -> Result<()> {
    let mut broken = policy.violations();
    broken.extend(policy.violations_against(state));
    refuse(&broken)
}

fn refuse(broken: &[Violation]) -> Result<()> {
    if broken.is_empty() {
        return Ok(());
    }
    let fields = broken.iter().map(|violation| violation.name.clone()).collect();
    let lines: Vec<String> = broken.iter().map(ToString::to_string).collect();
    Err(refusal::invalid(format!("the policy is refused: {}", lines.join("; ")))
        .with_fields(fields))
}
