//! Options of the speaker thread.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tortie_bgp::{Family, HashKey};

use crate::speaker::sockets::secret::SECRETS;

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
    /// Key of the hash tables of what peers choose: random, but for tests.
    pub hash_key: HashKey,
}

impl Default for SpeakerOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            kernel: true,
            restarting: None,
            restart_time: Duration::from_secs(120),
            secrets: PathBuf::from(SECRETS),
            hash_key: HashKey::random(),
        }
    }
}
