//! Options of the speaker thread.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tortie_bgp::{Family, HashKey};

use crate::speaker::sockets::secret::SECRETS;

/// Options of the thread, fixed for its lifetime.
#[derive(Debug, Clone)]
pub struct SpeakerOptions {
    /// Listen on these addresses instead of the intent's; empty: use `listen` of the
    /// [`RoutingIntent`](tortie_engine::routing::RoutingIntent).
    pub listen: Vec<SocketAddr>,
    /// True if learned routes go to the kernel thread, which also resolves next hops. False for a pure
    /// speaker, in which every next hop is reachable.
    pub kernel: bool,
    /// Set if this start is a graceful restart: sends the R bit, and the F bit for these families, whose
    /// routes the kernel kept (RFC 4724).
    pub restarting: Option<Vec<Family>>,
    /// Families with workloads whose routes the kernel had when the agent started: the F bit is set for these,
    /// too.
    pub forwarding: Vec<Family>,
    /// Advertised restart time of peers without an own value; whole seconds, at most 4095.
    pub restart_time: Duration,
    /// Folder of password files; [`SECRETS`] except in tests.
    pub secrets: PathBuf,
    /// Key of hash tables with content chosen by peers; random except in tests.
    pub hash_key: HashKey,
}

impl Default for SpeakerOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            kernel: true,
            restarting: None,
            forwarding: Vec::new(),
            restart_time: Duration::from_secs(120),
            secrets: PathBuf::from(SECRETS),
            hash_key: HashKey::random(),
        }
    }
}
