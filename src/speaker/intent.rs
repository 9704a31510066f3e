//! The applied intent: as received, with dynamic peers added, and the policy derived from it.

use std::sync::Arc;

use tortie_bgp::{GlobalConfig, Multipath, Origination, PolicyHandle, RouterId, Tag};
use tortie_net::Cidr;

use crate::speaker::monitor::Identity;
use crate::speaker::options::SpeakerOptions;
use crate::speaker::peers::Ranges;
use crate::speaker::policy::{Classes, ViewPolicy, kind_code};
use tortie_engine::routing::{ChangeId, Persistent, RoutingIntent, local_pref_of};

/// The applied intent with derived values.
#[derive(Default)]
pub(crate) struct IntentInForce {
    given: Option<Arc<RoutingIntent>>,
    /// The intent with dynamic peers, computed on demand.
    whole: Option<Arc<RoutingIntent>>,
    policy: Option<Arc<ViewPolicy>>,
    classes: Classes,
}

impl IntentInForce {
    /// Returns the intent without dynamic peers.
    pub(crate) fn given(&self) -> Option<&Arc<RoutingIntent>> {
        self.given.as_ref()
    }

    /// Returns the intent with the current dynamic peers.
    pub(crate) fn whole(&mut self, ranges: &Ranges) -> Option<Arc<RoutingIntent>> {
        let given = self.given.as_ref()?;
        let make = || match ranges.peers().next() {
            Some(_) => Arc::new(given.with_dynamic(ranges.peers())),
            None => given.clone(),
        };
        Some(self.whole.get_or_insert_with(make).clone())
    }

    /// Replaces the intent and returns the former one.
    pub(crate) fn replace(&mut self, new: Arc<RoutingIntent>) -> Option<Arc<RoutingIntent>> {
        self.whole = None;
        self.given.replace(new)
    }

    /// Invalidates the derived intent after a change of dynamic peers.
    pub(crate) fn dynamic_peers_changed(&mut self) {
        self.whole = None;
    }

    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Returns the local AS and router id.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let intent = self.given.as_ref()?;
        Some(Identity { asn: intent.asn, router_id: RouterId(intent.router_id) })
    }

    /// Builds the policy of an intent; it shares unchanged parts with the former one.
    pub(crate) fn policy(&mut self, intent: &RoutingIntent) -> PolicyHandle {
        let new = Arc::new(match &self.policy {
            Some(old) => old.follow(&intent.view, &intent.addresses),
            None => ViewPolicy::new(Arc::clone(&intent.view), intent.addresses.clone(), self.classes.clone()),
        });
        self.policy = Some(Arc::clone(&new));
        PolicyHandle(new)
    }
}

/// Returns the global configuration of an intent for the BGP core.
pub(crate) fn global(intent: &RoutingIntent, options: &SpeakerOptions) -> GlobalConfig {
    GlobalConfig {
        asn: intent.asn,
        router_id: RouterId(intent.router_id),
        restart_time: options.restart_time,
        restarting: options.restarting.clone(),
        forwarding: options.forwarding.clone(),
        multipath: Multipath { max: intent.multipath.max, relax: intent.multipath.relax },
        hash_key: options.hash_key,
    }
}

/// Returns the local routes that are added, change their kind or priority, or are removed.
pub(crate) fn originations(
    old: Option<&RoutingIntent>,
    new: &RoutingIntent,
    change: ChangeId,
) -> Vec<(Cidr, Option<Origination>)> {
    let none = Persistent::default();
    let before = old.map_or(&none, |o| &o.originated);
    let mut out = Vec::new();
    for (prefix, before, now) in new.originated.differences(before) {
        let Some(now) = now else {
            out.push((*prefix, None));
            continue;
        };
        if before.is_some_and(|before| (before.kind, before.priority) == (now.kind, now.priority)) {
            continue;
        }
        let origination = Origination {
            communities: Vec::new(),
            large_communities: Vec::new(),
            local_pref: now.priority.map(local_pref_of),
            kind: kind_code(now.kind),
            tag: Tag(change.0),
        };
        out.push((*prefix, Some(origination)));
    }
    out
}
