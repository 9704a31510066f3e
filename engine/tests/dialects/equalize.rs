//! How differences are made equal: changes of a v1 store, and of decisions.

use serde_json::{Map, Value};
use tortie_config::calico3::convert::ConvertedObject;
use tortie_engine::policy::Verdict;
use tortie_engine::policy::path::Stage;

use crate::decisions::{Export, PacketPath};
use crate::network::{HOSTS, Store, full};
use crate::pair::Names;

pub(crate) fn withhold(export: &mut Export) {
    export.accept = false;
    export.communities = "[] []".to_owned();
}

pub(crate) fn is_peer(key: &str) -> bool {
    key.contains("/peer_v4/") || key.contains("/peer_v6/")
}

pub(crate) fn object(value: &str) -> Map<String, Value> {
    match serde_json::from_str(value) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Changes the objects under some keys, which are given below `/calico/`.
pub(crate) fn edit_keys(
    store: &mut Store,
    wanted: impl Fn(&str) -> bool,
    change: impl Fn(&str, &mut Map<String, Value>),
) {
    for (key, value) in store.iter_mut() {
        let key = key.trim_start_matches("/calico/");
        if wanted(key) && value.starts_with('{') {
            let mut map = object(value);
            change(key, &mut map);
            *value = Value::Object(map).to_string();
        }
    }
}

/// Removes all but some members.
pub(crate) fn keep(store: &mut Store, wanted: impl Fn(&str) -> bool, members: &[&str]) {
    edit_keys(store, wanted, |_, map| map.retain(|name, _| members.contains(&name.as_str())));
}

/// How a peer fits the host that has its address.
pub(crate) struct Fits {
    pub(crate) host: &'static str,
    pub(crate) asn: bool,
    pub(crate) port: bool,
}

pub(crate) fn fits(store: &Store, peer: &Map<String, Value>) -> Option<Fits> {
    let get = |key: String| store.get(&full(&key)).filter(|value| !value.is_empty());
    let ip = peer.get("ip")?.as_str()?;
    let has = |host: &str| {
        let v4 = get(format!("bgp/v1/host/{host}/ip_addr_v4"));
        v4.into_iter().chain(get(format!("bgp/v1/host/{host}/ip_addr_v6"))).any(|addr| addr == ip)
    };
    let (host, _) = HOSTS.into_iter().find(|(host, _)| has(host))?;
    let global = get("bgp/v1/global/as_num".to_owned()).map_or("64512", String::as_str);
    let asn = get(format!("bgp/v1/host/{host}/as_num")).map_or(global, String::as_str);
    let port = peer.get("port").map(Value::to_string);
    let listens = |key: String| get(key).is_none_or(|listen| port.as_ref().is_none_or(|port| port == listen));
    Some(Fits {
        host,
        asn: peer.get("as_num")?.as_str()? == asn,
        port: listens(format!("bgp/v1/host/{host}/listen_port"))
            && listens("bgp/v1/global/listen_port".to_owned()),
    })
}

/// Writes tags of a rule as selectors.
pub(crate) fn tags_as_labels(rule: &mut Map<String, Value>) {
    for side in ["src", "dst"] {
        for (not, and) in [("", "&&"), ("!", "||")] {
            let Some(tag) = rule.remove(&format!("{not}{side}_tag")) else { continue };
            let tag = format!("{} == ''", tag.as_str().unwrap());
            let name = format!("{not}{side}_selector");
            let selector = match rule.remove(&name) {
                Some(selector) => format!("({}) {and} {tag}", selector.as_str().unwrap()),
                None => tag,
            };
            rule.insert(name, selector.into());
        }
    }
}

/// Gives each policy an order of its own: that in which the converted ones act.
pub(crate) fn orders(store: &mut Store, names: &Names) {
    let is_policy = |key: &&String| key.contains("/tier/") && key.contains("/policy/");
    let mut policies: Vec<(f64, String, String)> = Vec::new();
    for key in store.keys().filter(is_policy) {
        let order = object(&store[key]).get("order").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
        let came = |object: &&ConvertedObject| object.from.first() == Some(key);
        let Some(object) = names.converted.objects.values().find(came) else { continue };
        policies.push((order, object.key.name.clone(), key.clone()));
    }
    policies.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    for (rank, (_, _, key)) in policies.into_iter().enumerate() {
        let mut policy = object(&store[&key]);
        policy.insert("order".to_owned(), (rank + 1).into());
        store.insert(key, Value::Object(policy).to_string());
    }
}

/// Leaves out the stages of host endpoints. If one of them ends the path of a packet, only the stages before it
/// are compared.
pub(crate) fn forwarded(v1: &mut PacketPath, v3: &mut PacketPath) {
    let is_of_host = |stage: Stage| {
        matches!(
            stage,
            Stage::HostInbound | Stage::HostOutbound | Stage::ForwardInbound | Stage::ForwardOutbound
        )
    };
    let ends = |path: &PacketPath| {
        path.steps.last().is_some_and(|step| is_of_host(step.stage) && path.verdict == Verdict::Deny)
    };
    let cut = ends(v1) || ends(v3);
    for path in [&mut *v1, &mut *v3] {
        path.steps.retain(|step| !is_of_host(step.stage));
    }
    if cut {
        let len = v1.steps.len().min(v3.steps.len());
        v1.steps.truncate(len);
        v3.steps.truncate(len);
        v1.verdict = v3.verdict;
        v1.packet = v3.packet;
    }
}
