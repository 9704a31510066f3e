//! Removal of a host from a Calico 3 store, by the steps of [`NodeRemoval`].
//!
//! Each object is deleted only if it is the one that was read, and no agent of the host has started meanwhile.
//! What plugins write during the removal is removed by another pass.

use std::sync::Arc;

use tortie_config::calico3::Kind;

use super::{Removed, elsewhere, is_alive, sorted, unknown};
use crate::cli::failure::{Exit, Failure};
use crate::cli::ipam::failed;
use tortie_engine::ipam::Ipam;
use tortie_engine::writer::{DoomedKey, NodeRemoval, RemovalStep};
use tortie_store::{Outcome, Snapshot, Store};

/// Maximum number of passes, for a host on which workloads are still started.
const PASSES: usize = 5;

/// Removes the host.
pub(super) async fn remove(store: Arc<dyn Store>, name: &str, force: bool) -> Result<Removed, Failure> {
    let mut removed = Removed { node: name.to_owned(), ..Removed::default() };
    for pass in 0..PASSES {
        let snapshot = store.list(&NodeRemoval::prefixes(name)).await?;
        let removal = NodeRemoval::of(name, &snapshot);
        let alive = removal.signs.iter().find(|sign| sign.exists);
        if let (Some(sign), false) = (alive, force) {
            return Err(is_alive(name, sign.who, &sign.key, &elsewhere(&snapshot)));
        }
        if pass == 0 {
            removed.still_named.clone_from(&removal.still_named);
        }
        let pass_found = Pass { store: &store, name, force, removal: &removal }.run(&mut removed).await?;
        if !pass_found {
            if pass == 0 {
                return Err(unknown(name));
            }
            removed.addresses = sorted(removed.addresses);
            removed.blocks = sorted(removed.blocks);
            removed.kept_blocks = sorted(removed.kept_blocks);
            return Ok(removed);
        }
    }
    let text = format!(
        "workloads are still started on {name}: {} were removed; stop what starts them, and run it again",
        tortie_config::counted(removed.keys, "key")
    );
    Err(Failure::new(Exit::TimedOut, "busy", text))
}

/// One pass over what the store has of the host.
struct Pass<'a> {
    store: &'a Arc<dyn Store>,
    name: &'a str,
    force: bool,
    removal: &'a NodeRemoval,
}

impl Pass<'_> {
    /// Executes the steps. Returns true if there was anything to remove.
    async fn run(&self, removed: &mut Removed) -> Result<bool, Failure> {
        let ipam = Ipam::new(Arc::clone(self.store));
        let mut found = false;
        for step in &self.removal.steps {
            match step {
                RemovalStep::ReleaseEndpoints => {
                    let released = ipam.release_endpoints(self.name).await.map_err(failed)?;
                    found |= !released.is_empty();
                    removed.addresses.extend(released);
                }
                RemovalStep::ReleaseHost => {
                    let gone = ipam.remove_host(self.name).await.map_err(failed)?;
                    let blocks = gone.blocks;
                    found |=
                        !(gone.released.is_empty() && blocks.deleted.is_empty() && blocks.kept.is_empty());
                    removed.addresses.extend(gone.released);
                    removed.blocks.extend(blocks.deleted);
                    removed.kept_blocks.extend(blocks.kept);
                }
                RemovalStep::Delete(doomed) => {
                    found = true;
                    self.delete(doomed).await?;
                    removed.keys += 1;
                    match doomed.kind {
                        Some(Kind::WorkloadEndpoint) => removed.endpoints.push(doomed.name.clone()),
                        Some(_) => removed.objects.push(doomed.name.clone()),
                        None => {}
                    }
                }
            }
        }
        Ok(found)
    }

    async fn delete(&self, doomed: &DoomedKey) -> Result<(), Failure> {
        let signs = self.removal.signs.iter().filter(|_| !self.force).map(|sign| sign.key.as_str());
        let txn = doomed.deletion(signs);
        if matches!(self.store.commit(txn).await?, Outcome::Committed(_)) {
            return Ok(());
        }
        for sign in self.removal.signs.iter().filter(|_| !self.force) {
            if self.store.get(&sign.key).await?.is_some() {
                return Err(is_alive(self.name, sign.who, &sign.key, &elsewhere(&Snapshot::default())));
            }
        }
        let text = format!(
            "another program changed {} at the same moment, and it was not deleted: run it again",
            doomed.name
        );
        Err(Failure::new(Exit::Refused, "conflict", text))
    }
}
