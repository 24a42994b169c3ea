//! The HTTP service, by its raw bytes: who may ask, keys, jobs, limits, paths, and what a killed
//! server leaves.

mod allowed;
mod embedded;
mod ends;
mod jobs;
mod keyed;
mod limits;
mod page;
mod paths;
mod shapes;
mod tls;

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

const BIN: &str = env!("CARGO_BIN_EXE_oncelog");

/// The tokens that the tests use, and a principal each.
const TOKEN: &str = "root:Milvus";
const OTHER: &str = "another-token";

/// A directory with a store, an import root and tokens.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.root()).unwrap();
        let tokens = place.dir.path().join("tokens");
        fs::write(&tokens, format!("# of the tests\n{TOKEN}\n{OTHER} other\n")).unwrap();
        fs::set_permissions(&tokens, Permissions::from_mode(0o600)).unwrap();
        place
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Writes a source below the root.
    fn source(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A source of so many rows.
    fn rows(&self, name: &str, rows: usize) {
        let lines: String = (0..rows).map(|row| format!("{row},n{row}\n")).collect();
        self.source(name, format!("id,name\n{lines}"));
    }

    fn command(&self) -> Command {
        let mut command = Command::new(BIN);
        command.args(["serve", self.store().to_str().unwrap(), "--json"]);
        command.args(["--listen", "127.0.0.1:0"]);
        command.args(["--import-root", self.root().to_str().unwrap()]);
        command.args(["--token-file", self.dir.path().join("tokens").to_str().unwrap()]);
        command
    }

    /// A server that is ready.
    fn serve(&self) -> Server {
        self.serve_with("")
    }

    /// The same, under a table `[gateway]`.
    fn serve_with(&self, gateway: &str) -> Server {
        let mut server = self.start_with(gateway);
        assert_eq!(server.told()["did"], "ready");
        server
    }

    /// A server that listens, and may not be ready.
    fn start_with(&self, gateway: &str) -> Server {
        let mut command = self.command();
        if !gateway.is_empty() {
            let file = self.dir.path().join("oncelog.toml");
            fs::write(&file, format!("[gateway]\n{gateway}\n")).unwrap();
            command.args(["--config", file.to_str().unwrap()]);
        }
        Server::start(command)
    }
}

/// A server, killed with its handle.
struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = ([0, 0, 0, 0], 0).into();
        let mut server = Self { child, lines, address };
        let listening = server.told();
        assert_eq!(listening["did"], "listening", "{listening}");
        server.address = listening["address"].as_str().unwrap().parse().unwrap();
        server
    }

    /// The next line that it prints.
    fn told(&mut self) -> Value {
        let line = self.lines.next().expect("a line").unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills it as `kill -9` does.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends bytes, and reads all that comes until the end of the connection.
    fn raw(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        Reply::whole(&mut stream)
    }

    fn ask(&self, asked: &Ask<'_>) -> Reply {
        self.raw(&asked.bytes())
    }

    fn get(&self, path: &str) -> Reply {
        self.ask(&Ask::get(path))
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(&Ask::post(path, body))
    }

    /// `create` under a key.
    fn create(&self, key: &str, file: &str) -> Reply {
        let body = json!({ "collectionName": "c", "files": [[file]] });
        self.ask(&Ask::post(CREATE, &body).header("Idempotency-Key", key))
    }

    /// Asks for a job until it is over.
    fn over(&self, job: &str) -> Value {
        loop {
            let data = self.post(DESCRIBE, &json!({ "jobId": job })).data();
            if ["Completed", "Failed"].contains(&data["state"].as_str().unwrap()) {
                return data;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const CREATE: &str = "/v2/vectordb/jobs/import/create";
const DESCRIBE: &str = "/v2/vectordb/jobs/import/describe";
const LIST: &str = "/v2/vectordb/jobs/import/list";

/// A request.
#[derive(Clone)]
struct Ask<'a> {
    method: &'a str,
    path: &'a str,
    token: Option<&'a str>,
    headers: Vec<(&'a str, String)>,
    body: Vec<u8>,
}

impl<'a> Ask<'a> {
    fn get(path: &'a str) -> Self {
        Self { method: "GET", path, token: Some(TOKEN), headers: Vec::new(), body: Vec::new() }
    }

    fn post(path: &'a str, body: &Value) -> Self {
        Self { method: "POST", body: body.to_string().into_bytes(), ..Self::get(path) }
    }

    fn header(mut self, name: &'a str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    fn token(mut self, token: Option<&'a str>) -> Self {
        self.token = token;
        self
    }

    /// The request as it goes over the wire, the last one of its connection.
    fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: x\r\n", self.method, self.path);
        if let Some(token) = self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if self.method == "POST" {
            head += &format!("Content-Length: {}\r\n", self.body.len());
        }
        [head.as_bytes(), b"Connection: close\r\n\r\n", &self.body].concat()
    }
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Reply {
    fn whole(stream: &mut impl Read) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Self::of(&String::from_utf8(bytes).unwrap())
    }

    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        });
        Self { status, headers: headers.collect(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(of, _)| of == name);
        found.map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The code of an answer of `/v2`.
    fn code(&self) -> u64 {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["code"].as_u64().unwrap()
    }

    /// The data of a good answer of `/v2`.
    fn data(&self) -> Value {
        assert_eq!(self.code(), 0, "{self:?}");
        self.json()["data"].clone()
    }

    /// The kind of a problem.
    #[track_caller]
    fn problem(&self, status: u16, slug: &str) -> Value {
        let problem = self.json();
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(problem["type"], format!("urn:oncelog:problem:{slug}"), "{problem}");
        assert_eq!(problem["status"], status);
        problem
    }
}

/// The committed rows of the collection, by a process that reads the store.
fn committed(place: &Place) -> usize {
    let out = place.dir.path().join("rows.jsonl");
    let store = place.store();
    let args = ["replay", store.to_str().unwrap(), "--collection", "c", "--out"];
    let run = crate::cli::run(&[&args[..], &[out.to_str().unwrap()]].concat(), b"");
    assert_eq!(run.code, 0, "{}", run.err);
    lines(&out)
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}
