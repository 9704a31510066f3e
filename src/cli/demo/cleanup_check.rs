//! Checks from outside, after the end of a demo, that nothing of it is left.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::checks::{Check, check};

/// Maximum time that the kernel may take to clean up.
const PATIENCE: Duration = Duration::from_secs(15);

/// Checks that these namespaces have no process, no name and no mount. `state_dir` is the lab's folder inside
/// them.
pub(super) fn nothing_left(namespaces: &[String], state_dir: &str) -> Check {
    let end = ticks_now();
    check("nothing_left", || {
        let begin = Instant::now();
        if namespaces.is_empty() {
            return Err("the inner process never reported its namespaces".to_owned());
        }
        let names: HashSet<&str> = namespaces.iter().map(String::as_str).collect();
        loop {
            let left = look(&names, state_dir, end);
            if left.is_empty() {
                let text = format!(
                    "0 of {} namespaces in /proc/*/ns, 0 processes, no mount in /proc/self/mountinfo, no name in /run/netns, no {state_dir}",
                    names.len()
                );
                return Ok((begin.elapsed(), text));
            }
            if begin.elapsed() > PATIENCE {
                return Err(left.join("; "));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

fn look(names: &HashSet<&str>, state_dir: &str, end: Option<u64>) -> Vec<String> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        // Namespace numbers are reused: a process that started after the demo cannot belong to it.
        if end.zip(started(pid)).is_some_and(|(end, started)| started > end) {
            continue;
        }
        for kind in ["net", "mnt", "pid", "uts", "ipc"] {
            let Ok(link) = fs::read_link(format!("/proc/{pid}/ns/{kind}")) else { continue };
            if names.contains(link.to_string_lossy().as_ref()) {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                left.push(format!("process {pid} ({}) in {}", name.trim(), link.display()));
                break;
            }
        }
    }
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        if let Ok(meta) = fs::metadata(entry.path())
            && names.contains(format!("net:[{}]", meta.ino()).as_str())
        {
            left.push(format!("{} is still there", entry.path().display()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    left.extend(mounts.lines().filter(|l| l.contains(state_dir)).map(|l| format!("mount {l}")));
    if fs::symlink_metadata(state_dir).is_ok() {
        left.push(format!("{state_dir} is still there"));
    }
    left
}

/// Returns the start time of a process in clock ticks since boot (proc_pid_stat(5), field 22).
fn started(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Returns the current time in clock ticks since boot.
fn ticks_now() -> Option<u64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split(' ').next()?.parse().ok()?;
    let ticks = Duration::from_secs_f64(seconds).as_millis() / 10;
    u64::try_from(ticks).ok()
}

/// Returns the process inside the namespaces, which is the child of the process `stand_in` outside.
pub(super) fn inner_process(stand_in: u32) -> Option<u32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| parent(*pid) == Some(stand_in))
}

fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Returns the process that holds the namespaces of a demo's node, for a demo of this user that runs now.
pub(super) fn holder_of(node: &str) -> Option<u32> {
    let pids: Vec<u32> = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .collect();
    let is_inner = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        words.get(1) == Some(&&b"demo"[..]) && words.contains(&&b"--inside"[..])
    };
    pids.iter().copied().find(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/root/etc/hostname")).unwrap_or_default();
        name.trim() == node && parent(*pid).is_some_and(is_inner)
    })
}
