//! Read access to nouns that only a store of Calico 3 has.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tortie_config::key::{EndpointKey, Key, Scope};
use tortie_config::resource::{BgpConfiguration, BgpFilter, LiveMigration, Setting, WorkloadEndpoint};
use tortie_config::{Dialect, Resource};

use super::state::Model;

impl Model {
    /// Returns a filter of Calico 3 by name: `None` if it does not exist, `Some(None)` if no value of it could
    /// ever be parsed.
    #[must_use]
    pub fn bgp_filter(&self, name: &str) -> Option<Option<&BgpFilter>> {
        let key = Key::BgpFilter(name.to_owned());
        let resource = self.resource(&key).map(Arc::as_ref);
        match resource {
            Some(Resource::BgpFilter(filter)) => Some(Some(filter)),
            _ => self.rest.contains_key(&key).then_some(None),
        }
    }

    /// Returns the BGP settings of Calico 3; the defaults if there are none.
    #[must_use]
    pub fn bgp_configuration(&self) -> BgpConfiguration {
        match self.resource(&Key::BgpConfiguration).map(Arc::as_ref) {
            Some(Resource::BgpConfiguration(configuration)) => (**configuration).clone(),
            _ => BgpConfiguration::default(),
        }
    }

    /// Returns the live migrations, sorted by namespace and name.
    pub fn live_migrations(&self) -> impl Iterator<Item = &LiveMigration> {
        let first = Key::LiveMigration { namespace: String::new(), name: String::new() };
        let of_kind =
            self.resources_from(first).take_while(|(key, _)| matches!(key, Key::LiveMigration { .. }));
        of_kind.filter_map(|(_, resource)| match &**resource {
            Resource::LiveMigration(migration) => Some(&**migration),
            _ => None,
        })
    }

    /// Returns the settings of live migrations in force on this host.
    #[must_use]
    pub fn live_migration_settings(&self) -> LiveMigrationSettings {
        let default = LiveMigrationSettings::default();
        let number = |name: &str| self.setting_text(name).and_then(|text| text.parse::<f64>().ok());
        let priority = |name: &str, default| {
            let text = self.setting_text(name);
            text.and_then(|text| text.parse().ok()).filter(|priority| *priority > 0).unwrap_or(default)
        };
        let convergence = number("LiveMigrationRouteConvergenceTime");
        LiveMigrationSettings {
            ipv4_elevated_priority: priority("IPv4ElevatedRoutePriority", default.ipv4_elevated_priority),
            ipv6_elevated_priority: priority("IPv6ElevatedRoutePriority", default.ipv6_elevated_priority),
            convergence: convergence
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .unwrap_or(default.convergence),
        }
    }

    /// Returns the orchestrators that have added themselves to the type of the cluster.
    pub fn cluster_types(&self) -> impl Iterator<Item = &str> {
        self.setting_text("ClusterType").unwrap_or_default().split(',').map(str::trim)
    }

    /// Returns the floating addresses of a workload that are in force, as (internal, external) pairs.
    pub fn nats<'a>(
        &self,
        key: &EndpointKey,
        workload: &'a WorkloadEndpoint,
    ) -> impl Iterator<Item = (IpAddr, IpAddr)> + use<'a> {
        let is_on = self.maps_floating_addresses(key.host()) || is_of_openstack(key);
        workload.nats().filter(move |_| is_on)
    }

    /// Returns true if the floating addresses of workloads of a host are in force, which a Calico 3 store turns
    /// on with `FloatingIPs`; those of OpenStack always are. The own settings of other hosts are not known.
    #[must_use]
    pub fn maps_floating_addresses(&self, host: &str) -> bool {
        let setting = || self.setting_text_of(host, "FloatingIPs");
        self.dialect() == Dialect::V1 || setting().is_some_and(|text| text.eq_ignore_ascii_case("enabled"))
    }

    /// Returns the text of a setting that only Calico 3 has: this host's, else the global one.
    fn setting_text(&self, name: &str) -> Option<&str> {
        self.setting_text_of(self.node(), name)
    }

    fn setting_text_of(&self, host: &str, name: &str) -> Option<&str> {
        let of = |scope| match &**self.resource(&Key::Setting(scope, name.to_owned()))? {
            Resource::Setting(Setting::Other { text, .. }) => Some(text.as_str()),
            _ => None,
        };
        of(Scope::Host(host.to_owned())).or_else(|| of(Scope::Global))
    }
}

/// Returns true for a workload of OpenStack.
pub(crate) fn is_of_openstack(key: &EndpointKey) -> bool {
    matches!(key, EndpointKey::Workload { orchestrator, .. } if orchestrator == "openstack")
}

/// Settings of live migrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveMigrationSettings {
    /// Priority (metric) of IPv4 routes to a workload that arrives.
    pub ipv4_elevated_priority: u32,
    /// Priority (metric) of IPv6 routes to a workload that arrives.
    pub ipv6_elevated_priority: u32,
    /// Time after the end of a migration for which its routes keep that priority.
    pub convergence: Duration,
}

impl Default for LiveMigrationSettings {
    fn default() -> Self {
        Self {
            ipv4_elevated_priority: 512,
            ipv6_elevated_priority: 512,
            convergence: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
impl Model {
    /// Loads entries as the projection of a store of Calico 3 results in them.
    pub(crate) fn load_projected(&mut self, snapshot: &tortie_store::Snapshot) -> super::ModelChanges {
        self.set_dialect(tortie_config::Dialect::V3);
        self.replace_entries(super::WatchPart::All, snapshot, Vec::new())
    }

    /// Applies changes of such entries.
    pub(crate) fn apply_projected(&mut self, delta: &tortie_store::Delta) -> super::ModelChanges {
        self.apply_entries(delta)
    }
}
