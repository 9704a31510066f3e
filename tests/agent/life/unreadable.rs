//! Values that never were readable, and the commands that show them.

use crate::common::hosts::{Hosts, PATIENCE, Plan, stdout, within};

/// A configured session that does not exist is shown where operators look for it, with its key and the error,
/// until it is corrected.
#[test]
fn a_peer_whose_value_never_could_be_read_is_listed_with_its_key() {
    let Some(hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until(1, "it runs", |status| status["ready"] == true);
    let listed = |address: &str| {
        let list = hosts.get(1, "/v1/bgp/peers")?;
        let mut peers = list["items"].as_array().into_iter().flatten();
        peers.find(|peer| peer["address"] == address).cloned().ok_or_else(|| format!("{list:#}"))
    };
    for (key, address) in [
        ("/calico/bgp/v1/global/peer_v4/192.0.2.77", "192.0.2.77"),
        ("/calico/bgp/v1/host/host1/peer_v6/2001:db8::77", "2001:db8::77"),
        ("/calico/bgp/v1/host/host1/peer_interface/eth7", "eth7"),
    ] {
        hosts.put(key, r#"{"as_num": "#);
        within(PATIENCE, "it is listed", || {
            let peer = listed(address)?;
            let text = peer["lastError"]["text"].as_str().unwrap_or_default();
            let right = peer["state"] == "Unreadable" && peer["reason"] == key && text.contains(key);
            if right { Ok(()) } else { Err(format!("{peer:#}")) }
        });
        let table = stdout(&hosts.tortie(1, &["bgp", "peers"]));
        let row = table.lines().find(|line| line.starts_with(address)).unwrap_or_else(|| panic!("{table}"));
        assert!(row.contains("Unreadable") && row.contains(key), "{row}");
        let one = hosts.tortie(1, &["bgp", "peer", address]);
        assert!(one.status.success() && stdout(&one).contains("cannot be parsed"), "{one:?}");
        hosts.rm(key);
        within(PATIENCE, "it is not listed any more", || match listed(address) {
            Ok(peer) => Err(format!("{peer:#}")),
            Err(_) => Ok(()),
        });
    }
}
