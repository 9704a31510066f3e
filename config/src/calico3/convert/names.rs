//! Names of objects: DNS names, as Calico's upgrade makes them of v1 names.

use std::net::IpAddr;

use sha1::{Digest, Sha1};
use tortie_net::Cidr;

/// Returns the DNS form of a name: lower case; `/` as `.`; runs of other characters as `-`; runs of `.` and
/// `-` with a dot as `.`; neither at the ends.
#[must_use]
pub(in crate::calico3) fn norm(name: &str) -> String {
    let mut out = String::new();
    // Separators that were met and are not written yet.
    let mut run = String::new();
    let mut is_other = false;
    for c in name.to_lowercase().chars() {
        match c {
            'a'..='z' | '0'..='9' => {
                flush(&mut run, &mut out);
                out.push(c);
            }
            '.' | '/' => run.push('.'),
            '-' => run.push('-'),
            // A run of other characters is one dash.
            _ if is_other => {}
            _ => run.push('-'),
        }
        is_other = !matches!(c, 'a'..='z' | '0'..='9' | '.' | '/' | '-');
    }
    out
}

/// Writes a run of separators. Those at the beginning are dropped.
fn flush(run: &mut String, out: &mut String) {
    if !out.is_empty() {
        if run.contains('.') {
            out.push('.');
        } else {
            out.push_str(run);
        }
    }
    run.clear();
}

/// Appends a hash of the old name if the name has changed, so that two names stay two.
#[must_use]
pub(in crate::calico3) fn qualified(old: &str, new: String) -> String {
    if new == old {
        return new;
    }
    let hash = Sha1::digest(old).iter().take(4).map(|byte| format!("{byte:02x}")).collect::<String>();
    if new.is_empty() { hash } else { format!("{new}-{hash}") }
}

/// Returns the name of a profile. Those of namespaces have another prefix.
#[must_use]
pub(in crate::calico3) fn profile(name: &str) -> String {
    match name.strip_prefix("k8s_ns.") {
        Some(namespace) => {
            let name = format!("kns.{namespace}");
            qualified(&name, norm(&name))
        }
        None => qualified(name, norm(name)),
    }
}

/// Returns the name of a policy without its tier.
#[must_use]
pub(in crate::calico3) fn policy(name: &str) -> String {
    qualified(name, norm(name).replace('.', "-"))
}

/// Returns the name of a host endpoint.
#[must_use]
pub(in crate::calico3) fn host_endpoint(host: &str, id: &str) -> String {
    let name = format!("{}.{id}", norm(host));
    qualified(&name, norm(&name))
}

/// Returns the name of a pool.
#[must_use]
pub(in crate::calico3) fn pool(cidr: &Cidr) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

/// Returns the name of a peer: of IPv6 all eight groups.
#[must_use]
pub(in crate::calico3) fn peer(addr: IpAddr) -> String {
    match addr {
        IpAddr::V4(addr) => addr.to_string().replace('.', "-"),
        IpAddr::V6(addr) => addr.segments().map(|group| format!("{group:04x}")).join("-"),
    }
}

/// Joins the parts of a workload endpoint's name: `-` inside of a part is doubled.
#[must_use]
pub(in crate::calico3) fn joined(parts: &[&str]) -> String {
    parts.iter().map(|part| part.replace('-', "--")).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_dns_form() {
        for (old, new) in [
            ("rack1-n03", "rack1-n03"),
            ("Rack1.N03", "rack1.n03"),
            ("a/b", "a.b"),
            ("a__b", "a-b"),
            ("a_._b", "a.b"),
            ("a--b", "a--b"),
            ("_a-", "a"),
            ("k8s_ns.Prod", "k8s-ns.prod"),
        ] {
            assert_eq!(norm(old), new, "{old}");
        }
        assert_eq!(qualified("a", norm("a")), "a");
        // The first octets of the SHA-1 of `A`: 6dcd4ce2...
        assert_eq!(qualified("A", norm("A")), "a-6dcd4ce2");
    }

    #[test]
    fn names_of_objects() {
        assert_eq!(pool(&"10.1.0.0/16".parse().unwrap()), "10-1-0-0-16");
        assert_eq!(pool(&"fd00::/64".parse().unwrap()), "fd00---64");
        assert_eq!(peer("192.0.2.1".parse().unwrap()), "192-0-2-1");
        assert_eq!(peer("2001:db8::1".parse().unwrap()), "2001-0db8-0000-0000-0000-0000-0000-0001");
        assert_eq!(joined(&["rack1-n03", "k8s", "web-0", "eth0"]), "rack1--n03-k8s-web--0-eth0");
        assert_eq!(profile("k8s_ns.prod"), "kns.prod");
        assert_eq!(policy("allow.web"), format!("allow-web-{}", &qualified("allow.web", String::new())));
    }
}
