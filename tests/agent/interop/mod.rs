//! Interoperability tests: agents in network namespaces, BIRD, FRR, GoBGP and OpenBGPD as routers, SQLite and
//! etcd as stores. The results are read from kernels, routers and packets.
//!
//! Single parts and the lab runner have tests of their own. Printed numbers are measurements. Assertions
//! concern behaviour, with more time if the machine has other work (see [`rig::within`]).
//!
//! ```text
//!  topology/labs/*.clab.yml --rig--> Net: nodes, agents, store (SQLite, or etcd on request)
//!  probe: kernels, routers, sessions, `ip monitor`    ping: 1,000 echo requests per second, each recorded
//! ```
//!
//! Labs run one at a time, since the start of another lab would affect the measurements.

mod calico;
mod hints;
mod links;
mod migrate;
mod ping;
mod probe;
mod restart;
pub(crate) mod rig;
mod sessions;
mod tables;
mod two_hosts;
mod unnumbered;
mod uplinks;
mod why;
