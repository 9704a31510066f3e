//! Validation of the name prefixes of workload interfaces (`InterfacePrefix`). A prefix that matches the
//! interfaces by which this host reaches its network, its store and its peers would have their packets
//! dropped, and thus cut the path on which the setting could be corrected. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use tortie_config::resource::Settings;
use tortie_engine::policy::Globals;

use crate::fib::network::NetworkState;

/// The prefixes in force, and the setting if it was refused.
#[derive(Debug, Default)]
pub(super) struct WorkloadPrefixes {
    /// The last accepted prefixes.
    accepted: Vec<String>,
    /// The setting in the store, while it is refused.
    refused: Option<Arc<Globals>>,
}

/// The global settings that may take effect, and the reason if they differ from the store's.
pub(super) type Bounded = (Arc<Globals>, Option<String>);

impl WorkloadPrefixes {
    /// Evaluates a new setting. Prefixes that were accepted once stay accepted, as does the default, whatever
    /// interfaces appear: the rules of workloads must not be removed because an interface of another kind was
    /// added.
    pub(super) fn take(&mut self, globals: &Arc<Globals>, own: &BTreeSet<String>) -> Bounded {
        let default = Settings::default().interface_prefix;
        let known = globals.interface_prefixes == self.accepted || globals.interface_prefixes == default;
        let Some(taken) = own.iter().find(|name| !known && globals.is_workload(name)) else {
            self.accepted.clone_from(&globals.interface_prefixes);
            self.refused = None;
            return (Arc::clone(globals), None);
        };
        if self.accepted.is_empty() {
            let free = |prefix: &String| !own.iter().any(|name| name.starts_with(prefix.as_str()));
            self.accepted = default.into_iter().filter(free).collect();
        }
        let text = format!(
            "InterfacePrefix {} matches {taken}, by which this host reaches its network and which would be \
             cut off as an interface of a workload, so {} stays in force as the prefix; correct \
             InterfacePrefix",
            globals.interface_prefixes.join(","),
            self.accepted.join(","),
        );
        self.refused = Some(Arc::clone(globals));
        let bounded = Globals { interface_prefixes: self.accepted.clone(), ..Globals::clone(globals) };
        (Arc::new(bounded), Some(text))
    }

    /// Returns true if an interface of this name is a workload's, by the prefixes in force.
    pub(super) fn is_workload(&self, name: &str) -> bool {
        self.accepted.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// Returns the refused setting if it can be accepted after a change of interfaces.
    pub(super) fn retry(&mut self, own: &BTreeSet<String>) -> Option<Arc<Globals>> {
        let refused = self.refused.as_ref()?;
        (!own.iter().any(|name| refused.is_workload(name))).then(|| self.refused.take()).flatten()
    }
}

/// Returns the interfaces that the host itself needs: those with a connected network, a default route, a BGP
/// neighbour, or a hardware device.
pub(super) fn own_interfaces(network: &NetworkState, is_device: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let used = network.links_of_networks();
    let own = |index: u32, name: &str| name != "lo" && (used.contains(&index) || is_device(name));
    network.links().filter(|link| own(link.index, &link.name)).map(|link| link.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_engine::model::Model;

    fn globals(prefixes: &[&str]) -> Arc<Globals> {
        let interface_prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        Arc::new(Globals { interface_prefixes, ..Globals::of(&Model::new("h1")) })
    }

    #[test]
    fn a_prefix_that_fits_an_interface_of_the_host_leaves_the_last_good_ones_in_force() {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let uplink = own(&["eth0", "tap-up"]);
        // Columns: prefixes in force, setting in the store, prefixes in force afterwards.
        let table: &[(&[&str], &[&str], &[&str])] = &[
            (&["cali"], &["e"], &["cali"]),
            (&["cali"], &["cali", "eth"], &["cali"]),
            (&["cali"], &["eth0"], &["cali"]),
            (&["cali"], &["eth0.1"], &["eth0.1"]),
            (&["cali"], &["tap"], &["cali"]),
            (&["veth"], &["t", "e"], &["veth"]),
            (&["veth"], &["cali", "vnet"], &["cali", "vnet"]),
            (&[], &["e"], &["cali"]),
            (&[], &["vnet"], &["vnet"]),
        ];
        for (before, wanted, expected) in table {
            let mut prefixes = WorkloadPrefixes::default();
            if !before.is_empty() {
                prefixes.take(&globals(before), &uplink);
            }
            let (bounded, problem) = prefixes.take(&globals(wanted), &uplink);
            assert_eq!(bounded.interface_prefixes, *expected, "{before:?} {wanted:?}");
            assert_eq!(problem.is_some(), wanted != expected, "{before:?} {wanted:?}");
            // Only the prefixes are replaced.
            assert_eq!(Globals { interface_prefixes: Vec::new(), ..Globals::clone(&bounded) }, *globals(&[]));
        }
        // The setting is accepted once the interface is gone; prefixes in force stay when a matching
        // interface appears.
        let mut prefixes = WorkloadPrefixes::default();
        assert!(prefixes.take(&globals(&["e"]), &uplink).1.is_some());
        assert_eq!(prefixes.retry(&uplink), None);
        let again = prefixes.retry(&own(&["up0"])).unwrap();
        assert_eq!(prefixes.take(&again, &own(&["up0"])).0.interface_prefixes, ["e"]);
        assert_eq!(prefixes.take(&again, &uplink), (again.clone(), None));
        // If even the default matches an uplink, no interface is a workload's.
        let mut prefixes = WorkloadPrefixes::default();
        let (bounded, problem) = prefixes.take(&globals(&["ca"]), &own(&["cali-up"]));
        assert!(bounded.interface_prefixes.is_empty() && problem.is_some());
    }
}
