//! A client that keeps its connection, and the time that each answer took.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The token of all clients.
pub(crate) const TOKEN: &str = "a-token";

pub(crate) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
    /// Seconds of each `describe`, and of each `create`.
    pub(crate) looks: Vec<f64>,
    pub(crate) creates: Vec<f64>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new(), looks: Vec::new(), creates: Vec::new() }
    }

    /// Asks for an import, and looks at it until it is over.
    pub(crate) async fn import(&mut self, key: &str, file: &str, pause: Duration) {
        let body = json!({ "collectionName": "c", "files": [[file]] });
        let begin = Instant::now();
        let job = self.ask("create", &format!("Idempotency-Key: {key}\r\n"), &body).await;
        self.creates.push(begin.elapsed().as_secs_f64());
        let body = json!({ "jobId": job["jobId"] });
        loop {
            tokio::time::sleep(pause).await;
            let begin = Instant::now();
            let told = self.ask("describe", "", &body).await;
            self.looks.push(begin.elapsed().as_secs_f64());
            match told["state"].as_str() {
                Some("Completed") => return,
                Some("Pending" | "Importing") => {}
                _ => panic!("{told}"),
            }
        }
    }

    /// The data of an answer, which is none of an error.
    async fn ask(&mut self, route: &str, header: &str, body: &Value) -> Value {
        let body = body.to_string();
        let request = format!(
            "POST /v2/vectordb/jobs/import/{route} HTTP/1.1\r\nHost: x\r\n\
             Authorization: Bearer {TOKEN}\r\n{header}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.unwrap();
        self.read.clear();
        let body = loop {
            let read = self.stream.read_buf(&mut self.read).await.unwrap();
            assert!(read > 0, "the service ended the connection");
            if let Some(body) = whole(&self.read) {
                break body;
            }
        };
        let answer: Value = serde_json::from_str(body).unwrap();
        assert_eq!(answer["code"], 0, "{answer}");
        answer["data"].clone()
    }
}

/// The body of an answer that is whole.
fn whole(read: &[u8]) -> Option<&str> {
    let (head, body) = std::str::from_utf8(read).ok()?.split_once("\r\n\r\n")?;
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    (len.parse() == Ok(body.len())).then_some(body)
}
