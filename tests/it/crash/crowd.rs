//! Several appenders on one thread: what the others do while one of them writes or syncs.
//!
//! [`Meeting`] is a file system that calls back within a write and within a sync of a file, where a
//! log holds no lock. So the batches that come in between are the same in every run.

use std::fmt;
use std::io::Result;
use std::path::Path;
use std::sync::{Arc, Mutex};

use oncelog::io::{Io, IoFile, OpenHow};
use oncelog::testing::{CallKind, MemIo};

use crate::pass_on::pass_on;

type Act = Box<dyn FnMut(CallKind) + Send>;

/// What is done meanwhile, if anything. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Meanwhile(Arc<Mutex<Option<Act>>>);

impl Meanwhile {
    pub(crate) fn set(&self, act: impl FnMut(CallKind) + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(act));
    }

    pub(crate) fn clear(&self) {
        let act = self.0.lock().unwrap().take();
        drop(act);
    }

    /// What is done may write itself: that is no meeting again.
    fn meet(&self, kind: CallKind) {
        let act = self.0.lock().unwrap().take();
        if let Some(mut act) = act {
            act(kind);
            *self.0.lock().unwrap() = Some(act);
        }
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

/// The file system of a process in which several threads append.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) io: MemIo,
    pub(crate) meanwhile: Meanwhile,
}

impl Io for Meeting {
    pass_on!(io: open_dir list kind rename remove create_dir sync_dir blocks random);

    fn open(&self, path: &Path, how: OpenHow) -> Result<Arc<dyn IoFile>> {
        let file = self.io.open(path, how)?;
        Ok(Arc::new(MeetingFile { file, meanwhile: self.meanwhile.clone() }))
    }
}

#[derive(Debug)]
struct MeetingFile {
    file: Arc<dyn IoFile>,
    meanwhile: Meanwhile,
}

impl IoFile for MeetingFile {
    pass_on!(file: len read_at set_len allocate try_lock id map evict);

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let written = self.file.write_at(buf, offset);
        self.meanwhile.meet(CallKind::Write);
        written
    }

    fn sync(&self) -> Result<()> {
        self.meanwhile.meet(CallKind::Sync);
        self.file.sync()
    }
}
