//! Tests the kernel's socket features for BGP sessions: each option is set once, on a socket that is never
//! connected.

use std::net::{IpAddr, Ipv4Addr};

use socket2::{Domain, Protocol, Socket, Type};
use tortie_net::Cidr;

use crate::speaker::bfd::{self, BfdPriority};
use crate::speaker::sockets::secret::{Ao, Key};
use crate::speaker::sockets::{ao, md5, sockopt};
use tortie_engine::routing::AoAlgorithm;

/// Result of one feature test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketAbility {
    /// Stable identifier: `tcp-md5`, `tcp-ao`, `ttl-security`, `real-time`.
    pub name: &'static str,
    /// Description of the uses of the feature.
    pub needed_for: &'static str,
    /// `Ok` if the feature is available, else the system's error.
    pub outcome: Result<(), String>,
}

/// Tests all features.
#[must_use]
pub fn try_sockets() -> Vec<SocketAbility> {
    let ability = |name, needed_for, outcome| SocketAbility { name, needed_for, outcome };
    let peer = Cidr::host(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    let on_socket = |set: &dyn Fn(&Socket) -> std::io::Result<()>| {
        socket().and_then(|s| set(&s)).map_err(|e| e.to_string())
    };
    let key = || Key::new(b"tried by doctor".to_vec()).map_err(std::io::Error::other);
    let ids = Ao { send_id: 1, receive_id: 1, algorithm: AoAlgorithm::HmacSha1 };
    vec![
        ability("tcp-md5", "peers with a password", on_socket(&|s| md5::set_md5(s, peer, Some(&key()?)))),
        ability("tcp-ao", "peers with a TCP-AO key", on_socket(&|s| ao::add(s, peer, &key()?, ids))),
        ability(
            "ttl-security",
            "peers with ttl_security",
            on_socket(&|s| sockopt::set_min_ttl(s, false, 254)),
        ),
        ability("real-time", "BFD on a host under load", real_time()),
    ]
}

/// Tests real-time scheduling on a temporary thread, since the priority belongs to a thread.
fn real_time() -> Result<(), String> {
    let tried = std::thread::Builder::new().name("priority".to_owned()).spawn(bfd::prioritise);
    match tried.map(std::thread::JoinHandle::join) {
        Ok(Ok(BfdPriority::RealTime)) => Ok(()),
        Ok(Ok(other)) => Err(format!("only `{}` can be had (CAP_SYS_NICE, RLIMIT_RTPRIO)", other.as_str())),
        Ok(Err(_)) => Err("the thread that tries ended early".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
