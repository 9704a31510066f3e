//! Messages to the speaker thread.

use std::sync::Arc;

use tortie_bgp::{Drain, Reset};
use tortie_net::{Cidr, ScopedAddr};

use crate::speaker::monitor::MonitorSender;
use crate::speaker::view::SpeakerView;
use tortie_engine::routing::{ChangeId, Resolved, RoutingIntent};

/// Messages to the speaker thread. No sender waits: intents and next hops replace those that were not yet taken.
pub enum ToSpeaker {
    /// The whole wanted state, with the change that brought it. The latest wins.
    Intent(Arc<RoutingIntent>, ChangeId),
    /// The intents so far name every local route of the start: routes and End-of-RIB may be sent.
    LocalReady,
    /// A tracked next hop; `None`: unreachable. The latest of an address wins.
    NextHop(ScopedAddr, Option<Resolved>),
    /// How a next hop is reached for routes to these prefixes, which the answer for all others rests on.
    NextHopWithin(ScopedAddr, Vec<(Cidr, Option<Resolved>)>),
    /// Resets the peer of this name, or all.
    Reset(Option<String>, Reset),
    /// Maintenance of the peer of this name begins or ends, or of all (RFC 8326). A restart of the thread ends it.
    Drain(Option<String>, Drain),
    /// End: flush, close, [`SpeakerFact::Stopped`](super::SpeakerFact::Stopped).
    Shutdown {
        /// Keep our routes at graceful-restart helpers: close without NOTIFICATION.
        graceful: bool,
        /// Shutdown communication (RFC 9003), at most 255 octets.
        text: String,
    },
    /// A new subscriber to the events of sessions.
    Monitor(MonitorSender),
    /// A query, answered on the speaker's thread by the closure: keep it short.
    Query(Box<dyn FnOnce(&SpeakerView<'_>) + Send>),
}

/// Why a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many orders (resets, queries) wait: try again.
    #[error("the speaker is busy; try again")]
    Busy,
    /// The thread has ended.
    #[error("the speaker has stopped")]
    Stopped,
}
