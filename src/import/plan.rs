//! The plan of an attempt: fixed, and durable, before its first row.
//!
//! It says which files in which order, what they were when they were read first, how they are cut
//! into slices, and where the slices can stand. A driver that starts again does what the plan says
//! and nothing else; what it cannot do any more fails the attempt.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use arrow_schema::Schema;
use oncelog_format::control::{JobPlan, PchannelEnd, PlanFile};
use oncelog_format::message::BroadcastId;

use super::format::Format;
use super::json::columns::{Kinds, schema_among};
use super::partition;
use super::place::Place;
use super::read::{self, FirstPass, Progress, Survey};
use super::request::ImportRequest;
use super::roots::Origin;
use super::slice;
use super::source::{GoOn, Sha256Sum};
use crate::error::{Error, ErrorKind, Result};
use crate::io::source::Identity;

/// A file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFile {
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
}

/// What rows of a plan are read from: one file, or the columns of a set.
#[derive(Clone, Debug)]
pub(crate) struct PlannedSet {
    pub(crate) files: Vec<PlannedFile>,
    pub(crate) format: Format,
    /// What the first pass learned.
    pub(crate) survey: Survey,
    /// Index of its first file among those of the plan, which names its slices.
    pub(crate) first_file: u32,
    /// Rows of the sets before it.
    pub(crate) rows_before: u64,
}

impl PlannedSet {
    /// The path that errors about all of it name.
    pub(crate) fn path(&self) -> &Path {
        self.files.first().map_or_else(|| Path::new(""), |file| file.path.as_path())
    }
}

/// A plan as the driver uses it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) sets: Vec<PlannedSet>,
    pub(crate) slice_rows: u32,
    /// Rows of all sets.
    pub(crate) rows: u64,
    file_count: u32,
}

impl Plan {
    fn new(slice_rows: u32) -> Self {
        Self { sets: Vec::new(), slice_rows, rows: 0, file_count: 0 }
    }

    /// Reads every file for the first time; text in columns of `expected` must spell values of
    /// their types. `report` is told how many bytes were read.
    pub(crate) fn survey(
        request: &ImportRequest,
        origin: &Origin,
        (primary_key, expected): (Option<&str>, Option<&Schema>),
        slice_rows_max: u32,
        (report, go_on): (&mut dyn FnMut(u64) -> Result<()>, &GoOn),
    ) -> Result<Self> {
        let mut plan = Self::new(slice_rows_max);
        for set in &request.sets {
            let format = Format::of_set(set)?;
            let sources = set.iter().map(|path| Ok(origin.open(path)?.asking(go_on)));
            let sources = sources.collect::<Result<Vec<_>>>()?;
            let mut pass = FirstPass { primary_key, expected, progress: Progress::new(report) };
            let survey = read::survey(&sources, format, &mut pass)?;
            let identities = sources.iter().map(|source| source.identity);
            let files = set.iter().cloned().zip(identities);
            let files = files.map(|(path, identity)| PlannedFile { path, identity });
            plan.push(files.collect(), format, survey);
        }
        plan.unify(expected);
        plan.check_keys(primary_key, expected)?;
        Ok(plan)
    }

    /// One collection has one kind of key: text `7` and the integer 7 would be two rows, in two
    /// vchannels.
    fn check_keys(&self, primary_key: Option<&str>, expected: Option<&Schema>) -> Result<()> {
        let Some(name) = primary_key else { return Ok(()) };
        let of = |schema: &Schema| {
            schema.field_with_name(name).ok().map(|field| field.data_type().is_integer())
        };
        let word = |is_integer| if is_integer { "an integer" } else { "text" };
        let mut wanted = expected.and_then(of);
        for set in self.sets.iter().filter(|set| set.survey.rows > 0) {
            let Some(found) = of(&set.survey.schema) else { continue };
            let kind = *wanted.get_or_insert(found);
            if found != kind {
                let (found, kind) = (word(found), word(kind));
                let what = format!("the primary key is {found}, in the collection it is {kind}");
                return Err(Place::default().column(name).error(set.path(), &what));
            }
        }
        Ok(())
    }

    /// Gives the columns of sources without types the one type that holds their values in all of
    /// them, and that of the collection where it does too.
    fn unify(&mut self, expected: Option<&Schema>) {
        let mut all: HashMap<String, Kinds> = HashMap::new();
        for survey in self.sets.iter().map(|set| &set.survey) {
            for (field, kinds) in survey.schema.fields().iter().zip(&survey.kinds) {
                all.entry(field.name().clone()).or_default().merge(*kinds);
            }
        }
        for (name, kinds) in &mut all {
            if let Some(field) = expected.and_then(|schema| schema.field_with_name(name).ok()) {
                *kinds = kinds.within(Kinds::expected(field));
            }
        }
        for survey in self.sets.iter_mut().map(|set| &mut set.survey) {
            if !survey.kinds.is_empty() {
                survey.schema = schema_among(&survey.schema, &survey.kinds, &all);
            }
        }
    }

