//! Receives datagrams with their TTL, destination address and interface.

#![expect(unsafe_code, reason = "recvmsg with the TTL and the addressee, which no crate here offers")]

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use socket2::{SockAddr, Socket};

/// A received datagram's length and ancillary data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) len: usize,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) interface: u32,
    pub(crate) ttl: Option<u8>,
}

/// Receives a datagram from a socket with the options `RECVTTL` or `RECVHOPLIMIT`, and `PKTINFO`; `None` for
/// one without a destination address. Data beyond the buffer is truncated.
///
/// # Errors
/// Returns `WouldBlock` when no datagram is pending. Other errors belong to a single packet (ICMP), and the
/// next call reads the next one.
pub(crate) fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<Option<Datagram>> {
    // Aligned as `cmsghdr` requires, and longer than both requested messages.
    let mut control = [0_u64; 32];
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let fd = socket.as_raw_fd();
    let mut destination = None;
    let mut interface = 0;
    let mut ttl = None;
    // SAFETY: `try_init` requires the address that the callback writes, which recvmsg does within
    // `msg_namelen` octets. `iov` and `control` describe `buffer` and `control`, which outlive the call, with
    // their true lengths. The CMSG functions read only what the kernel wrote (`msg_controllen`). Each value
    // is read unaligned after its type, which determines its size, was checked.
    let (len, source) = unsafe {
        SockAddr::try_init(|storage, storage_len| {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_name = storage.cast();
            message.msg_namelen = *storage_len;
            message.msg_iov = &raw mut iov;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            // The type of lengths differs between C libraries.
            message.msg_controllen = size_of_val(&control) as _;
            let len = libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT);
            let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
            *storage_len = message.msg_namelen;
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while let Some(h) = header.as_ref() {
                let data = libc::CMSG_DATA(header);
                let len: usize = h.cmsg_len as _;
                let room = len.saturating_sub(libc::CMSG_LEN(0) as usize);
                match (h.cmsg_level, h.cmsg_type) {
                    (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
                        if room >= size_of::<c_int>() =>
                    {
                        ttl = u8::try_from(data.cast::<c_int>().read_unaligned()).ok();
                    }
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) if room >= size_of::<libc::in_pktinfo>() => {
                        let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                        destination = Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()));
                        interface = u32::try_from(info.ipi_ifindex).unwrap_or(0);
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if room >= size_of::<libc::in6_pktinfo>() => {
                        let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                        destination = Some(IpAddr::from(info.ipi6_addr.s6_addr));
                        interface = info.ipi6_ifindex;
                    }
                    _ => {}
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
            Ok(len)
        })?
    };
    let (Some(source), Some(destination)) = (source.as_socket(), destination) else { return Ok(None) };
    Ok(Some(Datagram { len, source: source.ip(), destination, interface, ttl }))
}
