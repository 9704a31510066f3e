//! Ensures that only one agent programs a network namespace, since two would revert each other's changes.
//!
//! The owner listens on an abstract unix socket, which belongs to the namespace and vanishes with the
//! process, however it ends. A connecting agent is sent the owner's name.
//!
//! Any user may bind such a name, so only a socket of root or of the same user prevents the start of an
//! agent.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Name of the abstract socket (unix(7)).
const NAME: &str = "tortie-agent";
/// Number of attempts: a predecessor that was just killed may hold its socket for a moment.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout of the owner's answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Maximum length of the answer in octets.
const ANSWER_MAX: u64 = 512;

/// Claims the network namespace for the lifetime of this process.
///
/// # Errors
/// Returns a sentence with the owner, if there is one.
pub(in crate::agent) async fn claim(io: &tokio::runtime::Handle, node: &str) -> Result<(), String> {
    let address = SocketAddr::from_abstract_name(NAME)
        .map_err(|error| format!("an abstract socket has no name: {error}"))?;
    for _ in 0..TRIES {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => return serve(io, listener, node),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(format!("the network namespace cannot be claimed: {error}")),
        }
        tokio::time::sleep(PAUSE).await;
    }
    match owner(address).await {
        Some(owner) => Err(format!(
            "{owner} programs this network namespace already, and two agents would undo each other's \
             changes: stop it first (systemctl stop tortie), or give this agent its own network namespace \
             or --kernel observe"
        )),
        None => {
            tracing::warn!(
                target: "tortie",
                "another program uses the abstract socket @{NAME}, so a second agent here would not be \
                 detected (ss -xlp)"
            );
            Ok(())
        }
    }
}

/// Answers each connection with the owner's name.
fn serve(io: &tokio::runtime::Handle, listener: UnixListener, node: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the network namespace cannot be claimed: {error}");
    listener.set_nonblocking(true).map_err(failed)?;
    let _io = io.enter();
    let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
    let owner = format!("the agent of {node} (process {})", std::process::id());
    io.spawn(async move {
        loop {
            match listener.accept().await {
                Ok((mut caller, _)) => {
                    let _ = tokio::time::timeout(PAUSE, caller.write_all(owner.as_bytes())).await;
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    });
    Ok(())
}

/// Returns the owner's name as it reports it; `None` if the socket belongs to another user and hence to no
/// agent.
async fn owner(address: SocketAddr) -> Option<String> {
    let connect = tokio::task::spawn_blocking(move || UnixStream::connect_addr(&address));
    let stream = tokio::time::timeout(ANSWER, connect).await.ok()?.ok()?.ok()?;
    stream.set_nonblocking(true).ok()?;
    let stream = tokio::net::UnixStream::from_std(stream).ok()?;
    let peer = stream.peer_cred().ok()?;
    if peer.uid() != 0 && peer.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut text = String::new();
    let _ = tokio::time::timeout(ANSWER, stream.take(ANSWER_MAX).read_to_string(&mut text)).await;
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let unnamed = || {
        let process = peer.pid().map_or_else(|| "of another container".to_owned(), |pid| pid.to_string());
        format!("an agent (process {process})")
    };
    Some(if text.is_empty() { unnamed() } else { text })
}
