//! What Calico leaves on a host: BIRD's configuration, and Felix's rules and sets.

/// As confd writes it from Calico's templates, in BIRD 2's words: one daemon for both families, where Calico has two.
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

/// What Felix 2.6 leaves for one workload whose profile lets in what carries the tag `lab`, and lets out all; with a rule of
/// somebody else before and between. `*filter` last: sets first, then policies, then endpoints.
pub(crate) const FELIX: &str = "*raw
:cali-PREROUTING - [0:0]
-I PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING
-A cali-PREROUTING -m comment --comment \"cali:x4XbVMc5P_kNXnTy\" -j MARK --set-xmark 0x0/0xff000000
-A cali-PREROUTING -i cali+ -m comment --comment \"cali:fQeZek80kVOPa0xO\" -j MARK --set-xmark 0x4000000/0x4000000
COMMIT
*nat
:cali-POSTROUTING - [0:0]
:cali-nat-outgoing - [0:0]
-I POSTROUTING -m comment --comment \"cali:O3lYWMrLQYEMJtB5\" -j cali-POSTROUTING
-A cali-POSTROUTING -m comment --comment \"cali:Z-c7XtVd2Bq7s_hA\" -j cali-nat-outgoing
-A cali-nat-outgoing -m comment --comment \"cali:Wd76s91357Uv7N3v\" -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE
COMMIT
*filter
:cali-INPUT - [0:0]
:cali-FORWARD - [0:0]
:cali-OUTPUT - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-to-wl-dispatch - [0:0]
:cali-wl-to-host - [0:0]
:cali-fw-cali1 - [0:0]
:cali-tw-cali1 - [0:0]
:cali-pri-lab - [0:0]
:cali-pro-lab - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -p udp -m udp --dport 4789 -m comment --comment \"of somebody else\" -j DROP
-I INPUT 1 -m comment --comment \"cali:Cz_u1IQiXIMmKD4c\" -j cali-INPUT
-I FORWARD 1 -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-I OUTPUT 1 -m comment --comment \"cali:tVnHkvAo15HuiPy0\" -j cali-OUTPUT
-A cali-OUTPUT -o cali+ -m comment --comment \"cali:sXCoCSmrRjRhHkEd\" -j RETURN
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m comment --comment \"Policy explicitly accepted packet.\" -m mark --mark 0x1000000/0x1000000 -j ACCEPT
-A cali-INPUT -i cali+ -m comment --comment \"cali:MmLRuVQhM_e1QoQ8\" -g cali-wl-to-host
-A cali-wl-to-host -m comment --comment \"cali:Ee9Sbo10IpVujdIY\" -j cali-from-wl-dispatch
-A cali-FORWARD -i cali+ -m comment --comment \"cali:8ZoYfO5HKXWbB3pk\" -j cali-from-wl-dispatch
-A cali-FORWARD -o cali+ -m comment --comment \"cali:jdEuaPBe14V2hutn\" -j cali-to-wl-dispatch
-A cali-from-wl-dispatch -i cali1 -m comment --comment \"cali:Y6eWyUwGZGAjvuqC\" -g cali-fw-cali1
-A cali-from-wl-dispatch -m comment --comment \"cali:zTj6P0TIgYvgz-md\" -m comment --comment \"Unknown interface\" -j DROP
-A cali-to-wl-dispatch -o cali1 -m comment --comment \"cali:7KNphB1nNHw80nIO\" -g cali-tw-cali1
-A cali-to-wl-dispatch -m comment --comment \"cali:oQsfHfMS0hoGDY0R\" -m comment --comment \"Unknown interface\" -j DROP
-A cali-fw-cali1 -m comment --comment \"cali:w1\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-fw-cali1 -m comment --comment \"cali:w2\" -m conntrack --ctstate INVALID -j DROP
-A cali-fw-cali1 -m comment --comment \"cali:w3\" -j MARK --set-xmark 0x0/0x1000000
-A cali-fw-cali1 -m comment --comment \"cali:w4\" -j cali-pro-lab
-A cali-fw-cali1 -m comment --comment \"cali:w5\" -m comment --comment \"Return if profile accepted\" -m mark --mark 0x1000000/0x1000000 -j RETURN
-A cali-fw-cali1 -m comment --comment \"cali:w6\" -m comment --comment \"Drop if no profiles matched\" -j DROP
-A cali-tw-cali1 -m comment --comment \"cali:t1\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-tw-cali1 -m comment --comment \"cali:t2\" -m conntrack --ctstate INVALID -j DROP
-A cali-tw-cali1 -m comment --comment \"cali:t3\" -j MARK --set-xmark 0x0/0x1000000
-A cali-tw-cali1 -m comment --comment \"cali:t4\" -j cali-pri-lab
-A cali-tw-cali1 -m comment --comment \"cali:t5\" -m comment --comment \"Return if profile accepted\" -m mark --mark 0x1000000/0x1000000 -j RETURN
-A cali-tw-cali1 -m comment --comment \"cali:t6\" -m comment --comment \"Drop if no profiles matched\" -j DROP
-A cali-pri-lab -m comment --comment \"cali:p1\" -j MARK --set-xmark 0x1000000/0x1000000
-A cali-pri-lab -m comment --comment \"cali:p2\" -m mark --mark 0x1000000/0x1000000 -j RETURN
-A cali-pro-lab -m comment --comment \"cali:p3\" -j MARK --set-xmark 0x1000000/0x1000000
-A cali-pro-lab -m comment --comment \"cali:p4\" -m mark --mark 0x1000000/0x1000000 -j RETURN
COMMIT
";

pub(crate) const SETS: &str = "create cali40masq-ipam-pools hash:net family inet maxelem 1048576
create cali40all-ipam-pools hash:net family inet maxelem 1048576
add cali40all-ipam-pools 10.244.0.0/16
add cali40masq-ipam-pools 10.244.0.0/16
create of-somebody-else hash:ip family inet
add of-somebody-else 192.0.2.77
";
