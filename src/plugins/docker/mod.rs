//! The Docker drivers: libnetwork's remote IPAM driver and remote network driver, on plugin sockets.
//!
//! They implement the protocol, store the state that must survive restarts of dockerd and of Tortie, and
//! distinguish replays from new requests. They do not select addresses (ipam), write routes and rules of
//! endpoints (the agent), or run other programs. They run inside the agent (`--docker`) or as `tortie
//! docker`.
//!
//! ```text
//!  dockerd --/run/docker/plugins/tortie-ipam.sock--> http.rs --> pools.rs, addresses.rs --> ipam
//!          --/run/docker/plugins/tortie.sock-------> http.rs --> network.rs, ports.rs ----> attach
//!                                 sandbox/: settings in the container's namespace that dockerd omits
//!          <--/run/docker.sock (its own API)-------- dockerd.rs <-- sync.rs: labels, names, objects
//!                                 that dockerd forgot
//!                                 state.rs: records (records.rs) below tortie/v1/host/<h>/docker/
//! ```

mod addresses;
mod dockerd;
mod driver;
mod error;
mod http;
mod network;
mod options;
mod poolid;
mod pools;
mod ports;
mod records;
mod sandbox;
mod state;
mod sync;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Mutex, RwLock};
use tokio::task::JoinHandle;

use self::dockerd::Dockerd;
use self::driver::Driver;
use self::state::State;
use tortie_store::Store;

pub use self::options::{API, LABEL_PREFIX, LabelSource, Options, PLUGINS};

/// An error while starting the drivers.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve Docker at {}: {error}", path.display())]
pub struct DockerError {
    path: PathBuf,
    error: io::Error,
}

/// The running drivers, until [`Running::stop`].
pub struct Running {
    tasks: Vec<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl Running {
    /// Stops serving and removes the sockets. Allocated addresses and endpoints are kept.
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
/// If a socket cannot be created.
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
        choices: Mutex::default(),
        process: rand::random(),
        started_at: std::time::Instant::now(),
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
