//! `why ip` and `route get`: whose an address is and where packets to it go, asked of all owners at once.

use std::net::IpAddr;

use tortie_bgp::{RouteMatch, RouteQuery as Question, RouteTable};
use tortie_net::Cidr;

use super::ip;
use crate::agent::api::bgp;
use crate::agent::api::status;
use crate::agent::handle::Live;
use crate::agent::policy_view::Picture;
use crate::api::explain::Why;
use crate::api::policy::EndpointDetail;
use crate::api::status::{ApiError, RouteGet};

/// The endpoint that has an address, and the host whose own it is.
fn whose(picture: &Picture<'_>, addr: IpAddr) -> (Option<EndpointDetail>, Option<String>) {
    let host = picture.model.hosts_by_address(addr).next().map(|(name, _)| name.to_owned());
    (picture.endpoint(&addr.to_string()).ok(), host)
}

impl Live {
    /// Where packets to an address go, and the interface that they leave by.
    pub(in crate::agent) async fn way_to(
        &self,
        addr: IpAddr,
    ) -> Result<(RouteGet, Option<String>), ApiError> {
        let intent = self.sessions().await?;
        let question = Question { table: RouteTable::Loc, matching: RouteMatch::Longest(addr) };
        let (found, ((kernel, kernel_says), device)) = tokio::try_join!(
            self.speaker(move |view| view.routes(question, None, 1)),
            self.kernel(move |view| (status::kernel_get(view, addr), view.device(addr).map(str::to_owned))),
        )?;
        let bgp = found.first().map(|info| bgp::route(info, &intent));
        Ok((RouteGet { address: addr.to_string(), bgp, kernel, kernel_says }, device))
    }

    /// What this host does with an address.
    pub(in crate::agent) async fn why_ip(&self, addr: IpAddr) -> Result<Why, ApiError> {
        let of_core = self.core(move |core| {
            let held = core.duplicates().into_iter().find(|(held, _)| *held == addr);
            let whose = core.picture().map(|picture| whose(&picture, addr));
            (core.known(Cidr::host(addr)), held.map(|(_, names)| names), whose)
        });
        let ((route, device), (known, held, found)) = tokio::try_join!(self.way_to(addr), of_core)?;
        let (endpoint, host) = match found {
            Some(found) => found,
            // Policy is off.
            None => self.picture(move |picture| Ok(whose(picture, addr))).await?,
        };
        let held = held.unwrap_or_default();
        let evidence = ip::Evidence { address: addr.to_string(), known, endpoint, held, host, route, device };
        Ok(ip::answer(self.empty("WhyIp", evidence.known.revision, addr.to_string()), &evidence))
    }
}
