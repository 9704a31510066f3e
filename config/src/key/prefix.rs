//! Key prefixes for listing, watching and deleting.

use super::escape;

/// All keys of the data model.
pub const ALL: &str = super::ROOT;
/// Settings, hosts, endpoints, policy, pools, `Ready`.
pub const V1: &str = "/calico/v1/";
/// Settings, endpoints and metadata of all hosts.
pub const HOSTS: &str = "/calico/v1/host/";
/// BGP values, global and of all hosts.
pub const BGP: &str = "/calico/bgp/v1/";
/// BGP values of all hosts.
pub const BGP_HOSTS: &str = "/calico/bgp/v1/host/";
/// Status reports of agents in Calico's format.
pub const FELIX_HOSTS: &str = "/calico/felix/v1/host/";
/// Status reports of agents in Calico 3's format, below the name of a region.
pub const FELIX_2: &str = "/calico/felix/v2/";
/// Blocks, handles, affinities and configuration of IPAM.
pub const IPAM: &str = "/calico/ipam/v2/";
/// Key of the IPAM configuration.
pub const IPAM_CONFIG: &str = "/calico/ipam/v2/config";
/// Blocks of all hosts, both families.
pub const BLOCKS: &str = "/calico/ipam/v2/assignment/";
/// Pools of both families.
pub const POOLS: &str = "/calico/v1/ipam/";
/// IPAM handles of all holders.
pub const HANDLES: &str = "/calico/ipam/v2/handle/";
/// Block affinities of all hosts.
pub const AFFINITIES: &str = "/calico/ipam/v2/host/";
/// Status of all hosts.
pub const STATUS: &str = "/calico/tortie/v1/status/";
/// Key of the schema version that the store requires.
pub const SCHEMA: &str = "/calico/tortie/v1/schema";
/// State local to one host, of all hosts.
pub const TORTIE_HOSTS: &str = "/calico/tortie/v1/host/";
/// Keys that only Tortie writes.
pub const TORTIE: &str = "/calico/tortie/v1/";
/// Objects of Calico 3. A store that has any uses another data model.
pub const CALICO_3: &str = "/calico/resources/v3/";

/// Returns the prefix of one host's affinities.
#[must_use]
pub fn affinities_of(host: &str) -> String {
    format!("{AFFINITIES}{}/", escape(host))
}

/// Returns the prefix of one host's settings, endpoints and metadata.
#[must_use]
pub fn host(host: &str) -> String {
    format!("{V1}host/{}/", escape(host))
}

/// Returns the prefix of one host's workload endpoints.
#[must_use]
pub fn workloads_of(host: &str) -> String {
    format!("{V1}host/{}/workload/", escape(host))
}

/// Returns the prefix of one host's BGP values.
#[must_use]
pub fn bgp_host(host: &str) -> String {
    format!("{BGP}host/{}/", escape(host))
}

/// Returns the prefix of one agent's status reports in Calico's format.
#[must_use]
pub fn felix_host(host: &str) -> String {
    format!("/calico/felix/v1/host/{}/", escape(host))
}

/// Returns the element of a key below [`FELIX_2`] for OpenStack's region of this name, or for none.
#[must_use]
pub fn region(name: Option<&str>) -> String {
    name.filter(|name| !name.is_empty())
        .map_or_else(|| "no-region".to_owned(), |name| format!("region-{name}"))
}

/// Returns the prefix of the state of one host's Docker drivers.
#[must_use]
pub fn docker(host: &str) -> String {
    format!("/calico/tortie/v1/host/{}/docker/", escape(host))
}

/// Returns the prefix of plugin state of one host: Docker networks and host-local pools.
#[must_use]
pub fn tortie_host(host: &str) -> String {
    format!("/calico/tortie/v1/host/{}/", escape(host))
}

/// Returns the prefixes of all keys that belong to one host, except its status key.
#[must_use]
pub fn all_of_host(name: &str) -> Vec<String> {
    vec![host(name), bgp_host(name), affinities_of(name), felix_host(name), tortie_host(name)]
}

/// Returns the prefixes that an agent lists and watches in addition to its own blocks (which its affinities
/// name), in either data model. Blocks, affinities, handles and status of other hosts are not included.
#[must_use]
pub fn watched_by(host: &str) -> Vec<String> {
    let all = [V1, BGP, CALICO_3, IPAM_CONFIG, &affinities_of(host), SCHEMA];
    all.map(ToOwned::to_owned).to_vec()
}
