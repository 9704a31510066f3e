//! Table of the members of a FelixConfiguration, by subject. The selector `nodeSelector` is no setting and
//! not in it.

mod ebpf;
mod policy;
mod process;
mod routing;

use super::member::Member;

/// Returns all members.
pub(super) fn all() -> impl Iterator<Item = &'static Member> {
    [routing::MEMBERS, policy::MEMBERS, process::MEMBERS, ebpf::MEMBERS].into_iter().flatten()
}

/// Returns a member by its name in `spec`.
pub(super) fn named(name: &str) -> Option<&'static Member> {
    all().find(|member| member.name == name)
}

/// Returns a member by its v1 name, in any case.
pub(super) fn with_v1_name(name: &str) -> Option<&'static Member> {
    all().find(|member| member.v1.eq_ignore_ascii_case(name))
}
