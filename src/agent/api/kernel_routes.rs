//! Conversion of the kernel's routes to rows of the API.

use std::net::IpAddr;

use tortie_net::{Cidr, ScopedAddr};

use crate::api::RouteQuery;
use crate::api::status::{ApiError, KernelRouteRow};
use tortie_engine::routing::{ChangeId, Hop};
use tortie_kernel::{KernelView, RouteCondition, RouteState, vxlan_device};

/// Selects kernel routes by prefix or address.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) enum KernelMatch {
    All,
    Exact(Cidr),
    Covering(IpAddr),
    Within(Cidr),
}

impl KernelMatch {
    pub(in crate::agent) fn read(query: &RouteQuery) -> Result<Self, ApiError> {
        let cidr = |text: &str| {
            text.parse::<Cidr>().map_err(|e| ApiError { code: "invalid".to_owned(), text: e.to_string() })
        };
        Ok(match (&query.prefix, &query.within) {
            (Some(text), _) => match text.parse::<IpAddr>() {
                Ok(addr) => Self::Covering(addr),
                Err(_) => Self::Exact(cidr(text)?),
            },
            (None, Some(text)) => Self::Within(cidr(text)?),
            (None, None) => Self::All,
        })
    }
}

/// Lists own routes from a slot of the table on, as [`KernelView::walk`].
pub(in crate::agent) fn kernel_rows(
    view: &KernelView<'_>,
    matching: &KernelMatch,
    from: u32,
    places: u32,
    max: usize,
) -> (Vec<(Cidr, KernelRouteRow)>, Option<u32>) {
    let (states, next) = match matching {
        KernelMatch::Exact(cidr) => (view.route(cidr).into_iter().collect(), None),
        KernelMatch::Covering(addr) => (view.own_covering(*addr).into_iter().collect(), None),
        KernelMatch::Within(cidr) => view.walk(Some(*cidr), from, places, max),
        KernelMatch::All => view.walk(None, from, places, max),
    };
    (states.iter().map(|state| (state.prefix, row(view, state))).collect(), next)
}

/// Looks up one address: the own route that covers it, and the path that the kernel would use without own
/// routes.
pub(in crate::agent) fn kernel_get(
    view: &KernelView<'_>,
    addr: ScopedAddr,
) -> (Option<KernelRouteRow>, String) {
    let own = view.own_covering(addr.addr()).map(|state| row(view, &state));
    let says = match view.resolve(addr) {
        Some(resolved) => {
            let dev = view.interface(resolved.ifindex).unwrap_or("?").to_owned();
            match resolved.gateway {
                Some(gateway) => {
                    format!("without our routes: via {gateway} dev {dev} metric {}", resolved.metric)
                }
                None => format!("without our routes: on-link dev {dev}"),
            }
        }
        None => "without our routes: unreachable (unresolved)".to_owned(),
    };
    (own, says)
}

/// Converts one own route.
pub(in crate::agent) fn row(view: &KernelView<'_>, state: &RouteState) -> KernelRouteRow {
    let via = state
        .hops
        .iter()
        .map(|hop| match hop {
            Hop::Plain { gateway, ifindex } => {
                format!("via {gateway} dev {}", view.interface(*ifindex).unwrap_or("?"))
            }
            Hop::Tunnel { remote } => format!("via {remote} dev tunl0 onlink"),
            Hop::Vxlan { remote } => {
                format!("via {remote} dev {} onlink", vxlan_device(remote.is_ipv4()))
            }
        })
        .collect();
    let (condition, reason) = match &state.condition {
        RouteCondition::Installed => ("installed", state.why.unwrap_or_default().to_owned()),
        RouteCondition::Pending => ("pending", "not written yet".to_owned()),
        RouteCondition::Failed(why) => ("failed", why.clone()),
        RouteCondition::Withheld(why) => ("withheld", (*why).to_owned()),
        RouteCondition::Stale => ("stale", "kept from before the restart".to_owned()),
        RouteCondition::Removing => ("leaving", "no longer desired".to_owned()),
    };
    KernelRouteRow {
        prefix: state.prefix.to_string(),
        kind: state.source.as_str().to_owned(),
        state: condition.to_owned(),
        via,
        reason,
        change: if state.change == ChangeId::default() { String::new() } else { state.change.to_string() },
    }
}
