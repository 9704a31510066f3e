//! Socket options that no crate provides: GTSM (RFC 5082), saved SYN headers, TCP statistics and ICMPv6
//! filters. Keys are in `md5` and `ao`.

#![expect(
    unsafe_code,
    reason = "setsockopt and getsockopt with structures that libc and socket2 do not offer"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use socket2::{SockAddr, Socket};
use tortie_net::Cidr;

/// Returns the number of octets that were written and not acknowledged by the remote side (tcp(7), SIOCOUTQ);
/// 0 if unknown.
pub(crate) fn unacknowledged(socket: &impl AsFd) -> u32 {
    let mut octets: c_int = 0;
    // SAFETY: SIOCOUTQ, which equals TIOCOUTQ, writes one int, and the pointer refers to one.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    if done < 0 { 0 } else { u32::try_from(octets).unwrap_or(0) }
}

/// Returns the smoothed round-trip time measured by TCP (`tcpi_rtt` of `struct tcp_info`, linux/tcp.h).
pub(crate) fn round_trip(socket: &impl AsFd) -> Option<std::time::Duration> {
    /// Offset of the field: eight octets, then 15 words.
    const AT: usize = 8 + 15 * 4;
    let mut info = [0_u8; AT + 4];
    let mut len = libc::socklen_t::try_from(info.len()).ok()?;
    // SAFETY: the pointer and length describe `info`, which outlives the call; the kernel writes at most
    // `len` octets.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    let micros = info.get(AT..).and_then(|octets| octets.try_into().ok()).map(u32::from_ne_bytes)?;
    (rc == 0 && micros > 0).then(|| std::time::Duration::from_micros(micros.into()))
}

/// Returns the first address of a prefix in the form of the kernel's structures.
pub(crate) fn storage(peers: Cidr) -> libc::sockaddr_storage {
    let address = SockAddr::from(SocketAddr::new(peers.addr(), 0));
    // SAFETY: `SockAddr` contains a `sockaddr_storage` whose first `len()` octets are initialised and the
    // rest zeroed. The pointer stays valid during the read, and the type is `Copy`.
    unsafe { *address.as_ptr().cast::<libc::sockaddr_storage>() }
}

/// Drops received segments whose TTL or hop limit is below `min` (RFC 5082, section 3); 0 accepts all.
///
/// # Errors
/// Returns the error of the kernel.
pub(crate) fn set_min_ttl(socket: &impl AsFd, v6: bool, min: u8) -> io::Result<()> {
    let value = c_int::from(min);
    if v6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, &value)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_MINTTL, &value)
    }
}

/// Lets connections from many sockets to different remote addresses share a local port. Otherwise 5,000
/// connections from one address would occupy 5,000 ports at `bind`.
///
/// # Errors
/// Returns the error of the kernel.
pub(crate) fn set_bind_address_no_port(socket: &Socket) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &(1 as c_int))
}

/// Restricts a raw socket to ICMPv6 messages of these types (RFC 3542, section 3.2).
///
/// # Errors
/// Returns the error of the kernel.
pub(crate) fn set_icmp6_filter(socket: &Socket, types: &[u8]) -> io::Result<()> {
    /// `ICMPV6_FILTER` of linux/icmpv6.h.
    const ICMPV6_FILTER: c_int = 1;
    // A set bit blocks a type.
    let mut filter = [u32::MAX; 8];
    for kind in types {
        if let Some(word) = filter.get_mut(usize::from(kind >> 5)) {
            *word &= !(1 << (kind & 31));
        }
    }
    set(socket, libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &filter)
}

/// Requests hop limit, destination address and interface with each datagram (RFC 3542, section 6).
///
/// # Errors
/// Returns the error of the kernel.
pub(crate) fn set_receive_details_v6(socket: &Socket) -> io::Result<()> {
    set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &(1 as c_int))?;
    set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &(1 as c_int))
}

/// Returns the name of an interface in the calling thread's network namespace.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: kernel names have at most `IF_NAMESIZE` octets with the terminating zero, which is the buffer
    // size that if_indextoname(3) requires; the pointer stays valid during the call.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    let text = std::ffi::CStr::from_bytes_until_nul(&name).ok()?;
    (!found.is_null()).then(|| text.to_string_lossy().into_owned())
}

/// Returns the Ethernet address of an interface in the socket's network namespace; `None` for other kinds of
/// links.
pub(crate) fn ethernet_address(socket: &impl AsFd, interface: &str) -> Option<[u8; 6]> {
    // SAFETY: all fields of an ifreq are integers or arrays of integers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The terminating zero stays.
    let name = request.ifr_name.get_mut(..libc::IF_NAMESIZE - 1)?.get_mut(..interface.len())?;
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: SIOCGIFHWADDR (netdevice(7)) reads and writes one ifreq, and the pointer refers to one. The
    // type of the request number differs between C libraries.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) };
    // SAFETY: the call filled in this field; without it the field is zero, which is valid.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let octets = address.sa_data.first_chunk::<6>()?.map(|octet| octet.to_ne_bytes()[0]);
    (done == 0 && address.sa_family == libc::ARPHRD_ETHER).then_some(octets)
}

/// Makes the kernel save the headers of SYNs to this listener, for [`saved_syn_ttl`].
///
/// # Errors
/// Returns the error of the kernel.
pub(crate) fn set_save_syn(listener: &Socket, on: bool) -> io::Result<()> {
    set(listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &c_int::from(on))
}

/// Returns the TTL or hop limit of the SYN that opened an accepted connection; `None` if it was not saved
/// (SYN cookies).
///
/// # Errors
/// Returns the error of the kernel.
pub(crate) fn saved_syn_ttl(socket: &impl AsFd) -> io::Result<Option<u8>> {
    let mut headers = [0_u8; 256];
    let mut len: libc::socklen_t = 256;
    // SAFETY: the pointer and length describe `headers`, which outlives the call; the kernel writes at most
    // `len` octets, and fails with EINVAL if the headers are longer.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            headers.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    let headers = headers.get(..len as usize).unwrap_or_default();
    Ok(match headers.first().map(|b| b >> 4) {
        Some(4) => headers.get(8).copied(),
        Some(6) => headers.get(7).copied(),
        _ => None,
    })
}

pub(crate) fn set<T>(socket: &impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the pointer and length describe `value`, which outlives the call; the kernel only reads it.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast::<c_void>(),
            len,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ethernet_has_an_ethernet_address() {
        let socket = Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None).unwrap();
        assert_eq!(ethernet_address(&socket, "lo"), None, "a loopback");
        assert_eq!(ethernet_address(&socket, "none-such"), None);
        assert_eq!(ethernet_address(&socket, "a-name-that-is-too-long-for-an-interface"), None);
    }
}
