//! HTTP server of the API: a unix socket for reads and writes, and a TCP port for reads.
//!
//! ```text
//!  listener -> connections.rs -> count -> guard (TCP) -> routes.rs, explain.rs, metrics.rs -> api/, explain/
//!                                            extract.rs <--request  response--> respond.rs
//! ```

mod connections;
mod explain;
mod extract;
mod guard;
mod metrics;
mod respond;
mod routes;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

use crate::agent::http::extract::{Caller, Shared};
use crate::agent::http::guard::{Names, guard, of_node};
use crate::agent::http::routes::{reads, writes};
use crate::api::MetricsPage;

/// Reasons why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another agent answers on the socket.
    #[error("another agent answers at {0}: stop it, or give this agent another --socket")]
    AlreadyRunning(PathBuf),
    /// The path exists and is no socket.
    #[error("{0} exists and is not a socket: remove it, or give another --socket")]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("cannot {what} {place}: {error}")]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// Path or address of the listener.
        place: String,
        /// Error of the system.
        error: std::io::Error,
    },
}

/// Future that serves a bound listener until it is dropped.
pub(in crate::agent) type Serving = Pin<Box<dyn Future<Output = Result<(), ServeError>> + Send>>;

/// Listens for reads and writes on a unix socket. The file has mode 0660 and belongs to the group `tortie` if
/// that exists: members may read, root may write.
///
/// # Errors
/// Returns an error when the path is in use or cannot be created.
pub(in crate::agent) async fn serve_unix(path: PathBuf, server: Shared) -> Result<Serving, ServeError> {
    let place = path.display().to_string();
    let io = |what, error| ServeError::Io { what, place: path.display().to_string(), error };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|e| io("make the folder of", e))?;
    }
    if let Ok(meta) = fs::symlink_metadata(&path) {
        if !meta.file_type().is_socket() {
            return Err(ServeError::NotASocket(path));
        }
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Err(ServeError::AlreadyRunning(path));
        }
        fs::remove_file(&path).map_err(|e| io("remove the stale", e))?;
    }
    let listener = UnixListener::bind(&path).map_err(|e| io("listen on", e))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).map_err(|e| io("set the mode of", e))?;
    if let Some(gid) = group_id("tortie") {
        // Without permission to change the owner, only the group's read access is missing.
        if let Err(error) = std::os::unix::fs::chown(&path, None, Some(gid)) {
            tracing::warn!(%error, "the socket cannot be given to the group tortie");
        }
    }
    let node = server.node().to_owned();
    let routes = reads()
        .merge(writes())
        .layer(middleware::from_fn(move |request: Request, next: Next| of_node(node.clone(), request, next)));
    let app = with_request_count(routes, &server);
    let app = app.with_state(server);
    let caller = |stream: &UnixStream| Some(Caller::of(stream));
    Ok(Box::pin(async move {
        let served = connections::serve(listener, app, connections::OF_SOCKET, caller).await;
        served.map_err(|error| ServeError::Io { what: "serve on", place, error })
    }))
}

/// Listens for reads on TCP. Answers only requests for loopback names, the listener's address and `names`
/// (DNS rebinding).
///
/// # Errors
/// Returns an error when the address cannot be bound.
pub(in crate::agent) async fn serve_tcp(
    addr: SocketAddr,
    names: &[String],
    server: Shared,
) -> Result<Serving, ServeError> {
    let io = move |what, error| ServeError::Io { what, place: addr.to_string(), error };
    let listener = bind(addr).map_err(|e| io("listen on", e))?;
    let app = with_request_count(guarded(reads(), addr, names), &server).with_state(server);
    Ok(Box::pin(async move { serve_port(listener, app).await.map_err(|e| io("serve on", e)) }))
}

/// Restricts routes to requests for the listener's own names.
fn guarded(routes: Router<Shared>, addr: SocketAddr, names: &[String]) -> Router<Shared> {
    let names = Names::new(addr.ip(), names);
    routes.layer(middleware::from_fn(move |request: Request, next: Next| guard(names.clone(), request, next)))
}

/// Size of a send buffer in octets; by default the kernel holds megabytes of an unread answer.
const SEND_BUFFER: u32 = 64 << 10;
const BACKLOG: u32 = 1_024;

/// Binds a listener whose connections inherit this send buffer size.
fn bind(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

async fn serve_port(listener: TcpListener, app: Router) -> std::io::Result<()> {
    connections::serve(listener, app, connections::OF_PORT, |_| None).await
}

/// Reads a group id from `/etc/group`; name services are avoided, because the daemon could hang on them.
fn group_id(name: &str) -> Option<u32> {
    let text = fs::read_to_string(Path::new("/etc/group")).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

fn with_request_count(routes: Router<Shared>, server: &Shared) -> Router<Shared> {
    routes.layer(middleware::from_fn_with_state(Arc::clone(server), metrics::count))
}

/// Listens for scrapes of one page, under the same names as [`serve_tcp`].
///
/// # Errors
/// Returns an error when the address cannot be bound.
pub(in crate::agent) async fn serve_metrics(
    addr: SocketAddr,
    names: &[String],
    page: MetricsPage,
    server: Shared,
) -> Result<Serving, ServeError> {
    let io = move |what, error| ServeError::Io { what, place: addr.to_string(), error };
    let listener = bind(addr).map_err(|error| io("serve metrics on", error))?;
    let app = guarded(metrics::page_routes(page), addr, names).with_state(server);
    Ok(Box::pin(async move { serve_port(listener, app).await.map_err(|e| io("serve on", e)) }))
}
