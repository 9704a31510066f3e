//! Packet rules: one `table inet tortie`, written over netlink in atomic batches. A change is one of them, behind one with what
//! has to be there before it, if anything.
//!
//! What it does: turns what policy asks for into tables, chains and sets ([`ir`]), keeps the kernel equal to that, and says what the
//! table looks like in nft's own words. What it does not: it decides no verdict (`policy` does), never runs `nft`, and
//! never touches a table of another process, but for Docker's chain for rules of others ([`forward`]).
//!
//! ```text
//!  RulesetDelta, Globals, links --render--> Edits on the desired Table --diff, order--> batches --encode--> kernel
//!                                                  |                     ^
//!                                       text.rs (nft syntax)      dump.rs: what is there, at start and after foreign changes
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

/// Every table that this program makes.
pub(crate) const OWN_TABLES: [&str; 2] = [firewall::TABLE, tracer::MARKS];

/// The log group that gets what is dropped.
pub(crate) const DENY_GROUP: u16 = 179;
