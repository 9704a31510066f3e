//! BMP exporter (RFC 7854): one task per station, which sends the routes that peers announce and the Loc-RIB
//! (RFC 9069).
//!
//! ```text
//!  connect -> Initiation -> subscribe to the speaker's events (from here on in order)
//!    established sessions: Peer Up, then their Adj-RIB-In page by page, End-of-RIB
//!    meanwhile and after:  UPDATEs as received, Peer Up, Peer Down; statistics every minute
//!  a station that is too slow is disconnected and starts again with a new connection
//! ```
//!
//! [`exporter`] defines the messages: the Adj-RIB-In before policy, with UPDATEs passed on unchanged, after
//! policy, or both; and the Loc-RIB. Table pages and messages share one queue, which the speaker's thread
//! fills in the order of events, so that a page never reverts a later message.

pub(super) mod exporter;
pub(super) mod loc_rib;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tortie_bgp::bmp::{Message, Tlvs, info, termination};
use tortie_config::resource::BmpPolicy;

use crate::agent::bmp::exporter::BmpExporter;
use crate::agent::handle::{Handle, ask};
use crate::api::codes;
use crate::api::problem::Problem;
use crate::speaker::{SpeakerView, ToSpeaker, monitor_queue};

/// Limit in octets of a station's queue; beyond it the station is disconnected.
const QUEUE: usize = 32 * 1024 * 1024;
/// Timeout of a connection attempt and of each write.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest wait between connection attempts.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Interval of statistics messages.
const STATISTICS: Duration = Duration::from_secs(60);

struct StationTask {
    stop: watch::Sender<bool>,
    handle: tokio::task::JoinHandle<()>,
    problem: SharedProblem,
}

/// Reason why a station is not connected; `None` while it is.
type SharedProblem = Arc<Mutex<Option<String>>>;

