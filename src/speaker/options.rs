//! Options of the speaker thread.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tortie_bgp::Family;

use crate::speaker::sockets::secret::SECRETS;
use tortie_engine::routing::ChangeId;

/// Options of the thread, for its whole life.
#[derive(Debug, Clone)]
pub struct SpeakerOptions {
    /// Listen here in place of the intent's addresses; empty: follow `listen` of
    /// the [`RoutingIntent`](tortie_engine::routing::RoutingIntent).
    pub listen: Vec<SocketAddr>,
    /// Learned routes go to the kernel thread, which resolves next hops. `false`: a pure speaker, for which every next
    /// hop is reachable.
    pub kernel: bool,
    /// This start is a restart: R bit, and F bit for the families whose routes the kernel kept (RFC 4724).
    pub restarting: Option<Vec<Family>>,
    /// Restart time to advertise where a peer has none of its own; whole seconds, at most 4095.
    pub restart_time: Duration,
    /// Where password files lie; [`SECRETS`] but for tests.
    pub secrets: PathBuf,
    /// Where change ids of learned routes come from.
    pub changes: ChangeIds,
}

impl Default for SpeakerOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            kernel: true,
            restarting: None,
            restart_time: Duration::from_secs(120),
            secrets: PathBuf::from(SECRETS),
            changes: ChangeIds::default(),
        }
    }
}

/// The process's source of change ids, shared by all who start changes.
#[derive(Debug, Clone, Default)]
pub struct ChangeIds(Arc<AtomicU64>);

impl ChangeIds {
    /// An id that was not used yet.
    #[must_use]
    pub fn next(&self) -> ChangeId {
        ChangeId(self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}
