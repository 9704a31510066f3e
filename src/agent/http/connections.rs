//! Connections of the API: how many there are at once, how many of their requests are answered, what answers that nobody reads hold
//! in memory, and how long each step may take. Who may ask need not be trusted: any user of the host reaches the TCP port.
//!
//! A listener has places of its own, so that a crowd at one takes nothing from another, nor descriptors from BGP.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::agent::http::extract::Caller;
use crate::agent::http::respond::error_response;
use crate::agent::process::allocator::release_memory;

/// Longest wait for the whole head of a request, also of the next one on a connection.
const HEAD: Duration = Duration::from_secs(10);
/// Longest wait for a place among the requests, and for room for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Within this time a reader takes [`WINDOW_OCTETS`] of an answer, or all of it.
const WINDOW: Duration = Duration::from_secs(30);
const WINDOW_OCTETS: usize = 32 << 10;
/// Octets of a connection's buffers, each.
const BUFFER: usize = 16 << 10;
/// Room that an answer of unknown length is counted with: it is made piece by piece.
const STREAM: usize = 16 << 10;

/// An answer of this size leaves the allocator with memory that was needed to make it.
const LARGE: usize = 256 << 10;
/// Between a large answer and the return of that memory, and at least until the next return.
const RETURN_AFTER: Duration = Duration::from_secs(2);
const RETURN_PAUSE: Duration = Duration::from_secs(10);

/// How many a listener serves at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connections: usize,
    /// Requests whose answers are being made.
    pub(super) requests: usize,
    /// Octets of answers that are made and not yet sent.
    pub(super) octets: usize,
}

/// Of a TCP port.
pub(super) const OF_PORT: Limits = Limits { connections: 128, requests: 3, octets: 4 << 20 };
/// Of the unix socket: commands and plugins of this host, which may wait long for an endpoint to be in force.
pub(super) const OF_SOCKET: Limits = Limits { connections: 1_024, requests: 1_024, octets: 64 << 20 };

/// The places of one listener.
#[derive(Clone)]
struct Places {
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    /// One for each KiB.
    room: Arc<Semaphore>,
    most: u32,
    /// For who gives memory back to the system.
    memory: Arc<Semaphore>,
}

impl Places {
    fn new(limits: Limits) -> Self {
        let most = u32::try_from(limits.octets >> 10).unwrap_or(u32::MAX);
        Self {
            connections: Arc::new(Semaphore::new(limits.connections)),
            requests: Arc::new(Semaphore::new(limits.requests)),
            room: Arc::new(Semaphore::new(usize::try_from(most).unwrap_or(usize::MAX))),
            most,
            memory: Arc::new(Semaphore::new(1)),
        }
    }

    /// Has what it took to make a large answer given back to the system, some time after it and after others like it.
    fn return_memory(&self) {
        let Ok(permit) = Arc::clone(&self.memory).try_acquire_owned() else { return };
        tokio::spawn(async move {
            tokio::time::sleep(RETURN_AFTER).await;
            let _ = tokio::task::spawn_blocking(release_memory).await;
            tokio::time::sleep(RETURN_PAUSE).await;
            drop(permit);
        });
    }

    /// How many of the places for room an answer takes: what is larger than all of it takes all of it.
    fn room_of(&self, body: &Body) -> u32 {
        let octets = HttpBody::size_hint(body).exact().unwrap_or(STREAM as u64);
        u32::try_from(octets.div_ceil(1_024)).unwrap_or(u32::MAX).min(self.most)
    }
}

/// Serves a listener. HTTP/1.1 alone: nobody here speaks another version, and each has faults of its own. `caller`: who is at the
/// other end, where that decides about anything; it may set options of the socket, too.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    app: Router,
    limits: Limits,
    caller: impl Fn(&L::Io) -> Option<Caller>,
) -> io::Result<()> {
    let places = Places::new(limits);
    let app = app.layer(middleware::from_fn_with_state(places.clone(), within_limits));
    loop {
        // Whoever comes when all places are taken waits in the kernel's queue.
        let Ok(place) = Arc::clone(&places.connections).acquire_owned().await else { return Ok(()) };
        let (stream, _) = listener.accept().await;
        let caller = caller(&stream);
        let routes = TowerToHyperService::new(app.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            if let Some(caller) = caller {
                request.extensions_mut().insert(ConnectInfo(caller));
            }
            routes.call(request)
        });
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_buf_size(BUFFER)
                .serve_connection(TokioIo::new(Paced::new(stream)), service);
            // Whoever goes in the middle of an answer is nobody's problem.
            let _ = connection.await;
            drop(place);
        });
    }
}

/// Has a request wait for its permit, and its answer for room in memory.
async fn within_limits(State(places): State<Places>, request: Request, next: Next) -> Response {
    let permit = tokio::time::timeout(PATIENCE, Arc::clone(&places.requests).acquire_owned());
    let Ok(Ok(permit)) = permit.await else { return too_many("requests are being answered") };
    let (head, body) = next.run(request).await.into_parts();
    let room = Arc::clone(&places.room).acquire_many_owned(places.room_of(&body));
    let Ok(Ok(room)) = tokio::time::timeout(PATIENCE, room).await else {
        return too_many("answers wait to be read");
    };
    drop(permit);
    if HttpBody::size_hint(&body).lower() >= LARGE as u64 {
        places.return_memory();
    }
    let counted = Counted { body, rest: Bytes::new(), _room: room };
    Response::from_parts(head, Body::new(counted))
}

fn too_many(what: &str) -> Response {
    let text = format!("too many {what} at this port: try again later, or ask at the agent's unix socket");
    error_response(StatusCode::SERVICE_UNAVAILABLE, "busy", &text)
}

/// An answer that keeps its room until the connection has taken all of it, in copied pieces: a piece that waits in a connection's buffer
/// does not hold the whole.
struct Counted {
    body: Body,
    rest: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Counted {
    fn piece(&mut self) -> Bytes {
        if self.rest.len() <= BUFFER {
            return Bytes::copy_from_slice(&std::mem::take(&mut self.rest));
        }
        Bytes::copy_from_slice(&self.rest.split_to(BUFFER))
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.piece()))));
        }
        match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    Poll::Ready(Some(Ok(Frame::data(self.piece()))))
                }
                Err(other) => Poll::Ready(Some(Ok(other))),
            },
            end => Poll::Ready(end),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let of_body = HttpBody::size_hint(&self.body);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

/// A stream whose reader must go on reading.
struct Paced<S> {
    stream: S,
    /// When what waits to be written has waited too long, and how much of the window's octets was taken.
    window: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Paced<S> {
    fn new(stream: S) -> Self {
        Self { stream, window: None }
    }

    fn written(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(octets)) => {
                if let Some((_, taken)) = &mut self.window {
                    *taken += octets;
                    if *taken >= WINDOW_OCTETS {
                        self.window = None;
                    }
                }
                Poll::Ready(Ok(octets))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let new = || (Box::pin(tokio::time::sleep_until(Instant::now() + WINDOW)), 0);
                let (end, _) = self.window.get_or_insert_with(new);
                ready!(end.as_mut().poll(context));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader does not read")))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, octets);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, octets);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// All that waited was written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.window = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;
