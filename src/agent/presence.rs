//! The host's status key: leased, small, written on change at most each 10 s, else each 5 minutes. Its absence tells
//! others that no agent runs here; its presence guards the host's addresses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tortie_config::key::Key;

use super::keeper::Keeper;
use crate::store::{LeaseId, Op, Store, StoreError, Txn};

/// The lease lives this long after the last renewal.
const TTL: Duration = Duration::from_secs(60);
/// Between renewals.
const RENEW: Duration = Duration::from_secs(20);
/// Between writes on change.
const ON_CHANGE: Duration = Duration::from_secs(10);
/// Between writes without change.
const AT_REST: Duration = Duration::from_secs(300);

/// What others may know of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Brief {
    pub(super) ready: bool,
    pub(super) sessions: usize,
    pub(super) up: usize,
    /// Told, but no reason to write.
    pub(super) revision: u64,
}

/// The task that keeps the key.
#[derive(Debug)]
pub(super) struct Presence(Keeper<Brief>);

impl Presence {
    /// Starts the task; an agent that only observes writes nothing.
    pub(super) fn start(
        io: &tokio::runtime::Handle,
        store: Arc<dyn Store>,
        node: &str,
        writes: bool,
    ) -> Self {
        let key = Key::TortieStatus { host: node.to_owned() }.to_string();
        let node = node.to_owned();
        Self(Keeper::start(io, writes, |seen, ended| keep(store, key, node, seen, ended)))
    }

    pub(super) fn tell(&self, brief: Brief) {
        let of = |brief: &Brief| (brief.ready, brief.sessions, brief.up);
        self.0.tell(brief, |old, new| of(old) != of(new));
    }

    /// Removes the key, if the store answers in time.
    pub(super) async fn stop(&mut self) {
        self.0.stop().await;
    }
}

async fn keep(
    store: Arc<dyn Store>,
    key: String,
    node: String,
    mut seen: watch::Receiver<Brief>,
    mut ended: tokio::sync::oneshot::Receiver<()>,
) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut lease: Option<LeaseId> = None;
    let mut written: Option<Instant> = None;
    let mut renew = tokio::time::interval(RENEW);
    renew.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let brief = *seen.borrow_and_update();
        // Nothing is said before there is something to say.
        if brief.sessions > 0 || brief.ready || written.is_some() {
            match write(&*store, &key, &node, boot.trim(), brief, &mut lease).await {
                Ok(()) => written = Some(Instant::now()),
                Err(error) => {
                    tracing::debug!(target: "tortie", "the status key is not written: {error}");
                    lease = None;
                }
            }
        }
        let next = tokio::time::sleep(AT_REST);
        tokio::pin!(next);
        let mut changed = false;
        loop {
            tokio::select! {
                _ = &mut ended => {
                    if let Some(lease) = lease {
                        let _ = store.revoke(lease).await;
                    }
                    return;
                }
                told = seen.changed(), if !changed => {
                    if told.is_err() {
                        return;
                    }
                    changed = true;
                    let since = written.map_or(ON_CHANGE, |at| at.elapsed());
                    let wait = ON_CHANGE.saturating_sub(since).max(Duration::from_millis(200));
                    next.as_mut().reset(tokio::time::Instant::now() + wait);
                }
                _ = renew.tick() => {
                    if let Some(id) = lease
                        && !matches!(store.keep_alive(id).await, Ok(true))
                    {
                        lease = None;
                        break;
                    }
                }
                () = &mut next => break,
            }
        }
    }
}

async fn write(
    store: &dyn Store,
    key: &str,
    node: &str,
    boot: &str,
    brief: Brief,
    lease: &mut Option<LeaseId>,
) -> Result<(), StoreError> {
    let id = match *lease {
        Some(id) => id,
        None => store.grant(TTL).await?,
    };
    let value = serde_json::json!({
        "node": node,
        "version": env!("CARGO_PKG_VERSION"),
        "time": super::core::now_text(),
        "boot": boot,
        "ready": brief.ready,
        "sessions": { "up": brief.up, "of": brief.sessions },
        "revision": brief.revision,
    });
    let op = Op::Put { key: key.to_owned(), value: value.to_string().into_bytes(), lease: Some(id) };
    store.commit(Txn { ops: vec![op], ..Txn::default() }).await?;
    *lease = Some(id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::SqliteStore;

    #[tokio::test]
    async fn the_key_goes_with_the_agent_also_while_a_change_waits_to_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
        let mut presence = Presence::start(&tokio::runtime::Handle::current(), store.clone(), "host1", true);
        let prefix = [Key::TortieStatus { host: "host1".to_owned() }.to_string()];
        let written = async || !store.list(&prefix).await.unwrap().entries.is_empty();
        presence.tell(Brief { sessions: 1, ..Brief::default() });
        while !written().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        presence.tell(Brief { sessions: 1, up: 1, ..Brief::default() });
        // The task has seen it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        presence.stop().await;
        assert!(!written().await);
    }
}
