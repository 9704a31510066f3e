//! Socket options that no crate models: TCP MD5 signatures (RFC 2385), GTSM (RFC 5082) and saved SYN headers. Those of TCP-AO
//! are in [`ao`](crate::speaker::sockets::ao).

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

use crate::speaker::sockets::ao;
use crate::speaker::sockets::secret::Key;

/// Octets that were written and that the other end has not acknowledged (tcp(7), SIOCOUTQ); 0 when nobody can say.
pub(crate) fn unacknowledged(socket: &impl AsFd) -> u32 {
    let mut octets: c_int = 0;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one int, and the pointer is to one.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    if done < 0 { 0 } else { u32::try_from(octets).unwrap_or(0) }
}

/// The smoothed round-trip time that TCP measured (`tcpi_rtt` of `struct tcp_info`, linux/tcp.h).
pub(crate) fn round_trip(socket: &impl AsFd) -> Option<std::time::Duration> {
    /// Eight octets, then 15 words.
    const AT: usize = 8 + 15 * 4;
    let mut info = [0_u8; AT + 4];
    let mut len = libc::socklen_t::try_from(info.len()).ok()?;
    // SAFETY: the pointer and length describe `info`, which outlives the call; the kernel writes at most `len` bytes.
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

/// `TCP_MD5SIG` of linux/tcp.h.
const TCP_MD5SIG: c_int = 14;
/// `TCP_MD5SIG_EXT` of linux/tcp.h: the same with flags.
const TCP_MD5SIG_EXT: c_int = 32;
/// `TCP_MD5SIG_FLAG_PREFIX`: the key is for a prefix.
const PREFIX: u8 = 1;

/// `struct tcp_md5sig` of linux/tcp.h.
#[repr(C)]
struct TcpMd5Sig {
    addr: libc::sockaddr_storage,
    flags: u8,
    prefixlen: u8,
    keylen: u16,
    ifindex: c_int,
    key: [u8; Key::MAX],
}

/// Sets a key, of TCP MD5 or TCP-AO, for segments from and to the addresses in `peers`.
///
/// # Errors
/// As [`set_md5`] and [`ao::add`].
pub(crate) fn set_key(socket: &impl AsFd, peers: Cidr, key: &Key) -> io::Result<()> {
    match key.ao() {
        Some(ids) => ao::add(socket, peers, key, ids),
        None => set_md5(socket, peers, Some(key)),
    }
}

/// Removes what [`set_key`] set.
///
/// # Errors
/// What the kernel says; that there was no such key is none.
pub(crate) fn remove_key(socket: &impl AsFd, peers: Cidr, key: &Key) -> io::Result<()> {
    match key.ao() {
        Some(ids) => ao::remove(socket, peers, ids),
        None => set_md5(socket, peers, None),
    }
}

/// Sets (or with `None` removes) the key for segments from and to the addresses in `peers`; of several keys that of the
/// longest prefix counts. An address counts as such, before all prefixes. The kernel ignores the port. Removing a key
/// that is not there is no error. On an established connection the key changes from the next segment on.
///
/// # Errors
/// `ENOMEM` when `net.core.optmem_max` is used up (the text says so), `ENOPROTOOPT` on kernels without
/// `CONFIG_TCP_MD5SIG`.
pub(crate) fn set_md5(socket: &impl AsFd, peers: Cidr, key: Option<&Key>) -> io::Result<()> {
    // SAFETY: all fields are integers or arrays of them, for which zero is a value.
    let mut sig: TcpMd5Sig = unsafe { std::mem::zeroed() };
    sig.addr = storage(peers);
    if let Some(key) = key {
        let bytes = key.bytes();
        sig.keylen = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        for (to, from) in sig.key.iter_mut().zip(bytes) {
            *to = *from;
        }
    }
    let range = peers != Cidr::host(peers.addr());
    if range {
        (sig.flags, sig.prefixlen) = (PREFIX, peers.len());
    }
    let option = if range { TCP_MD5SIG_EXT } else { TCP_MD5SIG };
    let done = set(socket, libc::IPPROTO_TCP, option, &sig);
    // The copy of the secret must not stay on the stack.
    sig.key.fill(0);
    std::hint::black_box(&sig);
    match done {
        Err(e) if key.is_none() && e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            "the kernel has no room for another TCP MD5 key on this socket; raise the sysctl net.core.optmem_max",
        )),
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no TCP MD5 signatures (CONFIG_TCP_MD5SIG)",
        )),
        done => done,
    }
}

/// The first address of a prefix as the kernel's structures hold it.
pub(crate) fn storage(peers: Cidr) -> libc::sockaddr_storage {
    let address = SockAddr::from(SocketAddr::new(peers.addr(), 0));
    // SAFETY: `SockAddr` holds a `sockaddr_storage` whose first `len()` bytes are initialised and the rest zeroed; the
    // pointer stays valid during the read, and the type is `Copy`.
    unsafe { *address.as_ptr().cast::<libc::sockaddr_storage>() }
}

/// Drops received segments whose TTL or hop limit is below `min` (RFC 5082 3); 0 accepts all.
///
/// # Errors
/// What the kernel says.
pub(crate) fn set_min_ttl(socket: &impl AsFd, v6: bool, min: u8) -> io::Result<()> {
    let value = c_int::from(min);
    if v6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, &value)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_MINTTL, &value)
    }
}

