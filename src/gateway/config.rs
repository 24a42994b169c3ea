//! The policy in force.

use serde_json::json;

use super::answer::Answer;
use super::desk::Desk;
use super::refusal::Refusal;
use crate::broadcast::WhenFull;

/// `GET /v1/config`: durations in milliseconds.
pub(crate) fn show(desk: &Desk) -> Result<Answer, Refusal> {
    let policy = desk.broadcaster()?.policy();
    let full = match policy.window_full {
        WhenFull::Refuse => "refuse",
        WhenFull::EvictOldest => "evict_oldest",
    };
    let ms = |value: std::time::Duration| u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
    let retention = json!({
        "window_lifetime_ms": ms(policy.window_lifetime),
        "window_count_max": policy.window_count_max,
        "principal_share_max": policy.principal_share_max,
        "task_retention_ms": ms(policy.task_retention),
        "check_interval_ms": ms(policy.check_interval),
        "window_full": full,
        "retry_age_ms_max": ms(policy.retry_age_max),
        "broadcasts_per_hour_max": policy.broadcasts_per_hour_max,
    });
    let limits = &desk.limits;
    let limits = json!({
        "head_bytes_max": limits.head_bytes_max,
        "body_bytes_max": limits.body_bytes_max,
        "connections_max": limits.connections_max,
        "waiting_max": limits.waiting_max,
        "wait_ms_max": ms(limits.wait_max),
        "files_max": limits.files_max,
    });
    Ok(Answer::json(200, &json!({ "retention": retention, "limits": limits })))
}
