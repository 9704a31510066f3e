//! The Docker drivers: libnetwork's remote IPAM driver and remote network driver, on plugin sockets.
//!
//! What it does: speaks the protocol, keeps what must survive restarts of dockerd and of itself in the store, and tells
//! replays from new requests. What it does not: decide which address is free (ipam), make routes and rules of endpoints
//! (the agent), or run other programs. It runs inside of the agent (`--docker`) or as `tortie docker`.
//!
//! ```text
//!  dockerd --/run/docker/plugins/tortie-ipam.sock--> http.rs --> pools.rs, addresses.rs --> ipam   (blocks, handles)
//!          --/run/docker/plugins/tortie.sock-------> http.rs --> network.rs, ports.rs ----> attach (endpoint, Applied)
//!          <--/run/docker.sock (its own API)-------- dockerd.rs <-- follow.rs: labels, names, what dockerd forgot
//!                                 state.rs: records (records.rs, pure) below tortie/v1/host/<h>/docker/
//! ```

mod addresses;
mod dockerd;
mod error;
mod http;
mod network;
mod poolid;
mod pools;
mod ports;
mod records;
mod state;
mod sync;
mod wire;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Mutex, RwLock};
use tokio::task::JoinHandle;
use tortie_config::key::DockerItem;

use self::dockerd::Dockerd;
use self::error::Refusal;
use self::records::Epoch;
use self::state::State;
use super::attach::AgentClient;
use tortie_store::Store;

/// Where dockerd looks for sockets of plugins.
pub const PLUGINS: &str = "/run/docker/plugins";
/// Where dockerd's own API is.
pub const API: &str = "/run/docker.sock";
/// Labels of containers that begin so become labels of endpoints, as with Calico's driver.
pub const LABEL_PREFIX: &str = "org.projectcalico.label.";

/// What a socket serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Network,
    Ipam,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Network => "NetworkDriver",
            Self::Ipam => "IpamDriver",
        }
    }
}

/// Which labels of containers endpoints get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelSource {
    /// None; dockerd's API is not asked for them.
    Off,
    /// Those whose names begin so, without that beginning, and `docker.network`.
    Prefix(String),
}

impl std::str::FromStr for LabelSource {
    type Err = std::convert::Infallible;

    /// `none`, or a prefix.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "none" { Self::Off } else { Self::Prefix(text.to_owned()) })
    }
}

/// How the drivers run.
#[derive(Debug, Clone)]
pub struct Options {
    /// This host's name in the data model.
    pub node: String,
    /// The agent that puts endpoints in force.
    pub agent: AgentClient,
    /// The folder of the sockets.
    pub dir: PathBuf,
    /// Serve `calico` and `calico-ipam`, too.
    pub compat: bool,
    /// dockerd's own API.
    pub api: PathBuf,
    /// Labels of endpoints.
    pub labels: LabelSource,
}

impl Options {
    fn sockets(&self) -> Vec<(&'static str, Role)> {
        let mut all = vec![("tortie", Role::Network), ("tortie-ipam", Role::Ipam)];
        if self.compat {
            all.extend([("calico", Role::Network), ("calico-ipam", Role::Ipam)]);
        }
        all
    }

    /// Names of IPAM drivers whose records there may be, served now or not.
    fn ipam_drivers(&self) -> Vec<&'static str> {
        vec!["tortie-ipam", "calico-ipam"]
    }

    fn drivers(&self) -> BTreeSet<&'static str> {
        ["tortie", "tortie-ipam", "calico", "calico-ipam"].into()
    }
}

/// Why the drivers cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve Docker at {}: {error}", path.display())]
pub struct DockerError {
    path: PathBuf,
    error: io::Error,
}

/// What all calls share.
struct Driver {
    options: Options,
    state: State,
    dockerd: Dockerd,
    /// Pools are chosen, counted and removed one after the other.
    pools: Mutex<()>,
    /// Held between IPAM's answer and the record: shared by requests for any address, alone by those for one.
    allocation_lock: RwLock<()>,
    /// Host ports are chosen one after the other.
    ports: Mutex<()>,
    /// Tells what this process gave out from what an earlier one did.
    process: u64,
}

/// Seconds since 1970.
fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

impl Driver {
    async fn epoch(&self, driver: &str) -> Result<Epoch, Refusal> {
        let item = DockerItem::Epoch { driver: driver.to_owned() };
        Ok(self.state.get(&item).await?.map_or_else(Epoch::default, |(epoch, _)| epoch))
    }

    /// A dockerd has started.
    async fn begin_epoch(&self, driver: &str) -> Result<(), Refusal> {
        let item = DockerItem::Epoch { driver: driver.to_owned() };
        self.state.change(&item, |old: Option<Epoch>| Ok(Some(old.unwrap_or_default().next(now())))).await?;
        Ok(())
    }
}

/// The drivers, being served. Ends with [`Running::stop`].
pub struct Running {
    tasks: Vec<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl Running {
    /// Ends the service and removes the sockets. What was given out stays.
    pub fn stop(self) {
        for task in self.tasks {
            task.abort();
        }
        for socket in self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Serves the drivers on tasks of the current runtime.
///
/// # Errors
/// When a socket cannot be made.
pub fn serve(store: Arc<dyn Store>, options: Options) -> Result<Running, DockerError> {
    let mut listeners = Vec::new();
    for (name, role) in options.sockets() {
        let path = socket(&options.dir, name);
        let listener = http::bind(&path).map_err(|error| DockerError { path: path.clone(), error })?;
        listeners.push((name.to_owned(), role, path, listener));
    }
    let shared = Arc::new(Driver {
        state: State { store, host: options.node.clone() },
        dockerd: Dockerd::new(&options.api),
        options,
        pools: Mutex::default(),
        allocation_lock: RwLock::default(),
        ports: Mutex::default(),
        process: rand::random(),
    });
    let mut running = Running { tasks: Vec::new(), sockets: Vec::new() };
    for (name, role, path, listener) in listeners {
        tracing::info!(target: "tortie::docker", "the Docker driver {name} is served at {}", path.display());
        running.sockets.push(path.clone());
        running.tasks.push(tokio::spawn(http::serve(shared.clone(), name, role, listener, path)));
    }
    running.tasks.push(tokio::spawn(sync::run(shared)));
    Ok(running)
}

fn socket(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}
