//! Prometheus metrics, computed at every scrape: a page with native names, and compatible pages with other
//! exporters' names.
//!
//! A scrape queries each thread once for a copy of its counters ([`scrape::Scrape`]); the thread that serves
//! the request writes the page. No thread iterates over all routes for a scrape. Explicit peers have series
//! of their own. The mesh is summed, so that the number of series does not grow with the square of the hosts.
//! A mesh peer that is down still has a series with its name in `tortie_bgp_peer_up`.
//!
//! ```text
//!  core, speaker, kernel --copies--> Scrape -> native pages (health, store, sessions, rib, ..)
//!                                          \-> felix.rs, bird.rs: names of Felix and bird_exporter
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
    /// Returns a metrics page.
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
