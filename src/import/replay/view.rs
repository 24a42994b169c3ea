//! The channels of a store as a process sees them that takes no lock.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::visible::{Channels, Messages};
use crate::broadcast::StoreView;
use crate::channel::{Runs, vchannel_of};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{LogView, Reader};
use crate::lsn::Lsn;

/// A look at every pchannel, all of them taken before the first is read.
#[derive(Debug)]
pub(crate) struct ViewChannels {
    names: Vec<String>,
    views: BTreeMap<String, LogView>,
    /// The attempts that the records of their jobs say were committed: job and attempt.
    #[cfg(planted)]
    committed: Vec<(u64, u32)>,
}

impl ViewChannels {
    /// Looks at the pchannels of a store.
    pub(crate) fn open(view: &StoreView) -> Result<Self> {
        let names: Vec<String> = view.pchannels()?;
        let views = names.iter().map(|name| Ok((name.clone(), view.channel(name)?)));
        let views = views.collect::<Result<_>>()?;
        #[cfg(planted)]
        let committed = {
            let jobs = view.state().jobs().filter(|(_, job)| matches!(job.over, Some((true, _))));
            jobs.map(|(id, job)| (id.0, job.attempt)).collect()
        };
        Ok(Self {
            names,
            views,
            #[cfg(planted)]
            committed,
        })
    }

    /// The pchannels in order.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
}

impl Channels for ViewChannels {
    fn read<'a>(&'a self, pchannel: &str, from: Option<Lsn>) -> Result<Box<dyn Messages + 'a>> {
        let unknown = || Error::new(ErrorKind::InvalidInput, format!("no pchannel {pchannel}"));
        let view = self.views.get(pchannel).ok_or_else(unknown)?;
        Ok(Box::new(ViewMessages {
            view,
            reader: view.reader(from)?,
            runs: Runs::new(),
            lost: BTreeMap::new(),
        }))
    }

    #[cfg(planted)]
    fn is_committed_by_record(&self, attempt: crate::import::verdict::AttemptOf) -> bool {
        self.committed.contains(&(attempt.job.0, attempt.attempt))
    }
}

/// Whole messages: those in chunks where their last chunk came.
struct ViewMessages<'a> {
    view: &'a LogView,
    reader: Reader,
    runs: Runs,
    /// Messages whose first chunks are trimmed, by vchannel.
    lost: BTreeMap<String, u64>,
}

impl Messages for ViewMessages<'_> {
    fn next(&mut self) -> Result<Option<(Lsn, Bytes)>> {
        while let Some(record) = self.reader.next()? {
            match self.runs.take(record.lsn, &record.payload, &mut self.view) {
                Ok(Some(whole)) => return Ok(Some((record.lsn, whole))),
                Ok(None) => {}
                // Like all that stood before it, it is gone.
                Err(e) if e.kind() == ErrorKind::Trimmed => {
                    let vchannel = vchannel_of(&record.payload).unwrap_or_default();
                    let count = self.lost.entry(vchannel).or_default();
                    *count = count.saturating_add(1);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    fn lost_count(&self, vchannel: &str) -> u64 {
        self.lost.get(vchannel).copied().unwrap_or_default()
    }
}
