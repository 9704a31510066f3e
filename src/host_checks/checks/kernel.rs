//! Checks of the kernel features that routes, rules and workloads need.

use tortie_kernel::{KernelCapability, ProbeOutcome};

use crate::api::codes::{self, Severity};
use crate::host_checks::host::Host;
use crate::host_checks::result::Results;

pub(in crate::host_checks) fn features(host: &Host<'_>, results: &mut Results) {
    let kernel = &host.now.kernel;
    let works = |a: &&KernelCapability| matches!(a.outcome, ProbeOutcome::Works(_));
    let (works, rest): (Vec<&KernelCapability>, Vec<&KernelCapability>) =
        host.now.kernel_features.iter().partition(works);
    if let Some(KernelCapability { outcome: ProbeOutcome::NotTried(why), .. }) = rest.first() {
        let names: Vec<&str> = rest.iter().map(|a| a.name).collect();
        return results.not_tried(
            &codes::CHECK_KERNEL,
            format!("kernel {kernel}: {why} (not tried: {})", names.join(", ")),
            None,
        );
    }
    let names = |a: &&KernelCapability| match &a.outcome {
        ProbeOutcome::Works(seen) if !seen.is_empty() => format!("{} ({seen})", a.name),
        _ => a.name.to_owned(),
    };
    let names: Vec<String> = works.iter().map(names).collect();
    if !names.is_empty() {
        let text = format!("kernel {kernel}: {} (tried in a temporary network namespace)", names.join(", "));
        let about: Vec<&str> = works.iter().map(|a| a.about).collect();
        results.ok_with(&codes::CHECK_KERNEL, text, about.join(", "));
    }
    let wants_ipip = matches!(&host.now.store, Some(Ok(store)) if store.ipip);
    for ability in rest {
        let ProbeOutcome::Refused(answer) = &ability.outcome else { continue };
        let text = format!(
            "kernel {kernel} does not support {} ({}), needed for {}: {answer}",
            ability.name, ability.about, ability.needed_for
        );
        let module = match ability.name {
            "ipip" => {
                "modprobe ipip, or a kernel that has it (CONFIG_NET_IPIP); or take `ipip` out of the pools"
            }
            "links" => "modprobe veth, or a kernel that has it (CONFIG_VETH)",
            "nexthop-objects" => "no action needed: gateways are then part of the routes",
            "conntrack" => "modprobe nf_conntrack_netlink, or a kernel that has it (CONFIG_NF_CT_NETLINK)",
            "routes" => "run it as root, with CAP_NET_ADMIN",
            _ => {
                "modprobe nf_tables, or a kernel that has it (CONFIG_NF_TABLES_INET, CONFIG_NFT_*); or --policy off"
            }
        };
        let severity = if ability.optional && !(ability.name == "ipip" && wants_ipip) {
            Severity::Warning
        } else {
            Severity::Failure
        };
        results.host_problem(severity, ability.name, text, module);
    }
}
