//! An agent socket with one fixed answer, for tests of its clients.

#![allow(clippy::unwrap_used, dead_code, reason = "test helper")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// Answers every POST with `answer`, and records the requests.
pub(crate) fn serve_fixed_answer(socket: &Path, answer: Value) -> Arc<Mutex<Vec<Value>>> {
    let listener = UnixListener::bind(socket).unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (received, answer) = (Arc::clone(&received), answer.clone());
            std::thread::spawn(move || serve_one(stream.unwrap(), &received, &answer));
        }
    });
    requests
}

fn serve_one(mut stream: UnixStream, received: &Mutex<Vec<Value>>, answer: &Value) {
    let mut text = Vec::new();
    let mut octets = [0; 4096];
    let body = loop {
        match stream.read(&mut octets) {
            Ok(n) if n > 0 => text.extend(octets.iter().take(n)),
            _ => return,
        }
        let head = text.windows(4).position(|w| w == b"\r\n\r\n");
        if head.is_some() && text.starts_with(b"GET ") {
            // The answer of an earlier agent version to an unknown request.
            let _ = write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
            return;
        }
        let body = head.and_then(|at| serde_json::from_slice::<Value>(text.get(at + 4..)?).ok());
        if let Some(body) = body {
            break body;
        }
    };
    received.lock().unwrap().push(body);
    let answer = answer.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
    let _ = write!(stream, "{head}: {}\r\n\r\n{answer}", answer.len());
}
