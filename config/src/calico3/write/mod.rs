//! Values of the objects that a host writes: Node, WorkloadEndpoint, Profile, ClusterInformation; and the
//! IPPool of the command line.
//!
//! Each function takes the stored value, if there is one, and returns the value to write, or `None` if
//! nothing changes. Only the members of this host's concern are touched; all others are written back byte for
//! byte, and nothing of Tortie's own is put into an object but labels and annotations. It does no I/O: the
//! caller writes by compare-and-set on the revision of the value that it passed.
//!
//! ```text
//!  stored value + wanted members --members.rs--> new value | None
//! ```

mod cluster_information;
mod draft;
mod ip_pool;
mod members;
mod names;
mod node;
mod profile;
mod workload_endpoint;

#[cfg(test)]
mod tests;

pub use cluster_information::{CLUSTER_TYPE, cluster_information, cluster_information_key};
pub use draft::{Birth, Edit};
pub use ip_pool::{ip_pool, ip_pool_key, switch_ip_pool};
pub use names::{check_label, check_name, profile_name};
pub use node::{NodeChanges, node};
pub use profile::{NetworkIngress, network_profile, network_profile_key};
pub use workload_endpoint::{WorkloadEndpointSpec, workload_endpoint, workload_endpoint_profiles};
