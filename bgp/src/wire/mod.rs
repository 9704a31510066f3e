//! BGP-4 wire format: encoding and decoding of messages.
//!
//! This module does framing, decoding with the error handling of RFC 7606, and encoding within the maximum
//! message length of a session. It has no protocol state (see the session) and no routes (see the RIBs).
//!
//! Receive path: [`Frame::next`] -> by [`MessageKind`] to [`Open::decode`], [`Update::decode`],
//! [`Notification::decode`] or [`RouteRefresh::decode`]. A decoder takes the message body and, where its
//! format depends on them, the [`Negotiated`] parameters. Its error is the NOTIFICATION to send before the
//! session ends.
//! Transmit path: an [`UpdateTemplate`] (attributes encoded once, none for withdrawals) and an
//! [`UpdateWriter`] that appends prefixes while they fit.
//!
//! `nom` parses headers, OPEN, capabilities and attributes. Prefixes are parsed by plain code in `nlri`: they
//! are most of a full table, and a check once per message replaces several bounds checks per prefix.

mod attributes;
mod capability;
mod encode;
mod families;
mod frame;
mod negotiated;
mod nlri;
mod notification;
mod open;
mod problem;
mod refresh;
mod update;
mod values;

pub(crate) use capability::list as capability_list;
pub use capability::{AddPath, Capabilities, Fqdn, GracefulRestart, LongLived, Role};
pub(crate) use encode::write_table_attributes;
pub use encode::{DoesNotFit, UpdateTemplate, UpdateWriter, write_end_of_rib, write_keepalive};
pub use families::Families;
pub use frame::{Frame, HEADER_LEN, MAX_EXTENDED_LEN, MAX_LEN, MessageKind};
pub use negotiated::Negotiated;
pub use nlri::{Address, Entry, Nlri, NlriIter};
pub use notification::{ErrorCode, Notification, sanitise};
pub use open::Open;
pub(crate) use open::write_open;
pub use problem::Problem;
pub use refresh::{RefreshKind, RouteRefresh};
pub use update::{Reach, Update};