    fn push(&mut self, files: Vec<PlannedFile>, format: Format, survey: Survey) {
        self.slice_rows = self.slice_rows.min(survey.slice_rows);
        let (first_file, rows_before) = (self.file_count, self.rows);
        self.rows = self.rows.saturating_add(survey.rows);
        let count = u32::try_from(files.len()).unwrap_or(u32::MAX);
        self.file_count = self.file_count.saturating_add(count);
        self.sets.push(PlannedSet { files, format, survey, first_file, rows_before });
    }

    /// The record of the plan.
    pub(crate) fn record(
        &self,
        job: BroadcastId,
        attempt: u32,
        vchannels: Vec<String>,
        from: Vec<PchannelEnd>,
    ) -> Result<JobPlan> {
        let files = self.sets.iter().flat_map(|set| {
            set.files.iter().zip(&set.survey.sha256).map(|(file, sha256)| PlanFile {
                path: file.path.to_string_lossy().into_owned(),
                bytes: file.identity.bytes,
                modified_ns: file.identity.mtime_ns.cast_unsigned(),
                inode: file.identity.inode,
                sha256: sha256.0,
                rows: set.survey.rows,
            })
        });
        Ok(JobPlan {
            job,
            attempt,
            files: files.collect(),
            slice_rows: self.slice_rows,
            partition_function: partition::FUNCTION,
            partition_version: partition::VERSION,
            vchannels,
            from,
            detail: self.encode_schemas()?,
        })
    }

    /// The plan behind a record.
    pub(crate) fn of(record: &JobPlan) -> Result<Self> {
        let (function, version) = (record.partition_function, record.partition_version);
        if (function, version) != (partition::FUNCTION, partition::VERSION) {
            let what = format!("partition function {function}.{version} of a plan");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let mut plan = Self::new(record.slice_rows.max(1));
        let mut schemas = Schemas { bytes: &record.detail };
        let mut files = record.files.iter().peekable();
        while let Some(first) = files.next() {
            let schema = slice::schema(schemas.next()?)?;
            let mut set = vec![first];
            while files.peek().is_some() && schemas.take_further()? {
                set.extend(files.next());
            }
            let survey = Survey {
                schema,
                rows: first.rows,
                sha256: set.iter().map(|file| Sha256Sum(file.sha256)).collect(),
                slice_rows: plan.slice_rows,
                kinds: Vec::new(),
            };
            let set: Vec<PlannedFile> = set.into_iter().map(planned).collect();
            let paths: Vec<&Path> = set.iter().map(|file| file.path.as_path()).collect();
            let format = Format::of_set(&paths)?;
            plan.push(set, format, survey);
        }
        Ok(plan)
    }

    /// Schemas of the sets in order, each an Arrow IPC stream without batches behind its length;
    /// for every file of a set but its first a length of 0.
    fn encode_schemas(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for set in &self.sets {
            let schema = slice::encode_schema(&set.survey.schema)?;
            let len = u32::try_from(schema.len());
            let len = len.map_err(|e| Error::new(ErrorKind::Limit, "a schema").with_source(e))?;
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&schema);
            let further = set.files.len().saturating_sub(1);
            out.resize(out.len() + further * FURTHER.len(), 0);
        }
        Ok(out)
    }
}

/// The length that stands for a further file of a set.
const FURTHER: [u8; 4] = 0_u32.to_le_bytes();

fn planned(file: &PlanFile) -> PlannedFile {
    PlannedFile { path: PathBuf::from(&file.path), identity: identity(file) }
}

struct Schemas<'a> {
    bytes: &'a [u8],
}

impl<'a> Schemas<'a> {
    fn next(&mut self) -> Result<&'a [u8]> {
        let otherwise = || Error::new(ErrorKind::Corrupt, "a plan lacks the schema of a file");
        let (len, rest) = self.bytes.split_first_chunk().ok_or_else(otherwise)?;
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let (schema, rest) = rest.split_at_checked(len).ok_or_else(otherwise)?;
        self.bytes = rest;
        Ok(schema)
    }

    /// Whether the next file belongs to the set of the one before it.
    fn take_further(&mut self) -> Result<bool> {
        let Some(rest) = self.bytes.strip_prefix(&FURTHER) else { return Ok(false) };
        self.bytes = rest;
        Ok(true)
    }
}

fn identity(file: &PlanFile) -> Identity {
    let mtime_ns = file.modified_ns.cast_signed();
    Identity { bytes: file.bytes, mtime_ns, inode: file.inode }
}

/// What the record of a failed attempt says of the file at fault, by its number.
pub(crate) fn fault(number: usize) -> Vec<u8> {
    u32::try_from(number).map_or_else(|_| Vec::new(), |number| number.to_le_bytes().to_vec())
}

/// The number of the file at fault; `None` where no file is.
pub(crate) fn fault_of(detail: &[u8]) -> Option<usize> {
    let number = u32::from_le_bytes(detail.try_into().ok()?);
    usize::try_from(number).ok()
}

