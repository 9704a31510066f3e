//! Reads the state that BIRD and Felix left on this host, and compares it with Tortie's intent.
//!
//! It reads BIRD's control socket, the kernel's main table, and Felix's chains and sets; it computes the
//! intent from the store with the functions of the agent; and it compares both item by item. It writes
//! nothing, takes nothing over (`tortie migrate` does), keeps no state and uses no clock.
//!
//! ```text
//!   BIRD's socket --bird.rs----------------+
//!   main table --kernel::NetworkSnapshot---+--> ForeignState --+
//!   iptables, ipset --tools.rs, felix.rs---+                   |
//!   nft --tools.rs, nftables.rs------------+                   |
//!                                               compare/ ------+--> Comparison: equal | different |
//!                                                              |    missing | extra | not compared
//!   Model, affinities --intent.rs--> HostIntent ---------------+
//! ```
//!
//! Reading blocks for up to minutes, so it runs on a thread of its own.

pub mod bird;
mod compare;
pub mod felix;
mod intent;
pub mod nftables;
pub mod tools;
mod types;

use std::path::PathBuf;

pub use compare::{CompareResult, ComparedItem, Comparison, Plane, PlaneCounts, compare};
pub use intent::{Affinities, HostIntent, Remote};
pub use types::*;

/// Reads all foreign state; `sockets` are BIRD's, `ours` the route protocol numbers that are or would become
/// Tortie's, including BIRD's. Blocks.
///
/// # Errors
/// If the kernel's main table cannot be read; [`ForeignState::unreadable`] lists all other failures.
pub fn look(sockets: &[PathBuf], ours: &[u8]) -> std::io::Result<ForeignState> {
    let look = NetworkSnapshot::read(ours)?;
    let (felix, mut unreadable) = felix::read();
    let (asked, mut silent) = bird::query_each(sockets, bird::query);
    let mut birds: Vec<Bird> = Vec::new();
    for bird in asked {
        // Two paths may lead to the same socket.
        if birds.iter().all(|known| known.protocols != bird.protocols) {
            birds.push(bird);
        }
    }
    if birds.is_empty() && silent.is_empty() {
        let list: Vec<String> = sockets.iter().map(|socket| socket.display().to_string()).collect();
        silent.push(format!("there is none at {}; name it with --bird-socket", list.join(", ")));
    }
    unreadable
        .extend(silent.into_iter().map(|why| Unreadable { what: "BIRD's control socket".to_owned(), why }));
    Ok(ForeignState { look, felix, birds, unreadable })
}
