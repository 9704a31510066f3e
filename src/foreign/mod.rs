//! Beside others: what BIRD and Felix left on this host, and how it compares with what Tortie would write.
//!
//! What it does: reads (never writes) BIRD's control socket, the kernel's main table, Felix's chains and sets; computes
//! from the store what should be there, by the functions of the agent; judges one against the other, item by item. What it
//! does not: it takes nothing over (`tortie migrate` does), keeps no state and has no clock.
//!
//! ```text
//!   BIRD's socket --bird.rs--+
//!   main table --kernel::NetworkSnapshot+--> Found --+
//!   iptables, ipset --tools.rs, felix.rs--+
//!                                         +--judge--> Judgement: equal | different | missing | extra | not judged
//!   Model, affinities --wanted.rs--> Wanted
//! ```
//!
//! Reading blocks and may take a while: it belongs on a thread of its own.

pub mod bird;
mod compare;
pub mod felix;
mod intent;
pub mod tools;
mod types;

use std::path::PathBuf;

pub use compare::{CompareResult, ComparedItem, Comparison, Plane, PlaneCounts, compare};
pub use intent::{Affinities, HostIntent, Remote};
pub use types::*;

/// Looks at everything; `sockets` are BIRD's, `ours` the route protocols that would be ours (BIRD's among them). Blocks.
///
/// # Errors
/// When the kernel cannot be read at all; what else cannot be read is said in [`ForeignState::unreadable`].
pub fn look(sockets: &[PathBuf], ours: &[u8]) -> std::io::Result<ForeignState> {
    let look = NetworkSnapshot::read(ours)?;
    let (felix, mut unreadable) = felix::read();
    let (asked, mut silent) = bird::query_each(sockets, bird::query);
    let mut birds: Vec<Bird> = Vec::new();
    for bird in asked {
        // Two paths may lead to one socket.
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
