//! Waits until the daemon's kernel has all routes, or none of them.

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

/// Between two looks at the kernel's table, each of which takes 5 to 20 ms of a processor for 100,000 routes: at first and at
/// most, and shortly before the end.
pub(crate) const FIRST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_millis(60);
const LEAST: Duration = Duration::from_millis(2);
/// Between two questions about one address, each of which takes a microsecond.
const ASK: Duration = Duration::from_micros(500);

/// A prefix near the end of what is announced, which the daemon's kernel is asked for: daemons write routes in the order in
/// which these come, so that the table is worth a look when this one is there. A look takes longer than the last routes do.
pub(crate) struct Mark {
    socket: UdpSocket,
    inside: SocketAddr,
}

impl Mark {
    /// The last prefix that none of the others covers.
    pub(crate) fn new(daemon: &Processes, prefixes: &[Prefix]) -> anyhow::Result<Self> {
        let alone = |mark: &&Prefix| prefixes.iter().filter(|p| p.covers(mark)).count() == 1;
        let mark = prefixes.iter().rev().find(alone).context("there are no prefixes")?;
        let pid = daemon.0.first().context("--pids: the processes of the daemon")?;
        let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
        // A thread of its own enters the namespace, so that all else stays where it is. `Namespace` of the library does the
        // same, but the generator has none of our code: it is built in seconds, and shares no bug with what it measures.
        let socket = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            UdpSocket::bind("0.0.0.0:0")
        });
        let socket = socket.join().map_err(|_| anyhow!("a thread ended in a panic"))??;
        Ok(Self { socket, inside: SocketAddr::new(mark.first(), 9) })
    }

    /// Whether the kernel has a route: it looks one up to connect, and sends nothing.
    fn is_there(&self) -> bool {
        self.socket.connect(self.inside).is_ok()
    }
}

/// Waits until the kernel's table has come from so many routes to so many; gives the moment. That is when the mark comes or
/// goes, where a look at the table says then that it was the last; else the end of the look that finds all. Looks are
/// few while it is far from that, so that they take little from the daemon, and close when it is near.
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
        // The mark tells the moment where it was the last, which the first look says.
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
