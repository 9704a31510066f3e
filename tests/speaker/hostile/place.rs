//! Assignment of the agent and its peers to processors.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Assignment of the agent and its peers to processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On all processors, in parallel with other tests.
    Shared,
    /// The agent on separate processors, with priority over everything else on the machine. In reality the
    /// peers are on other machines; with a shared scheduler, that would be measured.
    Apart,
}

impl Place {
    /// Moves this thread to the agent's processors, so that the agent starts there.
    pub(crate) fn of_agent(self) {
        self.take(0);
    }

    /// Moves this thread, and those that it starts, to the peers' processors.
    pub(crate) fn of_peers(self) {
        self.take(1);
    }

    fn take(self, half: usize) {
        if self == Self::Apart {
            sched_setaffinity(None, &halves()[half]).unwrap();
            real_time(2);
        }
    }

    /// Lets all other threads of the peers run before this one.
    pub(crate) fn give_way(self) {
        match self {
            Self::Shared => rustix::process::setpriority_process(None, 19).unwrap(),
            Self::Apart => real_time(1),
        }
    }
}

/// Returns the usable processors in two halves; a single processor is both.
fn halves() -> &'static [CpuSet; 2] {
    // The set before any thread was moved.
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

/// Sets real-time priority for this thread and those that it starts, where permitted.
fn real_time(priority: libc::c_int) {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: it reads one structure and affects this thread only.
    #[expect(unsafe_code, reason = "sched_setscheduler")]
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority);
    }
}