fn set_problem(problem: &SharedProblem, text: Option<String>) {
    *problem.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// The configured stations, each with its task.
#[derive(Default)]
pub(super) struct BmpStations {
    tasks: HashMap<(SocketAddr, BmpPolicy), StationTask>,
}

impl BmpStations {
    /// Starts and stops tasks to match the configured stations.
    pub(super) fn follow(
        &mut self,
        wanted: &[(SocketAddr, BmpPolicy)],
        threads: &Arc<Handle>,
        io: &tokio::runtime::Handle,
    ) {
        self.tasks.retain(|station, task| {
            let keep = wanted.contains(station);
            if !keep {
                let _ = task.stop.send(true);
            }
            keep
        });
        for station in wanted {
            self.tasks.entry(*station).or_insert_with(|| {
                let (stop, stopped) = watch::channel(false);
                let problem = SharedProblem::default();
                let handle = io.spawn(serve(*station, Arc::clone(threads), stopped, Arc::clone(&problem)));
                StationTask { stop, handle, problem }
            });
        }
    }

    /// Returns a note for each station that is not connected.
    pub(super) fn notes(&self) -> impl Iterator<Item = Problem> {
        self.tasks.iter().filter_map(|((addr, _), task)| {
            let why = task.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
            let text = format!("the BMP station is not connected: {why}; the agent retries");
            Some(codes::BMP_STATION_AWAY.problem("", addr.to_string(), text))
        })
    }

    /// Ends all sessions with a Termination message; waits at most 1 s for each.
    pub(super) async fn stop(&mut self) {
        for (_, task) in self.tasks.drain() {
            let _ = task.stop.send(true);
            let _ = tokio::time::timeout(Duration::from_secs(1), task.handle).await;
        }
    }
}

/// Serves one station until it is removed from the configuration, and reconnects after failures.
async fn serve(
    (addr, policy): (SocketAddr, BmpPolicy),
    threads: Arc<Handle>,
    mut stopped: watch::Receiver<bool>,
    problem: SharedProblem,
) {
    let mut wait = RETRY.0;
    let mut warned = false;
    loop {
        let start = Instant::now();
        let Err(why) = session(addr, policy, &threads, stopped.clone(), &problem).await else { return };
        // An absent station is logged once, and once more when it is back.
        if start.elapsed() > CONNECT_TIMEOUT {
            wait = RETRY.0;
            warned = false;
        }
        set_problem(&problem, Some(why.clone()));
        if !std::mem::replace(&mut warned, true) {
            tracing::warn!(target: "tortie", "BMP station {addr}: {why}; retrying");
        }
        tokio::select! {
            () = tokio::time::sleep(wait.mul_f64(rand::random_range(0.75..1.0))) => {}
            () = stop_requested(&mut stopped) => return,
        }
        wait = (wait * 2).min(RETRY.1);
    }
}

/// Runs one connection. `Ok` means that the station was removed from the configuration.
async fn session(
    addr: SocketAddr,
    policy: BmpPolicy,
    threads: &Handle,
    mut stopped: watch::Receiver<bool>,
    problem: &SharedProblem,
) -> Result<(), String> {
    let stream = tokio::select! {
        stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)) => {
            stream.map_err(|_| "no answer".to_owned())?.map_err(|e| e.to_string())?
        }
        () = stop_requested(&mut stopped) => return Ok(()),
    };
    let speaker = threads.speaker().get().ok_or("the speaker has not started yet")?;
    tracing::info!(target: "tortie", "BMP station {addr}: connected");
    set_problem(problem, None);
    let (mut reader, mut writer) = stream.into_split();
    let mut out = Vec::new();
    initiation(threads.node(), &mut out);
    let (sender, mut queue) = monitor_queue(QUEUE);
    speaker.send(ToSpeaker::Monitor(sender.clone())).map_err(|e| e.to_string())?;
    let mut exporter = BmpExporter::new(speaker, sender, policy);
    let mut statistics = tokio::time::interval_at(tokio::time::Instant::now() + STATISTICS, STATISTICS);
    let mut ignored = [0; 256];
    loop {
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            // While the station accepts some octets, however slowly, only the queue limit disconnects it.
            let written = tokio::time::timeout(CONNECT_TIMEOUT, writer.write(rest)).await;
            let taken = written.map_err(|_| "it no longer reads".to_owned())?.map_err(|e| e.to_string())?;
            rest = rest.get(taken..).unwrap_or_default();
        }
        out.clear();
        tokio::select! {
            biased;
            () = stop_requested(&mut stopped) => {
                end(termination::ADMIN, &mut out);
                let _ = tokio::time::timeout(CONNECT_TIMEOUT, writer.write_all(&out)).await;
                let _ = writer.shutdown().await;
                return Ok(());
            }
            read = reader.read(&mut ignored) => match read {
                Ok(0) => return Err("it closed the connection".to_owned()),
                Ok(_) => {}
                Err(e) => return Err(e.to_string()),
            },
            event = queue.next() => {
                let event = event.ok_or("the BGP speaker has stopped, or has too many listeners")?;
                if exporter.on_monitor_event(event, &queue, &mut out).is_err() {
                    end(termination::RESOURCES, &mut out);
                    let _ = tokio::time::timeout(CONNECT_TIMEOUT, writer.write_all(&out)).await;
                    return Err("it reads more slowly than BGP changes, and is resynchronised".to_owned());
                }
                exporter.request_next();
            }
            _ = statistics.tick() => {
                let counts = |view: &SpeakerView<'_>| (view.peers(), view.totals());
                if let Ok((peers, totals)) = ask(&*exporter.speaker, counts).await {
                    exporter.statistics(&peers, &totals, &mut out);
                }
            }
        }
    }
}

async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    // A dropped sender also means stop.
    let _ = stopped.wait_for(|stop| *stop).await;
}

fn initiation(node: &str, out: &mut Vec<u8>) {
    let mut tlvs = Vec::new();
    Tlvs::push(&mut tlvs, info::SYS_DESCR, concat!("tortie ", env!("CARGO_PKG_VERSION")).as_bytes());
    Tlvs::push(&mut tlvs, info::SYS_NAME, node.as_bytes());
    Message::Initiation(Tlvs::new(&tlvs).unwrap_or_default()).write(out);
}

fn end(reason: u16, out: &mut Vec<u8>) {
    let mut tlvs = Vec::new();
    Tlvs::push(&mut tlvs, termination::REASON, &reason.to_be_bytes());
    Message::Termination(Tlvs::new(&tlvs).unwrap_or_default()).write(out);
}
