//! Rules that Felix 1.4 (Calico 1) leaves for one workload on `cali1`, abridged.

pub(crate) const RULES: &str = "*filter
:felix-INPUT - [0:0]
:felix-FORWARD - [0:0]
:felix-FROM-ENDPOINT - [0:0]
:felix-TO-ENDPOINT - [0:0]
:felix-from-1 - [0:0]
:felix-to-1 - [0:0]
-A INPUT -j felix-INPUT
-A FORWARD -j felix-FORWARD
-A felix-INPUT -i cali+ -j felix-FROM-ENDPOINT
-A felix-FORWARD -i cali+ -j felix-FROM-ENDPOINT
-A felix-FORWARD -o cali+ -j felix-TO-ENDPOINT
-A felix-FROM-ENDPOINT -i cali1 -g felix-from-1
-A felix-FROM-ENDPOINT -j DROP
-A felix-TO-ENDPOINT -o cali1 -g felix-to-1
-A felix-TO-ENDPOINT -j DROP
-A felix-from-1 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A felix-to-1 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
COMMIT
";

/// Additional tables for IPv4.
pub(crate) const NAT: &str = "*nat
:felix-PREROUTING - [0:0]
-A PREROUTING -j felix-PREROUTING
-A POSTROUTING -m set --match-set felix-masq-ipam-pools src -m set ! --match-set felix-all-ipam-pools dst -j MASQUERADE
COMMIT
";

pub(crate) const SETS: &str = "create felix-all-ipam-pools hash:net family inet
create felix-masq-ipam-pools hash:net family inet
add felix-all-ipam-pools 10.244.0.0/16
add felix-masq-ipam-pools 10.244.0.0/16
";
