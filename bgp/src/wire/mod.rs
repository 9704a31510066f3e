//! Bytes to messages and messages to bytes: BGP-4 on the wire.
//!
//! Here are framing, decoding with the outcomes of RFC 7606, encoding within the message size of the session.
//! Not here: the order of messages (the session), and the meaning of routes (the tables).
//!
//! Received bytes go [`Frame::next`] -> by [`MessageKind`] to [`Open::decode`], [`Update::decode`],
//! [`Notification::decode`] or [`RouteRefresh::decode`]. A decoder takes the message body and, where it matters, what
//! was [`Negotiated`]; its error is the NOTIFICATION to send before the session ends.
//! Routes go out through an [`UpdateTemplate`] (attributes encoded once, or none in withdrawals) and an [`UpdateWriter`]
//! that takes prefixes while they fit.
//!
//! `nom` reads headers, OPEN, capabilities and attributes. Prefixes are read by plain code in `nlri`: they are nearly all
//! that a full feed consists of, and one bounds check per message replaces several per prefix.

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
