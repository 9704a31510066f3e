//! Packet rules: one nftables table, `table inet tortie`, written over netlink in atomic batches. A change is
//! one batch, preceded if needed by one that creates its prerequisites.
//!
//! Renders the compiled policy as tables, chains and sets ([`ir`]), keeps the kernel equal to them, and
//! prints the table in nft syntax. This module decides no verdict (`policy` does), never runs `nft`, and
//! never changes a table of another process, except Docker's chain for user rules ([`forward`]).
//!
//! ```text
//!  RulesetDelta, Globals, links --render--> edits of desired Table --diff, order--> batch --encode--> Linux
//!                                                  |                     ^
//!                                       text.rs (nft syntax)      dump.rs: table of the kernel, at the start
//!                                                                 and after foreign changes
//! ```

mod diff;
mod drop_log;
pub(crate) mod dump;
mod edit_order;
mod encode;
mod fail_closed;
mod firewall;
mod forward;
pub(crate) mod ir;
mod maps;
pub(crate) mod metrics;
mod render;
#[cfg(any(test, feature = "test-hooks"))]
mod simulate;
pub(crate) mod socket;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod tracer;
mod uapi;

pub(crate) use self::drop_log::Listener;
pub use self::drop_log::{Denial, DropKind, DropLog, Dropped};
pub(crate) use self::firewall::{Firewall, RuleReport};
pub use self::firewall::{RuleCounts, RuleHits};
pub(crate) use self::forward::Admission;
pub use self::forward::{ForwardDrop, forward_drops, withdraw};
pub(crate) use self::render::Options;
pub use self::render::{Meaning, RuleView};
#[cfg(feature = "test-hooks")]
pub use self::simulate::Simulated;
#[cfg(feature = "test-hooks")]
pub(crate) use self::simulate::simulate;
pub(crate) use self::tracer::tidy;
pub use self::tracer::{RulePlace, Traced, TracedFlow, TracedPacket, TracedStep, TracedVerdict, trace};

/// All tables that this program creates.
pub(crate) const OWN_TABLES: [&str; 2] = [firewall::TABLE, tracer::MARKS];

/// The netlink log group for dropped packets.
pub(crate) const DENY_GROUP: u16 = 179;
