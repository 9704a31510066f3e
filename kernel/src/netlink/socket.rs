//! A blocking netlink socket with batches, transactions and dumps.
//!
//! A batch is one `sendmsg` with many requests, of which only the last requests an acknowledgement. Errors
//! are sent without such a request and carry the sequence number of their message; after an error the rest of
//! the batch is still processed. The answer to the last message (an error or the acknowledgement) ends the
//! batch.

use std::io;
use std::time::Duration;

use netlink_sys::{Socket as Raw, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::sockopt;

use crate::netlink::codec::{self, Messages, NLM_F_ACK, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR};

/// Upper bound of the length of a request, in bytes.
const LONGEST: usize = 1 << 20;
/// Maximum number of messages in one batch.
pub(crate) const BATCH: usize = 1024;
/// Receive buffer of writers and dumps, in bytes: 1,024 errors of about 1,300 bytes of kernel memory each.
const RECV_BUFFER: usize = 4 << 20;
const SEND_BUFFER: usize = 1 << 20;
/// Size that the kernel accounts in the receive buffer for one short error, in bytes, rounded up.
const ERROR_COST: usize = 1536;
/// Time without an answer after which the answer is considered lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The kernel's refusal of one message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    /// Positive errno; 0 if the answer was lost.
    pub code: i32,
    /// The error as text, with the kernel's extended error text if there is one.
    pub text: String,
}

impl Refusal {
    fn new(code: i32, explanation: Option<String>) -> Self {
        let name = io::Error::from_raw_os_error(code).to_string();
        let name = name.split(" (os error").next().unwrap_or_default().to_owned();
        Self { code, text: explanation.map_or_else(|| name.clone(), |e| format!("{name}: {e}")) }
    }

    /// The answer never arrived; the request may or may not have been executed.
    pub(crate) fn lost() -> Self {
        Self { code: 0, text: "the kernel's answer was lost".to_owned() }
    }
}

/// Failure of a transaction.
#[derive(Debug)]
pub(crate) enum TransactionError {
    /// Nothing was executed. The index of the first refused message, from 0, and the refusal.
    Refused(u32, Refusal),
    /// The answer was lost: either everything was executed or nothing.
    Unknown,
}

/// Limits of one buffer of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    messages: usize,
    /// In bytes; the message that reaches the limit is still included.
    bytes: usize,
}

/// Requests in one datagram, of which the last requests an acknowledgement. Sequence numbers are assigned
/// when the buffer is sent, so that a buffer can be filled while another one is in flight.
#[derive(Debug, Default)]
pub(crate) struct RequestBuffer {
    bytes: Vec<u8>,
    count: usize,
}

impl RequestBuffer {
    /// Returns the number of messages in the buffer.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Replaces the content by as many of the items as fit and returns their number. `encode` must add no
    /// flags.
    pub(crate) fn write<T>(
        &mut self,
        limits: Limits,
        items: &[T],
        mut encode: impl FnMut(&T, &mut Vec<u8>, u16, u32),
    ) -> usize {
        let Self { bytes, count } = self;
        bytes.clear();
        bytes.reserve(limits.bytes.min(items.len().min(limits.messages) * 80 + 512));
        let mut last_at = 0;
        *count = 0;
        for item in items.iter().take(limits.messages) {
            if *count > 0 && bytes.len() >= limits.bytes {
                break;
            }
            last_at = bytes.len();
            encode(item, bytes, 0, 0);
            *count += 1;
        }
        if let Some(flags) = codec::u16_at(bytes, last_at + 6)
            && let Some(field) = bytes.get_mut(last_at + 6..last_at + 8)
        {
            field.copy_from_slice(&(flags | NLM_F_ACK).to_ne_bytes());
        }
        *count
    }

    /// Assigns sequence numbers from `base` on.
    fn number(&mut self, base: u32) {
        let (mut at, mut number) = (0, base);
        while let Some(length) = codec::u32_at(&self.bytes, at)
            && let Some(field) = self.bytes.get_mut(at + 8..at + 12)
        {
            field.copy_from_slice(&number.to_ne_bytes());
            number = number.wrapping_add(1);
            at += codec::align(usize::try_from(length).unwrap_or_default().clamp(codec::HEADER, LONGEST));
        }
    }
}

/// A connected netlink socket.
pub(crate) struct Socket {
    raw: Raw,
    port: u32,
    seq: u32,
    send_buffer: usize,
    recv: Vec<u8>,
    batch_messages: usize,
    batch_bytes: usize,
}

