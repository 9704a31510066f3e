//! What decisions about single routes need of a store of Calico 3, in addition to what both models have.

use std::collections::BTreeSet;

use tortie_config::Dialect;
use tortie_config::resource::{NORMAL_PRIORITY, PRIORITY_MAX, Pool, ProgramClusterRoutes, RouteSource};
use tortie_net::Cidr;

use crate::model::Model;

/// LOCAL_PREF of a learned route without the attribute (BIRD's default).
pub const LEARNED_LOCAL_PREF: u32 = 100;

/// Part of the [`RoutingView`](super::RoutingView) that only a store of Calico 3 has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calico3View {
    /// Priority (metric) of IPv4 routes without one of their own.
    pub ipv4_normal_priority: u32,
    /// Priority (metric) of IPv6 routes without one of their own.
    pub ipv6_normal_priority: u32,
    /// Pools with `disableBGPExport`.
    pub unexported_pools: BTreeSet<Cidr>,
    /// Service ranges that this host announces.
    pub service_ranges: BTreeSet<Cidr>,
    /// All configured service ranges; no learned route inside of them reaches the kernel.
    pub refused_ranges: BTreeSet<Cidr>,
    /// External and load balancer ranges, if this host is a route reflector.
    pub reflected_ranges: BTreeSet<Cidr>,
    /// True if routes on `tunl0` are not passed on towards iBGP peers, because BIRD does not program them.
    pub withholds_ipip_routes: bool,
}

impl Default for Calico3View {
    fn default() -> Self {
        Self {
            ipv4_normal_priority: NORMAL_PRIORITY,
            ipv6_normal_priority: NORMAL_PRIORITY,
            unexported_pools: BTreeSet::new(),
            service_ranges: BTreeSet::new(),
            refused_ranges: BTreeSet::new(),
            reflected_ranges: BTreeSet::new(),
            withholds_ipip_routes: true,
        }
    }
}

impl Calico3View {
    /// Collects the values; `None` for a store of the v1 model. `reflector` is true if this host has a cluster
    /// id.
    pub(super) fn of(model: &Model, reflector: bool) -> Option<Self> {
        if model.dialect() != Dialect::V3 {
            return None;
        }
        let configuration = model.bgp_configuration();
        let pools = |wanted: fn(&Pool) -> bool| {
            model.pools().map(|pool| pool.value).filter(|pool| wanted(pool)).map(|pool| pool.cidr).collect()
        };
        Some(Self {
            ipv4_normal_priority: configuration.ipv4_normal_priority,
            ipv6_normal_priority: configuration.ipv6_normal_priority,
            unexported_pools: pools(|pool| pool.disable_bgp_export == Some(true)),
            service_ranges: configuration.announced_ranges().collect(),
            refused_ranges: configuration.service_ranges().collect(),
            reflected_ranges: configuration.external_ranges().copied().filter(|_| reflector).collect(),
            withholds_ipip_routes: !matches!(
                configuration.program_cluster_routes,
                ProgramClusterRoutes::All | ProgramClusterRoutes::Ipip
            ),
        })
    }

    /// Returns the priority of routes of the family of `prefix` without one of their own.
    #[must_use]
    pub fn normal_priority(&self, prefix: &Cidr) -> u32 {
        if prefix.is_v4() { self.ipv4_normal_priority } else { self.ipv6_normal_priority }
    }

    /// Returns the LOCAL_PREF of a route of this host without a priority of its own.
    #[must_use]
    pub fn own_local_pref(&self, prefix: &Cidr) -> u32 {
        local_pref_of(self.normal_priority(prefix))
    }

    /// Returns the LOCAL_PREF that decisions about a route use.
    #[must_use]
    pub fn local_pref(&self, prefix: &Cidr, source: RouteSource, given: Option<u32>) -> u32 {
        given.unwrap_or_else(|| match source {
            RouteSource::Local => self.own_local_pref(prefix),
            _ => LEARNED_LOCAL_PREF,
        })
    }

    /// Returns true if a route with this LOCAL_PREF is better than normal ones: its workload moves to the
    /// host that announces it.
    #[must_use]
    pub fn is_better_than_normal(&self, prefix: &Cidr, local_pref: u32) -> bool {
        metric_of(local_pref) < self.normal_priority(prefix)
    }
}

/// Returns the LOCAL_PREF of a priority.
#[must_use]
pub fn local_pref_of(priority: u32) -> u32 {
    PRIORITY_MAX.saturating_sub(priority)
}

/// Returns the priority (the metric of a learned route in the kernel) of a LOCAL_PREF. A LOCAL_PREF above the
/// greatest priority has the greatest metric: as a number without sign it is no small one.
#[must_use]
pub fn metric_of(local_pref: u32) -> u32 {
    PRIORITY_MAX.checked_sub(local_pref).unwrap_or(PRIORITY_MAX)
}
