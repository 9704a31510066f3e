//! A simulated agent: answers the API for a network of any size, and can lose its store or disappear.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{self, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tortie::api::bgp::{BgpRoute, Peer};
use tortie::api::explain::Why;
use tortie::api::ipam::{self, Holder};
use tortie::api::nodes::ClusterNode;
use tortie::api::policy::{Endpoint, EndpointDetail, PolicyDetail, Trace};
use tortie::api::status::{ApiError, Event, KernelRouteRow, List, RouteGet, Status};
use tortie_engine::ipam::Keyspace;
use tortie_engine::ipam::check::IpamState;
use tortie_net::Cidr;
use tortie_store::{KeyValue, Snapshot};

/// Parameters of the simulated network.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scene {
    /// Number of hosts, including this one, which is the fourth or the only one.
    pub(crate) hosts: usize,
    pub(crate) routes: usize,
    pub(crate) blocks: usize,
    pub(crate) endpoints: usize,
    /// Reason why the store is unreachable.
    pub(crate) away: Option<String>,
    pub(crate) frozen: Option<String>,
    /// True in observe mode, next to BIRD and Felix.
    pub(crate) observes: bool,
}

/// State of the simulated agent.
pub(crate) struct FakeAgent {
    pub(crate) scene: Mutex<Scene>,
    events: Mutex<Vec<Event>>,
    live: broadcast::Sender<Event>,
    /// Number of open event streams.
    pub(crate) streams: Arc<AtomicUsize>,
}

/// The first host of the mesh whose session is down, and a host whose session only its own side reports as
/// down.
pub(crate) const DOWN: usize = 5;
pub(crate) const ONE_SIDED: usize = 7;
/// A name from the store that would become markup if it were not escaped.
pub(crate) const HOSTILE: &str = "<img src=x onerror=alert(1)>";

pub(crate) fn host(i: usize) -> String {
    match i {
        9 => HOSTILE.to_owned(),
        _ => format!("rack{}-n{i:03}", i / 40 + 1),
    }
}

