//! TCP-AO keys on sockets (RFC 5925), for Linux 6.7 and later.
//!
//! Not tested against a kernel with `CONFIG_TCP_AO`. The tests check that a kernel without it returns a
//! descriptive error, and that the structures have the layout of linux/tcp.h.

#![expect(unsafe_code, reason = "structures that libc does not offer, zeroed")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;

use tortie_net::Cidr;

use crate::speaker::sockets::secret::{Ao, Key};
use crate::speaker::sockets::sockopt::{set, storage};
use tortie_engine::routing::AoAlgorithm;

/// `TCP_AO_ADD_KEY` of linux/tcp.h.
const TCP_AO_ADD_KEY: c_int = 38;
/// `TCP_AO_DEL_KEY` of linux/tcp.h.
const TCP_AO_DEL_KEY: c_int = 39;

/// `struct tcp_ao_add` of linux/tcp.h.
#[repr(C, align(8))]
struct TcpAoAdd {
    addr: libc::sockaddr_storage,
    alg_name: [u8; 64],
    ifindex: i32,
    /// `set_current`, `set_rnext`, and 30 bits that must be 0.
    flags: u32,
    reserved2: u16,
    prefix: u8,
    sndid: u8,
    rcvid: u8,
    maclen: u8,
    keyflags: u8,
    keylen: u8,
    key: [u8; Key::MAX],
}

/// `struct tcp_ao_del` of linux/tcp.h.
#[repr(C, align(8))]
struct TcpAoDel {
    addr: libc::sockaddr_storage,
    ifindex: i32,
    /// `set_current`, `set_rnext`, `del_async`, and 29 bits that must be 0.
    flags: u32,
    reserved2: u16,
    prefix: u8,
    sndid: u8,
    rcvid: u8,
    current_key: u8,
    rnext: u8,
    keyflags: u8,
}

/// Returns the kernel's name of an algorithm.
fn name(algorithm: AoAlgorithm) -> &'static str {
    match algorithm {
        AoAlgorithm::HmacSha1 => "hmac(sha1)",
        AoAlgorithm::AesCmac => "cmac(aes128)",
    }
}

/// Adds a key for segments from and to the addresses in `peers`. Connections inherit the keys of the listener
/// that accepts them.
///
/// # Errors
/// Returns `Unsupported` with a description on kernels without TCP-AO or without its algorithm, else the
/// error of the kernel.
pub(crate) fn add(socket: &impl AsFd, peers: Cidr, key: &Key, ids: Ao) -> io::Result<()> {
    // SAFETY: all fields are integers or arrays of integers, for which zero is valid.
    let mut add: TcpAoAdd = unsafe { std::mem::zeroed() };
    add.addr = storage(peers);
    for (to, from) in add.alg_name.iter_mut().zip(name(ids.algorithm).bytes()) {
        *to = from;
    }
    (add.prefix, add.sndid, add.rcvid) = (peers.len(), ids.send_id, ids.receive_id);
    // RFC 5926, section 3.2: both algorithms are truncated to 96 bits, the kernel's default for length 0.
    let bytes = key.bytes();
    add.keylen = u8::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    for (to, from) in add.key.iter_mut().zip(bytes) {
        *to = *from;
    }
    let done = set(socket, libc::IPPROTO_TCP, TCP_AO_ADD_KEY, &add);
    // The copy of the secret must not stay on the stack.
    add.key.fill(0);
    std::hint::black_box(&add);
    done.map_err(|e| explain(e, ids))
}

/// Removes a key.
///
/// # Errors
/// Returns the error of the kernel; an absent key is no error.
pub(crate) fn remove(socket: &impl AsFd, peers: Cidr, ids: Ao) -> io::Result<()> {
    // SAFETY: as in [`add`].
    let mut del: TcpAoDel = unsafe { std::mem::zeroed() };
    del.addr = storage(peers);
    (del.prefix, del.sndid, del.rcvid) = (peers.len(), ids.send_id, ids.receive_id);
    match set(socket, libc::IPPROTO_TCP, TCP_AO_DEL_KEY, &del) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        done => done,
    }
}

fn explain(error: io::Error, ids: Ao) -> io::Error {
    let text = match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => {
            "this kernel has no TCP-AO (RFC 5925): it needs Linux 6.7 or later with CONFIG_TCP_AO. There is no connection \
             without it: nothing is sent unprotected"
                .to_owned()
        }
        Some(libc::ENOENT) => format!(
            "this kernel lacks {} for TCP-AO (CONFIG_CRYPTO_HMAC and CONFIG_CRYPTO_SHA1, or CONFIG_CRYPTO_CMAC and \
             CONFIG_CRYPTO_AES). There is no connection without it: nothing is sent unprotected",
            name(ids.algorithm)
        ),
        _ => return io::Error::new(error.kind(), format!("TCP-AO: {error}")),
    };
    io::Error::new(io::ErrorKind::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    /// Layout of include/uapi/linux/tcp.h in Linux 6.7, as a C compiler computes it.
    #[test]
    fn the_structures_are_laid_out_as_the_kernels() {
        assert_eq!((size_of::<TcpAoAdd>(), align_of::<TcpAoAdd>()), (288, 8));
        let add = [
            offset_of!(TcpAoAdd, addr),
            offset_of!(TcpAoAdd, alg_name),
            offset_of!(TcpAoAdd, ifindex),
            offset_of!(TcpAoAdd, flags),
            offset_of!(TcpAoAdd, reserved2),
            offset_of!(TcpAoAdd, prefix),
            offset_of!(TcpAoAdd, sndid),
            offset_of!(TcpAoAdd, rcvid),
            offset_of!(TcpAoAdd, maclen),
            offset_of!(TcpAoAdd, keyflags),
            offset_of!(TcpAoAdd, keylen),
            offset_of!(TcpAoAdd, key),
        ];
        assert_eq!(add, [0, 128, 192, 196, 200, 202, 203, 204, 205, 206, 207, 208]);
        assert_eq!((size_of::<TcpAoDel>(), align_of::<TcpAoDel>()), (144, 8));
        let del = [
            offset_of!(TcpAoDel, ifindex),
            offset_of!(TcpAoDel, flags),
            offset_of!(TcpAoDel, reserved2),
            offset_of!(TcpAoDel, prefix),
            offset_of!(TcpAoDel, sndid),
            offset_of!(TcpAoDel, rcvid),
            offset_of!(TcpAoDel, current_key),
            offset_of!(TcpAoDel, rnext),
            offset_of!(TcpAoDel, keyflags),
        ];
        assert_eq!(del, [128, 132, 136, 138, 139, 140, 141, 142, 143]);
    }

    #[test]
    fn the_error_of_a_kernel_without_it_says_so_by_name() {
        let ids = Ao { send_id: 1, receive_id: 1, algorithm: AoAlgorithm::AesCmac };
        let said = |errno| explain(io::Error::from_raw_os_error(errno), ids).to_string();
        assert!(said(libc::ENOPROTOOPT).contains("CONFIG_TCP_AO"));
        assert!(said(libc::ENOENT).contains("cmac(aes128)"));
        assert!(said(libc::EKEYREJECTED).starts_with("TCP-AO: "));
    }
}
