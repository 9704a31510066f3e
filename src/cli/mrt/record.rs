//! `dump` and `updates`: writes records from the agent to a file.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tortie_bgp::mrt::{Body, Raw};
use tortie_config::counted;

use crate::cli::client::{Client, escape};
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};

/// Destination of records. A complete dump is written under a temporary name and then renamed.
struct Sink {
    out: Box<dyn Write>,
    names: Option<(PathBuf, PathBuf)>,
}

impl Sink {
    fn create(path: &Path, whole: bool) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self { out: Box::new(io::stdout().lock()), names: None });
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = if whole { PathBuf::from(partial) } else { path.to_owned() };
        let file = File::create(&partial)
            .map_err(|e| Failure::usage(format!("{} cannot be written: {e}", partial.display())))?;
        let names = whole.then(|| (partial, path.to_owned()));
        Ok(Self { out: Box::new(BufWriter::new(file)), names })
    }

    fn write(&mut self, octets: &[u8]) -> Result<(), Failure> {
        self.out.write_all(octets).map_err(|e| failed(&e))
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|e| failed(&e))?;
        self.names.take().map_or(Ok(()), |(from, to)| std::fs::rename(from, to).map_err(|e| failed(&e)))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.names {
            // An incomplete table looks like a complete one, so it is removed.
            let _ = std::fs::remove_file(partial);
        }
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(Exit::Partial, "output", format!("the file cannot be written: {error}"))
}

/// Parses records as far as needed to count them.
#[derive(Default)]
struct Counter {
    pending: Vec<u8>,
    records: u64,
    received: u64,
    sent: u64,
    lost: u64,
}

impl Counter {
    /// Appends complete records to `out`, except those that carry status of the agent.
    fn feed(&mut self, octets: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        self.pending.extend_from_slice(octets);
        let mut done = 0;
        while let Some(rest) = self.pending.get(done..) {
            let raw = Raw::next(rest).map_err(|e| Failure::new(Exit::Partial, "no-mrt", e.to_string()))?;
            let Some(raw) = raw else { break };
            if raw.kind == 0 {
                self.lost += raw.body.first_chunk().map_or(0, |n| u64::from_be_bytes(*n));
            } else {
                self.records += 1;
                if let Ok(Body::Message(message)) = raw.decode().map(|r| r.body) {
                    *(if message.sent { &mut self.sent } else { &mut self.received }) += 1;
                }
                out.extend_from_slice(rest.get(..raw.len()).unwrap_or_default());
            }
            done += raw.len();
        }
        self.pending.drain(..done);
        Ok(())
    }
}

/// A progress line, updated each second, only on a terminal.
struct Progress {
    last: Instant,
    shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self { last: Instant::now(), shown: false }
    }

    fn show(&mut self, text: impl FnOnce() -> String) {
        if io::stderr().is_terminal() && self.last.elapsed() >= Duration::from_secs(1) {
            self.last = Instant::now();
            self.shown = true;
            eprint!("\r\x1b[K{}", text());
        }
    }

    fn end(&self, text: &str) {
        let clear = if self.shown { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{text}");
    }
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    match body.frame().await {
        Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
        Some(Err(error)) => Err(Failure::new(
            Exit::Partial,
            "broken",
            format!("the agent stopped before the end: {error}; nothing was written, try again"),
        )),
        None => Ok(None),
    }
}

/// Executes `dump`: writes the whole table.
pub(super) async fn dump(context: &Context, file: &Path) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    let (about, mut body) = client.stream("/v1/bgp/mrt/table", "x-tortie-prefixes").await?;
    let about = about.unwrap_or_default();
    let mut sink = Sink::create(file, true)?;
    let (mut counter, mut progress, start) = (Counter::default(), Progress::new(), Instant::now());
    let mut whole = Vec::new();
    while let Some(octets) = next(&mut body).await? {
        whole.clear();
        counter.feed(&octets, &mut whole)?;
        sink.write(&whole)?;
        progress.show(|| format!("{} of about {about} prefixes", counter.records.saturating_sub(1)));
    }
    if !counter.pending.is_empty() || counter.records == 0 {
        return Err(Failure::new(Exit::Partial, "broken", "the agent stopped before the end: try again"));
    }
    sink.finish()?;
    let prefixes = counter.records - 1;
    progress.end(&format!("{} in {:.1} s", counted(prefixes, "prefix"), start.elapsed().as_secs_f64()));
    Ok(())
}

/// Executes `updates`: writes messages until it is stopped.
pub(super) async fn updates(
    context: &Context,
    file: &Path,
    peer: Option<&str>,
    seconds: Option<u64>,
) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    let query = peer.map(|p| format!("?peer={}", escape(p))).unwrap_or_default();
    let (_, mut body) = client.stream(&format!("/v1/bgp/mrt/updates{query}"), "").await?;
    let mut sink = Sink::create(file, false)?;
    let (mut counter, mut progress) = (Counter::default(), Progress::new());
    let end = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(end);
    let mut whole = Vec::new();
    let mut is_reported = false;
    let ended = loop {
        tokio::select! {
            octets = next(&mut body) => {
                let Ok(Some(octets)) = octets else { break Some("the agent stopped, or too many record already") };
                whole.clear();
                counter.feed(&octets, &mut whole)?;
                sink.write(&whole)?;
                // Flushing makes the records readable during the recording.
                sink.out.flush().map_err(|e| failed(&e))?;
                if !std::mem::replace(&mut is_reported, true) {
                    eprintln!("recording; ctrl-c ends it");
                }
                progress.show(|| format!("{} records", counter.records));
            }
            () = &mut end => break None,
            _ = tokio::signal::ctrl_c() => break None,
        }
    };
    sink.finish()?;
    let Counter { records, received, sent, lost, .. } = counter;
    progress.end(&format!(
        "{}: {} received, {sent} sent, {lost} lost",
        counted(records, "record"),
        counted(received, "message")
    ));
    if let Some(why) = ended {
        return Err(Failure::new(Exit::Partial, "broken", format!("the recording ended early: {why}")));
    }
    if lost > 0 {
        let text = format!(
            "the recording lost {}: the disk or this machine is too slow for them",
            counted(lost, "record")
        );
        return Err(Failure::new(Exit::Partial, "lost", text));
    }
    Ok(())
}
