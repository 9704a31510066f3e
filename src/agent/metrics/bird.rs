//! Compatible metrics page with the names of bird_exporter, for existing dashboards. All sessions have series
//! here, including those of the mesh, under the protocol names that Calico's templates give BIRD
//! (`Mesh_192_0_2_15`, `Node_...`, `Global_...`).

use tortie_bgp::{FamilyStatus, PeerStatus, State};

use super::scrape::Scrape;
use super::sessions::STATES;
use crate::agent::metrics::exposition::{Page, flag};

/// Filter names that Calico's templates use in `protocol bgp`.
const FILTERS: [(&str, &str); 2] =
    [("import_filter", "ACCEPT"), ("export_filter", "calico_export_to_bgp_peers")];

/// A metric family: name, help text, and its value per session and address family.
type Count = (&'static str, &'static str, fn(&FamilyStatus) -> u32);

const COUNTS: [Count; 4] = [
    ("bird_protocol_prefix_import_count", "Number of imported routes", |f| f.accepted),
    ("bird_protocol_prefix_export_count", "Number of exported routes", |f| f.advertised),
    ("bird_protocol_prefix_filter_count", "Number of filtered routes", |f| f.filtered),
    ("bird_protocol_prefix_preferred_count", "Number of preferred routes", |f| f.best),
];

fn version(family: &FamilyStatus) -> &'static str {
    if family.family == tortie_bgp::Family::Ipv4Unicast { "4" } else { "6" }
}

fn labels<'a>(peer: &'a PeerStatus, version: &'a str) -> Vec<(&'a str, &'a str)> {
    let common = [("name", &*peer.name), ("proto", "BGP"), ("ip_version", version)];
    common.into_iter().chain(FILTERS).collect()
}

pub(super) fn write(page: &mut Page, scrape: &Scrape) {
    page.gauge("bird_socket_query_success", "Result of querying the speaker: 0 is failed, 1 is successful")
        .put(&[], flag(scrape.bgp.is_some()));
    let Some(bgp) = &scrape.bgp else { return };
    let each = || bgp.peers.iter().flat_map(|peer| peer.families.iter().map(move |family| (peer, family)));
    let mut rows = page.gauge("bird_protocol_up", "Protocol is up");
    for (peer, family) in each() {
        rows.put(&labels(peer, version(family)), flag(peer.state == State::Established));
    }
    let mut rows = page.gauge("bird_protocol_uptime", "Uptime of the protocol in seconds");
    for (peer, family) in each() {
        rows.put(&labels(peer, version(family)), peer.since.as_secs_f64().floor());
    }
    for (name, help, value) in COUNTS {
        let mut rows = page.gauge(name, help);
        for (peer, family) in each() {
            rows.put(&labels(peer, version(family)), f64::from(value(family)));
        }
    }
    let mut rows = page.gauge("bird_bgp_state_count", "Number of BGP connections at each state");
    for peer in &bgp.peers {
        for state in STATES {
            let labels = [("name", &*peer.name), ("proto", "BGP"), ("state", state.as_str())];
            rows.put(&labels, flag(peer.state == state));
        }
    }
}
