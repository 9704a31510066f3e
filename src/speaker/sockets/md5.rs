//! TCP MD5 keys on sockets (RFC 2385).

#![expect(unsafe_code, reason = "a structure that libc does not offer, zeroed")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;

use tortie_net::Cidr;

use crate::speaker::sockets::secret::Key;
use crate::speaker::sockets::sockopt::{set, storage};

/// `TCP_MD5SIG` of linux/tcp.h.
const TCP_MD5SIG: c_int = 14;
/// `TCP_MD5SIG_EXT` of linux/tcp.h: the same with flags.
const TCP_MD5SIG_EXT: c_int = 32;
/// `TCP_MD5SIG_FLAG_PREFIX`: the key applies to a prefix.
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

/// Sets the key for segments from and to the addresses in `peers`, or removes it with `None`. Of several
/// keys, the one with the longest prefix applies; a key for an address has priority over all prefixes. The
/// kernel ignores the port. Removing an absent key is no error. On an established connection the key changes
/// with the next segment.
///
/// # Errors
/// Returns `ENOMEM` when `net.core.optmem_max` is used up (with a description), and `ENOPROTOOPT` on kernels
/// without `CONFIG_TCP_MD5SIG`.
pub(crate) fn set_md5(socket: &impl AsFd, peers: Cidr, key: Option<&Key>) -> io::Result<()> {
    // SAFETY: all fields are integers or arrays of integers, for which zero is valid.
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

#[cfg(test)]
mod tests {
    use std::mem::size_of;
    use std::net::SocketAddr;

    use socket2::{SockAddr, Socket};

    use super::*;

    #[test]
    fn the_structure_is_as_long_as_the_kernels() {
        assert_eq!(size_of::<TcpMd5Sig>(), 216);
    }

    #[test]
    fn a_key_of_a_range_is_needed_from_all_of_it_and_nowhere_else() {
        use socket2::{Domain, Type};
        let key = Key::read(&tortie_engine::routing::Password::Text("right".into()), "/".as_ref()).unwrap();
        let wrong = Key::read(&tortie_engine::routing::Password::Text("wrong".into()), "/".as_ref()).unwrap();
        // One range per family; an IPv6 loopback has a single address.
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
