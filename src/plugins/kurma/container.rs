//! Arguments of a call that identify the container.

use std::path::PathBuf;

use super::error::KurmaError;

/// The container of an `add` or `del`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) netns: PathBuf,
    pub(super) uuid: String,
    pub(super) ifname: String,
}

/// Parses the arguments of `add` and `del`: namespace, UUID, and the interface, which defaults to `eth0`.
pub(super) fn container(args: &[String]) -> Result<Container, KurmaError> {
    let (netns, uuid, ifname) = match args {
        [netns, uuid] => (netns, uuid, ""),
        [netns, uuid, ifname] => (netns, uuid, ifname.as_str()),
        _ => {
            let text = "wanted are the path of the network namespace, the container's UUID and its interface";
            return Err(KurmaError(format!("{text}; {} arguments were given", args.len())));
        }
    };
    if !crate::plugins::cni::is_identifier(uuid) || uuid.len() > 128 {
        return Err(KurmaError(format!("`{uuid}` is no container's UUID")));
    }
    // The daemon passes an empty text if the configuration names no interface.
    let ifname = if ifname.is_empty() { "eth0" } else { ifname };
    Ok(Container { netns: netns.into(), uuid: uuid.clone(), ifname: ifname.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn an_empty_interface_is_eth0_and_what_is_no_uuid_is_refused() {
        let of = |list: &[&str]| container(&args(list));
        let uuid = "146d7cef-fbf6-41da-a2f8-eba218597f9c";
        assert_eq!(of(&["/proc/1/ns/net", uuid, ""]).unwrap().ifname, "eth0");
        assert_eq!(of(&["/proc/1/ns/net", uuid]).unwrap().ifname, "eth0");
        assert_eq!(of(&["/proc/1/ns/net", uuid, "net7"]).unwrap().ifname, "net7");
        for bad in [&[][..], &["/x"], &["/x", "", "eth0"], &["/x", "../y", "eth0"], &["/x", uuid, "e", "f"]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
