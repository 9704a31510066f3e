//! Waits until the kernel's table in the daemon's namespace has all routes, or none of them.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::load::Load;
use super::measure::Processes;
use super::mix::Prefix;

/// Pauses between reads of the kernel's table, each of which takes 5 to 20 ms of CPU time for 100,000 routes:
/// the first, the maximum, and the minimum shortly before the end.
pub(crate) const FIRST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_millis(60);
const LEAST: Duration = Duration::from_millis(2);
/// Pause between lookups of one address, each of which takes a microsecond.
const ASK: Duration = Duration::from_micros(500);

/// A prefix near the end of the announcements, for lookups in the daemon's kernel. Daemons install routes in
/// the order of arrival, so the table is only worth reading once this prefix is installed; reading it takes
/// longer than installing the last routes.
pub(crate) struct Mark {
    socket: UdpSocket,
    inside: SocketAddr,
}

impl Mark {
    /// Chooses the last prefix that no other prefix covers.
    pub(crate) fn new(daemon: &Processes, prefixes: &[Prefix]) -> anyhow::Result<Self> {
        let alone = |mark: &&Prefix| prefixes.iter().filter(|p| p.covers(mark)).count() == 1;
        let mark = prefixes.iter().rev().find(alone).context("there are no prefixes")?;
        let pid = daemon.0.first().context("--pids: the processes of the daemon")?;
        let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
        // A separate thread enters the namespace, so that the rest of the process stays in its own. The
        // library's `Namespace` does the same, but the generator uses no code of the product: it builds in
        // seconds, and shares no bug with the daemon that it measures.
        let socket = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            UdpSocket::bind("0.0.0.0:0")
        });
        let socket = socket.join().map_err(|_| anyhow!("a thread ended in a panic"))??;
        Ok(Self { socket, inside: SocketAddr::new(mark.first(), 9) })
    }

    /// True if the kernel has a route to the prefix: `connect` looks one up and sends no packet.
    fn is_there(&self) -> bool {
        self.socket.connect(self.inside).is_ok()
    }
}

/// Waits until the number of routes in the kernel's table has changed from `start` to `goal`, and returns
/// that moment. It is the moment at which the mark appeared or vanished, if the next read of the table finds
/// all other routes done; otherwise the end of the read that finds them done. The table is read rarely while
/// the goal is far, to take little CPU time from the daemon, and often when it is near.
pub(crate) fn wait(
    load: &mut Load,
    daemon: &Processes,
    mark: &Mark,
    (start, goal): (usize, usize),
    deadline: Instant,
) -> io::Result<Option<Instant>> {
    let begin = Instant::now();
    let comes = start <= goal;
    let has = |now: usize| if comes { now >= goal } else { now <= goal };
    let mut moved = None;
    while moved.is_none() && Instant::now() < deadline {
        load.step(ASK)?;
        moved = (mark.is_there() == comes).then(Instant::now);
    }
    while Instant::now() < deadline {
        let now = daemon.fib()?;
        // The mark gives the exact moment if it was the last route, which the first read of the table shows.
        let moment = moved.take();
        if has(now) {
            return Ok(moment.or_else(|| Some(Instant::now())));
        }
        let (done, rest) = (now.abs_diff(start).max(1), now.abs_diff(goal));
        let pause = begin.elapsed().mul_f64(rest as f64 / done as f64 / 2.0);
        load.run_for(pause.clamp(LEAST, if done > 1 { MOST } else { FIRST }))?;
    }
    Ok(None)
}
