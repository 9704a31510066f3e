//! The host's address in the tunnel: from an IPIP pool by IPAM, as Calico's node helper takes it.
//!
//! Handle `ipip-tunnel-addr-<node>`, attributes `node` and `type` `ipipTunnelAddress`, key
//! `v1/host/<h>/config/IpInIpTunnelAddr`. It is taken when an enabled IPIP pool appears, moved when its pool goes away or
//! somebody else holds it, and given back when no IPIP pool remains. A disabled pool keeps what it gave. An address that
//! lies outside of the IPIP pools and that IPAM never gave is the operator's own choice and left alone.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tortie_config::key::{IpFamily, Key, Scope};
use tortie_net::Cidr;

use crate::agent::controllers::Keeper;
use crate::agent::core::Core;
use crate::agent::core::recorder::Plane;
use tortie_engine::ipam::{Ipam, IpamError, Request, Want};
use tortie_engine::routing::ChangeId;
use tortie_store::{Compare, Op, Outcome, Store, Txn};

/// The first retry after a failure; each further one waits twice as long.
const RETRY: Duration = Duration::from_secs(2);
/// The longest wait between retries.
const RETRY_MOST: Duration = Duration::from_secs(120);
/// How often it is looked at without being told: somebody may have released the address by hand.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// What the store says, as far as the tunnel address goes. `None`: nothing may be written now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::agent) struct Wanted {
    /// The IPv4 pools with IPIP that IPAM uses, and whether each is enabled.
    pub(in crate::agent) pools: Vec<(Cidr, bool)>,
    /// The value of the key, where it is an address.
    pub(in crate::agent) stored: Option<Ipv4Addr>,
}

/// Who has the stored address, as IPAM knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// It is free.
    Nobody,
    /// This host's tunnel.
    Ours,
    /// Calico's older writers left no trace of who asked.
    Unsaid,
    /// Somebody else.
    Other,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// All is well, or nothing can be done. What else the handle holds is given back.
    Keep,
    /// Take exactly this address: it is in the key and free.
    Claim(Ipv4Addr),
    /// Write this address, which the handle holds already, into the key.
    Write(Ipv4Addr),
    /// Take a new one from these pools, write it, give back the old one.
    Take(Vec<Cidr>),
    /// Give back everything, and delete the key where it names what was given back.
    GiveBack,
}

fn step(wanted: &Wanted, held: &[Ipv4Addr], holder: Holder) -> Step {
    let covered = |addr: Ipv4Addr| wanted.pools.iter().any(|(pool, _)| pool.contains(IpAddr::V4(addr)));
    let enabled: Vec<Cidr> = wanted.pools.iter().filter(|(_, on)| *on).map(|(pool, _)| *pool).collect();
    let given = holder == Holder::Ours || holder == Holder::Unsaid;
    let anew = || match held.iter().copied().find(|addr| covered(*addr)) {
        Some(addr) => Step::Write(addr),
        None if enabled.is_empty() => Step::Keep,
        None => Step::Take(enabled.clone()),
    };
    match wanted.stored {
        _ if wanted.pools.is_empty() && held.is_empty() && !given => Step::Keep,
        _ if wanted.pools.is_empty() => Step::GiveBack,
        None => anew(),
        Some(addr) if covered(addr) => match holder {
            Holder::Ours | Holder::Unsaid => Step::Keep,
            Holder::Nobody => Step::Claim(addr),
            Holder::Other => anew(),
        },
        Some(_) if given && enabled.is_empty() => Step::GiveBack,
        Some(_) if given => anew(),
        Some(_) => Step::Keep,
    }
}

/// What the task has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum Told {
    /// Something was done: in words.
    Done(String),
    /// What keeps the host from having its address; `None`: nothing any more.
    Trouble(Option<String>),
}

impl Core {
    /// Keeps and records what became of it.
    pub(in crate::agent) fn tunnel_addr_told(&mut self, told: Told) {
        let subject = "tunnel address";
        match told {
            Told::Done(text) => self.say(ChangeId::default(), Plane::Agent, '~', subject, &text),
            Told::Trouble(trouble) => {
                if let Some(text) = &trouble {
                    self.say(ChangeId::default(), Plane::Agent, '!', subject, text);
                }
                self.tunnel_addr_trouble = trouble;
            }
        }
    }

