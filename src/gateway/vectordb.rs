//! The import routes of Milvus' REST interface, version 2, as its clients call them.
//!
//! Every answer is of status 200 and says in `code` (and again in `status`, which is what the Go
//! client looks at) whether it is one. What a client of a service in a cloud would name, such as
//! stores of objects, is refused where it says where rows come from and ignored elsewhere.

use oncelog_format::control::JobPhase;
use serde_json::{Map, Value, json};

use super::answer::{Answer, time};
use super::body::{Members, wrong};
use super::desk::{Asked, Desk, identity};
use super::imports::{self, Filter, Told, Wanted};
use super::refusal::{Refusal, Row};

/// Jobs of one page where nothing is asked, and at most.
const PAGE: u64 = 10;
const PAGE_MAX: u64 = 1000;

/// `create`.
pub(crate) fn create(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let members = asked.members()?;
    check_database(asked, &members)?;
    for name in ["objectUrl", "objectUrls", "volumeName", "dataPaths"] {
        let is_there = match members.value(name) {
            None => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
        };
        if is_there {
            let what = format!("`{name}`: rows come from `files` below an import root alone");
            return Err(Refusal::invalid(what));
        }
    }
    let options = members.members("options")?;
    check_options(&options)?;
    let text = |name: &str| options.text(name).map(|text| text.map(str::to_owned));
    let wanted = Wanted {
        collection: members.needed("collectionName")?.to_owned(),
        sets: members.sets("files")?,
        partition: members.text("partitionName")?.map(str::to_owned),
        primary_key: text("primary_key")?,
        vchannels: options.count("vchannels")?,
    };
    let (_, answer) = imports::submit(desk, asked, wanted, desk.wait(asked))?;
    let data = json!({
        "jobId": answer.id.to_string(),
        "duplicated": answer.duplicated,
        "expiresAt": answer.expires_at_ms.map(time),
    });
    Ok(answered(&data).of_key(&answer))
}

/// Refuses options that change which rows there are and that nothing here heeds.
fn check_options(options: &Members) -> Result<(), Refusal> {
    for (name, value) in options.iter() {
        let said = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let is_heeded = match name {
            "sep" => said == ",",
            "nullkey" => said.is_empty(),
            "auto_commit" => said == "true",
            "backup" | "l0_import" | "skip_disk_quota_check" => said == "false",
            _ => true,
        };
        if !is_heeded {
            return Err(Refusal::invalid(format!("the option `{name}` is not known here")));
        }
    }
    Ok(())
}

/// There is one database.
fn check_database(asked: &Asked, members: &Members) -> Result<(), Refusal> {
    let named = [members.text("dbName")?, asked.database.as_deref()];
    match named.into_iter().flatten().find(|name| !["", "default"].contains(name)) {
        None => Ok(()),
        Some(_) => Err(wrong("dbName", "`default`, the only database")),
    }
}

/// `describe` and `get_progress`.
pub(crate) fn describe(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let members = asked.members()?;
    let id = match members.value("jobId") {
        Some(Value::String(text)) => identity(text),
        Some(Value::Number(number)) => identity(&number.to_string()),
        _ => return Err(wrong("jobId", "the job as a text")),
    };
    let id = id.ok_or_else(|| Refusal::new(&Row::NOT_FOUND, "no such job is known"))?;
    let broadcaster = desk.broadcaster()?;
    let told = imports::find(desk, &broadcaster, &asked.principal, id)?;
    Ok(answered(&progress(&told)))
}

/// The word for a phase that clients know.
fn state(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::PreImporting | JobPhase::Committing => JobPhase::Importing.name(),
        phase => phase.name(),
    }
}

fn progress(told: &Told) -> Value {
    let job = &told.job;
    let over_at = job.over_at_ms.map(time).unwrap_or_default();
    let details: Vec<Value> = (job.files.iter())
        .map(|file| {
            let all = file.rows_total.unwrap_or_default();
            let percent = match (job.over_at_ms, all) {
                (Some(_), _) => 100,
                (None, 0) => 0,
                (None, all) => file.rows.saturating_mul(100) / all,
            };
            let mut detail = json!({
                "fileName": file.path.to_string_lossy(),
                "fileSize": file.bytes.unwrap_or_default(),
                "progress": percent,
                "completeTime": over_at,
                "state": state(file.phase),
                "importedRows": file.rows,
                "totalRows": all,
            });
            if let Some(members) = detail.as_object_mut().filter(|_| !file.reason.is_empty()) {
                members.insert("reason".into(), json!(file.reason));
            }
            detail
        })
        .collect();
    let bytes: u64 = job.files.iter().filter_map(|file| file.bytes).sum();
    let mut data = record(told);
    data.insert("createTime".into(), json!(time(job.made_at_ms)));
    data.insert("completeTime".into(), json!(over_at));
    data.insert("importedRows".into(), json!(job.rows));
    data.insert("totalRows".into(), json!(job.rows_total.unwrap_or_default()));
    data.insert("fileSize".into(), json!(bytes));
    data.insert("details".into(), json!(details));
    data.insert("expiresAt".into(), json!(told.expires_at_ms.map(time)));
    Value::Object(data)
}

/// What a list says of a job.
fn record(Told { job, .. }: &Told) -> Map<String, Value> {
    let mut record = Map::new();
    record.insert("jobId".into(), json!(job.id.to_string()));
    record.insert("collectionName".into(), json!(job.collection));
    record.insert("state".into(), json!(state(job.phase)));
    record.insert("progress".into(), json!(job.progress));
    // Why it failed, or why nothing goes on.
    let reason = job.stopped.as_ref().unwrap_or(&job.reason);
    if !reason.is_empty() {
        record.insert("reason".into(), json!(reason));
    }
    record
}

/// `list`.
pub(crate) fn list(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let members = asked.members()?;
    check_database(asked, &members)?;
    let size = members.count("pageSize")?.unwrap_or(PAGE);
    let number = members.count("currentPage")?.unwrap_or(1);
    if !(1..=PAGE_MAX).contains(&size) {
        return Err(wrong("pageSize", &format!("1 to {PAGE_MAX}")));
    }
    if number == 0 {
        return Err(wrong("currentPage", "at least 1"));
    }
    let name = members.text("collectionName")?;
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let skip = count(number.saturating_sub(1).saturating_mul(size));
    let broadcaster = desk.broadcaster()?;
    let filter = Filter::new(&broadcaster, &asked.principal, name, None);
    let total = filter.count(&broadcaster);
    let jobs = if skip < total {
        filter.page(desk, &broadcaster, None, (skip, count(size))).0
    } else {
        Vec::new()
    };
    let records: Vec<Value> = jobs.iter().map(|told| Value::Object(record(told))).collect();
    Ok(answered(&json!({
        "records": records,
        "count": total,
        "currentPage": number,
        "pageSize": size,
    })))
}

fn answered(data: &Value) -> Answer {
    Answer::coded(200, 0, "", data)
}
