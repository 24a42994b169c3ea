//! The bytes of a file in memory, sector by sector.
//!
//! Sectors of zeros take no room, equal sectors are shared between all states that hold them, and
//! so are runs of eight: a state that differs from another in one sector costs one run. The digest
//! of all bytes is kept up with every change.

use std::sync::Arc;

use crate::io::fault::mix;

/// Bytes that a disk writes whole or not at all.
pub(super) const SECTOR: u64 = 512;
/// [`SECTOR`] in memory.
pub(super) const SECTOR_LEN: usize = 512;
/// Sectors that are shared as one.
const RUN: usize = 8;

/// One sector that is not all zeros, with a digest of its bytes.
#[derive(Debug)]
pub(super) struct Sector {
    pub(super) bytes: [u8; SECTOR_LEN],
    digest: u64,
}

/// A sector, shared between all states that hold it; `None` is all zeros.
pub(super) type Held = Option<Arc<Sector>>;

pub(super) fn hold(bytes: &[u8; SECTOR_LEN]) -> Held {
    if *bytes == [0; SECTOR_LEN] {
        return None;
    }
    // Four chains that do not wait for each other.
    let mut lanes = [1_u64, 2, 3, 4];
    for words in bytes.as_chunks::<8>().0.chunks_exact(lanes.len()) {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (*lane ^ u64::from_le_bytes(*word))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29);
        }
    }
    let digest = lanes.iter().fold(0, |h, lane| mix(h ^ lane));
    Some(Arc::new(Sector { bytes: *bytes, digest }))
}

pub(super) fn same(a: Option<&Arc<Sector>>, b: Option<&Arc<Sector>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (a.digest == b.digest && a.bytes == b.bytes),
        _ => false,
    }
}

/// The sectors of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    runs: Vec<Option<Arc<[Held; RUN]>>>,
    /// Sum over the sectors, so that the order of the changes does not matter.
    digest: u64,
}

impl Image {
    /// A digest of all bytes.
    pub(super) const fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn sector(&self, at: u64) -> Option<&Arc<Sector>> {
        let (run, within) = split(at);
        self.runs.get(run)?.as_ref()?.get(within)?.as_ref()
    }

    pub(super) fn put(&mut self, at: u64, held: Held) {
        let (run, within) = split(at);
        if held.is_none() && self.sector(at).is_none() {
            return;
        }
        if self.runs.len() <= run {
            self.runs.resize(run + 1, None);
        }
        let Some(run) = self.runs.get_mut(run) else { return };
        let run = Arc::make_mut(run.get_or_insert_default());
        let Some(place) = run.get_mut(within) else { return };
        let (old, new) = (weight(at, place.as_ref()), weight(at, held.as_ref()));
        self.digest = self.digest.wrapping_sub(old).wrapping_add(new);
        *place = held;
    }

    /// The sectors from one on that are not all zeros, in order.
    pub(super) fn from(&self, at: u64) -> impl Iterator<Item = (u64, &Arc<Sector>)> {
        let begin = split(at).0;
        let runs = self.runs.iter().enumerate().skip(begin);
        let all = runs.filter_map(|(n, run)| Some((n, run.as_ref()?))).flat_map(|(n, run)| {
            let held = run.iter().enumerate();
            held.filter_map(move |(k, held)| Some((to_u64(n * RUN + k), held.as_ref()?)))
        });
        all.skip_while(move |(found, _)| *found < at)
    }

    /// The sectors in which two images differ, in order.
    pub(super) fn differences(&self, other: &Self) -> Vec<u64> {
        let mut found = Vec::new();
        for n in 0..self.runs.len().max(other.runs.len()) {
            let pair = [self, other].map(|image| image.runs.get(n).and_then(Option::as_ref));
            if let [Some(a), Some(b)] = pair
                && Arc::ptr_eq(a, b)
            {
                continue;
            }
            let sectors = (0..RUN).map(|k| to_u64(n * RUN + k));
            found.extend(sectors.filter(|at| !same(self.sector(*at), other.sector(*at))));
        }
        found
    }

    /// Shares the run around a sector with an image that holds the same there.
    pub(super) fn share(&mut self, other: &Self, at: u64) {
        let n = split(at).0;
        if let (Some(Some(mine)), Some(Some(theirs))) = (self.runs.get_mut(n), other.runs.get(n))
            && mine.iter().zip(theirs.iter()).all(|(a, b)| same(a.as_ref(), b.as_ref()))
        {
            *mine = Arc::clone(theirs);
        }
    }

    /// Cuts what stands behind so many bytes.
    pub(super) fn cut(&mut self, len: u64) {
        let behind: Vec<u64> = self.from(len / SECTOR).map(|(at, _)| at).collect();
        for at in behind {
            let kept = self.kept(at, len);
            self.put(at, kept);
        }
    }

    /// What a cut leaves of a sector.
    pub(super) fn kept(&self, at: u64, len: u64) -> Held {
        let sector = self.sector(at)?;
        let keep = to_usize(len.saturating_sub(at * SECTOR));
        if keep >= SECTOR_LEN {
            return Some(Arc::clone(sector));
        }
        let mut bytes = sector.bytes;
        bytes.iter_mut().skip(keep).for_each(|b| *b = 0);
        hold(&bytes)
    }
}

/// The run of a sector, and its place within.
fn split(at: u64) -> (usize, usize) {
    (to_usize(at) / RUN, to_usize(at) % RUN)
}

/// What a sector adds to the digest of its file.
fn weight(at: u64, sector: Option<&Arc<Sector>>) -> u64 {
    sector.map_or(0, |sector| mix(sector.digest ^ at.rotate_left(32)))
}

/// A count of bytes in memory as a size on disk.
pub(super) fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

pub(super) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
