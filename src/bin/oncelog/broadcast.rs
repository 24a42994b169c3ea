//! `oncelog broadcast`: one message to several vchannels, at most once per key.

use std::path::PathBuf;

use oncelog::CreateMode;
use oncelog::broadcast::{Answer, Outcome, Request, Resource, Scope, check_client_key};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure};
use crate::render::{self, Out};
use crate::value::{resource, scope, wait};
use crate::writer::{Writer, WriterArgs};

/// Send one message to several vchannels, at most once per key; print its result as JSON.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the store; made when it is absent or empty.
    dir: PathBuf,
    /// Message type.
    #[arg(long = "type", value_name = "TYPE")]
    of_type: String,
    /// Vchannels, made where they are absent; a broadcast that is refused makes none.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    vchannels: Vec<String>,
    /// Idempotency key: 1 to 256 bytes of printable ASCII.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
    /// What the key belongs to.
    #[arg(long, value_name = "DOMAIN:ID", default_value = "store:0", value_parser = scope)]
    scope: (String, String),
    /// Resource keys to hold until the broadcast is done.
    #[arg(long, value_name = "DOMAIN:KEY[:shared]", value_parser = resource)]
    resource: Vec<Resource>,
    /// Payload of every copy.
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    payload: String,
    /// The caller's span, as a W3C traceparent; a text that is none is dropped.
    #[arg(long, value_name = "TRACEPARENT", allow_hyphen_values = true)]
    trace_parent: Option<String>,
    /// Longest wait, such as 30s; without it there is no limit.
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    wait: Option<std::time::Duration>,
    #[command(flatten)]
    writer: WriterArgs,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    if let Some(key) = &args.key {
        check_client_key(key.as_bytes())?;
    }
    let scope = args.key.as_ref().map(|key| Scope {
        principal: args.writer.principal.clone(),
        message_type: args.of_type.clone(),
        domain: args.scope.0.clone(),
        identity: args.scope.1.clone(),
        generation: 0,
        client_key: key.clone().into_bytes(),
    });
    let payload = args.payload.clone().into_bytes();
    let mut request = Request::new(args.of_type.clone(), scope, args.vchannels.clone(), payload)
        .resources(args.resource.clone())
        .making_vchannels();
    request.trace_context.clone_from(&args.trace_parent);
    let writer = Writer::open(&args.dir, &args.writer, CreateMode::IfMissing)?;
    let answer = writer.run(|writer| Ok(writer.broadcaster.submit(&request, args.wait)?));
    let answer = match &args.key {
        Some(_) => answer?,
        None => answer.map_err(Failure::keyless_unless_refused)?,
    };
    // A result is JSON in either mode: it is what scripts take apart.
    let mut out = Out::new(json);
    out.object(&object(&answer))?;
    out.flush()?;
    Ok(match answer.outcome {
        Outcome::Done => Exit::Clean,
        _ => Exit::Failed,
    })
}

fn object(answer: &Answer) -> Value {
    let channels: Map<String, Value> = answer
        .channels
        .iter()
        .map(|(vchannel, at)| {
            let position = json!({ "lsn": at.lsn.get(), "time_tick": at.time_tick.0 });
            (vchannel.clone(), position)
        })
        .collect();
    let (state, reason) = match &answer.outcome {
        Outcome::Failed { reason } => ("failed", Some(reason)),
        _ => ("done", None),
    };
    json!({
        "broadcast_id": answer.id.to_string(),
        "duplicated": answer.duplicated,
        "state": state,
        "reason": reason,
        "accepted_at": render::time(answer.accepted_at_ms),
        "done_at": render::time(answer.done_at_ms),
        "expires_at": answer.expires_at_ms.map(render::time),
        "channels": channels,
        "clock_held": answer.clock_held,
    })
}
