//! Measures CPU time and memory of a daemon's processes, and the routes in its kernel.

use std::fs;
use std::io;
use std::time::Duration;

/// Process ids of a daemon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processes(pub(crate) Vec<u32>);

impl Processes {
    /// Returns user and system time in seconds of all threads so far, including those that ended.
    pub(crate) fn cpu(&self) -> io::Result<f64> {
        let mut sum = Duration::ZERO;
        for pid in &self.0 {
            let mut running = 0;
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                // The thread may have ended meanwhile.
                let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
                running += text.split_whitespace().next().and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
            }
            // Time of ended threads is only in the process's own counter, which has a resolution of 10 ms.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
            let hundredths: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
            sum += Duration::from_nanos(running).max(Duration::from_millis(hundredths * 10));
        }
        Ok(sum.as_secs_f64())
    }

    /// Returns the peak resident memory, summed over all processes, in MB.
    pub(crate) fn peak_mb(&self) -> io::Result<f64> {
        self.memory("VmHWM:")
    }

    /// Returns the current resident memory, summed over all processes, in MB.
    pub(crate) fn resident_mb(&self) -> io::Result<f64> {
        self.memory("VmRSS:")
    }

    fn memory(&self, field: &str) -> io::Result<f64> {
        let mut sum = 0.0;
        for pid in &self.0 {
            let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = text.lines().find_map(|l| l.strip_prefix(field));
            sum += line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0);
        }
        Ok(sum / 1024.0)
    }

    /// Returns the number of IPv4 prefixes in the main table of the daemon's namespace.
    pub(crate) fn fib(&self) -> io::Result<usize> {
        let Some(pid) = self.0.first() else { return Ok(0) };
        let text = fs::read_to_string(format!("/proc/{pid}/net/fib_triestat"))?;
        let main = text.split_once("Main:").map_or("", |(_, rest)| rest);
        Ok(main.lines().find_map(|l| l.trim().strip_prefix("Prefixes:")?.trim().parse().ok()).unwrap_or(0))
    }
}

/// Returns user and system time of this process in seconds.
pub(crate) fn own_cpu() -> f64 {
    Processes(vec![std::process::id()]).cpu().unwrap_or(0.0)
}
