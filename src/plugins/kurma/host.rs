//! Finds the store and the agent from a container that sees no files of the host.
//!
//! The store is the etcd of the configuration; otherwise the file that the configuration (or the default)
//! names, in this container or on the host, whose files are below `/proc/1/root` if the process ids are
//! shared; otherwise `store.db` in the volume of the configuration. SQLite resolves symbolic links by their
//! text, and `/proc/1/root` links to `/`: to open the host's file, the process changes its root to the
//! host's.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::Settings;
use super::error::KurmaError;
use crate::plugins::attach::AgentClient;
use crate::plugins::cni::store_options;
use tortie_store::{Purpose, Store, StoreUrl};

/// Root of the host's files, for a process that shares its process ids.
const HOST_ROOT: &str = "/proc/1/root";
const SOCKET: &str = "/run/tortie/tortie.sock";
/// File name of the store in a volume.
const FILE: &str = "store.db";

/// Store and agent of a call.
pub(super) struct HostAccess {
    pub(super) store: Arc<dyn Store>,
    pub(super) agent: AgentClient,
    /// Path by which the namespace can be opened after a change of the root; `_open` keeps it valid.
    pub(super) netns: Option<PathBuf>,
    _open: Option<File>,
}

/// Finds store and agent. `netns` is opened first, because its path may be invalid under another root.
pub(super) async fn open_host(settings: &Settings, netns: Option<&Path>) -> Result<HostAccess, KurmaError> {
    // A missing namespace is reported by the step that needs it.
    let open = netns.and_then(|path| File::open(path).ok());
    let config = &settings.config;
    let configured = || store_options(config.datastore.as_ref(), |name| std::env::var_os(name));
    let mut options = match settings.store.clone() {
        Some(options) => options,
        None => configured().map_err(|error| KurmaError(error.to_string()))?,
    };
    let mut entered = false;
    if let StoreUrl::Sqlite(path) = options.url.parse()? {
        let on_host = below_host(&path).filter(|_| other_root());
        let in_volume = settings.volume.as_ref().map(|volume| volume.join(FILE));
        if !path.exists() {
            if on_host.as_ref().is_some_and(|path| path.exists()) {
                rustix::process::chroot(HOST_ROOT)
                    .and_then(|()| rustix::process::chdir("/"))
                    .map_err(|error| KurmaError(format!("the host's files cannot be reached: {error}")))?;
                entered = true;
            } else if let Some(path) = in_volume.as_ref().filter(|path| path.exists()) {
                options.url = format!("sqlite:{}", path.display());
            } else {
                let places = [Some(path), on_host, in_volume].into_iter().flatten();
                let places: Vec<String> = places.map(|path| path.display().to_string()).collect();
                return Err(KurmaError(format!(
                    "there is no store at {}: write \"datastore\": \"etcd://HOST:PORT\" into the configuration, share the \
                     host's process ids with this container, or name a volume in `store_volume`; does the agent run?",
                    places.join(", ")
                )));
            }
        }
    }
    let store = tortie_store::open(&options)
        .await
        .map_err(|error| KurmaError(format!("the data model at {} cannot be used: {error}", options.url)))?;
    store.may_write(Purpose::Kurma).await?;
    let socket = config.socket.clone().or_else(|| std::env::var_os("TORTIE_SOCKET").map(PathBuf::from));
    let mut socket = socket.unwrap_or_else(|| SOCKET.into());
    if !entered && !socket.exists() && other_root() {
        socket = below_host(&socket).unwrap_or(socket);
    }
    let netns = match (&open, netns) {
        (Some(file), Some(_)) if entered => Some(format!("/proc/self/fd/{}", file.as_raw_fd()).into()),
        (_, path) => path.map(Path::to_owned),
    };
    Ok(HostAccess { store, agent: AgentClient::new(socket, config.agent_absent), netns, _open: open })
}

fn below_host(path: &Path) -> Option<PathBuf> {
    path.strip_prefix("/").ok().map(|path| Path::new(HOST_ROOT).join(path))
}

/// True if process 1 has another root than this process.
fn other_root() -> bool {
    let id = |path: &str| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    match (id("/"), id(HOST_ROOT)) {
        (Ok(own), Ok(host)) => own != host,
        _ => false,
    }
}
