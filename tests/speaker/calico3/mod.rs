//! BIRD 2 and FRR as referees of a store of Calico 3: configured as Calico's templates would configure them, they
//! have the sessions that Tortie wants, and announce and accept what it does.
//!
//! ```text
//!  cluster.rs, rules.rs: a random cluster as objects (objects.rs)
//!         |                      |
//!    render/: configuration   Tortie: `bgp peers --offline`, its speaker
//!         |                      |
//!         +---- sessions.rs -----+  the sessions of each node
//!         +---- announce.rs -----+  one node with its peers (receiver.rs) in namespaces (world.rs)
//! ```

mod announce;
mod by_design;
mod cluster;
mod objects;
mod receiver;
mod render;
mod rules;
mod sessions;
mod world;
