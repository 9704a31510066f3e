//! `tortie node delete`: removes one host from the store with everything that names only it, and reports it.
//!
//! An interrupted command is completed by running it again.
//!
//! ```text
//!  keys.rs     a store of the v1 model: all keys of the host in one transaction
//!  objects.rs  a Calico 3 store: object by object, in the order of Calico's client
//! ```

mod keys;
mod objects;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Serialize;
use tortie_config::{Dialect, counted};
use tortie_net::Cidr;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use crate::api::machine::Machine;
use crate::api::nodes::NodeStatus;
use tortie_store::Snapshot;

/// Objects that the command removed.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Removed {
    node: String,
    /// Released addresses, in the host's own blocks and in blocks of others.
    addresses: Vec<IpAddr>,
    /// Deleted blocks of the host.
    blocks: Vec<Cidr>,
    /// Blocks of the host in which other hosts have addresses; they have no owner now.
    kept_blocks: Vec<Cidr>,
    endpoints: Vec<String>,
    /// Deleted objects of Calico 3 other than endpoints.
    objects: Vec<String>,
    /// Number of deleted keys of the host, including endpoints.
    keys: usize,
    /// Remaining keys or objects of others that name an address of the host as a peer.
    still_named: Vec<String>,
}

pub(super) async fn run(context: &Context, name: &str, force: bool) -> Result<(), Failure> {
    let removed = remove(context, name, force).await?;
    output::print(context.globals.output, &removed, |out, _| print_report(out, &removed))
}

/// Removes the host from the store.
pub(super) async fn remove(context: &Context, name: &str, force: bool) -> Result<Removed, Failure> {
    let store = super::store::open(&context.globals, false).await?;
    match store.dialect().await? {
        Dialect::V1 => keys::remove(store, name, force).await,
        Dialect::V3 => objects::remove(store, name, force).await,
    }
}

/// Describes the machine of this host's agent, if it is another machine than this one.
fn elsewhere(snapshot: &Snapshot) -> String {
    let machine = snapshot.entries.iter().find_map(|kv| NodeStatus::read(kv)?.machine);
    match (machine, Machine::by_machine_id()) {
        (Some(other), Some(own)) if other.id != own.id => {
            format!(" (on machine {other}, and this is machine {own})")
        }
        _ => String::new(),
    }
}

pub(super) fn unknown(name: &str) -> Failure {
    Failure::new(
        Exit::No,
        "not-found",
        format!("the store has no host {name}: `tortie node list` lists the hosts"),
    )
}

fn is_alive(name: &str, who: &str, sign: &str, elsewhere: &str) -> Failure {
    Failure::new(
        Exit::Refused,
        "agent-lives",
        format!(
            "{who} runs on {name}{elsewhere}, or did so in the last 90 seconds ({sign}): stop it first (systemctl stop tortie), or give \
             --force"
        ),
    )
}

fn sorted<T: Ord>(list: Vec<T>) -> Vec<T> {
    list.into_iter().collect::<BTreeSet<T>>().into_iter().collect()
}

pub(super) fn print_report(out: &mut String, removed: &Removed) {
    let _ = writeln!(out, "{} is removed: {} deleted", removed.node, counted(removed.keys, "key"));
    let list = |out: &mut String, what: &str, items: Vec<String>| {
        if items.is_empty() {
            return;
        }
        let _ = writeln!(out, "  {what:<10} {}", items.len());
        for item in items {
            let _ = writeln!(out, "    {item}");
        }
    };
    let texts = |items: &[Cidr]| items.iter().map(ToString::to_string).collect();
    list(out, "addresses", removed.addresses.iter().map(ToString::to_string).collect());
    list(out, "blocks", texts(&removed.blocks));
    list(out, "blocks in use by others, now without an owner", texts(&removed.kept_blocks));
    list(out, "endpoints", removed.endpoints.clone());
    list(out, "objects", removed.objects.clone());
    list(out, "peers elsewhere still name it (tortie store rm)", removed.still_named.clone());
}