    /// What the tunnel address is to follow; `None` while nothing may be concluded from the store.
    pub(in crate::agent) fn tunnel_addr(&self) -> Option<Wanted> {
        if !self.running() || self.frozen.is_some() || self.link.from_cache {
            return None;
        }
        let pools = self.model.pools().map(|pool| pool.value);
        let pools = pools.filter(|pool| pool.cidr.is_v4() && pool.ipip.is_some() && pool.ipam);
        Some(Wanted {
            pools: pools.map(|pool| (pool.cidr, !pool.disabled)).collect(),
            stored: self.model.settings().ip_in_ip_tunnel_addr,
        })
    }
}

/// The task that keeps the address.
#[derive(Debug)]
pub(in crate::agent) struct TunnelAddr(Keeper<Option<Wanted>>);

impl TunnelAddr {
    /// Starts the task; an agent that only observes writes nothing.
    pub(in crate::agent) fn start(
        io: &tokio::runtime::Handle,
        store: Arc<dyn Store>,
        node: &str,
        writes: bool,
        tell: impl Fn(Told) + Send + 'static,
    ) -> Self {
        let task = Task {
            ipam: Ipam::new(Arc::clone(&store)),
            store,
            node: node.to_owned(),
            handle: format!("ipip-tunnel-addr-{node}"),
            key: Key::Setting(Scope::Host(node.to_owned()), "IpInIpTunnelAddr".to_owned()).to_string(),
        };
        Self(Keeper::start(io, writes, |seen, ended| task.run(seen, ended, tell)))
    }

    pub(in crate::agent) fn tell(&self, wanted: Option<Wanted>) {
        self.0.tell(wanted, |old, new| old != new);
    }

    /// Ends the task; the address stays.
    pub(in crate::agent) async fn stop(&mut self) {
        self.0.stop().await;
    }
}

struct Task {
    ipam: Ipam,
    store: Arc<dyn Store>,
    node: String,
    handle: String,
    key: String,
}

impl Task {
    async fn run(
        self,
        mut seen: watch::Receiver<Option<Wanted>>,
        mut ended: oneshot::Receiver<()>,
        tell: impl Fn(Told),
    ) {
        let (mut retry, mut trouble) = (RETRY, None);
        loop {
            let wanted = seen.borrow_and_update().clone();
            let mut next = LOOK_AGAIN;
            if let Some(wanted) = wanted {
                let now = match self.settle(&wanted).await {
                    Ok(done) => {
                        retry = RETRY;
                        if let Some(text) = done {
                            tell(Told::Done(text));
                            // What is taken away again before the agent heard of it is nothing new to it.
                            next = RETRY;
                        }
                        None
                    }
                    Err(error) => {
                        next = retry;
                        retry = (retry * 2).min(RETRY_MOST);
                        Some(error.to_string())
                    }
                };
                if now != trouble {
                    trouble.clone_from(&now);
                    tell(Told::Trouble(now));
                }
            }
            tokio::select! {
                _ = &mut ended => return,
                () = tokio::time::sleep(next) => {}
                told = seen.changed() => if told.is_err() { return },
            }
        }
    }

    /// Brings key and IPAM to what is wanted. Every order of interruptions leaves the address with the handle, and the
    /// next call finds it there.
    async fn settle(&self, wanted: &Wanted) -> Result<Option<String>, IpamError> {
        let held = self.held().await?;
        if wanted.pools.is_empty() && wanted.stored.is_none() && held.is_empty() {
            return Ok(None);
        }
        let holder = match wanted.stored {
            Some(addr) => self.holder(addr).await?,
            None => Holder::Nobody,
        };
        let old = wanted.stored.filter(|_| holder == Holder::Unsaid).map(IpAddr::V4);
        match step(wanted, &held, holder) {
            Step::Keep => {
                // A handle of which nothing is in use: what an interruption left, or what an operator's value replaced.
                self.give_back(&held, wanted.stored).await?;
                Ok(None)
            }
            Step::Claim(addr) => match self.assign(Want::Exact(IpAddr::V4(addr))).await {
                Ok(_) => {
                    Ok(Some(format!("{addr} is allocated to the tunnel now: it stood in the store only")))
                }
                // A disabled pool gives out nothing; what stands is used on.
                Err(IpamError::Disabled(_)) => Ok(None),
                Err(error) => Err(error),
            },
            Step::Write(addr) => self.write(wanted, addr, &held, old).await,
            Step::Take(pools) => {
                let want = Want::Any { family: IpFamily::V4, count: 1, pools };
                let addr = self.assign(want).await?;
                self.write(wanted, addr, &held, old).await
            }
            Step::GiveBack => {
                let given = holder == Holder::Ours || holder == Holder::Unsaid;
                if let Some(addr) = wanted.stored.filter(|_| given) {
                    self.put(wanted, None).await?;
                    if let Some(old) = old {
                        self.ipam.release(&[old], None).await?;
                    }
                    self.ipam.release_handle(&self.handle).await?;
                    return Ok(Some(format!("no IPIP pool remains: {addr} is given back")));
                }
                self.ipam.release_handle(&self.handle).await?;
                Ok(None)
            }
        }
    }

