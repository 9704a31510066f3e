//! Drops every Linux capability that the agent does not need, before its first thread starts.
//!
//! The remaining set was determined by tests: each entry of [`NEEDED`] names the operations that fail without
//! it.

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Capabilities that the agent keeps, each with its uses.
pub(super) const NEEDED: [(CapabilitySet, &str, &str); 5] = [
    (
        CapabilitySet::NET_ADMIN,
        "NET_ADMIN",
        "routes, links, rules, conntrack, TCP MD5, socket buffers, /proc/sys/net",
    ),
    (
        CapabilitySet::NET_RAW,
        "NET_RAW",
        "router advertisements to unnumbered peers, sockets bound to a device",
    ),
    (CapabilitySet::NET_BIND_SERVICE, "NET_BIND_SERVICE", "TCP port 179"),
    (CapabilitySet::SYS_NICE, "SYS_NICE", "real-time priority of BFD"),
    (CapabilitySet::CHOWN, "CHOWN", "the API's socket goes to the group tortie"),
];

/// Capabilities of the helper that enters network namespaces.
pub(super) const OF_HELPER: [(CapabilitySet, &str, &str); 3] = [
    (CapabilitySet::NET_ADMIN, "NET_ADMIN", "routing by source in a container's namespace"),
    (CapabilitySet::SYS_ADMIN, "SYS_ADMIN", "entering the network namespaces of this host"),
    // Container processes have capabilities that the helper lacks. Without this one their /proc/PID/ns is not
    // readable, and addresses in namespaces without a file would seem unused.
    (CapabilitySet::SYS_PTRACE, "SYS_PTRACE", "opening the network namespaces of processes"),
];

/// Returns the names of the capabilities in [`NEEDED`] that this thread has.
pub(super) fn held() -> Vec<String> {
    let Ok(now) = rustix::thread::capabilities(None) else { return Vec::new() };
    let held = NEEDED.iter().filter(|(one, ..)| now.effective.contains(*one));
    held.map(|(_, name, _)| (*name).to_owned()).collect()
}

/// Drops all other capabilities of the calling thread and its future children. A process with fewer
/// capabilities keeps those.
pub(super) fn keep(needed: &[(CapabilitySet, &str, &str)]) {
    let needed_set = needed.iter().fold(CapabilitySet::empty(), |all, (one, ..)| all | *one);
    // A program that root executes regains the capabilities in the bounding set.
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if needed_set.contains(one) || !rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false) {
            continue;
        }
        if rustix::thread::remove_capability_from_bounding_set(one).is_err() {
            // Without CAP_SETPCAP the bounding set cannot be reduced; only the current sets are.
            break;
        }
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    let done = rustix::thread::capabilities(None).and_then(|now| {
        let sets = CapabilitySets {
            effective: now.effective & needed_set,
            permitted: now.permitted & needed_set,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets)
    });
    if let Err(error) = done {
        tracing::warn!(target: "tortie", %error, "capabilities that are not needed cannot be dropped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_gone_for_good_and_what_is_needed_stays() {
        // Capabilities belong to threads, so other tests are not affected.
        let (before, after) = std::thread::spawn(|| {
            let before = rustix::thread::capabilities(None).unwrap();
            keep(&NEEDED);
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            (before, status)
        })
        .join()
        .unwrap();
        let set = |name: &str| {
            let line = after.lines().find_map(|l| l.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        // From capability.h: CHOWN 0, NET_BIND_SERVICE 10, NET_ADMIN 12, NET_RAW 13, SYS_NICE 23.
        let wanted: u64 = [0, 10, 12, 13, 23].iter().map(|bit| 1u64 << bit).sum();
        assert_eq!(set("CapPrm:"), before.permitted.bits() & wanted);
        assert_eq!(set("CapEff:"), before.effective.bits() & wanted);
        assert_eq!((set("CapInh:"), set("CapAmb:")), (0, 0));
        if before.effective.contains(CapabilitySet::SETPCAP) {
            assert_eq!(set("CapBnd:") & !wanted, 0);
        }
    }
}
