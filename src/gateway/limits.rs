//! What the gateway takes of a client, and for how long.

use std::time::Duration;

/// Bounds of the gateway; each is answered with an error of its own, and none consumes a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Most bytes of the line and the headers of a request, up to [`Limits::HEAD_BYTES_MAX`].
    pub head_bytes_max: usize,
    /// Most bytes of the body of a request.
    pub body_bytes_max: usize,
    /// Most connections at once.
    pub connections_max: usize,
    /// Longest time from the end of one request, or of the connection's making, to the end of the
    /// next one's headers.
    pub head_time_max: Duration,
    /// Longest time for the body of a request to arrive.
    pub body_time_max: Duration,
    /// Longest time that a client takes nothing of an answer.
    pub stall_time_max: Duration,
    /// Longest wait for an effect that a client may ask for.
    pub wait_max: Duration,
    /// Most requests at once that wait for an effect.
    pub waiting_max: usize,
    /// Most files of an import.
    pub files_max: usize,
    /// Longest time for requests to end that are under way when the gateway ends.
    pub drain_time_max: Duration,
}

impl Limits {
    /// No limit of a head is larger than this.
    pub const HEAD_BYTES_MAX: usize = 64 << 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes_max: 16 << 10,
            body_bytes_max: 1 << 20,
            connections_max: 1024,
            head_time_max: Duration::from_secs(30),
            body_time_max: Duration::from_secs(30),
            stall_time_max: Duration::from_secs(30),
            wait_max: Duration::from_secs(60),
            waiting_max: 256,
            files_max: 1024,
            drain_time_max: Duration::from_secs(20),
        }
    }
}
