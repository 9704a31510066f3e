//! Addresses: the own blocks, and what the collector found.

use super::core::CoreScrape;
use super::page::{Page, n};

pub(super) fn write(page: &mut Page, core: &CoreScrape) {
    let mut family = page.gauge("tortie_ipam_blocks", "Blocks by pool; self: those of this host");
    for (pool, sum) in &core.blocks {
        family.count(&[("pool", pool), ("owner", "self")], sum.blocks);
    }
    let mut family = page.gauge(
        "tortie_ipam_block_addresses",
        "Addresses of the blocks of this host; borrowed_in: used here in blocks of others, borrowed_out: used by others in own blocks",
    );
    for (pool, sum) in &core.blocks {
        let states = [
            ("used", sum.used),
            ("free", sum.free),
            ("borrowed_in", sum.borrowed_in),
            ("borrowed_out", sum.borrowed_out),
        ];
        for (state, count) in states {
            family.count(&[("pool", pool), ("state", state)], count);
        }
    }
    page.gauge(
        "tortie_ipam_suspect_addresses",
        "Addresses of this host that nobody has, as far as the collector looks (IpamLeakGracePeriodSecs)",
    )
    .count(&[("kind", "leaked")], core.collected.suspects);
    page.counter("tortie_ipam_collected_addresses_total", "Addresses that the collector released")
        .put(&[], n(core.collected.released));
}