    async fn held(&self) -> Result<Vec<Ipv4Addr>, IpamError> {
        let held = self.ipam.held_by(&self.handle).await?;
        Ok(held
            .into_iter()
            .filter_map(|addr| if let IpAddr::V4(addr) = addr { Some(addr) } else { None })
            .collect())
    }

    async fn holder(&self, addr: Ipv4Addr) -> Result<Holder, IpamError> {
        Ok(match self.ipam.lookup(IpAddr::V4(addr)).await? {
            None => Holder::Nobody,
            Some(held) if held.handle.as_deref() == Some(&*self.handle) => Holder::Ours,
            Some(held) if held.handle.is_none() && held.attributes.is_empty() => Holder::Unsaid,
            Some(_) => Holder::Other,
        })
    }

    async fn assign(&self, want: Want) -> Result<Ipv4Addr, IpamError> {
        let attributes: Map<String, Value> = [("node", &*self.node), ("type", "ipipTunnelAddress")]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let request = Request {
            host: self.node.clone(),
            wants: vec![want],
            handle: Some(self.handle.clone()),
            attributes,
            ..Request::default()
        };
        let given = self.ipam.assign(&request).await?;
        match given.first().map(|given| given.addr) {
            Some(IpAddr::V4(addr)) => Ok(addr),
            _ => Err(IpamError::BadRequest("an IPv4 address was asked for and none was given".to_owned())),
        }
    }

    /// Writes an address that the handle holds, then gives back every other one.
    async fn write(
        &self,
        wanted: &Wanted,
        addr: Ipv4Addr,
        held: &[Ipv4Addr],
        old: Option<IpAddr>,
    ) -> Result<Option<String>, IpamError> {
        let written = self.put(wanted, Some(addr)).await?;
        self.give_back(held, Some(addr)).await?;
        if let Some(old) = old {
            self.ipam.release(&[old], None).await?;
        }
        Ok(written.then(|| match wanted.stored {
            Some(before) => format!("moved from {before} to {addr}"),
            None => format!("{addr} is the address of this host"),
        }))
    }

    async fn give_back(&self, held: &[Ipv4Addr], but: Option<Ipv4Addr>) -> Result<(), IpamError> {
        let others: Vec<IpAddr> =
            held.iter().filter(|addr| Some(**addr) != but).map(|addr| IpAddr::V4(*addr)).collect();
        if !others.is_empty() {
            self.ipam.release(&others, Some(&self.handle)).await?;
        }
        Ok(())
    }

