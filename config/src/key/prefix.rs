//! Prefixes of the key space, for listing, watching and removing.

use super::escape;

/// Everything.
pub const ALL: &str = super::ROOT;
/// Settings, hosts, endpoints, policy, pools, `Ready`.
pub const V1: &str = "/calico/v1/";
/// Settings, endpoints and marks of all hosts.
pub const HOSTS: &str = "/calico/v1/host/";
/// BGP.
pub const BGP: &str = "/calico/bgp/v1/";
/// BGP of all hosts.
pub const BGP_HOSTS: &str = "/calico/bgp/v1/host/";
/// What agents report in Calico's form.
pub const FELIX_HOSTS: &str = "/calico/felix/v1/host/";
/// Blocks, handles, affinities and configuration of IPAM.
pub const IPAM: &str = "/calico/ipam/v2/";
/// The one key of IPAM's configuration.
pub const IPAM_CONFIG: &str = "/calico/ipam/v2/config";
/// Blocks of all hosts, both families.
pub const BLOCKS: &str = "/calico/ipam/v2/assignment/";
/// Pools of both families.
pub const POOLS: &str = "/calico/v1/ipam/";
/// Handles.
pub const HANDLES: &str = "/calico/ipam/v2/handle/";
/// Affinities of all hosts.
pub const AFFINITIES: &str = "/calico/ipam/v2/host/";
/// The hosts' status values.
pub const STATUS: &str = "/calico/tortie/v1/status/";
/// The one key that says which schema the store needs.
pub const SCHEMA: &str = "/calico/tortie/v1/schema";
/// What belongs to one host alone, of all hosts.
pub const TORTIE_HOSTS: &str = "/calico/tortie/v1/host/";
/// Everything that only this program writes.
pub const TORTIE: &str = "/calico/tortie/v1/";
/// Objects of Calico 3: a store that has any speaks another data model.
pub const CALICO_3: &str = "/calico/resources/v3/";

/// The affinities of one host.
#[must_use]
pub fn affinities_of(host: &str) -> String {
    format!("{AFFINITIES}{}/", escape(host))
}

/// Settings, endpoints and marks of one host.
#[must_use]
pub fn host(host: &str) -> String {
    format!("{V1}host/{}/", escape(host))
}

/// The workload endpoints of one host.
#[must_use]
pub fn workloads_of(host: &str) -> String {
    format!("{V1}host/{}/workload/", escape(host))
}

/// BGP of one host.
#[must_use]
pub fn bgp_host(host: &str) -> String {
    format!("{BGP}host/{}/", escape(host))
}

/// What an agent of one host reports in Calico's form.
#[must_use]
pub fn felix_host(host: &str) -> String {
    format!("/calico/felix/v1/host/{}/", escape(host))
}

/// What the Docker drivers of one host remember.
#[must_use]
pub fn docker(host: &str) -> String {
    format!("/calico/tortie/v1/host/{}/docker/", escape(host))
}

/// What plugins keep of one host: Docker's networks and own pools.
#[must_use]
pub fn tortie_host(host: &str) -> String {
    format!("/calico/tortie/v1/host/{}/", escape(host))
}

/// Everything that is only about one host, but for its status key.
#[must_use]
pub fn all_of_host(name: &str) -> Vec<String> {
    vec![host(name), bgp_host(name), affinities_of(name), felix_host(name), tortie_host(name)]
}

/// What an agent lists and watches apart from its own blocks (which its affinities name): never other hosts' blocks,
/// affinities, handles or status.
#[must_use]
pub fn watched_by(host: &str) -> Vec<String> {
    vec![V1.to_owned(), BGP.to_owned(), IPAM_CONFIG.to_owned(), affinities_of(host), SCHEMA.to_owned()]
}