/// Lets connections from many sockets to different remotes share a local port: 5,000 dials from one address would
/// else take 5,000 ports for themselves at `bind`.
///
/// # Errors
/// What the kernel says.
pub(crate) fn set_bind_address_no_port(socket: &Socket) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &(1 as c_int))
}

/// Lets only ICMPv6 messages of these types through to a raw socket (RFC 3542 3.2).
///
/// # Errors
/// What the kernel says.
pub(crate) fn set_icmp6_filter(socket: &Socket, types: &[u8]) -> io::Result<()> {
    /// `ICMPV6_FILTER` of linux/icmpv6.h.
    const ICMPV6_FILTER: c_int = 1;
    // A set bit blocks.
    let mut filter = [u32::MAX; 8];
    for kind in types {
        if let Some(word) = filter.get_mut(usize::from(kind >> 5)) {
            *word &= !(1 << (kind & 31));
        }
    }
    set(socket, libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &filter)
}

/// Makes the kernel tell hop limit, addressee and interface of each datagram (RFC 3542 6).
///
/// # Errors
/// What the kernel says.
pub(crate) fn set_receive_details_v6(socket: &Socket) -> io::Result<()> {
    set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &(1 as c_int))?;
    set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &(1 as c_int))
}

/// The name of an interface of the calling thread's network namespace.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the kernel's names have at most `IF_NAMESIZE` octets with the closing zero, which is the room that
    // if_indextoname(3) asks for; the pointer stays valid during the call.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    let text = std::ffi::CStr::from_bytes_until_nul(&name).ok()?;
    (!found.is_null()).then(|| text.to_string_lossy().into_owned())
}

/// The Ethernet address of an interface of the socket's network namespace; `None` for links of other kinds.
pub(crate) fn ethernet_address(socket: &impl AsFd, interface: &str) -> Option<[u8; 6]> {
    // SAFETY: all fields of an ifreq are integers and arrays of them, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The closing zero stays.
    let name = request.ifr_name.get_mut(..libc::IF_NAMESIZE - 1)?.get_mut(..interface.len())?;
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: SIOCGIFHWADDR (netdevice(7)) reads and writes one ifreq, and the pointer is to one.
    // The number is of another type in each C library.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) };
    // SAFETY: the call filled in this field; before, it was zeroes, which are a value of it too.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let octets = address.sa_data.first_chunk::<6>()?.map(|octet| octet.to_ne_bytes()[0]);
    (done == 0 && address.sa_family == libc::ARPHRD_ETHER).then_some(octets)
}

/// Makes the kernel keep the headers of SYNs that come to this listener, for [`saved_syn_ttl`].
///
/// # Errors
/// What the kernel says.
pub(crate) fn set_save_syn(listener: &Socket, on: bool) -> io::Result<()> {
    set(listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, &c_int::from(on))
}

/// The TTL or hop limit of the SYN that opened an accepted connection; `None` when it was not saved (SYN cookies).
///
/// # Errors
/// What the kernel says.
pub(crate) fn saved_syn_ttl(socket: &impl AsFd) -> io::Result<Option<u8>> {
    let mut headers = [0_u8; 256];
    let mut len: libc::socklen_t = 256;
    // SAFETY: the pointer and length describe `headers`, which outlives the call; the kernel writes at most `len`
    // bytes (and fails with EINVAL when the headers are longer).
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

    #[test]
    fn the_structure_is_as_long_as_the_kernels() {
        assert_eq!(size_of::<TcpMd5Sig>(), 216);
    }

    #[test]
    fn a_key_of_a_range_is_needed_from_all_of_it_and_nowhere_else() {
        use socket2::{Domain, Type};
        let key = Key::read(&tortie_engine::routing::Password::Text("right".into()), "/".as_ref()).unwrap();
        let wrong = Key::read(&tortie_engine::routing::Password::Text("wrong".into()), "/".as_ref()).unwrap();
        // One range for each family; an IPv6 loopback has a single address.
        for (range, at, inside, outside) in [
            ("127.0.6.0/24", "127.0.5.1:0", &["127.0.6.2", "127.0.6.77"][..], Some("127.0.7.2")),
            ("::/64", "[::1]:0", &["::1"][..], None),
        ] {
            let at: SocketAddr = at.parse().unwrap();
            let listener = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
            set_md5(&listener, range.parse().unwrap(), Some(&key)).unwrap();
            listener.bind(&SockAddr::from(at)).unwrap();
            listener.listen(8).unwrap();
            let at = listener.local_addr().unwrap();
            let connects = |from: &str, key: Option<&Key>| {
                let from = SocketAddr::new(from.parse().unwrap(), 0);
                let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).unwrap();
                if key.is_some() {
                    set_md5(&socket, Cidr::host(at.as_socket().unwrap().ip()), key).unwrap();
                }
                socket.bind(&SockAddr::from(from)).unwrap();
                socket.connect_timeout(&at, std::time::Duration::from_millis(300)).is_ok()
            };
            for from in inside {
                assert!(connects(from, Some(&key)), "{from}");
                assert!(!connects(from, Some(&wrong)), "{from}");
                assert!(!connects(from, None), "{from}");
            }
            assert!(outside.is_none_or(|from| connects(from, None)));
            set_md5(&listener, range.parse().unwrap(), None).unwrap();
            assert!(inside.iter().all(|from| connects(from, None)), "the key is gone");
        }
    }
}
