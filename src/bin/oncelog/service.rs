//! What a configuration says of the service: where it listens, who may ask, and how much.

use std::path::PathBuf;
use std::time::Duration;

use oncelog::broadcast::parse_duration;
use toml::Value;

use crate::render;

/// The table `[gateway]` of a configuration; what the command line says as well counts there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) listen: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) import_roots: Vec<PathBuf>,
    pub(crate) tls_certificate: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) head_bytes_max: u64,
    pub(crate) body_bytes_max: u64,
    pub(crate) connections_max: u64,
    pub(crate) waiting_max: u64,
    pub(crate) files_max: u64,
    pub(crate) jobs_max: u64,
    pub(crate) jobs_at_once: u64,
    pub(crate) head_time_max: Duration,
    pub(crate) body_time_max: Duration,
    pub(crate) stall_time_max: Duration,
    pub(crate) wait_max: Duration,
    pub(crate) drain_time_max: Duration,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            listen: None,
            token_file: None,
            import_roots: Vec::new(),
            tls_certificate: None,
            tls_key: None,
            head_bytes_max: 16_384,
            body_bytes_max: 1_048_576,
            connections_max: 1024,
            waiting_max: 256,
            files_max: 1024,
            jobs_max: 1024,
            jobs_at_once: 4,
            head_time_max: Duration::from_secs(30),
            body_time_max: Duration::from_secs(30),
            stall_time_max: Duration::from_secs(30),
            wait_max: Duration::from_secs(60),
            drain_time_max: Duration::from_secs(20),
        }
    }
}

/// What is wrong with a value: the rule, and what it asks for.
pub(crate) type Wrong = (&'static str, String);

impl Service {
    /// Sets a value by its name.
    pub(crate) fn set(&mut self, name: &str, value: &Value) -> Result<(), Wrong> {
        const HOUR: Duration = Duration::from_secs(3600);
        match name {
            "listen" => self.listen = Some(text(value)?),
            "token_file" => self.token_file = Some(path(value)?),
            "import_roots" => {
                let list = value.as_array().ok_or_else(|| not("a list of paths"))?;
                self.import_roots = list.iter().map(path).collect::<Result<_, _>>()?;
            }
            "tls_certificate" => self.tls_certificate = Some(path(value)?),
            "tls_key" => self.tls_key = Some(path(value)?),
            "head_bytes_max" => self.head_bytes_max = count(value, 1024, 65_536)?,
            "body_bytes_max" => self.body_bytes_max = count(value, 1024, 1 << 26)?,
            "connections_max" => self.connections_max = count(value, 1, 65_536)?,
            "waiting_max" => self.waiting_max = count(value, 1, 4096)?,
            "files_max" => self.files_max = count(value, 1, 65_536)?,
            "jobs_max" => self.jobs_max = count(value, 1, 65_536)?,
            "jobs_at_once" => self.jobs_at_once = count(value, 1, 256)?,
            "head_time_max" => self.head_time_max = time(value, HOUR)?,
            "body_time_max" => self.body_time_max = time(value, HOUR)?,
            "stall_time_max" => self.stall_time_max = time(value, HOUR)?,
            "wait_max" => self.wait_max = time(value, HOUR)?,
            "drain_time_max" => self.drain_time_max = time(value, HOUR)?,
            _ => {
                let known = self.explain();
                let known: Vec<&str> = known.iter().map(|(name, ..)| *name).collect();
                return Err(("unknown name", format!("one of {}", known.join(", "))));
            }
        }
        Ok(())
    }

    /// Each value, and what it means.
    pub(crate) fn explain(&self) -> Vec<(&'static str, String, &'static str)> {
        let shown = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "-".into(), |path| path.display().to_string())
        };
        let listen = self.listen.clone().unwrap_or_else(|| "-".into());
        let roots: Vec<String> =
            self.import_roots.iter().map(|root| root.display().to_string()).collect();
        let roots = if roots.is_empty() { "-".into() } else { roots.join(", ") };
        let time = render::duration;
        vec![
            ("listen", listen, "the address that clients find it at"),
            ("token_file", shown(&self.token_file), "who may ask, and in whose name"),
            ("import_roots", roots, "where files are imported from, and from nowhere else"),
            ("tls_certificate", shown(&self.tls_certificate), "what clients know it by"),
            ("tls_key", shown(&self.tls_key), "the key of the certificate"),
            ("head_bytes_max", self.head_bytes_max.to_string(), "line and headers of a request"),
            ("body_bytes_max", self.body_bytes_max.to_string(), "body of a request"),
            ("connections_max", self.connections_max.to_string(), "connections at once"),
            ("waiting_max", self.waiting_max.to_string(), "requests at once that wait"),
            ("files_max", self.files_max.to_string(), "files of an import"),
            ("jobs_max", self.jobs_max.to_string(), "jobs that are not over"),
            ("jobs_at_once", self.jobs_at_once.to_string(), "jobs that run at once"),
            ("head_time_max", time(self.head_time_max), "until the head of a request is there"),
            ("body_time_max", time(self.body_time_max), "until its body is there"),
            ("stall_time_max", time(self.stall_time_max), "that a client takes nothing"),
            ("wait_max", time(self.wait_max), "that a client may wait for an effect"),
            ("drain_time_max", time(self.drain_time_max), "for requests to end at a shutdown"),
        ]
    }
}

fn not(expected: impl Into<String>) -> Wrong {
    ("a value of another kind, or out of range", expected.into())
}

fn text(value: &Value) -> Result<String, Wrong> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(|| not("a text"))
}

fn path(value: &Value) -> Result<PathBuf, Wrong> {
    text(value).map(PathBuf::from)
}

fn count(value: &Value, least: u64, most: u64) -> Result<u64, Wrong> {
    let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| not(format!("{least} to {most}")))
}

fn time(value: &Value, most: Duration) -> Result<Duration, Wrong> {
    let time = value.as_str().and_then(|text| parse_duration(text).ok());
    let time = time.filter(|time| !time.is_zero() && *time <= most);
    time.ok_or_else(|| not(format!("a duration of at most {}", render::duration(most))))
}