fn time(ago: u64) -> String {
    let span = jiff::SignedDuration::from_secs(i64::try_from(ago).unwrap());
    format!("{:.3}", jiff::Timestamp::now().checked_sub(span).unwrap())
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn list<T>(kind: &str, items: Vec<T>) -> List<T> {
    List {
        api_version: "tortie/v1".to_owned(),
        kind: kind.to_owned(),
        node: host(3),
        revision: 918_273,
        time: time(0),
        more: false,
        next: None,
        items,
    }
}

fn error<T>(code: &str, text: &str) -> Result<T, ApiError> {
    Err(ApiError { code: code.to_owned(), text: text.to_owned() })
}

impl Scene {
    fn here(&self) -> usize {
        if self.hosts > 3 { 3 } else { 0 }
    }

    fn is_down(i: usize) -> bool {
        i % 97 == DOWN
    }

    fn peers(&self) -> Vec<Peer> {
        let mesh = (0..self.hosts).filter(|i| *i != self.here()).map(|i| {
            let down = Self::is_down(i);
            let family = json!({ "afi": "ipv4", "safi": "unicast", "received": 2 + i % 3, "accepted": 2 + i % 3,
                "best": 2, "advertised": 2, "stale": 0 });
            read(json!({
                "session": format!("Mesh_10_0_{}_{}", i / 250, i % 250), "address": format!("10.0.{}.{}", i / 250, i % 250),
                "port": 179, "name": host(i), "type": "mesh", "reason": format!("node-to-node mesh with {}", host(i)),
                "remoteAs": 64512, "state": if down { "Active" } else { "Established" },
                "stateSince": time(if down { 372 } else { 900_000 + u64::try_from(i).unwrap() }), "stateSeconds": 372,
                "flaps": u8::from(down),
                "lastError": down.then(|| json!({ "code": "connect-refused", "text": "connection refused, tcp/179", "time": time(3) })),
                "families": if down { vec![] } else { vec![family] },
                "holdSeconds": 90, "keepaliveSeconds": 30, "routerId": "192.0.2.1", "messagesIn": 6, "messagesOut": 8,
                "capabilities": ["ipv4-unicast", "4-octet-as", "graceful-restart"], "gracefulRestart": "idle", "drain": "off",
            }))
        });
        let router: Peer = read(json!({
            "session": "Global_192_0_2_254", "address": "192.0.2.254", "port": 179, "name": "tor-a", "type": "global",
            "reason": "/calico/bgp/v1/global/peer_v4/192.0.2.254", "remoteAs": 64513, "state": "Established",
            "stateSince": time(90_000), "stateSeconds": 90_000, "flaps": 0, "lastError": null,
            "families": [{ "afi": "ipv4", "safi": "unicast", "received": 1, "accepted": 1, "best": 1, "advertised": 2, "stale": 0 }],
            "holdSeconds": 90, "keepaliveSeconds": 30, "routerId": "192.0.2.254", "messagesIn": 6, "messagesOut": 8,
            "capabilities": ["ipv4-unicast"], "gracefulRestart": "idle", "drain": "off",
        }));
        mesh.chain((self.hosts > 1).then_some(router)).collect()
    }

    fn status(&self) -> Status {
        let peers = self.peers();
        let of = |mesh: bool| {
            let of = peers.iter().filter(|p| (p.kind == "mesh") == mesh);
            json!({ "up": of.clone().filter(|p| p.state == "Established").count(), "of": of.count() })
        };
        let down: Vec<&Peer> = peers.iter().filter(|p| p.state != "Established").collect();
        let verdict = match () {
            () if self.frozen.is_some() => "frozen",
            () if down.is_empty() && self.away.is_none() => "ready",
            () => "degraded",
        };
        let frozen = self.frozen.iter().map(|text| {
            json!({ "code": "frozen", "subject": "store", "text": text, "next": "tortie store accept, if the store is right as it is" })
        });
        let problems: Vec<Value> = down
            .iter()
            .map(|p| {
                json!({ "code": "peer-down", "subject": p.name, "text": "Active for 6m12s, connection refused, tcp/179",
                    "next": format!("tortie why peer {}", p.name) })
            })
            .chain(frozen)
            .collect();
        read(json!({
            "apiVersion": "tortie/v1", "kind": "Status", "node": host(self.here()), "version": "0.1.0", "time": time(0),
            "uptimeSeconds": 1_051_200, "ready": true, "verdict": verdict,
            "summary": if down.is_empty() { format!("{} BGP sessions up, nothing to do", peers.len()) }
                else { format!("{} of {} BGP sessions down", down.len(), peers.len()) },
            "bgp": { "as": 64512, "routerId": "10.0.0.3", "listen": ["10.0.0.3:179"], "mesh": of(true), "peers": of(false),
                "gracefulRestart": "idle" },
            "routes": { "installed": self.routes, "pending": 0, "failed": 0, "withheld": 0, "stale": 0, "drifted": 0, "foreign": 3,
                "externalChanges": 0, "overruns": 0 },
            "blocks": if self.blocks > 3 { vec![json!({ "cidr": "10.244.0.192/26", "kind": "own-block", "announced": true, "key": "/k" })] } else { vec![] },
            "policy": { "mode": "program", "endpoints": self.endpoints, "inactive": 0, "failed": 0, "policies": 2, "profiles": 1,
                "rules": 5, "sets": 1, "inSync": true, "applyMicros": 2500 },
            "store": { "store": "etcd://10.0.0.9:2379", "connected": self.away.is_none(), "revision": 918_273,
                "lagSeconds": if self.away.is_some() { 754.0 } else { 0.2 }, "away": self.away, "fromCache": false,
                "frozen": self.frozen, "invalid": [], "keys": 4000 },
            "dataplane": { "mode": "program", "protocol": 179, "nexthops": "nexthop-objects", "tunnel": "up", "comparedSeconds": 38 },
            "problems": problems, "notes": [], "beside": self.observes.then(super::observed::status),
        }))
    }

    /// Status of the hosts, which list peers that are down: both sides of one session, and one side of
    /// another.
    fn nodes(&self) -> Vec<ClusterNode> {
        let here = self.here();
        let node = |i: usize| {
            let mut down: Vec<String> = Vec::new();
            if i == here {
                down = (0..self.hosts).filter(|i| Self::is_down(*i)).map(host).collect();
            } else if i == ONE_SIDED {
                down.push(host(here));
            } else if i == 11 {
                down.push(host(12));
            }
            let status = json!({ "node": host(i), "version": "0.1.0", "schema": 1, "time": time(60), "ready": true,
                "verdict": if down.is_empty() { "ready" } else { "degraded" },
                "sessions": { "up": self.hosts - down.len(), "of": self.hosts },
                "mesh": { "up": self.hosts - 1 - down.len(), "of": self.hosts - 1 }, "peers": { "up": 1, "of": 1 },
                "down": down, "downMore": 0, "problems": if down.is_empty() { vec![] } else { vec!["peer-down"] } });
            // On a host whose sessions are down, no agent runs.
            let silent = Self::is_down(i);
            read(json!({ "name": host(i), "silent": silent, "ageSeconds": (!silent).then_some(60),
                "status": (!silent).then_some(status), "disputedBy": [] }))
        };
        (0..self.hosts).map(node).collect()
    }

    fn prefix(i: usize) -> String {
        format!("10.{}.{}.0/24", 64 + i / 256 % 128, i % 256)
    }

    fn number(prefix: &str) -> Option<usize> {
        let mut parts = prefix.split('.').map(|part| part.parse::<usize>().unwrap_or_default());
        let (_, second, third) = (parts.next()?, parts.next()?, parts.next()?);
        Some(second.checked_sub(64)? * 256 + third)
    }

    fn route(&self, i: usize) -> BgpRoute {
        let path = |best: bool, from: String, reason: &str, as_path: &str| {
            json!({ "best": best, "multipath": best, "usable": true, "reason": reason, "from": from,
                "source": if as_path.is_empty() { "iBGP" } else { "eBGP" }, "nextHop": format!("10.0.0.{}", i % 250),
                "asPath": as_path, "localPref": 100, "med": null, "origin": "igp", "communities": [], "largeCommunities": [],
                "stale": false })
        };
        let mut paths = vec![path(true, host(i % self.hosts.max(1)), "shorter AS path", "")];
        paths.push(path(false, "tor-a".to_owned(), "longer AS path", "64513 64512"));
        read(json!({ "prefix": Self::prefix(i), "paths": paths }))
    }

    fn kernel(&self, i: usize) -> KernelRouteRow {
        let held = i % 50 == 49;
        read(
            json!({ "prefix": Self::prefix(i), "kind": "learned", "state": if held { "withheld" } else { "installed" },
            "via": [format!("via 10.0.0.{} dev eth0", i % 250)], "reason": if held { "next hop unresolved" } else { "plain" },
            "change": "c-7" }),
        )
    }

    /// Returns a page of all routes, or the named ones.
    fn part<T>(&self, query: &Query, row: impl Fn(usize) -> T) -> List<T> {
        if let Some(prefixes) = query.get("prefix") {
            let numbers = prefixes.split(',').filter_map(Self::number).filter(|i| *i < self.routes);
            return list("Routes", numbers.map(row).collect());
        }
        let number = |name: &str| query.get(name).map(|text| text.parse::<usize>().unwrap());
        let from = number("after").unwrap_or_default();
        let to = self.routes.min(from + number("max").unwrap_or(1_000));
        let mut list = list("Routes", (from..to).map(row).collect());
        list.more = to < self.routes;
        list.next = list.more.then(|| to.to_string());
        list
    }

    /// Returns a store as Calico writes it.
    fn ipam_state(&self) -> IpamState {
        let kv = |key: String, value: Value| KeyValue {
            key,
            value: value.to_string().into_bytes(),
            mod_revision: 900,
            create_revision: 900,
        };
        let mut entries =
            vec![kv("/calico/v1/ipam/v4/pool/10.244.0.0-16".to_owned(), json!({ "cidr": "10.244.0.0/16" }))];
        if self.blocks == 0 {
            entries.clear();
        }
        for i in 0..self.blocks {
            let cidr = format!("10.244.{}.{}", i / 4, i % 4 * 64);
            let used = [0, 64, 63, 8, 31, 50][i % 6];
            let slots: Vec<Value> = (0..64)
                .map(|n| if n < used { json!(usize::from(i % 11 == 3 && n == 0)) } else { Value::Null })
                .collect();
            let attributes: Vec<Value> = [i % self.hosts.max(1), 1]
                .map(|owner| json!({ "handle_id": "k8s-pod-network.77a1", "secondary": { "node": host(owner) } }))
                .to_vec();
            let owner = (i % 17 != 9).then(|| format!("host:{}", host(i % self.hosts.max(1))));
            entries.push(kv(
                format!("/calico/ipam/v2/assignment/ipv4/block/{cidr}-26"),
                json!({ "cidr": format!("{cidr}/26"), "affinity": owner, "strictAffinity": false, "allocations": slots,
                    "unallocated": (used..64).collect::<Vec<_>>(), "attributes": attributes }),
            ));
            if i % 17 != 9 {
                entries.push(kv(
                    format!(
                        "/calico/ipam/v2/host/{}/ipv4/block/{cidr}-26",
                        host(i % self.hosts.max(1)).replace('/', "%2F")
                    ),
                    json!({ "state": "confirmed" }),
                ));
            }
        }
        IpamState::of(&Keyspace::Global, &Snapshot { revision: 918_273, entries, ..Snapshot::default() })
    }

    fn endpoint(&self, i: usize) -> Endpoint {
        // One is a container's, whose id is part of the key.
        let workload = match i {
            2 => format!("cni/{}", "0123456789abcdef".repeat(4)),
            _ => format!("k8s/shop.web-{i}"),
        };
        read(json!({ "key": format!("/calico/v1/host/{}/workload/{workload}/endpoint/eth0", host(3)),
            "name": format!("k8s/shop.web-{i}/eth0"), "kind": "workload", "host": host(3), "interface": format!("cali{i:011}"),
            "state": "up", "addresses": [format!("10.244.0.{}", 192 + i % 64)], "profiles": ["shop"],
            "labels": { "app": "web", "ns": "shop" }, "policies": 2, "revision": 17 }))
    }
}

const RULES: [&str; 2] = ["allow tcp from app == 'api' to ports 5432", "deny"];

impl FakeAgent {
    pub(crate) fn new(scene: Scene) -> Arc<Self> {
        let (live, _) = broadcast::channel(64);
        let agent =
            Self { scene: Mutex::new(scene), events: Mutex::default(), live, streams: Arc::default() };
        let down = "Mesh_10_0_0_5";
        for (ago, change, plane, mark, subject, text) in [
            (5_000, "c-1", "store", "+", "/calico/ipam/v2/assignment/ipv4/block/10.244.0.192-26", "written"),
            (5_000, "c-1", "kernel", "+", "10.244.0.192/26", "blackhole written, acknowledged after 116 us"),
            (2_000, "c-2", "rib", "-", down, "Established -> Active the peer closed the connection"),
            (1_900, "c-3", "rib", "+", down, "OpenConfirm -> Established"),
            (372, "c-4", "rib", "-", down, "Established -> Active hold timer expired"),
            (90, "c-7", "rib", "~", "10.64.7.0/24", "1 best path changed"),
        ] {
            agent.record(ago, change, plane, mark, subject, text);
        }
        Arc::new(agent)
    }

    /// Records an entry and sends it to the followers.
    pub(crate) fn record(&self, ago: u64, change: &str, plane: &str, mark: &str, subject: &str, text: &str) {
        let mut events = self.events.lock().unwrap();
        let event: Event = read(json!({ "seq": events.len() + 1, "time": time(ago), "change": change,
            "plane": plane, "mark": mark, "subject": subject, "text": text, "revision": 918_000 }));
        events.push(event.clone());
        drop(events);
        let _ = self.live.send(event);
    }

    fn scene(&self) -> Scene {
        self.scene.lock().unwrap().clone()
    }

    /// Returns the JSON answer for a path below `v1/`.
    fn answer(&self, path: &str, query: &Query) -> Answer {
        let scene = self.scene();
        let text = |name: &str| query.get(name).cloned().unwrap_or_default();
        match path {
            "status" => json_of(&scene.status()),
            "bgp/peers" => json_of(&list("BGPPeerList", scene.peers())),
            "bgp/routes" => json_of(&scene.part(query, |i| scene.route(i))),
            "routes" => json_of(&scene.part(query, |i| scene.kernel(i))),
            "endpoints" => json_of(&list("EndpointList", scene.endpoint_list())),
            "endpoint" => scene.endpoint_detail(&text("name")),
            "policy" => policy(&text("name")),
            "policy/trace" => trace(query),
            "why/peer" => why(&text("name"), "nobody listens there", "peer-refused"),
            "why/route" => match query.get("to") {
                Some(to) => why(&text("prefix"), &format!("NOT advertised to {to}"), "filter"),
                None => why(&text("prefix"), "in use", "ok"),
            },
            "why/ip" => why(&text("address"), "an address of k8s/shop.web-1/eth0", "ok"),
            "diff" if scene.observes => json_of(&super::observed::diff()),
            "history" => self.history(query),
            "nodes" => scene.store().and_then(|_| json_of(&list("NodeList", scene.nodes()))),
            "ipam/pools" => json_of(&list("IPAMPoolList", ipam::pools(&scene.store()?))),
            "ipam/blocks" => json_of(&list("IPAMBlockList", ipam::blocks(&scene.store()?, None, None))),
            "ipam/block" => scene.block(text("cidr").parse().unwrap()),
            _ => match path.strip_prefix("routes/get/") {
                Some(address) => scene.route_get(address),
                None => error("invalid", "the page has no use for this"),
            },
        }
    }

    fn history(&self, query: &Query) -> Answer {
        let events = self.events.lock().unwrap();
        let text = query.get("subject").or(query.get("peer")).or(query.get("prefix"));
        let matching = |e: &&Event| text.is_none_or(|t| e.subject.contains(&**t) || e.change == *t);
        json_of(&list("EventList", events.iter().filter(matching).cloned().collect()))
    }

    /// Streams new entries until the client disconnects.
    fn follow(&self) -> Response {
        self.streams.fetch_add(1, Ordering::SeqCst);
        let open = Open(Arc::clone(&self.streams));
        let entries =
            futures_util::stream::unfold((self.live.subscribe(), open), |(mut receiver, open)| async move {
                let event: Event = receiver.recv().await.ok()?;
                let sent = sse::Event::default().id(event.seq.to_string());
                let sent = sent.data(serde_json::to_string(&event).unwrap());
                Some((Ok::<_, Infallible>(sent), (receiver, open)))
            });
        Sse::new(entries).into_response()
    }
}

/// Query parameters by name.
type Query = BTreeMap<String, String>;

/// A JSON document, or the agent's error.
type Answer = Result<Value, ApiError>;

async fn serve(
    State(agent): State<Arc<FakeAgent>>,
    Path(path): Path<String>,
    axum::extract::Query(query): axum::extract::Query<Query>,
) -> Response {
    if path == "events" {
        return agent.follow();
    }
    match agent.answer(&path, &query) {
        Ok(body) => Json(body).into_response(),
        Err(error) => {
            let status = match error.code.as_str() {
                "not-found" => StatusCode::NOT_FOUND,
                "invalid" => StatusCode::BAD_REQUEST,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, Json(error)).into_response()
        }
    }
}

/// A listener that runs until it is dropped, with its connections.
pub(crate) struct Listening {
    runtime: Option<tokio::runtime::Runtime>,
    pub(crate) addr: SocketAddr,
}

impl Listening {
    /// Serves the page and its answers on TCP; with `again`, at the same address as before.
    pub(crate) fn start(agent: &Arc<FakeAgent>, again: Option<SocketAddr>) -> Self {
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let addr = again.unwrap_or_else(free);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let routes = Router::new()
            .route("/", get(async || tortie::api::page::page()))
            .route("/v1/{*path}", get(serve))
            .with_state(Arc::clone(agent));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(addr)).unwrap();
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Self { runtime: Some(runtime), addr }
    }

    pub(crate) fn base(&self) -> String {
        format!("http://{}/", self.addr)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// A stream that is counted while it is open.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Scene {
    /// Returns a store as Calico writes it, unless it is unreachable.
    fn store(&self) -> Result<IpamState, ApiError> {
        match &self.away {
            Some(why) => {
                error("store-away", &format!("blocks are read from the store, and it is away: {why}"))
            }
            None => Ok(self.ipam_state()),
        }
    }

    fn route_get(&self, address: &str) -> Answer {
        let number = Self::number(address);
        json_of(&RouteGet {
            address: address.to_owned(),
            bgp: number.map(|i| self.route(i)),
            kernel: number.map(|i| self.kernel(i)),
            kernel_lookup: "via 10.0.0.7 dev eth0".to_owned(),
        })
    }

    fn endpoint_list(&self) -> Vec<Endpoint> {
        (0..self.endpoints).map(|i| self.endpoint(i)).collect()
    }

    fn endpoint_detail(&self, name: &str) -> Answer {
        let endpoint = self.endpoint_list().into_iter().find(|e| e.name.contains(name));
        let Some(endpoint) = endpoint else {
            return error("not-found", &format!("there is no endpoint `{name}`"));
        };
        let mut detail = serde_json::to_value(endpoint).unwrap();
        detail["nats"] = json!([]);
        detail["stages"] = json!([
            { "kind": "tier", "direction": "inbound", "tier": "default", "end": "deny", "chains": [
                { "name": "policy shop-allow-dns", "rules": ["allow udp to ports 53"] },
                { "name": "policy shop-db-ingress", "rules": RULES } ] },
            { "kind": "profiles", "direction": "outbound", "end": "deny", "chains": [{ "name": "profile shop", "rules": ["allow"] }] },
        ]);
        json_of(&read::<EndpointDetail>(detail))
    }

    fn block(&self, block: Cidr) -> Answer {
        let holder = Holder { name: "k8s/shop.web-1/eth0".to_owned(), host: host(3), key: "/k".to_owned() };
        let holders = block.nth(1).map(|addr| (addr, vec![holder])).into_iter().collect();
        let Some(view) = ipam::block(&self.store()?, block, holders) else {
            return error("not-found", &format!("there is no block {block}"));
        };
        json_of(&view)
    }
}

fn json_of<T: serde::Serialize>(value: &T) -> Answer {
    Ok(serde_json::to_value(value).unwrap())
}

fn policy(name: &str) -> Answer {
    json_of(&read::<PolicyDetail>(
        json!({ "key": format!("/calico/v1/policy/{name}"), "kind": "policy", "name": name, "types": ["ingress"],
        "inbound": 2, "outbound": 0, "endpoints": 1, "revision": 9, "inboundRules": RULES, "outboundRules": [], "actsOn": [],
        "labels": {}, "tags": [], "counted": { "inbound": [{ "packets": 81_204, "bytes": 1 }, { "packets": 1_377, "bytes": 1 }],
        "outbound": [] } }),
    ))
}

fn trace(query: &Query) -> Answer {
    json_of(&read::<Trace>(
        json!({ "verdict": "deny", "from": { "address": query.get("from"), "endpoint": null, "host": host(5) },
        "to": { "address": "10.244.0.193", "endpoint": "k8s/shop.web-1/eth0", "host": host(3) },
        "what": format!("{}/{}", query["proto"], query.get("dport").map_or("0", String::as_str)),
        "by": "policy shop-db-ingress, rule 1", "notLookedAt": ["connections that are there already"],
        "hosts": [{ "host": host(3), "here": true, "outer": false, "verdict": "deny", "steps": [
            { "stage": "route", "text": "out by cali00000000001", "decisive": false },
            { "stage": "to-workload", "endpoint": "k8s/shop.web-1/eth0", "verdict": "deny", "decisive": true,
              "text": "policy shop-db-ingress, rule 1", "rules": [
                { "tier": "default", "chain": "policy shop-allow-dns", "text": "no rule matches" },
                { "tier": "default", "chain": "policy shop-db-ingress", "rule": 1, "text": "deny", "outcome": "deny" } ] } ] }] }),
    ))
}

fn why(subject: &str, answer: &str, code: &str) -> Answer {
    let good = code == "ok";
    let verdict = if good { "ok" } else { "stop" };
    json_of(&read::<Why>(
        json!({ "apiVersion": "tortie/v1", "kind": "WhyRoute", "node": host(3), "revision": 1, "time": time(0),
        "subject": subject, "good": good, "answer": answer, "code": code, "certainty": "certain", "conclusion": null,
        "steps": [{ "verdict": "ok", "name": "own-block", "text": "no own block", "key": "/calico/k", "revision": 917_700 },
            { "verdict": verdict, "name": "filter", "text": "tor-export, rule 2: reject" },
            { "verdict": "skipped", "name": "pool", "text": "not reached" }],
        "fix": ["tortie store get /calico/bgp/v1/filter/tor-export"], "notLookedAt": ["what the peer does with it"] }),
    ))
}
