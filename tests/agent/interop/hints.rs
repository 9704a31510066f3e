//! A router that announces addresses of a pool by itself: reported in `status` and for the peer, and rejected
//! if configured.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::interop::probe::{full_kernels, hints, kernel};
use crate::interop::rig::{Backend, Net, put, within};

const LIMIT: Duration = Duration::from_secs(10);
/// A prefix inside the pool that no host owns.
const TAKEN: &str = "10.244.77.0/26";
const TOR: &str = "172.30.0.254";

#[test]
fn a_router_that_takes_addresses_of_a_pool() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology/labs");
    let file = root.join("tor-bird.clab.yml");
    let dir = tempfile::tempdir().unwrap();
    let mut config = std::fs::read_to_string(root.join("tor-bird/bird.conf")).unwrap();
    config += &format!("protocol static taken {{ disabled; ipv4; route {TAKEN} blackhole; }}\n");
    let bird = dir.path().join("bird.conf");
    std::fs::write(&bird, config).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("tor-bird/bird.conf", bird.to_str().unwrap());
    let data = std::fs::read_to_string(root.join("tor-bird/store.json")).unwrap();
    let Some(net) = Net::text(&text, &file, &data, Backend::Sqlite) else { return };
    within(LIMIT, net.started, "every block in every kernel", || full_kernels(&net));
    within(LIMIT, Instant::now(), "the router's default route", || {
        kernel(&net, "host1")?.contains_key("default").then_some(()).ok_or_else(String::new)
    });
    assert_eq!(hints(&net, "host1", &["status"]).unwrap(), [""; 0]);

    net.run("tor", &["birdc", "enable", "taken"]).unwrap();
    within(LIMIT, Instant::now(), "the hint is in status", || {
        match hints(&net, "host1", &["status"])?.as_slice() {
            [text] if text.contains(TAKEN) && text.contains("\"import_pools\": false") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(hints(&net, "host1", &["bgp", "peer", TOR]).unwrap().len(), 1);
    assert_eq!(hints(&net, "host1", &["bgp", "peer", "host2"]).unwrap(), [""; 0]);
    let shown = net.run("host1", &["tortie", "bgp", "peer", TOR]).unwrap();
    assert!(shown.contains("note") && shown.contains(TAKEN), "{shown}");
    within(LIMIT, Instant::now(), "it is imported all the same, as in Calico", || {
        kernel(&net, "host1")?.contains_key(TAKEN).then_some(()).ok_or_else(String::new)
    });

    let value = format!("{{\"ip\": \"{TOR}\", \"as_num\": \"65000\", \"import_pools\": false}}");
    net.commit(vec![put(&format!("/calico/bgp/v1/global/peer_v4/{TOR}"), &value)]);
    within(LIMIT, Instant::now(), "it is refused", || match kernel(&net, "host1")?.get(TAKEN) {
        Some(line) => Err(line.clone()),
        None => Ok(()),
    });
    assert_eq!(hints(&net, "host1", &["status"]).unwrap(), [""; 0]);
    within(LIMIT, Instant::now(), "the blocks stay", || full_kernels(&net));
}
