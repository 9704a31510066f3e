//! The whole of it against the real thing: agents in namespaces, BIRD, FRR, GoBGP and OpenBGPD as routers, SQLite and
//! etcd as stores, and kernels, routers and packets asked what became of it.
//!
//! It does not test what a part does by itself, nor the lab runner. Numbers that are printed are what was measured;
//! what is asserted is behaviour, with more time where the machine has other work (see [`rig::within`]).
//!
//! ```text
//!  topology/labs/*.clab.yml --rig--> Net: nodes, agents, store     probe: kernels, routers, sessions, `ip monitor`
//!                            (etcd instead of SQLite where asked)  ping: 1,000 echo requests a second, each accounted for
//! ```
//!
//! Labs run one at a time: a neighbour's start would be measured too.

mod calico;
mod hints;
mod links;
mod migrate;
mod ping;
mod probe;
mod restart;
mod rig;
mod sessions;
mod tables;
mod two_hosts;
mod unnumbered;
mod uplinks;
mod why;
