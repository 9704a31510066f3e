//! BMP stations (RFC 7854): a task for each, which sends it what peers send, and the Loc-RIB (RFC 9069).
//!
//! ```text
//!  connect -> Initiation -> listen at the speaker (from here on everything is in order)
//!    sessions that are up: Peer Up, then their Adj-RIB-In page by page, End-of-RIB
//!    meanwhile and after:  UPDATEs as they came, Peer Up, Peer Down; statistics each minute
//!  a station that does not keep up is disconnected and resynchronised
//! ```
//!
//! Which messages, and how, is in [`exporter`](crate::agent::bmp::exporter): the Adj-RIB-In before policy, where what a peer sent is passed on as it
//! was, after policy, or both; and the Loc-RIB. Pages of a table and messages come over one queue, which the speaker's thread fills in the
//! order of events, so that a page never undoes a later message.

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

/// Octets that wait for a station; more, and it is disconnected.
const QUEUE: usize = 32 * 1024 * 1024;
/// How long a connect, and each write, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Waits between attempts: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Between statistics.
const STATISTICS: Duration = Duration::from_secs(60);

struct StationTask {
    stop: watch::Sender<bool>,
    handle: tokio::task::JoinHandle<()>,
    problem: SharedProblem,
}

/// Why a station is not connected.
type SharedProblem = Arc<Mutex<Option<String>>>;

fn set_problem(problem: &SharedProblem, text: Option<String>) {
    *problem.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// The stations that are wanted now, each with its task.
#[derive(Default)]
pub(super) struct BmpStations {
    tasks: HashMap<(SocketAddr, BmpPolicy), StationTask>,
}

impl BmpStations {
    /// Starts and ends tasks so that these stations are served.
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

    /// Notes on those that are not connected.
    pub(super) fn notes(&self) -> impl Iterator<Item = Problem> {
        self.tasks.iter().filter_map(|((addr, _), task)| {
            let why = task.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
            let text = format!("the BMP station is not connected: {why}; retrying");
            Some(codes::BMP_STATION_AWAY.problem("", addr.to_string(), text))
        })
    }

    /// Says goodbye to all.
    pub(super) async fn stop(&mut self) {
        for (_, task) in self.tasks.drain() {
            let _ = task.stop.send(true);
            let _ = tokio::time::timeout(Duration::from_secs(1), task.handle).await;
        }
    }
}

/// One station until it is no longer wanted.
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
        // A station that is away for a day is one line, and one when it is back.
        if start.elapsed() > CONNECT_TIMEOUT {
            wait = RETRY.0;
            warned = false;
        }
        set_problem(&problem, Some(why.clone()));
        if !std::mem::replace(&mut warned, true) {
            tracing::warn!(target: "tortie", "BMP station {addr}: {why}; trying again");
        }
        tokio::select! {
            () = tokio::time::sleep(wait.mul_f64(rand::random_range(0.75..1.0))) => {}
            () = stop_requested(&mut stopped) => return,
        }
        wait = (wait * 2).min(RETRY.1);
    }
}

/// One connection. `Ok`: the station is no longer wanted.
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
            // As long as it takes something, however slowly, the queue decides.
            let written = tokio::time::timeout(CONNECT_TIMEOUT, writer.write(rest)).await;
            let taken =
                written.map_err(|_| "it takes nothing any more".to_owned())?.map_err(|e| e.to_string())?;
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
                let event = event.ok_or("the speaker has stopped, or too many listen to it")?;
                if exporter.on_monitor_event(event, &queue, &mut out).is_err() {
                    end(termination::RESOURCES, &mut out);
                    let _ = tokio::time::timeout(CONNECT_TIMEOUT, writer.write_all(&out)).await;
                    return Err("it reads more slowly than BGP changes; it is resynchronised".to_owned());
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
    // A sender that is gone means the same.
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
