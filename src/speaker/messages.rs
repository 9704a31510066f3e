//! Messages to the speaker thread.

use std::sync::Arc;

use tortie_bgp::{Drain, Reset};
use tortie_net::{Cidr, ScopedAddr};

use crate::speaker::monitor::MonitorSender;
use crate::speaker::view::SpeakerView;
use tortie_engine::routing::{ChangeId, Resolved, RoutingIntent};

/// A message to the speaker thread. Senders never wait: intents and next hops replace earlier ones that were
/// not taken yet.
pub enum ToSpeaker {
    /// The complete intent, with the change that caused it. The latest replaces earlier ones.
    Intent(Arc<RoutingIntent>, ChangeId),
    /// All local routes of the start are part of the intents sent so far: routes and End-of-RIB may be sent.
    LocalReady,
    /// Resolution of a tracked next hop; `None` if unreachable. The latest per address replaces earlier ones.
    NextHop(ScopedAddr, Option<Resolved>),
    /// Resolution of a next hop for routes to these prefixes only; for other routes [`Self::NextHop`]
    /// applies.
    NextHopWithin(ScopedAddr, Vec<(Cidr, Option<Resolved>)>),
    /// Resets the peer of this name, or all peers.
    Reset(Option<String>, Reset),
    /// Starts or ends maintenance of the peer of this name, or of all peers (RFC 8326). It ends with a
    /// restart of the thread.
    Drain(Option<String>, Drain),
    /// Sends pending data, closes all sessions and ends with
    /// [`SpeakerFact::Stopped`](super::SpeakerFact::Stopped).
    Shutdown {
        /// Closes without NOTIFICATION, so that graceful-restart helpers keep this host's routes.
        graceful: bool,
        /// Shutdown communication (RFC 9003), at most 255 octets.
        text: String,
    },
    /// Adds a subscriber to session events.
    Monitor(MonitorSender),
    /// Runs a query on the speaker's thread; it must be short.
    Query(Box<dyn FnOnce(&SpeakerView<'_>) + Send>),
}

/// Reasons for a rejected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many orders (resets, queries) are queued: try again.
    #[error("the BGP speaker is busy; try again")]
    Busy,
    /// The thread has ended.
    #[error("the speaker has stopped")]
    Stopped,
}
