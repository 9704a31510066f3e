//! BFD metrics (RFC 5880): sums over all sessions, and series per explicit peer and per mesh peer that is
//! down.

use std::collections::BTreeMap;

use super::core::CoreScrape;
use super::scrape::BgpScrape;
use crate::agent::metrics::exposition::{Page, flag, n};

pub(super) fn write(page: &mut Page, bgp: &BgpScrape, core: &CoreScrape) {
    let Some(view) = &bgp.bfd else { return };
    let mut sums: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut received, mut sent) = (0, 0);
    for (endpoint, status) in &view.sessions {
        *sums.entry((endpoint.path.as_str(), status.state.as_str())).or_default() += 1;
        received += status.received;
        sent += status.sent;
    }
    let mut family = page.gauge("tortie_bfd_sessions", "BFD sessions by state");
    for ((path, state), count) in sums {
        family.count(&[("path", path), ("state", &state.to_lowercase())], count);
    }
    page.counter("tortie_bfd_packets_total", "Control packets of the current sessions")
        .put(&[("direction", "received")], n(received))
        .put(&[("direction", "sent")], n(sent));
    let mut family =
        page.counter("tortie_bfd_packets_refused_total", "Control packets discarded (RFC 5880 6.8.6)");
    for (why, count) in &view.refused {
        family.put(&[("reason", why.as_str())], n(*count));
    }
    page.counter("tortie_bfd_packets_unsent_total", "Control packets that the kernel refused")
        .put(&[], n(view.unsent));
    page.counter(
        "tortie_bfd_late_total",
        "Times that the BFD thread was delayed for so long that missing packets did not count as a loss",
    )
    .put(&[], n(view.late));
    page.gauge("tortie_bfd_thread", "Scheduling policy of the BFD thread; always 1")
        .put(&[("priority", view.priority.as_str())], 1.0);
    let is_up = |status: &tortie_bgp::bfd::Status| status.state == tortie_bgp::bfd::State::Up;
    let named =
        || bgp.watched.iter().filter_map(|(name, (_, status))| Some((core.peers.get(&**name)?, status)));
    let mut family =
        page.gauge("tortie_bfd_peer_up", "1 when BFD is Up; explicit peers, and mesh peers that are down");
    for (peer, status) in named() {
        family.put(&peer.with(&[]), flag(is_up(status)));
    }
    let mut family = page.gauge(
        "tortie_bfd_peer_detection_seconds",
        "Detection time: silence after which the session goes down",
    );
    for (peer, status) in named().filter(|(peer, _)| peer.whole) {
        if let Some(time) = status.detection_time {
            family.put(&peer.with(&[]), time.as_secs_f64());
        }
    }
    let mut family = page.counter("tortie_bfd_peer_ups_total", "Times that the session came up");
    for (peer, status) in named().filter(|(peer, _)| peer.whole) {
        family.put(&peer.with(&[]), n(status.ups));
    }
}
