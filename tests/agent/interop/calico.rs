//! State that Calico leaves on a host: BIRD's configuration, and Felix's rules and sets.

use crate::common::felix_rules::calico2::Felix;

/// BIRD configuration as confd generates it from Calico's templates, in the syntax of BIRD 2: one daemon for
/// both families, while Calico runs two.
pub(crate) const BIRD: &str = "router id 172.30.0.N;
protocol static { ipv4; route 10.244.N.0/26 blackhole; }
protocol static { ipv6; route fd00:10:244:N::/122 blackhole; }
filter calico_export_to_bgp_peers {
  if (net = 10.244.N.0/26) then accept;
  if (net ~ 10.244.N.0/26) then reject;
  if (net ~ 10.244.0.0/16) then accept;
  reject;
}
filter calico_export_to_bgp_peers6 {
  if (net = fd00:10:244:N::/122) then accept;
  if (net ~ fd00:10:244:N::/122) then reject;
  if (net ~ fd00:10:244::/48) then accept;
  reject;
}
template kernel calico_kernel { learn; persist; scan time 2; metric 0; merge paths on; graceful restart; }
protocol kernel from calico_kernel { ipv4 { import all; export all; }; }
protocol kernel from calico_kernel { ipv6 { import all; export all; }; }
protocol device { scan time 2; }
protocol direct { ipv4; ipv6; interface -\"cali*\", \"*\"; }
template bgp calico_session {
  local as 64512; multihop;
  graceful restart on; graceful restart time 120;
  connect delay time 1; connect retry time 2; error wait time 1,3;
}
template bgp bgp_template from calico_session {
  source address 172.30.0.N;
  ipv4 { gateway recursive; import all; export filter calico_export_to_bgp_peers; add paths on; next hop self; };
}
template bgp bgp_template6 from calico_session {
  source address fd00:172:30::N;
  ipv6 { gateway recursive; import all; export filter calico_export_to_bgp_peers6; add paths on; next hop self; };
}
";

/// Returns Felix's rules for the workload of host 1, whose profile allows everything.
pub(crate) fn felix(v4: bool) -> String {
    let felix = Felix { v4, ipip: false, masquerade: v4, interface: "cali1", profile: "lab", policy: None };
    felix.rules()
}

/// Rules of other programs before and between Felix's. The last one is appended by later versions of Felix
/// where they accept a packet.
pub(crate) const OTHERS: &str = "*filter
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -p udp -m udp --dport 4789 -m comment --comment \"of somebody else\" -j DROP
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m comment --comment \"Policy explicitly accepted packet.\" -m mark --mark 0x1000000/0x1000000 -j ACCEPT
COMMIT
";

pub(crate) const SETS: &str = "create cali40masq-ipam-pools hash:net family inet maxelem 1048576
create cali40all-ipam-pools hash:net family inet maxelem 1048576
add cali40all-ipam-pools 10.244.0.0/16
add cali40masq-ipam-pools 10.244.0.0/16
create of-somebody-else hash:ip family inet
add of-somebody-else 192.0.2.77
";

/// Calico's users publish listings in which these rules have these hashes.
#[test]
fn rules_are_those_of_felix() {
    let tunnels =
        Felix { v4: true, ipip: true, masquerade: true, interface: "cali1", profile: "lab", policy: None };
    let rules = tunnels.rules();
    for known in [
        "-I INPUT -m comment --comment \"cali:Cz_u1IQiXIMmKD4c\" --jump cali-INPUT",
        "-I FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" --jump cali-FORWARD",
        "-I OUTPUT -m comment --comment \"cali:tVnHkvAo15HuiPy0\" --jump cali-OUTPUT",
        "-I PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" --jump cali-PREROUTING",
        "-I POSTROUTING -m comment --comment \"cali:O3lYWMrLQYEMJtB5\" --jump cali-POSTROUTING",
        "-A cali-POSTROUTING -m comment --comment \"cali:Z-c7XtVd2Bq7s_hA\" --jump cali-fip-snat",
    ] {
        assert!(rules.lines().any(|line| line == known), "{known}: {rules}");
    }
    let tables: Vec<&str> = rules.lines().filter_map(|line| line.strip_prefix('*')).collect();
    assert_eq!(tables, ["raw", "mangle", "nat", "filter"]);
}
