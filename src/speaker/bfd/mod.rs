//! The BFD thread: sockets and timers around `tortie_bgp::bfd`, and the bindings of its sessions to peers.
//!
//! The state machine of sessions is in `tortie-bgp`; the thread knows no peers, that is the task of
//! [`bindings`] on the speaker's thread. The speaker never delays BFD: the thread holds no shared lock, runs
//! with real-time priority where permitted, and publishes its state by swapping a pointer. It starts with the
//! first peer that has BFD enabled.
//!
//! ```text
//!  intent -> bindings (speaker thread) --Order, wake-up--> thread: Bfd <--> UDP 3784, 4784
//!              ^   |                                          |  |            (one socket per session)
//!   BfdDown <--+   `-- status <------- BfdView (swap) --------'  |
//!   (speaker)  `--------------- Report, the speaker's wake-up ---'
//! ```
//!
//! Order of use, lowest first: `view` <- `socket` <- `thread` <- `handle` <- `bindings`.
//!
//! Sessions follow RFC 5881 (single hop, TTL 255 sent and required) or RFC 5883 (multihop). A session belongs
//! to a pair of addresses, so peers that differ only by port share it. The default is multihop for iBGP
//! peers, as in BIRD and Junos, and for eBGP peers behind a router; single hop for eBGP peers that are
//! on-link when the session begins. `multihop` in the peer's `bfd` overrides it (FRR uses single hop for
//! on-link iBGP peers).
//!
//! BGP does not wait for BFD: a session comes up without it, and ends when BFD was Up and goes down.
//! AdminDown of the peer or a restart of its BFD do not end the BGP session (RFC 5882, section 3.2). A stop
//! sends AdminDown first.

mod bindings;
mod handle;
mod socket;
mod thread;
mod view;

pub use view::{BfdPriority, BfdView};

pub(crate) use bindings::Bindings;
pub(crate) use socket::prioritise;
