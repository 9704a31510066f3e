//! Tests of many connections to one port, on a paused clock that advances only while all tasks wait.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;

const FEW: Limits = Limits { connections: 3, requests: 2, octets: 256 << 10 };

/// Listener that receives connections from a test.
struct Door(mpsc::Receiver<DuplexStream>);

impl Listener for Door {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.recv().await {
            Some(stream) => (stream, ()),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects to the port; its transport buffers 4 KiB.
async fn connect(door: &mpsc::Sender<DuplexStream>) -> DuplexStream {
    let (client, server) = duplex(4 << 10);
    door.send(server).await.unwrap();
    client
}

async fn ask(stream: &mut DuplexStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
}

/// Returns the status of the next answer; `None` if the connection was closed.
async fn status(stream: &mut DuplexStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()?.split(' ').nth(1).map(str::to_owned)
}

/// Serves an answer of 200 KiB at `/large`, a short one at `/short`, and none for an hour at `/never`.
fn port(made: &Arc<AtomicUsize>) -> mpsc::Sender<DuplexStream> {
    let (door, connections) = mpsc::channel(64);
    let made = Arc::clone(made);
    let large = move || {
        made.fetch_add(1, Ordering::Relaxed);
        async { vec![b'x'; 200 << 10] }
    };
    let never = || async { tokio::time::sleep(Duration::from_secs(3_600)).await };
    let app = Router::new()
        .route("/large", get(large))
        .route("/short", get(|| async { "yes" }))
        .route("/never", get(never));
    tokio::spawn(serve(Door(connections), app, FEW, |_| None));
    door
}

#[tokio::test(start_paused = true)]
async fn answers_that_nobody_reads_are_few_and_end() {
    let made = Arc::default();
    let door = port(&made);
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(&door).await;
        ask(&mut stream, "/large").await;
        slow.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    // There is memory for one answer, so the others are rejected.
    assert_eq!(status(&mut slow[0]).await.as_deref(), Some("200"));
    let refused = [status(&mut slow[1]).await, status(&mut slow[2]).await];
    assert_eq!(refused.map(Option::unwrap), ["503", "503"]);
    // The stalled client is disconnected, and its permits are free again.
    tokio::time::sleep(WINDOW).await;
    let mut left = Vec::new();
    slow[0].read_to_end(&mut left).await.unwrap();
    assert!(left.len() < 64 << 10, "{} octets came after the end of patience", left.len());
    drop(slow);
    let mut next = connect(&door).await;
    ask(&mut next, "/large").await;
    assert_eq!(status(&mut next).await.as_deref(), Some("200"));
    let mut body = vec![0; 200 << 10];
    next.read_exact(&mut body).await.unwrap();
    assert!(body.iter().all(|octet| *octet == b'x'));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_that_goes_on_reading_gets_all() {
    let door = port(&Arc::default());
    let mut stream = connect(&door).await;
    ask(&mut stream, "/large").await;
    assert_eq!(status(&mut stream).await.as_deref(), Some("200"));
    let mut body = vec![0; 200 << 10];
    for piece in body.chunks_mut(4 << 10) {
        tokio::time::sleep(Duration::from_secs(3)).await;
        stream.read_exact(piece).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_says_nothing_loses_its_place() {
    let door = port(&Arc::default());
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(connect(&door).await);
    }
    silent[0].write_all(b"GET /short HT").await.unwrap();
    let mut waits = connect(&door).await;
    ask(&mut waits, "/short").await;
    assert_eq!(status(&mut waits).await.as_deref(), Some("200"), "when the others are cut off");
    for stream in &mut silent {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_limit_are_refused() {
    let door = port(&Arc::default());
    let mut all = Vec::new();
    for path in ["/never", "/never", "/short"] {
        let mut stream = connect(&door).await;
        ask(&mut stream, path).await;
        tokio::task::yield_now().await;
        all.push(stream);
    }
    assert_eq!(status(&mut all[2]).await.as_deref(), Some("503"));
}

#[tokio::test(start_paused = true)]
async fn only_the_first_version_of_the_protocol_is_spoken() {
    let door = port(&Arc::default());
    let mut stream = connect(&door).await;
    // RFC 9113, section 3.4.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
}
