//! What Prometheus reads, from live state at every scrape: a page of native names, and pages with the names of others.
//!
//! A scrape asks each thread once for a copy of what it counted ([`Scrape`]), then writes the page on the thread that
//! serves it. No thread looks at all routes for it. Explicit peers have series of their own; the mesh is summed, so that
//! series do not grow with the square of the hosts. A mesh peer that is down is still found by name in `tortie_bgp_peer_up`.
//!
//! ```text
//!  core, speaker, kernel --copies--> Scrape --> native pages (health, store, sessions, rib, kernel, policy, ipam, bfd)
//!                                          \-> felix.rs, bird.rs: the names of Felix, kube-controllers and bird_exporter
//! ```

mod bfd;
mod bird;
mod core;
mod exporter;
mod exposition;
mod felix;
mod health;
mod ipam;
mod kernel;
mod policy;
mod rib;
mod scrape;
mod sessions;
mod store;

pub(super) use exporter::Exporter;

use crate::agent::metrics::exposition::Page;
use crate::api::MetricsPage;

impl Exporter {
    /// A page.
    pub(super) async fn page(&self, what: MetricsPage) -> String {
        let scrape = self.scrape().await;
        let mut page = Page::new(what == MetricsPage::OpenMetrics);
        match what {
            MetricsPage::Prometheus | MetricsPage::OpenMetrics => {
                health::write(&mut page, self, &scrape);
                if let Some(core) = &scrape.core {
                    store::write(&mut page, core, &self.store_requests.read());
                    sessions::write(&mut page, core, scrape.bgp.as_ref());
                    ipam::write(&mut page, core);
                    policy::write(&mut page, self, core, &scrape);
                }
                rib::write(&mut page, &scrape);
                if let Some(kernel) = &scrape.kernel {
                    kernel::write(&mut page, kernel, scrape.comparison.as_deref(), self.protocol);
                }
                if let (Some(bgp), Some(core)) = (&scrape.bgp, &scrape.core) {
                    bfd::write(&mut page, bgp, core);
                }
                health::apis(&mut page, self);
            }
            MetricsPage::Felix => felix::write(&mut page, self.handle.node(), &scrape),
            MetricsPage::Bird => bird::write(&mut page, &scrape),
        }
        page.text()
    }
}
