//! `why ip` and `route get`: the owner of an address and the route to it, combined from core, speaker and
//! kernel.

use std::net::IpAddr;

use tortie_bgp::{RouteMatch, RouteQuery as TableQuery, RouteTable};
use tortie_net::{Cidr, ScopedAddr};

use super::{empty, ip};
use crate::agent::api::bgp;
use crate::agent::api::kernel_routes::kernel_get;
use crate::agent::api::policy_query::policy_view;
use crate::agent::api::server::Server;
use crate::agent::explain::origin::PrefixOrigin;
use crate::agent::policy_view::PolicyView;
use crate::api::explain::Why;
use crate::api::policy::EndpointDetail;
use crate::api::status::{ApiError, RouteGet};

/// Returns the endpoint that uses an address, and the host that has it as its own.
fn address_owner(view: &PolicyView<'_>, addr: IpAddr) -> (Option<EndpointDetail>, Option<String>) {
    let host = view.model.hosts_by_address(addr).next().map(|(name, _)| name.to_owned());
    (view.endpoint(&addr.to_string()).ok(), host)
}

/// Returns the route to an address and the outgoing interface.
async fn lookup_route(server: &Server, addr: ScopedAddr) -> Result<(RouteGet, Option<String>), ApiError> {
    let intent = server.handle().sessions().await?;
    let question = TableQuery { table: RouteTable::Loc, matching: RouteMatch::Longest(addr.addr()) };
    let (found, ((kernel, kernel_lookup), device)) = tokio::try_join!(
        server.handle().speaker().ask(move |view| view.routes(question, None, 1)),
        server
            .handle()
            .kernel()
            .ask(move |view| (kernel_get(view, addr), view.device(addr).map(str::to_owned))),
    )?;
    let bgp = found.first().map(|info| bgp::route(info, &intent));
    Ok((RouteGet { address: addr.to_string(), bgp, kernel, kernel_lookup }, device))
}

/// Returns the route to an address.
pub(in crate::agent) async fn route_get(server: &Server, addr: ScopedAddr) -> Result<RouteGet, ApiError> {
    Ok(lookup_route(server, addr).await?.0)
}

/// Explains the handling of an address on this host.
pub(in crate::agent) async fn why_ip(server: &Server, addr: IpAddr) -> Result<Why, ApiError> {
    let of_core = server.handle().core().ask(move |core| {
        let held = core.duplicate_addresses().into_iter().find(|(held, _)| *held == addr);
        (PrefixOrigin::of(core, Cidr::host(addr)), held.map(|(_, names)| names))
    });
    let owner = policy_view(server.handle(), move |view| Ok(address_owner(view, addr)));
    let ((route, device), (origin, held), (endpoint, host)) =
        tokio::try_join!(lookup_route(server, addr.into()), of_core, owner)?;
    let held = held.unwrap_or_default();
    let evidence =
        ip::AddressEvidence { address: addr.to_string(), origin, endpoint, held, host, route, device };
    Ok(ip::answer(empty(server, "WhyIp", evidence.origin.revision, addr.to_string()), &evidence))
}
