//! Paged listings of routes from the BGP tables and from the kernel.

use tortie_bgp::{RouteQuery as TableQuery, RouteTable};
use tortie_kernel::KernelView;

use crate::agent::api::bgp::{self, Cursor};
use crate::agent::api::kernel_routes::{KernelMatch, kernel_rows};
use crate::agent::api::server::Server;
use crate::agent::handle::SLOTS_PER_QUERY;
use crate::api::RouteQuery;
use crate::api::bgp::BgpRoute;
use crate::api::status::{ApiError, KernelRouteRow, List};
use crate::speaker::SpeakerView;

/// Maximum number of prefixes in one request for kernel routes.
const PREFIXES_PER_REQUEST: usize = 256;

/// Selects the table of a listing: routes from a peer, routes to a peer, or the Loc-RIB if neither is set.
#[derive(Debug, Clone)]
struct TableSelector {
    from: Option<String>,
    to: Option<String>,
}

impl TableSelector {
    fn resolve(&self, view: &SpeakerView<'_>) -> Option<RouteTable> {
        Some(match self {
            Self { from: Some(name), .. } => RouteTable::AdjIn(view.peer_id(name)?),
            Self { to: Some(name), .. } => RouteTable::AdjOut(view.peer_id(name)?),
            _ => RouteTable::Loc,
        })
    }
}

/// Collects one page over several ranges and returns the cursor of the next page.
///
/// `ask` takes a range, a slot of the table and the number of items that are missing. The cost is that of the
/// page: if few routes match, the thread is queried for a part of its table at a time.
async fn page<R: Copy, T, F>(
    query: &RouteQuery,
    ranges: &[R],
    ask: impl Fn(R, u32, usize) -> F,
) -> Result<(Vec<T>, Option<Cursor>), ApiError>
where
    F: Future<Output = Result<(Vec<T>, Option<u32>), ApiError>>,
{
    let mut at: Cursor = query.after.as_deref().map_or(Ok(Cursor::default()), str::parse)?;
    let max = query.max.unwrap_or(1_000).clamp(1, 10_000);
    let mut found = Vec::new();
    while let Some(range) = ranges.get(at.range).copied() {
        if found.len() >= max {
            return Ok((found, Some(at)));
        }
        let (part, next) = ask(range, at.slot, max - found.len()).await?;
        found.extend(part);
        at = next.map_or(Cursor { range: at.range + 1, slot: 0 }, |slot| Cursor { slot, ..at });
    }
    Ok((found, None))
}

/// Adds the cursor of the next page to a list.
fn paged<T>(mut list: List<T>, next: Option<Cursor>) -> List<T> {
    list.more = next.is_some();
    list.next = next.map(|at| at.to_string());
    list
}

/// Lists the Loc-RIB, the routes received from a peer, or the routes advertised to a peer.
pub(in crate::agent) async fn of_bgp(server: &Server, query: RouteQuery) -> Result<List<BgpRoute>, ApiError> {
    let intent = server.handle().sessions().await?;
    let ranges = bgp::query_ranges(&query)?;
    let named =
        |name: &Option<String>| name.as_deref().map(|n| bgp::session_named(&intent, n).cloned()).transpose();
    let table = TableSelector { from: named(&query.from)?, to: named(&query.to)? };
    let ask = |matching, slot, left| {
        let table = table.clone();
        let part = move |view: &SpeakerView<'_>| {
            let query = TableQuery { table: table.resolve(view)?, matching };
            Some(view.walk(query, slot, SLOTS_PER_QUERY, left))
        };
        async move {
            server.handle().speaker().ask(part).await?.ok_or_else(|| ApiError {
                code: "not-found".into(),
                text: "the BGP speaker has not been given this peer yet".into(),
            })
        }
    };
    let (mut found, next) = page(&query, &ranges, ask).await?;
    found.sort_unstable_by_key(|info| info.prefix);
    let items = found.iter().map(|info| bgp::route(info, &intent)).collect();
    Ok(paged(server.list("BGPRouteList", items).await, next))
}

/// Lists kernel routes. `prefix` may contain several prefixes separated by commas, one page of BGP routes.
pub(in crate::agent) async fn of_kernel(
    server: &Server,
    query: RouteQuery,
) -> Result<List<KernelRouteRow>, ApiError> {
    let Some(list) = query.prefix.clone().filter(|list| list.contains(',')) else {
        return kernel_page(server, query).await;
    };
    if list.split(',').count() > PREFIXES_PER_REQUEST {
        let text = format!("at most {PREFIXES_PER_REQUEST} prefixes can be requested at once");
        return Err(ApiError { code: "invalid".to_owned(), text });
    }
    let mut found: Option<List<KernelRouteRow>> = None;
    for prefix in list.split(',') {
        let one =
            kernel_page(server, RouteQuery { prefix: Some(prefix.to_owned()), ..query.clone() }).await?;
        match &mut found {
            Some(found) => found.items.extend(one.items),
            None => found = Some(one),
        }
    }
    found.ok_or_else(|| ApiError { code: "invalid".to_owned(), text: "no prefix is given".to_owned() })
}

async fn kernel_page(server: &Server, query: RouteQuery) -> Result<List<KernelRouteRow>, ApiError> {
    let matching = KernelMatch::read(&query)?;
    let ask = |matching, slot, left| {
        server
            .handle()
            .kernel()
            .ask(move |view: &KernelView<'_>| kernel_rows(view, &matching, slot, SLOTS_PER_QUERY, left))
    };
    let (mut found, next) = page(&query, &[matching], ask).await?;
    found.sort_unstable_by_key(|(prefix, _)| *prefix);
    let items = found.into_iter().map(|(_, row)| row).collect();
    Ok(paged(server.list("KernelRouteList", items).await, next))
}
