//! One BGP session of the load generator. It encodes and decodes messages itself, so that it shares no bug
//! with the daemon that it measures.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use socket2::Socket;

use super::mix;
use super::received::{Received, Universe};

/// Hold time in seconds, above the longest silence of any tested daemon; UPDATEs count as keepalives.
const HOLD_TIME: u16 = 240;
/// Maximum number of octets that one call reads, so that all sessions are served.
pub(crate) const READ: usize = 256 * 1024;
/// Maximum number of octets that one call writes.
const WRITE: usize = 1 << 20;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Stage {
    Down,
    Connecting,
    OpenSent,
    Up,
}

/// Condition on received routes that ends a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Nothing,
    AtLeast(usize),
    AtMost(usize),
    /// This number of announced marks.
    Marks(usize),
}

pub(crate) struct Session {
    pub(crate) source: IpAddr,
    asn: u32,
    id: u32,
    pub(crate) stage: Stage,
    pub(crate) socket: Option<Socket>,
    /// Messages that it sends as soon as it is established.
    pub(crate) first: Rc<Vec<u8>>,
    /// True if it decodes the UPDATEs that it receives.
    pub(crate) watches: bool,
    pub(crate) target: Target,
    pub(crate) met: bool,
    pub(crate) met_at: Option<Instant>,
    pub(crate) received: Received,
    pub(crate) last_update: Option<Instant>,
    input: Vec<u8>,
    output: VecDeque<(Rc<Vec<u8>>, usize)>,
}

impl Session {
    /// Creates a session; `number` determines its BGP identifier.
    pub(crate) fn new(source: IpAddr, asn: u32, number: u32) -> Self {
        Self {
            source,
            asn,
            id: 0x0a41_0000 + number,
            stage: Stage::Down,
            socket: None,
            first: Rc::default(),
            watches: false,
            target: Target::Nothing,
            met: false,
            met_at: None,
            received: Received::default(),
            last_update: None,
            input: Vec::new(),
            output: VecDeque::new(),
        }
    }

    /// Queues complete messages.
    pub(crate) fn send(&mut self, messages: Rc<Vec<u8>>) {
        if !messages.is_empty() {
            self.output.push_back((messages, 0));
        }
    }

    pub(crate) fn keepalive(&mut self) {
        // A session with pending UPDATEs needs no keepalives.
        if self.stage == Stage::Up && self.output.is_empty() {
            self.message(4, &[]);
        }
    }

    fn message(&mut self, kind: u8, body: &[u8]) {
        let mut out = Vec::new();
        mix::message(&mut out, kind, body);
        self.send(Rc::new(out));
    }

    /// Discards all state of an ended connection.
    pub(crate) fn clear(&mut self) {
        self.socket = None;
        self.stage = Stage::Down;
        self.input = Vec::new();
        self.output.clear();
        self.received = Received::default();
    }

    /// Connects, reads and writes; true if more work is pending.
    pub(crate) fn advance(&mut self, universe: &Universe, scratch: &mut [u8]) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        if self.stage == Stage::Connecting {
            if let Some(e) = socket.take_error()? {
                return Err(e);
            }
            if socket.peer_addr().is_err() {
                return Ok(false);
            }
            self.stage = Stage::OpenSent;
            self.open();
        }
        let more_input = self.read(universe, scratch)?;
        let more_output = self.write()?;
        Ok(more_input || more_output)
    }

    fn read(&mut self, universe: &Universe, scratch: &mut [u8]) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        let mut socket = socket;
        let carried = self.input.len();
        let (kept, free) = scratch.split_at_mut(carried);
        let read = match socket.read(free) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        };
        kept.copy_from_slice(&self.input);
        let full = read == free.len();
        let all = scratch.get(..carried + read).unwrap_or_default();
        let mut rest = all;
        while let Some((len, kind)) = header(rest)
            && let Some(body) = rest.get(19..len)
        {
            self.take(universe, kind, body)?;
            rest = rest.get(len.max(19)..).unwrap_or_default();
        }
        self.input.clear();
        self.input.extend_from_slice(rest);
        // epoll is edge-triggered, but a short read has emptied the socket.
        Ok(full)
    }

    fn take(&mut self, universe: &Universe, kind: u8, body: &[u8]) -> io::Result<()> {
        match kind {
            1 => self.message(4, &[]),
            4 if self.stage == Stage::OpenSent => {
                self.stage = Stage::Up;
                self.send(self.first.clone());
                let end: &[u8] =
                    if self.source.is_ipv6() { &[0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1] } else { &[0, 0, 0, 0] };
                self.message(2, end);
            }
            2 if self.watches => {
                self.last_update = Some(Instant::now());
                self.received.update(universe, body).ok_or(io::ErrorKind::InvalidData)?;
            }
            3 => {
                let code = body.get(..2).unwrap_or_default();
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    format!("NOTIFICATION {code:?}"),
                ));
            }
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        let mut socket = socket;
        let mut written = 0;
        while let Some((bytes, at)) = self.output.front_mut() {
            if written >= WRITE {
                return Ok(true);
            }
            let rest = bytes.get(*at..).unwrap_or_default();
            match socket.write(rest.get(..WRITE).unwrap_or(rest)) {
                Ok(n) => {
                    written += n;
                    *at += n;
                    if *at >= bytes.len() {
                        self.output.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// Sends an OPEN with one address family and four-octet AS numbers.
    pub(crate) fn open(&mut self) {
        let mut body = vec![4];
        body.extend(u16::try_from(self.asn).unwrap_or(23456).to_be_bytes());
        body.extend(HOLD_TIME.to_be_bytes());
        body.extend(self.id.to_be_bytes());
        let family = if self.source.is_ipv6() { 2 } else { 1 };
        let mut capabilities = vec![1, 4, 0, family, 0, 1, 65, 4];
        capabilities.extend(self.asn.to_be_bytes());
        let len = u8::try_from(capabilities.len()).unwrap_or(0);
        body.extend([len + 2, 2, len]);
        body.extend(capabilities);
        self.message(1, &body);
    }
}

/// Returns length and type of the message at the front of `bytes`.
fn header(bytes: &[u8]) -> Option<(usize, u8)> {
    match bytes.get(16..19)? {
        [a, b, kind] => Some((usize::from(u16::from_be_bytes([*a, *b])), *kind)),
        _ => None,
    }
}
