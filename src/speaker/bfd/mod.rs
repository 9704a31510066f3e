//! The thread `bfd`: sockets and a clock around `tortie_bgp::bfd`, and the bindings between its sessions and peers.
//!
//! It decides nothing about sessions (that is `tortie-bgp`) and knows no peers (that is [`bindings`], on the speaker's
//! thread). Nothing that the speaker does delays it: it shares no lock with anybody, runs with real-time priority where
//! that is allowed, and publishes its state by swapping a pointer. It is started with the first peer that wants it.
//!
//! ```text
//!  intent --> bindings (speaker thread) --Order, wake-up--> thread: Bfd <--> UDP 3784, 4784, a socket for each session
//!               ^   |                                          |  |
//!   BfdDown <---+   `-- status <------- BfdView (swap) --------'  |
//!   (speaker)   `--------------- Report, the speaker's wake-up ---'
//! ```
//!
//! Order of use, lowest first: `view` <- `socket` <- `thread` <- `handle` <- `bindings`.
//!
//! Sessions are those of RFC 5881 (one hop, TTL 255 sent and required) and RFC 5883. A session belongs to a pair of
//! addresses: peers that differ by their port share it. Which of the two it is: several hops with iBGP peers, as BIRD
//! and Junos have it, and with eBGP peers behind a router; one hop with eBGP peers that are on-link when the session
//! begins. `multihop` in the peer's `bfd` decides otherwise (FRR takes on-link iBGP peers for single hop).
//!
//! BFD is not waited for: BGP comes up without it, and ends when it was Up and is lost. An AdminDown of the peer and a
//! BFD that merely began anew end nothing (RFC 5882 3.2). A stop says AdminDown first.

mod bindings;
mod handle;
mod socket;
mod thread;
mod view;

pub use view::{BfdPriority, BfdView};

pub(crate) use bindings::Bindings;
pub(crate) use socket::prioritise;
