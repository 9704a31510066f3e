//! Outgoing connections: socket options that precede the first segment, and descriptions of errors.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use tortie_net::Cidr;

use crate::speaker::sockets::guard::{self, Guard};
use crate::speaker::sockets::sockopt;

/// Timeout of a connection attempt. Linux alone would try for two minutes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of unsent octets in the kernel per connection. Further data stays in the tables, where it
/// can still change, and keepalives are not queued behind megabytes.
const NOT_SENT: u32 = 128 * 1024;

/// Precedence "internetwork control": RFC 4271, section 5.1.3 names none, and all BGP speakers send CS6 (RFC
/// 2474).
const CS6: u32 = 0xc0;

/// Sets the options that listening and connecting sockets share.
pub(crate) fn common_options(socket: &Socket, v6: bool) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(NOT_SENT)?;
    // Detects a lost peer in sessions with hold time 0.
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10)),
    )?;
    // TTL 255 for all connections: a peer with GTSM (RFC 5082) requires it, others accept it.
    if v6 {
        socket.set_tclass_v6(CS6)?;
        socket.set_unicast_hops_v6(255)
    } else {
        socket.set_tos_v4(CS6)?;
        socket.set_ttl_v4(255)
    }
}

/// Sets key and minimum TTL of a peer on the socket of a connection. TCP-AO keys are set before its first
/// segment instead.
pub(crate) fn secure(socket: &Socket, remote: IpAddr, guard: &Guard) -> io::Result<()> {
    sockopt::set_min_ttl(socket, remote.is_ipv6(), guard.min_ttl)?;
    if let Some(key) = guard.key.as_ref().filter(|key| key.ao().is_none()) {
        guard::set_key(socket, Cidr::host(remote), key)?;
    }
    Ok(())
}

/// Starts a connection attempt; the socket becomes writable when it has succeeded or failed.
///
/// # Errors
/// Returns an error when the attempt fails at once.
pub(crate) fn start(remote: SocketAddr, local: Option<IpAddr>, guard: &Guard) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    common_options(&socket, remote.is_ipv6())?;
    secure(&socket, remote.ip(), guard)?;
    if let Some(key) = guard.key.as_ref().filter(|key| key.ao().is_some()) {
        guard::set_key(&socket, Cidr::host(remote.ip()), key)?;
    }
    if let Some(local) = local {
        sockopt::set_bind_address_no_port(&socket)?;
        socket.bind(&SockAddr::from(SocketAddr::new(local, 0)))?;
    }
    match socket.connect(&SockAddr::from(remote)) {
        Ok(()) => Ok(socket),
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(e) => Err(e),
    }
}

/// Failed attempts by reason.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Failures([u64; Self::REASONS.len()]);

impl Failures {
    /// Reasons in order. `auth`: the session's key cannot be used on this host. A peer without the key does
    /// not answer at all.
    pub(crate) const REASONS: [&'static str; 5] = ["refused", "timeout", "unreachable", "auth", "other"];

    pub(crate) fn count(&mut self, error: &io::Error) {
        let at = match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => 0,
            Some(libc::ETIMEDOUT) => 1,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::ENETDOWN) => 2,
            Some(libc::ENOKEY | libc::EKEYREJECTED | libc::EKEYEXPIRED) => 3,
            None if error.kind() == io::ErrorKind::Unsupported => 3,
            _ => 4,
        };
        if let Some(count) = self.0.get_mut(at) {
            *count += 1;
        }
    }

    pub(crate) fn by_reason(&self) -> [(&'static str, u64); Self::REASONS.len()] {
        std::array::from_fn(|at| {
            let reason = Self::REASONS.get(at).copied().unwrap_or_default();
            (reason, self.0.get(at).copied().unwrap_or_default())
        })
    }
}

/// Describes a connection error.
pub(crate) fn explain(remote: SocketAddr, local: Option<IpAddr>, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => format!("connection refused by {remote}"),
        Some(libc::ENETUNREACH) => format!("no route to {remote}"),
        Some(libc::EHOSTUNREACH) => format!("{remote} is unreachable"),
        Some(libc::ETIMEDOUT) => format!("no answer from {remote}"),
        Some(libc::EADDRNOTAVAIL) => match local {
            Some(local) => format!("no interface has the local address {local}"),
            None => format!("no local address towards {remote}"),
        },
        Some(libc::EMFILE | libc::ENFILE) => "no file descriptors left; raise LimitNOFILE".into(),
        Some(libc::EAFNOSUPPORT) => {
            format!("this host has no {}", if remote.is_ipv6() { "IPv6" } else { "IPv4" })
        }
        // Raised before the first segment: a key that cannot be used, with its description.
        None if error.kind() == io::ErrorKind::Unsupported => error.to_string(),
        _ => format!("connect to {remote}: {error}"),
    }
}

/// Classifies a failed connection attempt by the text of `explain`: returns a stable identifier and the name
/// of the system's error.
///
/// `connect-failed` stands for all other reasons.
#[must_use]
pub fn connect_failure(text: &str) -> (&'static str, &'static str) {
    const REASONS: [(&str, &str, &str); 6] = [
        ("connection refused by ", "connection-refused", "ECONNREFUSED"),
        ("no route to ", "no-route", "ENETUNREACH"),
        ("no answer from ", "connect-timeout", "ETIMEDOUT"),
        ("no interface has the local address ", "no-local-address", "EADDRNOTAVAIL"),
        ("no local address towards ", "no-local-address", "EADDRNOTAVAIL"),
        ("no file descriptors left", "no-descriptors", "EMFILE"),
    ];
    match REASONS.iter().find(|(begin, ..)| text.starts_with(begin)) {
        Some((_, code, errno)) => (code, errno),
        None if text.ends_with(" is unreachable") => ("host-unreachable", "EHOSTUNREACH"),
        None => ("connect-failed", ""),
    }
}

/// Describes a read or write error.
pub(crate) fn explain_io(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ECONNRESET) => "connection reset by the peer".into(),
        Some(libc::EPIPE) => "the peer closed the connection".into(),
        Some(libc::ETIMEDOUT) => "the peer does not answer (TCP timeout)".into(),
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => "the peer became unreachable".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_failed_connect_has_a_reason() {
        let remote: SocketAddr = "192.0.2.1:179".parse().unwrap();
        let of = |errno, local| {
            let text = explain(remote, local, &io::Error::from_raw_os_error(errno));
            connect_failure(&text)
        };
        let own = Some("192.0.2.9".parse().unwrap());
        assert_eq!(of(libc::ECONNREFUSED, None), ("connection-refused", "ECONNREFUSED"));
        assert_eq!(of(libc::ENETUNREACH, None), ("no-route", "ENETUNREACH"));
        assert_eq!(of(libc::EHOSTUNREACH, None), ("host-unreachable", "EHOSTUNREACH"));
        assert_eq!(of(libc::ETIMEDOUT, None), ("connect-timeout", "ETIMEDOUT"));
        assert_eq!(of(libc::EADDRNOTAVAIL, own), ("no-local-address", "EADDRNOTAVAIL"));
        assert_eq!(of(libc::EADDRNOTAVAIL, None), ("no-local-address", "EADDRNOTAVAIL"));
        assert_eq!(of(libc::EPERM, None), ("connect-failed", ""));
    }
}