impl Socket {
    /// Opens a route socket with large buffers, extended errors and strict checking of dumps, if allowed and
    /// supported.
    pub(crate) fn open() -> io::Result<Self> {
        Self::open_for(NETLINK_ROUTE)
    }

    /// Opens such a socket for a protocol (`NETLINK_...`).
    pub(crate) fn open_for(protocol: isize) -> io::Result<Self> {
        let mut raw = Raw::new(protocol)?;
        let port = raw.bind_auto()?.port_number();
        raw.connect(&SocketAddr::new(0, 0))?;
        // Older kernels lack these options: errors then have no text, and the reader filters dumps.
        let _ = raw.set_cap_ack(true);
        let _ = raw.set_ext_ack(true);
        let _ = raw.set_netlink_get_strict_chk(true);
        sockopt::set_socket_timeout(&raw, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        let receive = grow_recv_buffer(&raw, RECV_BUFFER)?;
        if sockopt::set_socket_send_buffer_size_force(&raw, SEND_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&raw, SEND_BUFFER);
        }
        let send = sockopt::socket_send_buffer_size(&raw)?;
        Ok(Self {
            raw,
            port,
            seq: 1,
            send_buffer: send,
            recv: Vec::with_capacity(64 << 10),
            batch_messages: (receive / ERROR_COST).clamp(16, BATCH),
            // The kernel refuses datagrams longer than the buffer minus 32 bytes; half of it leaves room for
            // the longest message.
            batch_bytes: (send / 2).min(512 << 10),
        })
    }

    /// Returns the port ID, which notifications caused by requests of this socket carry.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    /// Returns the limits of one buffer of requests.
    pub(crate) fn limits(&self) -> Limits {
        Limits { messages: self.batch_messages, bytes: self.batch_bytes }
    }

