//! Fixes of the problems that `status` leaves to `doctor`.

use super::checks::health::TUNNELS;
use crate::api::codes::Severity;
use crate::api::problem::Problem;

/// Converts a problem for `doctor`: the next step becomes its fix.
pub(super) fn with_fix(problem: Problem) -> Problem {
    Problem { next: fix_for(&problem), severity: Severity::Warning, ..problem }
}

/// Returns the command or step that fixes a problem of the host.
pub(super) fn fix_for(problem: &Problem) -> String {
    let subject = problem.subject.as_str();
    match problem.code.as_str() {
        "forwarding-off" if subject.starts_with("IPv6") => {
            "sysctl -w net.ipv6.conf.all.forwarding=1".to_owned()
        }
        "forwarding-off" => "sysctl -w net.ipv4.ip_forward=1".to_owned(),
        "forward-dropped" => forward_fix(subject.strip_prefix("chain ").unwrap_or(subject)),
        "rp-filter" => format!("sysctl -w net.ipv4.conf.{subject}.rp_filter=2"),
        "missing-capability" => format!("AmbientCapabilities={subject} in the unit of the service"),
        "conntrack-full" => {
            "sysctl -w net.netfilter.nf_conntrack_max=N, with an N of twice as many".to_owned()
        }
        "clock-jump" => "timedatectl: let NTP slew the clock, so that it is stepped at boot only".to_owned(),
        "tunnel-mtu" => {
            let setting =
                TUNNELS.iter().find(|(name, ..)| *name == subject).map_or("IpInIpMtu", |(.., name)| name);
            format!(
                "tortie store put /calico/v1/config/{setting} MTU, or delete that key (on a store of Calico 3 the \
                 member of the FelixConfiguration)"
            )
        }
        "workload-mtu" => "give the interface, and its other end, the MTU of the path out".to_owned(),
        "disk-full" => {
            "free space there, or move the file to another file system: --datastore, --cache, LogFilePath"
                .to_owned()
        }
        "listen" => "stop the process that listens there, or give --bgp-listen ADDR:PORT".to_owned(),
        "tunnel" => "modprobe ipip (for VXLAN vxlan), or take the tunnel out of the pools".to_owned(),
        "stale-revision" => {
            "check etcd's load and the path to it: a firewall that drops idle connections, a proxy that \
             buffers what etcd sends; the agent retries"
                .to_owned()
        }
        "pool-over-network" => {
            format!(
                "tortie ipam pool create with a prefix that overlaps no network, then tortie ipam pool \
                 disable {subject}"
            )
        }
        "store-away" | "from-cache" => {
            "fix the store, or name another one with --datastore; the agent retries by itself".to_owned()
        }
        _ => "tortie status".to_owned(),
    }
}

/// Returns the fix for a chain that drops; `place` is family, table and chain.
fn forward_fix(place: &str) -> String {
    let mut names = place.split(' ').map(str::to_owned);
    let mut name = || names.next().unwrap_or_default();
    let drop = tortie_kernel::ForwardDrop {
        family: name(),
        table: name(),
        chain: name(),
        by_policy: false,
        names_workloads: false,
        has_docker_user: false,
    };
    drop.fix(super::proc::PREFIX)
}
