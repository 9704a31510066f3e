//! Limits of the API's connections: their number, the number of concurrent requests, the memory of unread
//! answers, and the duration of each step.
//!
//! Clients are not trusted: any user of the host can reach the TCP port. Each listener has limits of its own,
//! so that many clients of one listener do not block another one or use up the descriptors that BGP needs.

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

/// Timeout for the complete head of a request, also of the next one on a connection.
const HEAD: Duration = Duration::from_secs(10);
/// Timeout for a request permit, and for memory for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time within which a client must read [`WINDOW_OCTETS`] of an answer, or the rest of it.
const WINDOW: Duration = Duration::from_secs(30);
const WINDOW_OCTETS: usize = 32 << 10;
/// Size of each buffer of a connection, in octets.
const BUFFER: usize = 16 << 10;
/// Memory in octets that is reserved for an answer of unknown length, which is produced piece by piece.
const STREAM: usize = 16 << 10;

/// Size of an answer, in octets, after which the allocator's unused memory is returned to the system.
const LARGE: usize = 256 << 10;
/// Delay between a large answer and the return of memory, and minimum pause before the next return.
const RETURN_AFTER: Duration = Duration::from_secs(2);
const RETURN_PAUSE: Duration = Duration::from_secs(10);

/// Concurrency limits of one listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connections: usize,
    /// Number of requests that are processed at once.
    pub(super) requests: usize,
    /// Octets of answers that are complete and not sent yet.
    pub(super) octets: usize,
}

/// Limits of a TCP port.
pub(super) const OF_PORT: Limits = Limits { connections: 128, requests: 3, octets: 4 << 20 };
/// Limits of the unix socket, whose clients are commands and plugins of this host; some wait long for an
/// endpoint to be applied.
pub(super) const OF_SOCKET: Limits = Limits { connections: 1_024, requests: 1_024, octets: 64 << 20 };

/// Permits of one listener.
#[derive(Clone)]
struct Places {
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    /// Memory for answers, one permit per KiB.
    room: Arc<Semaphore>,
    most: u32,
    /// Held by the task that returns memory to the system.
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

    /// Schedules the return of unused memory after a large answer; answers in quick succession share one
    /// return.
    fn return_memory(&self) {
        let Ok(permit) = Arc::clone(&self.memory).try_acquire_owned() else { return };
        tokio::spawn(async move {
            tokio::time::sleep(RETURN_AFTER).await;
            let _ = tokio::task::spawn_blocking(release_memory).await;
            tokio::time::sleep(RETURN_PAUSE).await;
            drop(permit);
        });
    }

    /// Returns the number of memory permits of an answer; an answer larger than the limit takes all of them.
    fn room_of(&self, body: &Body) -> u32 {
        let octets = HttpBody::size_hint(body).exact().unwrap_or(STREAM as u64);
        u32::try_from(octets.div_ceil(1_024)).unwrap_or(u32::MAX).min(self.most)
    }
}

/// Serves a listener over HTTP/1.1 only: no client needs another version, and each has vulnerabilities of its
/// own.
///
/// `caller` identifies the remote process if permissions depend on it; it may also set socket options.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    app: Router,
    limits: Limits,
    caller: impl Fn(&L::Io) -> Option<Caller>,
) -> io::Result<()> {
    let places = Places::new(limits);
    let app = app.layer(middleware::from_fn_with_state(places.clone(), within_limits));
    loop {
        // Without a free permit, new connections wait in the kernel's queue.
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
            // A client that disconnects during an answer is no error.
            let _ = connection.await;
            drop(place);
        });
    }
}

/// Waits for a permit before the request, and for memory before its answer.
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
    let text = format!("too many {what} at this port: try again later, or use the agent's unix socket");
    error_response(StatusCode::SERVICE_UNAVAILABLE, "busy", &text)
}

/// Body that holds its memory permits until the connection has taken all of it. Pieces are copied, so that a
/// piece in a connection's buffer does not keep the whole body in memory.
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

/// Stream that fails if its client stops reading.
struct Paced<S> {
    stream: S,
    /// Deadline for the waiting data, and the octets written within the current window.
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
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
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

    /// All waiting data was written.
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
