//! Checks of the kernel features that routes, rules and workloads need.

use tortie_kernel::{KernelCapability, ProbeOutcome, VxlanPort};

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
    let store = host.now.store.as_ref().and_then(|store| store.as_ref().ok());
    let is_wanted = |name: &str| match name {
        "ipip" => store.is_some_and(|store| store.ipip),
        "vxlan" => store.is_some_and(|store| store.vxlan.is_some()),
        _ => false,
    };
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
            "vxlan" => {
                "modprobe vxlan, or a kernel that has it (CONFIG_VXLAN); or take `vxlan_mode` out of the pools"
            }
            "links" => "modprobe veth, or a kernel that has it (CONFIG_VETH)",
            "nexthop-objects" => "no action needed: gateways are then part of the routes",
            "conntrack" => "modprobe nf_conntrack_netlink, or a kernel that has it (CONFIG_NF_CT_NETLINK)",
            "routes" => "run it as root, with CAP_NET_ADMIN",
            _ => {
                "modprobe nf_tables, or a kernel that has it (CONFIG_NF_TABLES_INET, CONFIG_NFT_*); or --policy off"
            }
        };
        let severity =
            if ability.optional && !is_wanted(ability.name) { Severity::Warning } else { Severity::Failure };
        results.host_problem(severity, ability.name, text, module);
    }
    if let Some(port) = store.and_then(|store| store.vxlan) {
        vxlan_port(host, port, results);
    }
}

/// Checks that no device of another program receives on the port of the VXLAN tunnel. A second device with
/// another identifier could, but packets of hosts that use this identifier would reach both programs.
fn vxlan_port(host: &Host<'_>, port: u16, results: &mut Results) {
    let own = [true, false].map(tortie_kernel::vxlan_device);
    let is_other = |device: &&VxlanPort| device.port == port && !own.contains(&device.device.as_str());
    let Some(other) = host.now.vxlan_devices.iter().find(is_other) else { return };
    let identifier =
        if other.vni == 0 { "all identifiers".to_owned() } else { format!("identifier {}", other.vni) };
    results.warn(
        &codes::CHECK_VXLAN,
        format!(
            "the device {} receives on udp/{port} ({identifier}), the port of the VXLAN tunnel of the pools",
            other.device
        ),
        format!("ip link delete {}, if no program needs it; or set VXLANPort on all hosts", other.device),
    );
}
