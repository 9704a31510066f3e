//! A relay between one process and etcd that stops at a request of the process, so that the process can be
//! killed at this step: before etcd receives the request, or after etcd has executed it and before the answer
//! arrives.
//!
//! It reads only the headers of HTTP/2's frames (RFC 9113, section 4.1): each call of etcd is a stream, which
//! the client opens with a HEADERS frame, and etcd answers with one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Length of what a client sends before its first frame (RFC 9113, section 3.4).
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;

/// The request at which the relay stops; they are counted from 1 over all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cut {
    Nowhere,
    /// The request is not passed on.
    Before(u32),
    /// The answer is not passed on.
    After(u32),
}

struct State {
    upstream: u16,
    cut: Cut,
    requests: AtomicU32,
    /// Stream whose answer is kept; 0 for none.
    kept: AtomicU32,
    reached: Notify,
}

/// A relay for one process. Its connections end when it is dropped.
pub(super) struct Relay {
    port: u16,
    state: Arc<State>,
    _task: JoinSet<()>,
}

impl Relay {
    pub(super) async fn start(upstream: u16, cut: Cut) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State {
            upstream,
            cut,
            requests: AtomicU32::new(0),
            kept: AtomicU32::new(0),
            reached: Notify::new(),
        };
        let state = Arc::new(state);
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Arc::clone(&state)));
        Self { port, state, _task: task }
    }

    /// Returns the URL of the store for the process.
    pub(super) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u32 {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// Waits until the process has made the request at which the relay stops.
    pub(super) async fn reached(&self) {
        self.state.reached.notified().await;
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(("127.0.0.1", state.upstream)).await else { continue };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        connections.spawn(requests(from_client, to_server, Arc::clone(&state)));
        connections.spawn(answers(from_server, to_client, Arc::clone(&state)));
    }
}

/// A frame, with its header.
struct Frame {
    octets: Vec<u8>,
    kind: u8,
    stream: u32,
}

async fn frame(from: &mut OwnedReadHalf) -> Option<Frame> {
    let mut octets = vec![0; FRAME_HEADER];
    from.read_exact(&mut octets).await.ok()?;
    let length = u32::from_be_bytes([0, octets[0], octets[1], octets[2]]);
    let kind = octets[3];
    let stream = u32::from_be_bytes([octets[5], octets[6], octets[7], octets[8]]) & 0x7fff_ffff;
    octets.resize(FRAME_HEADER + usize::try_from(length).unwrap(), 0);
    from.read_exact(&mut octets[FRAME_HEADER..]).await.ok()?;
    Some(Frame { octets, kind, stream })
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: Arc<State>) {
    let mut preface = [0; PREFACE];
    if from.read_exact(&mut preface).await.is_err() || to.write_all(&preface).await.is_err() {
        return;
    }
    while let Some(frame) = frame(&mut from).await {
        if frame.kind == HEADERS {
            let number = state.requests.fetch_add(1, Ordering::Relaxed) + 1;
            if state.cut == Cut::Before(number) {
                state.reached.notify_one();
                return std::future::pending().await;
            }
            if state.cut == Cut::After(number) {
                state.kept.store(frame.stream, Ordering::Relaxed);
            }
        }
        if to.write_all(&frame.octets).await.is_err() {
            return;
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: Arc<State>) {
    while let Some(frame) = frame(&mut from).await {
        if frame.kind == HEADERS && frame.stream == state.kept.load(Ordering::Relaxed) {
            state.reached.notify_one();
            return std::future::pending().await;
        }
        if to.write_all(&frame.octets).await.is_err() {
            return;
        }
    }
}