/// Whether a file is by now unlike its plan: another content, or none. Its bytes are read only
/// where size and times do not tell, and as long as `left` has so many bytes: of a larger one other
/// times alone say it.
pub(crate) fn is_changed(file: &PlanFile, origin: &Origin, left: &mut u64) -> bool {
    let planned = identity(file);
    let Ok(source) = origin.open(Path::new(&file.path)) else { return true };
    if source.identity == planned {
        return false;
    }
    let Some(rest) = left.checked_sub(planned.bytes) else { return true };
    *left = rest;
    source.identity.bytes != planned.bytes
        || source.sha256().is_none_or(|found| found.0 != file.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::numpy::tests::npy;
    use crate::import::sizer::SLICE_ROWS;

    #[test]
    fn a_plan_comes_back_from_its_record() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data");
        let names = ["airports.parquet", "cars.json", "seattle-weather.jsonl", "airports.csv"];
        let files = names.iter().map(|name| data.join(name)).collect();
        let request = ImportRequest::new("c", files);
        let mut bytes = 0;
        let plan = Plan::survey(
            &request,
            &Origin::System,
            (None, None),
            SLICE_ROWS,
            (
                &mut |read| {
                    bytes += read;
                    Ok(())
                },
                &GoOn::default(),
            ),
        );
        let plan = plan.unwrap();
        assert_eq!((plan.slice_rows, plan.rows), (SLICE_ROWS, 3376 * 2 + 406 + 1461));
        let record = plan.record(BroadcastId(3), 1, vec!["v".to_owned()], Vec::new()).unwrap();
        let back = Plan::of(&record).unwrap();
        assert_eq!((back.rows, back.slice_rows), (plan.rows, plan.slice_rows));
        for (a, b) in plan.sets.iter().zip(&back.sets) {
            assert_eq!((&a.files, a.format, a.first_file), (&b.files, b.format, b.first_file));
            assert_eq!((&a.survey.schema, a.rows_before), (&b.survey.schema, b.rows_before));
            assert_eq!((&a.survey.sha256, a.survey.rows), (&b.survey.sha256, b.survey.rows));
        }
        assert!(!record.files.iter().any(|file| is_changed(file, &Origin::System, &mut 1000)));
        let cut = JobPlan { detail: Vec::new(), ..record };
        assert_eq!(Plan::of(&cut).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_plan_of_sets_comes_back_from_its_record() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let column = |name: &str| file(name, &npy("|i1", "(3,)", &[1, 2, 3]));
        let sets = vec![
            vec![column("a.npy"), column("b.npy"), column("c.npy")],
            vec![file("a.csv", b"n\n1\n")],
            vec![column("d.npy")],
            vec![column("e.npy"), column("f.npy")],
        ];
        let request = ImportRequest::of_sets("c", sets);
        let origin = Origin::System;
        let plan = Plan::survey(
            &request,
            &origin,
            (None, None),
            SLICE_ROWS,
            (&mut |_| Ok(()), &GoOn::default()),
        );
        let plan = plan.unwrap();
        let record = plan.record(BroadcastId(3), 1, Vec::new(), Vec::new()).unwrap();
        assert_eq!(record.files.iter().map(|f| f.rows).collect::<Vec<_>>(), [3, 3, 3, 1, 3, 3, 3]);
        let back = Plan::of(&record).unwrap();
        assert_eq!(back.rows, 10);
        let of = |plan: &Plan| -> Vec<_> {
            let set = |set: &PlannedSet| (set.files.clone(), set.first_file, set.rows_before);
            plan.sets.iter().map(set).collect()
        };
        assert_eq!(of(&back), of(&plan));
        assert_eq!(plan.sets.iter().map(|s| s.first_file).collect::<Vec<_>>(), [0, 3, 4, 5]);
        for (a, b) in plan.sets.iter().zip(&back.sets) {
            assert_eq!((&a.survey.schema, &a.survey.sha256), (&b.survey.schema, &b.survey.sha256));
        }
    }

    #[test]
    fn a_file_is_changed_when_its_bytes_are() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        let path = dir.join("a.csv");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&path, "a\n1\n").unwrap();
        let request = ImportRequest::new("c", vec![path.clone()]);
        let plan = Plan::survey(
            &request,
            &Origin::System,
            (None, None),
            SLICE_ROWS,
            (&mut |_| Ok(()), &GoOn::default()),
        )
        .unwrap();
        let record = plan.record(BroadcastId(1), 1, Vec::new(), Vec::new()).unwrap();
        let file = record.files.first().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(is_changed(file, &Origin::System, &mut 1000));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&path, "a\n1\n").unwrap();
        assert!(!is_changed(file, &Origin::System, &mut 1000));
        std::fs::write(&path, "a\n2\n").unwrap();
        assert!(is_changed(file, &Origin::System, &mut 1000));
    }
}
