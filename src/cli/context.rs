//! Data and functions that all commands share: global flags, the runtime, paged route queries, error output.
//!
//! It depends on no command: commands import it, and only `mod.rs` dispatches to them.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::de::DeserializeOwned;

use super::client::{Client, escape};
use super::failure::{Exit, Failure};
use super::output::{self, Format};
use crate::api::status::List;
use tortie_store::DataModel;

/// Global flags, which every command accepts.
#[derive(Debug, Clone, Args)]
pub struct Globals {
    /// Store of the data model: sqlite:PATH, etcd://HOST:PORT[,HOST:PORT...], etcds://... or calico:FILE (of
    /// calicoctl or Felix); without this flag and its environment variable, it is ETCD_ENDPOINTS with Calico's
    /// other variables, else the store, its certificates and --node are read from /etc/tortie/tortie.env
    #[arg(
        long,
        global = true,
        env = "TORTIE_DATASTORE",
        value_name = "URL",
        default_value = "sqlite:/var/lib/tortie/store.db"
    )]
    pub datastore: String,
    /// `--datastore` itself says so.
    #[arg(skip)]
    pub datastore_given: bool,
    /// CA certificate of etcd (PEM)
    #[arg(long, global = true, env = "TORTIE_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Client certificate for etcd (PEM)
    #[arg(long, global = true, env = "TORTIE_ETCD_CERT", value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long, global = true, env = "TORTIE_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// User name for etcd
    #[arg(long, global = true, env = "TORTIE_ETCD_USER", value_name = "NAME")]
    pub etcd_user: Option<String>,
    /// File with the password of the etcd user
    #[arg(
        long,
        global = true,
        env = "TORTIE_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "etcd_user"
    )]
    pub etcd_password_file: Option<PathBuf>,
    /// Data model of the store: v1, v3 (Calico 3), or auto (v3 if there is a key below /calico/resources/v3/)
    #[arg(long, global = true, env = "TORTIE_DATA_MODEL", value_name = "auto|v1|v3", default_value = "auto")]
    pub data_model: DataModel,
    /// This host's name in the data model [default: the host name]
    #[arg(long, global = true, env = "TORTIE_NODE", value_name = "NAME")]
    pub node: Option<String>,
    /// The agent's unix socket
    #[arg(
        long,
        global = true,
        env = "TORTIE_SOCKET",
        value_name = "PATH",
        default_value = "/run/tortie/tortie.sock"
    )]
    pub socket: PathBuf,
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Format,
    /// Print again at every change, and every 10 s for ages and counters
    #[arg(short, long, global = true)]
    pub watch: bool,
    /// Print tables without their header line
    #[arg(long, global = true)]
    pub no_headers: bool,
    /// Colour the words for states; the text is the same without colour
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: output::Color,
}

impl Globals {
    /// Returns the node name: from the flag, otherwise the host name.
    ///
    /// # Errors
    /// If there is no usable host name.
    pub fn node_name(&self) -> Result<String, Failure> {
        if let Some(node) = &self.node {
            if node.is_empty() {
                return Err(Failure::usage("--node is empty: give this host's name in the data model"));
            }
            return Ok(node.clone());
        }
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if name.is_empty() || name == "(none)" {
            return Err(Failure::usage("this host has no name: give --node NAME"));
        }
        Ok(name)
    }
}

/// Context of a command.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) globals: Globals,
}

/// Filters of commands that list routes.
#[derive(Debug, Clone, Args)]
pub(super) struct RouteFilter {
    /// This exact prefix, or the longest match for an address
    #[arg(value_name = "PREFIX|ADDRESS", value_parser = prefix_or_address)]
    pub prefix: Option<String>,
    /// All prefixes within this one
    #[arg(long, value_name = "CIDR", conflicts_with = "prefix", value_parser = prefix)]
    pub within: Option<String>,
    /// At most this many, in the order of the table
    #[arg(long, value_name = "N")]
    pub max: Option<usize>,
}

/// Number of routes per page of the API.
const PAGE: usize = 10_000;

/// Fetches pages until `--max` or the end. `more` contains further query parameters.
pub(super) async fn pages<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    filter: &RouteFilter,
    more: &[(&str, Option<&str>)],
) -> Result<List<T>, Failure> {
    let mut whole: Option<List<T>> = None;
    loop {
        let have = whole.as_ref().map_or(0, |list| list.items.len());
        let left = filter.max.map_or(PAGE, |max| max.saturating_sub(have).clamp(1, PAGE));
        let mut url = format!("{path}?max={left}");
        let after = whole.as_ref().and_then(|list| list.next.as_deref());
        let parts =
            [("prefix", filter.prefix.as_deref()), ("within", filter.within.as_deref()), ("after", after)];
        for (name, value) in parts.iter().chain(more) {
            if let Some(value) = value {
                let _ = write!(url, "&{name}={}", escape(value));
            }
        }
        let mut page: List<T> = client.get(&url).await?;
        if let Some(list) = whole {
            let mut items = list.items;
            items.append(&mut page.items);
            page.items = items;
        }
        if page.next.is_none() || filter.max.is_some_and(|max| page.items.len() >= max) {
            return Ok(page);
        }
        whole = Some(page);
    }
}

/// Validates a prefix, or an address, which stands for the longest prefix that contains it.
pub(super) fn prefix_or_address(text: &str) -> Result<String, String> {
    if text.parse::<std::net::IpAddr>().is_ok() { Ok(text.to_owned()) } else { prefix(text) }
}

/// Validates a prefix.
pub(super) fn prefix(text: &str) -> Result<String, String> {
    text.parse::<tortie_net::Cidr>().map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// Prints a failure on stderr, as JSON if that was requested.
pub(super) fn report(format: Format, failure: &Failure) {
    if failure.text.is_empty() {
        return;
    }
    if format == Format::Json {
        let error = serde_json::json!({ "error": { "code": failure.code, "text": failure.text } });
        output::diagnose(&error.to_string());
    } else {
        output::diagnose(&format!("tortie: {}", failure.text));
    }
}

/// Creates a single-threaded runtime for one command.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new(Exit::Partial, "runtime", format!("cannot start: {e}")))
}
