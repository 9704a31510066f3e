//! Moments in which the machine ran nothing, or delivered no packet to a program of the other end: a virtual
//! machine that its host stops, or a kernel that holds a processor, or does not get to its queues of packets.
//! No program can send or detect in time then, whatever its priority.

use std::fs::File;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{
    CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_getaffinity, sched_setaffinity,
};

use crate::rig::net::{FAR, Far, NEAR};

/// Interval of the looks at the clock.
const LOOK: Duration = Duration::from_millis(2);
/// A look that is later than this is a stall.
const LATE: Duration = Duration::from_millis(5);
/// Real-time priority, higher than that of the thread under test (SCHED_FIFO 10), which is not measured.
const PRIORITY: libc::c_int = 50;

/// Begin and end of a stall.
type Stall = (Instant, Instant);

/// A thread on each processor that looks at the clock all the time, until dropped.
pub(super) struct Stalls {
    stop: Arc<AtomicBool>,
    /// By processor, and those of the link.
    found: Vec<Arc<Mutex<Vec<Stall>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Stalls {
    pub(super) fn watch() -> Self {
        let usable = sched_getaffinity(None).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (mut found, mut threads) = (Vec::new(), Vec::new());
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu)) {
            let list = Arc::new(Mutex::new(Vec::new()));
            let (stop, own) = (Arc::clone(&stop), Arc::clone(&list));
            threads.push(std::thread::spawn(move || look(cpu, &stop, &own)));
            found.push(list);
        }
        Self { stop, found, threads }
    }

    /// Watches the link to the other namespace too, which is up meanwhile.
    pub(super) fn watch_with_link(far: &Far) -> Self {
        let mut this = Self::watch();
        let namespace = File::open(format!("/run/netns/{}", far.0)).unwrap();
        let list = Arc::new(Mutex::new(Vec::new()));
        let (stop, own) = (Arc::clone(&this.stop), Arc::clone(&list));
        this.threads.push(std::thread::spawn(move || receive(&namespace, &stop, &own)));
        let stop = Arc::clone(&this.stop);
        this.threads.push(std::thread::spawn(move || send(&stop)));
        this.found.push(list);
        this
    }

    /// Returns how long the machine stood still between two moments: of the processors, the one that did so
    /// longest.
    pub(super) fn between(&self, from: Instant, to: Instant) -> Duration {
        let overlap = |(begin, end): &Stall| (*end).min(to).saturating_duration_since((*begin).max(from));
        let of = |list: &Arc<Mutex<Vec<Stall>>>| {
            list.lock().unwrap_or_else(PoisonError::into_inner).iter().map(overlap).sum::<Duration>()
        };
        self.found.iter().map(of).max().unwrap_or_default()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Records the stalls of a processor.
fn look(cpu: usize, stop: &AtomicBool, found: &Mutex<Vec<Stall>>) {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).unwrap();
    if !is_raised() {
        // With an ordinary priority it would take the test's own load for a stall.
        return;
    }
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        due += LOOK;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        if now.saturating_duration_since(due) > LATE {
            found.lock().unwrap_or_else(PoisonError::into_inner).push((due, now));
            due = now;
        }
    }
}

/// Gives this thread its priority; false if that is not permitted.
fn is_raised() -> bool {
    let priority = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: it reads one structure and affects this thread only.
    #[expect(unsafe_code, reason = "sched_setscheduler")]
    let raised = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    raised == 0
}

const PORT: u16 = 7009;

/// Sends a datagram over the link at every look.
fn send(stop: &AtomicBool) {
    is_raised();
    let socket = UdpSocket::bind((NEAR[0], 0)).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let _ = socket.send_to(b"?", (FAR[0], PORT));
        std::thread::sleep(LOOK);
    }
}

/// Records the times in which no datagram comes to a program at the other end, with the priority of those
/// there.
fn receive(namespace: &File, stop: &AtomicBool, found: &Mutex<Vec<Stall>>) {
    use std::os::fd::AsFd as _;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    if rustix::process::nice(-19).is_err() {
        return;
    }
    let socket = UdpSocket::bind((FAR[0], PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let came = socket.recv(&mut [0; 8]).is_ok();
        let now = Instant::now();
        if now - last > LATE + LOOK {
            found.lock().unwrap_or_else(PoisonError::into_inner).push((last, now));
            last = now;
        }
        if came {
            last = now;
        }
    }
}
