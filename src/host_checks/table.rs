//! The list of host checks: codes of each check, and the commands that run it.

use super::checks::{
    agent, capabilities, data_model, health, kernel, migration, node_environment, other_daemons, ports,
    sockets, store,
};
use super::host::{Command, Host};
use super::result::{CheckResult, Results, Verdict};
use super::snapshot::{HostSnapshot, Role};
use crate::api::codes::{self, Code};
use crate::api::problem::Problem;

/// Position of a check in the report of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The command does not run the check.
    No,
    /// All results are reported, at this position.
    All(u8),
    /// Only results that are not ok are reported, at this position.
    NotOk(u8),
}

/// A host check.
#[derive(Debug)]
pub struct Check {
    /// Name for tests and documents.
    pub name: &'static str,
    /// All codes that its results may have.
    pub codes: &'static [&'static Code],
    /// Position in `tortie doctor`.
    pub doctor: Place,
    /// Position in `tortie status`.
    pub status: Place,
    /// Position in `tortie migrate check`.
    pub migrate: Place,
    run: fn(&Host<'_>, &mut Results),
}

impl Check {
    /// Returns the position of this check in the report of a command.
    #[must_use]
    pub fn place(&self, command: Command) -> Place {
        match command {
            Command::Doctor => self.doctor,
            Command::Status => self.status,
            Command::MigrateCheck => self.migrate,
        }
    }

    /// Runs this check alone and returns its results.
    #[must_use]
    pub fn results(&self, host: &Host<'_>) -> Vec<CheckResult> {
        let mut results = Results::default();
        (self.run)(host, &mut results);
        results.into_inner()
    }
}

macro_rules! checks {
    ($($name:literal [$($code:ident),*] $doctor:expr, $status:expr, $migrate:expr => $run:path;)*) => {
        /// All checks: name, codes, positions in `doctor`, `status` and `migrate check`, and function.
        pub const CHECKS: &[Check] = &[$(Check {
            name: $name,
            codes: &[$(&codes::$code),*],
            doctor: $doctor,
            status: $status,
            migrate: $migrate,
            run: $run,
        }),*];
    };
}

use Place::{All, No, NotOk};

checks! {
    "data model of the store" [CALICO_3] All(0), No, NotOk(19) => store::data_model;
    "kernel features" [
        CHECK_KERNEL, CHECK_LINKS, CHECK_ROUTES, CHECK_NEXTHOP_OBJECTS, CHECK_IPIP, CHECK_VXLAN, CHECK_NFT_TABLE, CHECK_NFT_SETS,
        CHECK_NFT_CONCATENATION, CHECK_NFT_VERDICT_MAP, CHECK_NFT_COUNTERS, CHECK_NFT_CONNTRACK, CHECK_NFT_FIB,
        CHECK_NFT_LOG, CHECK_NFT_NAT, CHECK_CONNTRACK
    ] All(1), No, NotOk(20) => kernel::features;
    "socket options" [CHECK_SOCKETS, CHECK_TCP_MD5, CHECK_TCP_AO, CHECK_TTL_SECURITY, CHECK_REAL_TIME]
        All(2), No, NotOk(21) => sockets::options;
    "capabilities" [CHECK_CAPABILITIES, MISSING_CAPABILITY] All(3), All(1), NotOk(22) => capabilities::capabilities;
    "ports" [CHECK_PORT, CHECK_PORT_TAKEN] All(4), No, All(9) => ports::ports;
    "other daemons" [CHECK_OTHER_DAEMON] All(5), No, No => other_daemons::running;
    "rules of Felix" [CHECK_FELIX_RULES] All(6), No, No => other_daemons::felix_rules;
    "NetworkManager" [CHECK_NETWORK_MANAGER] All(7), No, NotOk(23) => other_daemons::network_manager;
    "store" [CHECK_STORE, STORE_AWAY, STORE_READ_ONLY, STORE_DAMAGED] All(8), No, All(2) => store::answers;
    "file of the store" [CHECK_STORE_ABSENT] All(9), No, NotOk(24) => store::file;
    "pools" [NO_POOL] All(10), No, NotOk(25) => store::pools;
    "pools and networks" [POOL_OVER_NETWORK] All(23), All(8), No => store::pool_networks;
    "addresses" [NO_ADDRESSES] All(22), No, NotOk(37) => store::addresses;
    "ready" [FROZEN] All(11), No, NotOk(26) => store::ready;
    "group" [CHECK_GROUP] All(12), No, NotOk(27) => agent::group;
    "freeze" [UNKNOWN_WORKLOADS, HOST_RENAMED, DUPLICATE_NODE, STORE_REWOUND] All(21), No, No => store::frozen;
    "agent" [CHECK_AGENT] All(13), No, NotOk(28) => agent::verdict;
    "socket of the agent" [CHECK_SOCKET] All(14), No, NotOk(29) => agent::socket;
    "problems of the agent" [LISTEN, TUNNEL, FROM_CACHE, STALE_REVISION] All(15), No, NotOk(30) => agent::problems;
    "protections of the agent" [CHECK_PROTECTIONS] All(25), No, NotOk(38) => agent::protections;
    "forwarding" [FORWARDING_OFF] All(16), All(2), NotOk(31) => health::forwarding;
    "reverse path filters" [RP_FILTER] All(17), All(3), NotOk(32) => health::reverse_path_filters;
    "MTU" [TUNNEL_MTU, WORKLOAD_MTU] All(18), All(4), NotOk(33) => health::mtu;
    "conntrack" [CONNTRACK_FULL] All(19), All(5), NotOk(34) => health::conntrack;
    "clock" [CLOCK_JUMP] All(20), All(6), NotOk(35) => health::clock;
    "rules of others" [FORWARD_DROPPED] All(24), All(7), NotOk(36) => health::forwarded;
    "disks" [DISK_FULL] All(26), All(9), No => health::disks;
    "earlier migration" [CHECK_MIGRATION_STATE] No, No, All(1) => migration::state;
    "data model" [CHECK_DATA_MODEL] No, No, All(3) => data_model::data_model;
    "node name" [CHECK_NODE_UNKNOWN] No, No, All(4) => data_model::node_name;
    "dual stack" [CHECK_DUAL_STACK] No, No, All(5) => data_model::dual_stack;
    "keys" [CHECK_UNSUPPORTED, INVALID_VALUE, CHECK_UNKNOWN_KEYS, CHECK_UNKNOWN_SETTINGS]
        No, No, All(6) => data_model::keys;
    "daemons of Calico" [CHECK_DAEMONS] No, No, All(7) => migration::daemons;
    "graceful restarts" [CHECK_RESTARTING, CHECK_NO_GRACEFUL_RESTART] No, No, All(8) => migration::restarts;
    "kernel objects of Calico" [CHECK_KERNEL_UNREAD, CHECK_KERNEL_OBJECTS, CHECK_FORWARD_DROP, CHECK_RULES_HIDDEN]
        No, No, All(10) => migration::kernel;
    "settings of Felix" [CHECK_FELIX_ENVIRONMENT, CHECK_FELIX_FILE] No, No, All(11) => migration::felix_settings;
    "settings of calico-node" [CHECK_NODE_ENVIRONMENT] No, No, All(12) => node_environment::differences;
    "data planes of Calico" [CHECK_OTHER_DATAPLANE, CHECK_TUNNEL_DEVICE] No, No, All(13) => migration::data_planes;
}