    /// Writes or deletes the key, unless it is no longer what `wanted` was made from: then the next call does it. False when
    /// it is that already.
    async fn put(&self, wanted: &Wanted, addr: Option<Ipv4Addr>) -> Result<bool, IpamError> {
        let found = self.store.get(&self.key).await?;
        let text = found.as_ref().and_then(|kv| std::str::from_utf8(&kv.value).ok()).map(str::trim);
        let stored = text.and_then(|text| text.parse::<Ipv4Addr>().ok());
        if addr.is_some() && stored == addr {
            return Ok(false);
        }
        if stored != wanted.stored {
            return Err(IpamError::Busy { attempts: 1 });
        }
        let compare = match &found {
            Some(kv) => Compare::ModRevision(self.key.clone(), kv.mod_revision),
            None => Compare::Absent(self.key.clone()),
        };
        let key = self.key.clone();
        let op = match addr {
            Some(addr) => Op::Put { key, value: addr.to_string().into_bytes(), lease: None },
            None => Op::Delete { key },
        };
        match self.store.commit(Txn { compare: vec![compare], ops: vec![op] }).await? {
            Outcome::Committed(_) => Ok(true),
            Outcome::Conflict => Err(IpamError::Busy { attempts: 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pools: &[(&str, bool)], stored: Option<&str>) -> Wanted {
        Wanted {
            pools: pools.iter().map(|(pool, on)| (pool.parse().unwrap(), *on)).collect(),
            stored: stored.map(|addr| addr.parse().unwrap()),
        }
    }

    fn addr(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn it_is_taken_kept_moved_and_given_back() {
        let pool = ("10.0.0.0/16", true);
        let off = ("10.0.0.0/16", false);
        let take = || Step::Take(vec!["10.0.0.0/16".parse().unwrap()]);
        // No IPIP pool, and never one.
        assert_eq!(step(&wanted(&[], None), &[], Holder::Nobody), Step::Keep);
        // The first one; one that is disabled gives nothing.
        assert_eq!(step(&wanted(&[pool], None), &[], Holder::Nobody), take());
        assert_eq!(step(&wanted(&[off], None), &[], Holder::Nobody), Step::Keep);
        // Interrupted between IPAM and key.
        assert_eq!(
            step(&wanted(&[pool], None), &[addr("10.0.0.5")], Holder::Nobody),
            Step::Write(addr("10.0.0.5"))
        );
        // In use: ours, of an older writer, in a pool that was disabled since.
        for (pools, holder) in [(pool, Holder::Ours), (pool, Holder::Unsaid), (off, Holder::Ours)] {
            assert_eq!(step(&wanted(&[pools], Some("10.0.0.5")), &[addr("10.0.0.5")], holder), Step::Keep);
        }
        // In the key alone, and another holder's.
        assert_eq!(
            step(&wanted(&[pool], Some("10.0.0.5")), &[], Holder::Nobody),
            Step::Claim(addr("10.0.0.5"))
        );
        assert_eq!(step(&wanted(&[pool], Some("10.0.0.5")), &[], Holder::Other), take());
        // Its pool went away: there is another, a disabled one, none.
        let moved = |pools: &[(&str, bool)], holder| {
            step(&wanted(pools, Some("10.9.0.5")), &[addr("10.9.0.5")], holder)
        };
        assert_eq!(moved(&[pool], Holder::Ours), take());
        assert_eq!(moved(&[pool], Holder::Unsaid), take());
        assert_eq!(moved(&[off], Holder::Ours), Step::GiveBack);
        assert_eq!(moved(&[], Holder::Ours), Step::GiveBack);
        // The operator's own choice.
        assert_eq!(step(&wanted(&[pool], Some("192.0.2.5")), &[], Holder::Nobody), Step::Keep);
        assert_eq!(step(&wanted(&[], Some("192.0.2.5")), &[], Holder::Nobody), Step::Keep);
        // A key that was deleted by hand when the last pool went.
        assert_eq!(step(&wanted(&[], None), &[addr("10.0.0.5")], Holder::Nobody), Step::GiveBack);
    }

    /// The core may hear of both in one delta, and has nothing new to tell then.
    #[tokio::test]
    async fn a_key_that_goes_before_the_agent_heard_of_it_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(
            tortie_store::sqlite::SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap(),
        );
        let pool = r#"{"cidr":"10.0.0.0/24","ipip":"tunl0"}"#.into();
        let pool =
            Op::Put { key: "/calico/v1/ipam/v4/pool/10.0.0.0-24".to_owned(), value: pool, lease: None };
        store.commit(Txn { ops: vec![pool], ..Txn::default() }).await.unwrap();
        let io = tokio::runtime::Handle::current();
        let mut task = TunnelAddr::start(&io, Arc::clone(&store), "h1", true, |_| ());
        let wanted = wanted(&[("10.0.0.0/24", true)], None);
        let key = "/calico/v1/host/h1/config/IpInIpTunnelAddr";
        let comes = || async {
            for _ in 0..500 {
                if let Some(found) = store.get(key).await.unwrap() {
                    return found.value;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("no address in the store");
        };
        task.tell(Some(wanted.clone()));
        let first = comes().await;
        let gone = Op::Delete { key: key.to_owned() };
        store.commit(Txn { ops: vec![gone], ..Txn::default() }).await.unwrap();
        task.tell(Some(wanted));
        assert_eq!(comes().await, first);
        task.stop().await;
    }
}
