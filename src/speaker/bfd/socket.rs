//! Sockets of BFD (RFC 5881, sections 4 and 5; RFC 5883), and the scheduling of the BFD thread.

#![expect(unsafe_code, reason = "sched_setscheduler, which no crate here offers")]

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tortie_bgp::bfd::{Endpoint, Path};

use super::view::BfdPriority;
use crate::speaker::sockets::sockopt;

/// Receive buffer in octets, for packets that arrive while the thread is not scheduled.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Traffic class CS6 (RFC 2474), as for all routing protocols.
const CS6: u32 = 0xc0;
/// Real-time priority (1 to 99): above all ordinary threads, below other real-time tasks of the host.
const PRIORITY: c_int = 10;

/// Opens a socket that receives all packets of a family and port, with their TTL, destination and interface.
pub(super) fn listen(v6: bool, path: Path) -> io::Result<Socket> {
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    let on: c_int = 1;
    let any: IpAddr = if v6 {
        socket.set_only_v6(true)?;
        sockopt::set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &on)?;
        sockopt::set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &on)?;
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        sockopt::set(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL, &on)?;
        sockopt::set(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &on)?;
        Ipv4Addr::UNSPECIFIED.into()
    };
    // The kernel limits it to net.core.rmem_max, which suffices for a few hundred sessions.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    socket.bind(&SockAddr::from(SocketAddr::new(any, path.port())))?;
    Ok(socket)
}

/// Opens the sending socket of a session on this source port.
pub(super) fn sender(endpoint: &Endpoint, port: u16) -> io::Result<Socket> {
    let v6 = endpoint.remote.is_ipv6();
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    let any: IpAddr = if v6 {
        socket.set_only_v6(true)?;
        socket.set_unicast_hops_v6(255)?;
        socket.set_tclass_v6(CS6)?;
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        socket.set_ttl_v4(255)?;
        socket.set_tos_v4(CS6)?;
        Ipv4Addr::UNSPECIFIED.into()
    };
    let local = scoped(endpoint.local.unwrap_or(any), port, endpoint.interface);
    socket.bind(&SockAddr::from(local))?;
    // No packets are expected on this port, so none should be buffered.
    let _ = socket.set_recv_buffer_size(0);
    Ok(socket)
}

/// Returns the destination of a session's packets.
pub(super) fn destination(endpoint: &Endpoint) -> SockAddr {
    SockAddr::from(scoped(endpoint.remote, endpoint.path.port(), endpoint.interface))
}

fn scoped(addr: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match addr {
        IpAddr::V4(_) => SocketAddr::new(addr, port),
        IpAddr::V6(addr) => {
            let scope = if addr.is_unicast_link_local() { interface } else { 0 };
            SocketAddrV6::new(addr, port, 0, scope).into()
        }
    }
}

/// Gives the calling thread the highest priority that is permitted.
pub(crate) fn prioritise() -> BfdPriority {
    // The kernel's `sched_param` is a single int.
    let priority: c_int = PRIORITY;
    // SAFETY: 0 selects the calling thread, and the priority is read only during the call. The raw system
    // call is needed because musl's function of this name always returns ENOSYS.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const priority,
        )
    };
    if done == 0 {
        return BfdPriority::RealTime;
    }
    // On Linux the nice value belongs to the calling thread.
    match rustix::process::nice(-20) {
        Ok(_) => BfdPriority::Nice,
        Err(_) => BfdPriority::Normal,
    }
}
