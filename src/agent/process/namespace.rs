//! One agent programs a network namespace: two would undo each other. The owner listens on an abstract unix socket, which
//! belongs to the namespace and goes with the process, however that ends; who asks there is told who the owner is.

use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

/// The name of the socket (unix(7), abstract).
const NAME: &str = "tortie-agent";
/// An owner that was just killed may hold its socket for a moment longer.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Makes this process the owner of its network namespace, for as long as it lives.
///
/// # Errors
/// A sentence with the owner, when there is one.
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
    let owner = owner(&address).unwrap_or_else(|| "an agent that does not answer".to_owned());
    Err(format!(
        "{owner} programs this network namespace already, and two agents would undo each other: stop it first (systemctl stop \
         tortie), or give this one a network namespace of its own or --kernel observe"
    ))
}

/// Tells everybody who asks who the owner is.
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

/// Who the owner is, by its own words.
fn owner(address: &SocketAddr) -> Option<String> {
    let stream = UnixStream::connect_addr(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut text = String::new();
    stream.take(512).read_to_string(&mut text).ok()?;
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    (!text.is_empty()).then_some(text)
}