    /// Sends the requests that `encode` writes for the items (given flags to add and the sequence number) in
    /// as few batches as possible, and passes each result to `done`, in order.
    ///
    /// # Errors
    /// The socket itself fails; items without a result may or may not have been executed.
    pub(crate) fn batch<T>(
        &mut self,
        items: &[T],
        mut encode: impl FnMut(&T, &mut Vec<u8>, u16, u32),
        mut done: impl FnMut(&T, Result<(), Refusal>),
    ) -> io::Result<()> {
        let limits = self.limits();
        let mut buffer = RequestBuffer::default();
        let mut rest = items;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(buffer.write(limits, rest, &mut encode));
            let mut items = now.iter();
            self.send_buffer(&mut buffer, |result| {
                if let Some(item) = items.next() {
                    done(item, result);
                }
            })?;
            rest = later;
        }
        Ok(())
    }

    /// Sends a buffer and passes the result of each message to `done`, in order.
    ///
    /// # Errors
    /// The socket itself fails; the messages may or may not have been executed.
    pub(crate) fn send_buffer(
        &mut self,
        buffer: &mut RequestBuffer,
        mut done: impl FnMut(Result<(), Refusal>),
    ) -> io::Result<()> {
        let base = self.seq;
        buffer.number(base);
        self.seq = base.wrapping_add(u32::try_from(buffer.count).unwrap_or(u32::MAX));
        send(&self.raw, &buffer.bytes)?;
        let mut results: Vec<Option<Refusal>> = vec![None; buffer.count];
        let complete = self.answers(base, &mut results)?;
        for refusal in results {
            // In an incomplete batch, errors of any message may be lost, so no message counts as successful.
            done(match refusal {
                Some(refusal) => Err(refusal),
                None if complete => Ok(()),
                None => Err(Refusal::lost()),
            });
        }
        Ok(())
    }

    /// Reads answers up to that of the last message; false if some were lost.
    fn answers(&mut self, base: u32, results: &mut [Option<Refusal>]) -> io::Result<bool> {
        let last = results.len().saturating_sub(1);
        loop {
            self.recv.clear();
            match self.raw.recv(&mut self.recv, 0) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if lost(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
            for message in Messages(&self.recv) {
                if message.kind != NLMSG_ERROR {
                    continue;
                }
                let Ok(index) = usize::try_from(message.seq.wrapping_sub(base)) else { continue };
                if index > last {
                    continue;
                }
                if let (Some(refusal), Some(slot)) = (refusal(&message), results.get_mut(index)) {
                    *slot = Some(refusal);
                }
                if index == last {
                    return Ok(true);
                }
            }
        }
    }

    /// Sends one request with acknowledgement; `encode` is given the flags and the sequence number.
    pub(crate) fn request(
        &mut self,
        encode: impl FnMut(&(), &mut Vec<u8>, u16, u32),
    ) -> io::Result<Result<(), Refusal>> {
        let mut result = Ok(());
        self.batch(&[()], encode, |(), r| result = r)?;
        Ok(result)
    }

    /// Sends messages that the kernel executes all or none (nfnetlink), in one datagram. `encode` is given
    /// the sequence number of the first message, numbers the others consecutively, requests an
    /// acknowledgement of the last but one (the last is the end mark, which has no answer) and returns their
    /// number.
    ///
    /// # Errors
    /// The socket itself fails; the transaction may or may not have been executed.
    pub(crate) fn transaction(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>, u32) -> u32,
    ) -> io::Result<Result<(), TransactionError>> {
        let mut buf = Vec::with_capacity(16 << 10);
        let base = self.seq;
        let count = encode(&mut buf, base);
        self.seq = self.seq.wrapping_add(count);
        // The kernel refuses datagrams longer than the buffer minus 32 bytes.
        if buf.len() + 64 > self.send_buffer {
            let _ = sockopt::set_socket_send_buffer_size_force(&self.raw, buf.len());
            self.send_buffer = sockopt::socket_send_buffer_size(&self.raw)?;
        }
        send(&self.raw, &buf)?;
        let last = count.saturating_sub(2);
        let mut first: Option<(u32, Refusal)> = None;
        let mut overrun = false;
        loop {
            self.recv.clear();
            // The kernel is done when `send` returns, so after an overrun all remaining answers are in the
            // buffer.
            match self.raw.recv(&mut self.recv, if overrun { libc::MSG_DONTWAIT } else { 0 }) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if lost(&e) && e.raw_os_error() == Some(libc::ENOBUFS) => {
                    overrun = true;
                    continue;
                }
                Err(e) if lost(&e) => {
                    return Ok(Err(
                        first.map_or(TransactionError::Unknown, |(at, r)| TransactionError::Refused(at, r))
                    ));
                }
                Err(e) => return Err(e),
            }
            for message in Messages(&self.recv).filter(|m| m.kind == NLMSG_ERROR) {
                let at = message.seq.wrapping_sub(base);
                if at >= count {
                    continue;
                }
                if let Some(refusal) = refusal(&message)
                    && first.as_ref().is_none_or(|(other, _)| at < *other)
                {
                    first = Some((at, refusal));
                }
                // An error of the begin mark concerns the whole transaction; the last message may then have
                // no answer.
                let whole = first.as_ref().is_some_and(|(at, _)| *at == 0);
                if at == last || whole {
                    return Ok(first.map_or(Ok(()), |(at, r)| Err(TransactionError::Refused(at, r))));
                }
            }
        }
    }

    /// Sends a dump request and passes each answer to `each`. `Ok(false)` means that the table changed during
    /// the dump, or that answers were lost, so that the result may be incomplete.
    pub(crate) fn dump(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>, u32),
        mut each: impl FnMut(&codec::Message<'_>),
    ) -> io::Result<Result<bool, Refusal>> {
        self.dump_by_datagram(encode, |message| message.into_iter().for_each(&mut each))
    }

    /// Like [`Socket::dump`], with `None` for `each` after each datagram.
    pub(crate) fn dump_by_datagram(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>, u32),
        mut each: impl FnMut(Option<&codec::Message<'_>>),
    ) -> io::Result<Result<bool, Refusal>> {
        let seq = self.seq;
        self.seq = self.seq.wrapping_add(1);
        let mut request = Vec::with_capacity(64);
        encode(&mut request, seq);
        send(&self.raw, &request)?;
        let mut consistent = true;
        loop {
            self.recv.clear();
            match self.raw.recv(&mut self.recv, 0) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if lost(&e) => return Ok(Ok(false)),
                Err(e) => return Err(e),
            }
            let mut end = None;
            for message in Messages(&self.recv).filter(|message| message.seq == seq) {
                consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => {
                        let code = codec::u32_at(message.body, 0).map_or(0, u32::cast_signed);
                        end = Some(if code < 0 { Err(Refusal::new(-code, None)) } else { Ok(consistent) });
                        break;
                    }
                    NLMSG_ERROR => {
                        end = Some(refusal(&message).map_or(Ok(true), Err));
                        break;
                    }
                    _ => each(Some(&message)),
                }
            }
            each(None);
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }
}

/// Sets the size of the receive buffer, beyond the limit if allowed; returns the actual size.
pub(crate) fn grow_recv_buffer(raw: &Raw, bytes: usize) -> io::Result<usize> {
    if sockopt::set_socket_recv_buffer_size_force(raw, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(raw, bytes);
    }
    Ok(sockopt::socket_recv_buffer_size(raw)?)
}

