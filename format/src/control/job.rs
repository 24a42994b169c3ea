//! Fields of the records of jobs.
use super::accepted::PchannelEnd;
use super::fields::{
    Put, blob, choice, nonzero, put_blob, put_list, put_name, put_vchannels, text, vchannels,
};
use crate::error::DecodeError;
use crate::limits::PLAN_FILE_COUNT_MAX;
use crate::message::BroadcastId;
use crate::wire::{Reader, put_u16, put_u32, put_u64};

/// A job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The job.
    pub job: BroadcastId,
    /// The attempt that begins, from 2.
    pub attempt: u32,
}

impl Attempt {
    pub(super) fn encode(self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.job.0);
        put_u32(out, self.attempt);
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { job: BroadcastId(nonzero(r, "job")?), attempt: r.u32()? })
    }
}

/// A source file as the plan saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    /// Its path below its root, or absolute.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last changed, in nanoseconds since 1970 UTC.
    pub modified_ns: u64,
    /// Its inode.
    pub inode: u64,
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
    /// Its rows.
    pub rows: u64,
}

/// What an attempt will do, fixed before its first row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// The job.
    pub job: BroadcastId,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The files, in order.
    pub files: Vec<PlanFile>,
    /// Rows a slice.
    pub slice_rows: u32,
    /// Partition function.
    pub partition_function: u8,
    /// Version of the partition function.
    pub partition_version: u16,
    /// The vchannels, in the order that the partition function counts them.
    pub vchannels: Vec<String>,
    /// Per pchannel, the LSN from which the attempt's messages can stand.
    pub from: Vec<PchannelEnd>,
    /// Bytes of the driver, opaque here.
    pub detail: Vec<u8>,
}

impl JobPlan {
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.job.0);
        put_u32(out, self.attempt);
        put_list(out, "files", PLAN_FILE_COUNT_MAX, &self.files, |out, x| {
            put_name(out, "path", &x.path)?;
            put_u64(out, x.bytes);
            put_u64(out, x.modified_ns);
            put_u64(out, x.inode);
            out.extend_from_slice(&x.sha256);
            put_u64(out, x.rows);
            Ok(())
        })?;
        put_u32(out, self.slice_rows);
        out.push(self.partition_function);
        put_u16(out, self.partition_version);
        put_vchannels(out, &self.vchannels)?;
        PchannelEnd::put_all(out, &self.from)?;
        put_blob(out, "detail", &self.detail)?;
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            job: BroadcastId(nonzero(r, "job")?),
            attempt: r.u32()?,
            files: r.list(PLAN_FILE_COUNT_MAX, 68, |r| {
                Ok(PlanFile {
                    path: text(r, "path")?,
                    bytes: r.u64()?,
                    modified_ns: r.u64()?,
                    inode: r.u64()?,
                    sha256: r.array()?,
                    rows: r.u64()?,
                })
            })?,
            slice_rows: r.u32()?,
            partition_function: r.u8()?,
            partition_version: r.u16()?,
            vchannels: vchannels(r)?,
            from: PchannelEnd::decode_list(r)?,
            detail: blob(r)?,
        })
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum JobPhase {
    /// Made, not begun.
    Pending,
    /// Its files are read once.
    PreImporting,
    /// Its rows are appended.
    Importing,
    /// Its ending is under way.
    Committing,
    /// Its rows are visible.
    Completed,
    /// It has no rows, and never will under this attempt.
    Failed,
}

impl JobPhase {
    /// Returns the word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::PreImporting => "PreImporting",
            Self::Importing => "Importing",
            Self::Committing => "Committing",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::Pending => 0,
            Self::PreImporting => 1,
            Self::Importing => 2,
            Self::Committing => 3,
            Self::Completed => 4,
            Self::Failed => 5,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Pending),
            1 => Some(Self::PreImporting),
            2 => Some(Self::Importing),
            3 => Some(Self::Committing),
            4 => Some(Self::Completed),
            5 => Some(Self::Failed),
            _ => None,
        }
    }
}

/// How far an attempt is; what a driver says, never what makes rows visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobState {
    /// The job.
    pub job: BroadcastId,
    /// The attempt, from 1.
    pub attempt: u32,
    /// How far.
    pub phase: JobPhase,
    /// How far in percent, 0 to 100.
    pub progress: u8,
    /// Rows appended, or read.
    pub rows: u64,
    /// Why it failed or will; empty otherwise.
    pub reason: String,
    /// Bytes of the driver, opaque here.
    pub detail: Vec<u8>,
}

impl JobState {
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.job.0);
        put_u32(out, self.attempt);
        out.push(self.phase.to_byte());
        out.push(self.progress);
        put_u64(out, self.rows);
        put_name(out, "reason", &self.reason)?;
        put_blob(out, "detail", &self.detail)?;
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            job: BroadcastId(nonzero(r, "job")?),
            attempt: r.u32()?,
            phase: choice(r, "phase", JobPhase::from_byte)?,
            progress: choice(r, "progress", |b| (b <= 100).then_some(b))?,
            rows: r.u64()?,
            reason: text(r, "reason")?,
            detail: blob(r)?,
        })
    }
}
