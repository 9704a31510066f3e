//! Where the agent and its peers run.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the agent and its peers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On all processors, among the other tests.
    Shared,
    /// The agent on processors of its own, and all before everything else that the machine does. The peers would be on other
    /// machines: with one scheduler for all of them it would be the one that is measured.
    Apart,
}

impl Place {
    /// Brings this thread where the agent is to run, so that it starts there.
    pub(crate) fn of_agent(self) {
        self.take(0);
    }

    /// Brings this thread, and those that it starts, where the peers are to run.
    pub(crate) fn of_peers(self) {
        self.take(1);
    }

    fn take(self, half: usize) {
        if self == Self::Apart {
            sched_setaffinity(None, &halves()[half]).unwrap();
            real_time(2);
        }
    }

    /// For this thread all others of the peers go first.
    pub(crate) fn give_way(self) {
        match self {
            Self::Shared => rustix::process::setpriority_process(None, 19).unwrap(),
            Self::Apart => real_time(1),
        }
    }
}

/// The processors that the process may use in two halves; a single one is both.
fn halves() -> &'static [CpuSet; 2] {
    // As they were before anything was taken to one of them.
    static HALVES: OnceLock<[CpuSet; 2]> = OnceLock::new();
    HALVES.get_or_init(|| {
        let all = sched_getaffinity(None).unwrap();
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|n| all.is_set(*n)).collect();
        let (first, second) = all.split_at(all.len() / 2);
        [if first.is_empty() { second } else { first }, second].map(|part| {
            let mut set = CpuSet::new();
            part.iter().for_each(|n| set.set(*n));
            set
        })
    })
}

/// Real-time priority for this thread and those that it starts, where that is allowed.
fn real_time(priority: libc::c_int) {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: it reads one structure and concerns this thread alone.
    #[expect(unsafe_code, reason = "sched_setscheduler")]
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority);
    }
}