/// Runs the checks of a command and returns the results in the order of its report.
#[must_use]
pub fn run(host: &Host<'_>) -> Vec<CheckResult> {
    let mut list: Vec<(u8, bool, &Check)> = CHECKS
        .iter()
        .filter_map(|check| match check.place(host.command) {
            No => None,
            All(order) => Some((order, true, check)),
            NotOk(order) => Some((order, false, check)),
        })
        .collect();
    list.sort_by_key(|(order, ..)| *order);
    let results = list.into_iter().flat_map(|(_, all, check)| {
        let results = check.results(host).into_iter();
        results.filter(move |result| all || result.verdict() != Verdict::Ok)
    });
    results.collect()
}

/// Returns the current problems of the host, and deteriorations since the last run, for `tortie status`.
#[must_use]
pub fn problems(now: &HostSnapshot, before: Option<&HostSnapshot>, role: &Role) -> Vec<Problem> {
    let host = Host { command: Command::Status, now, before, role };
    run(&host).iter().filter_map(CheckResult::problem).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMANDS: [Command; 3] = [Command::Doctor, Command::Status, Command::MigrateCheck];

    #[test]
    fn every_code_of_a_host_check_has_exactly_one_check() {
        let of = |name: &str| CHECKS.iter().flat_map(|check| check.codes).filter(|c| c.name == name).count();
        for code in codes::HOST_CHECKS {
            assert_eq!(of(code.name), 1, "{code}");
        }
        // Each problem that `status` refers to `doctor` is found by a check, or repeated from the agent.
        for code in codes::PROBLEMS.iter().filter(|code| code.next == "tortie doctor") {
            assert_eq!(of(code.name), 1, "{code}");
        }
        let all = || codes::HOST_CHECKS.iter().chain(codes::PROBLEMS).chain(codes::NOTES);
        for check in CHECKS {
            for code in check.codes {
                assert!(of(code.name) == 1 && all().any(|other| other == *code), "{}: {code}", check.name);
            }
        }
    }

    #[test]
    fn every_check_has_a_command_and_a_place_of_its_own() {
        for check in CHECKS {
            assert!(COMMANDS.iter().any(|command| check.place(*command) != No), "{}", check.name);
            assert_eq!(CHECKS.iter().filter(|other| other.name == check.name).count(), 1, "{}", check.name);
        }
        for command in COMMANDS {
            let mut places: Vec<u8> = CHECKS
                .iter()
                .filter_map(|check| match check.place(command) {
                    No => None,
                    All(order) | NotOk(order) => Some(order),
                })
                .collect();
            let count = places.len();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), count, "{command:?}");
        }
    }

    #[test]
    fn what_is_tried_has_a_code() {
        let kernel = tortie_kernel::probe_kernel().into_iter().map(|probe| probe.name);
        let sockets = crate::speaker::try_sockets().into_iter().map(|probe| probe.name);
        for name in kernel.chain(sockets) {
            assert!(codes::find(codes::Kind::HostCheck, name).is_some(), "{name}");
        }
    }
}