/// First pause before a datagram is sent again for lack of kernel memory; it doubles.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of attempts, which take four seconds.
const ATTEMPTS: u32 = 12;

/// Sends a datagram. If the kernel lacks memory it has taken nothing, and may have memory again shortly
/// after.
fn send(raw: &Raw, datagram: &[u8]) -> io::Result<()> {
    send_again(|| raw.send(datagram, 0), std::thread::sleep)
}

fn send_again(mut send: impl FnMut() -> io::Result<usize>, pause: impl Fn(Duration)) -> io::Result<()> {
    let mut next = PAUSE;
    for _ in 1..ATTEMPTS {
        match send() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if is_short_of_memory(&e) => {
                pause(next);
                next *= 2;
            }
            other => return other.map(drop),
        }
    }
    send().map(drop)
}

fn is_short_of_memory(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN))
}

/// Returns true if a receive error means that answers were dropped or did not arrive in time.
fn lost(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
        || matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Decodes the refusal in an NLMSG_ERROR; `None` for an acknowledgement.
fn refusal(message: &codec::Message<'_>) -> Option<Refusal> {
    const NLM_F_CAPPED: u16 = 0x100;
    const NLM_F_ACK_TLVS: u16 = 0x200;
    const NLMSGERR_ATTR_MSG: u16 = 1;
    let code = codec::u32_at(message.body, 0)?.cast_signed();
    if code == 0 {
        return None;
    }
    let explanation = (message.flags & NLM_F_ACK_TLVS != 0)
        .then(|| {
            let echoed = if message.flags & NLM_F_CAPPED != 0 {
                codec::HEADER
            } else {
                codec::align(usize::try_from(codec::u32_at(message.body, 4)?).ok()?)
            };
            codec::Attrs::after(message.body, 4 + echoed)
                .find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG)
                .map(|(_, data)| codec::text(data))
        })
        .flatten();
    Some(Refusal::new(code.saturating_neg(), explanation))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However often the kernel lacks memory, a datagram is sent once or the error is returned, after
        /// some seconds at most.
        #[test]
        fn a_kernel_without_memory_is_asked_again(
            errors in proptest::collection::vec(prop::sample::select(vec![libc::ENOBUFS, libc::ENOMEM, libc::EAGAIN, libc::EINTR]), 0..20),
            fatal in prop::option::of(Just(libc::EPERM)),
        ) {
            let (mut sent, mut asked) = (0, 0);
            let waited = std::cell::Cell::new(Duration::ZERO);
            let result = send_again(
                || {
                    asked += 1;
                    match errors.get(asked - 1).copied().or(fatal) {
                        Some(error) => Err(io::Error::from_raw_os_error(error)),
                        None => {
                            sent += 1;
                            Ok(1)
                        }
                    }
                },
                |time| waited.set(waited.get() + time),
            );
            let few = errors.len() < 12;
            prop_assert_eq!((result.is_ok(), sent), (few && fatal.is_none(), usize::from(few && fatal.is_none())));
            prop_assert!(asked <= 12 && waited.get() < Duration::from_secs(5));
        }

        /// A buffer contains the messages once and in order, numbered from the base on; only the last message
        /// requests an acknowledgement.
        #[test]
        fn buffers_hold_every_message_once_numbered_and_the_last_asks(
            words in proptest::collection::vec(0..10_usize, 1..60),
            messages in 1..20_usize, bytes in 1..2_000_usize, base: u32,
        ) {
            let encode = |words: &usize, buf: &mut Vec<u8>, flags, seq| {
                let mut w = codec::Writer::begin(buf, 24, flags, seq);
                w.raw(&vec![7; *words * 4]);
                w.end();
            };
            let (mut buffer, mut rest, mut seen, mut number) = (RequestBuffer::default(), &*words, Vec::new(), base);
            while !rest.is_empty() {
                let count = buffer.write(Limits { messages, bytes }, rest, encode);
                buffer.number(number);
                let found: Vec<_> =
                    Messages(&buffer.bytes).map(|m| (m.seq, m.flags & NLM_F_ACK != 0, m.body.len() / 4)).collect();
                prop_assert!(count > 0 && count <= messages && found.len() == count);
                for (i, (seq, asks, words)) in found.into_iter().enumerate() {
                    prop_assert_eq!((seq, asks), (number, i + 1 == count));
                    number = number.wrapping_add(1);
                    seen.push(words);
                }
                rest = &rest[count..];
            }
            prop_assert_eq!(seen, words);
        }
    }
}
