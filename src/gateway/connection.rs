//! One connection: requests after one another, each within its times, and an end that the client
//! gets to see.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};

use super::limits::Limits;
use super::service::Service;

/// Most headers of a request.
const HEADER_COUNT_MAX: usize = 100;

/// How long, and how much, is read and dropped behind the last answer, so that the client still
/// sees it.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;

/// Says that a head did not come in time; sent where a part of it did.
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nretry-after: 1\r\nconnection: close\r\n\
    content-length: 0\r\n\r\n";

/// Says that there are too many connections, to one that asks nothing.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-length: 0\r\n\r\n";

/// How long one that has no place of its own has to ask whether the server lives.
const BEYOND_TIME: Duration = Duration::from_secs(1);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Requests, one behind the other.
    Placed,
    /// It is one too many: one request, which learns whether the server lives and nothing else.
    Beyond,
}

/// Answers requests until the client ends, is too slow, or `ends` says so.
pub(crate) async fn converse<S>(
    stream: S,
    service: Arc<Service>,
    standing: Standing,
    mut ends: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Limits { mut head_time_max, stall_time_max, .. } = *service.limits();
    let is_beyond = standing == Standing::Beyond;
    if is_beyond {
        head_time_max = head_time_max.min(BEYOND_TIME);
    }
    let io = TokioIo::new(Guarded { stream, stall_time_max, stalled: None });
    let call = service_fn(move |request| {
        let service = Arc::clone(&service);
        // Boxed, so that what is left of the stream can be taken out behind an error.
        Box::pin(async move {
            let answer = match standing {
                Standing::Placed => service.answer(request).await,
                Standing::Beyond => service.answer_beyond(&request),
            };
            Ok::<_, Infallible>(answer.into_response())
        })
    });
    let mut connection = Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time_max)
        .max_buf_size(Limits::HEAD_BYTES_MAX)
        .max_headers(HEADER_COUNT_MAX)
        .keep_alive(!is_beyond)
        .serve_connection(io, call);
    let mut is_ending = false;
    let end = loop {
        tokio::select! {
            end = poll_fn(|context| connection.poll_without_shutdown(context)) => break end,
            _ = ends.wait_for(|ends| *ends), if !is_ending => {
                Pin::new(&mut connection).graceful_shutdown();
                is_ending = true;
            }
        }
    };
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner();
    let words = match end.is_err_and(|e| e.is_timeout()) {
        true if is_beyond => TOO_MANY,
        true if !parts.read_buf.is_empty() => TOO_SLOW,
        _ => b"",
    };
    say(&mut stream, words).await;
}

/// Sends the last words, and reads what comes until the client has seen them.
async fn say<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, words: &[u8]) {
    let last = async {
        stream.write_all(words).await?;
        stream.shutdown().await?;
        let (mut left, mut dropped) = (LINGER_BYTES, [0; 4096]);
        while left > 0 {
            match stream.read(&mut dropped).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        Ok::<_, io::Error>(())
    };
    // Nobody is left to be told that he could not be told.
    drop(timeout(LINGER_TIME, last).await);
}

/// A stream whose writes fail once nothing of them was taken for a while.
struct Guarded<S> {
    stream: S,
    stall_time_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    fn guard<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let until = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.stall_time_max)));
        match until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.guard(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        self.guard(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(context);
        self.guard(context, poll)
    }
}
