//! Containers as network namespaces, and small servers in them.

#![allow(clippy::unwrap_used, dead_code, reason = "test helper")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::concurrency::uninterrupted;
use super::netns::ip;
use tortie_kernel::container::Namespace;

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Network namespace of a container, with a path; removed when dropped.
pub(crate) struct Pod {
    pub(crate) name: String,
}

impl Pod {
    pub(crate) fn new() -> Self {
        let name = format!("plumb-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        Self { name }
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    pub(crate) fn open(&self) -> Namespace {
        Namespace::open(&self.path()).unwrap()
    }

    /// Runs `ip` in the namespace.
    pub(crate) fn ip(&self, words: &str) -> String {
        ip(&format!("-n {} {words}", self.name))
    }

    /// Answers every connection and datagram on this port with its source address.
    pub(crate) fn serve_source_address(&self, port: u16) {
        self.open().run(|| serve_source_address(port)).unwrap();
    }

    /// Returns our source address as the server at `to` sees it.
    pub(crate) fn source_seen_by(&self, kind: Kind, to: &str) -> Result<IpAddr, String> {
        self.open().run(|| source_seen_by(kind, to)).unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = super::netns::try_ip(&format!("netns delete {}", self.name));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Udp,
}

/// Serves in the namespace of this thread until the process ends.
pub(crate) fn serve_source_address(port: u16) {
    let everywhere = SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), port);
    let tcp = TcpListener::bind(everywhere).unwrap();
    let udp = UdpSocket::bind(everywhere).unwrap();
    std::thread::spawn(move || {
        for stream in tcp.incoming() {
            let Ok(mut stream) = stream else { return };
            let from = stream.peer_addr().unwrap().ip().to_canonical();
            let _ = stream.write_all(from.to_string().as_bytes());
        }
    });
    std::thread::spawn(move || {
        let mut octets = [0; 64];
        while let Ok((_, from)) = uninterrupted(|| udp.recv_from(&mut octets)) {
            let _ = udp.send_to(from.ip().to_canonical().to_string().as_bytes(), from);
        }
    });
}

/// Connects from the namespace of this thread.
pub(crate) fn source_seen_by(kind: Kind, to: &str) -> Result<IpAddr, String> {
    let to: SocketAddr = to.parse().unwrap();
    // The kernel repeats a lost SYN after a second.
    let limit = Duration::from_secs(3);
    let failed = |what: &str, error: std::io::Error| format!("{what} {to}: {error}");
    let mut text = String::new();
    match kind {
        Kind::Tcp => {
            let mut stream = TcpStream::connect_timeout(&to, limit).map_err(|e| failed("connect", e))?;
            stream.set_read_timeout(Some(limit)).unwrap();
            stream.read_to_string(&mut text).map_err(|e| failed("read", e))?;
        }
        Kind::Udp => {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).map_err(|e| failed("connect", e))?;
            socket.set_read_timeout(Some(limit / 3)).unwrap();
            let mut octets = [0; 64];
            let mut ask = || {
                socket.send(b"?").map_err(|e| failed("send", e))?;
                uninterrupted(|| socket.recv(&mut octets)).map_err(|e| failed("receive", e))
            };
            let len = ask().or_else(|_| ask()).or_else(|_| ask())?;
            text = String::from_utf8_lossy(&octets[..len]).into_owned();
        }
    }
    text.parse().map_err(|_| format!("{to} says `{text}`"))
}

/// Returns the throughput in octets per second in one direction after the first burst: a stream from one
/// namespace to another for 1.5 s.
pub(crate) fn octets_a_second(from: &Namespace, to: &Namespace, addr: IpAddr, port: u16) -> f64 {
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(addr, port)).unwrap()).unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut octets = vec![0; 1 << 16];
        let begin = std::time::Instant::now();
        // The burst and TCP slow start are over after 0.5 s.
        let (mut first, mut all) = (None, 0usize);
        while begin.elapsed() < Duration::from_millis(1700) {
            let n = uninterrupted(|| stream.read(&mut octets)).unwrap();
            if n == 0 {
                break;
            }
            all += n;
            if first.is_none() && begin.elapsed() > Duration::from_millis(500) {
                first = Some((std::time::Instant::now(), all));
            }
        }
        let (at, had) = first.expect("something comes through for half a second");
        (all - had) as f64 / at.elapsed().as_secs_f64()
    });
    let mut stream = from.run(|| TcpStream::connect(SocketAddr::new(addr, port)).unwrap()).unwrap();
    let data = vec![0x5a; 1 << 16];
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_secs(2) && !reader.is_finished() {
        let _ = stream.write(&data);
    }
    reader.join().unwrap()
}
