//! Random BGPFilters.

use serde_json::{Map, Value, json};

use super::cluster::Dice;

const V4: [&str; 8] = [
    "10.65.0.0/16",
    "10.65.1.0/26",
    "10.66.0.0/16",
    "10.65.200.1/32",
    "10.65.77.0/26",
    "172.16.0.0/12",
    "203.0.113.0/28",
    "10.0.0.0/8",
];
const V6: [&str; 5] = ["fd00:65::/48", "fd00:65:0:1::/122", "fd00:66::/48", "fd00:65:0:77::/122", "fd00::/8"];
const OPERATORS: [&str; 4] = ["Equal", "NotEqual", "In", "NotIn"];

/// Returns the `spec` of a filter.
pub(super) fn filter(dice: &mut Dice) -> Value {
    let mut spec = Map::new();
    for (list, export, v4) in [
        ("exportV4", true, true),
        ("importV4", false, true),
        ("exportV6", true, false),
        ("importV6", false, false),
    ] {
        if dice.percent(70) {
            let count = 1 + dice.below(3);
            let rules: Vec<Value> = (0..count).map(|_| rule(dice, export, v4)).collect();
            spec.insert(list.to_owned(), rules.into());
        }
    }
    spec.into()
}

fn rule(dice: &mut Dice, export: bool, v4: bool) -> Value {
    let accepts = dice.percent(55);
    let mut rule = json!({ "action": if accepts { "Accept" } else { "Reject" } });
    let matches = 1 + dice.below(2);
    for _ in 0..matches {
        match dice.below(9) {
            0..5 => {
                let cidr = if v4 { *dice.pick(&V4) } else { *dice.pick(&V6) };
                rule["cidr"] = json!(cidr);
                rule["matchOperator"] = json!(dice.pick(&OPERATORS));
                rule.as_object_mut().unwrap().remove("prefixLength");
                if dice.percent(25) {
                    rule["prefixLength"] = prefix_length(dice, cidr);
                }
            }
            5 => {
                rule["communities"] = json!({ "values": [dice.pick(&["64512:100", "64512:1:2", "65200:5"])] })
            }
            6 => {
                rule["asPathPrefix"] =
                    dice.pick(&[json!([65200]), json!(["65200", 65300]), json!([65001])]).clone()
            }
            7 => rule["priority"] = json!(dice.pick(&[1024, 512, 2000])),
            _ => rule["peerType"] = json!(dice.pick(&["eBGP", "iBGP"])),
        }
    }
    if export && dice.percent(15) {
        rule["source"] = json!("RemotePeers");
    }
    if export && dice.percent(15) {
        rule["interface"] = json!(dice.pick(&["cali*", "cali1x0", "*.calico", "*"]));
    }
    if accepts && dice.percent(45) {
        let count = 1 + dice.below(2);
        let operations: Vec<Value> = (0..count).map(|_| operation(dice)).collect();
        rule["operations"] = operations.into();
    }
    rule
}

/// Returns lengths of which one at least is not shorter than the prefix: BIRD refuses an empty range.
fn prefix_length(dice: &mut Dice, cidr: &str) -> Value {
    let own: u64 = cidr.rsplit_once('/').unwrap().1.parse().unwrap();
    let (min, max): ([u64; 3], [u64; 3]) =
        if cidr.contains(':') { ([48, 122, 128], [64, 122, 128]) } else { ([8, 26, 32], [16, 26, 32]) };
    let max = max[dice.below(3)].max(own);
    let min = min[dice.below(3)].min(max);
    match dice.below(3) {
        0 => json!({ "min": min }),
        1 => json!({ "max": max }),
        _ => json!({ "min": min, "max": max }),
    }
}

fn operation(dice: &mut Dice) -> Value {
    match dice.below(3) {
        0 => json!({ "addCommunity": { "value": dice.pick(&["64512:55", "64512:5:6"]) } }),
        1 => json!({ "prependASPath": { "prefix": dice.pick(&[json!([64700]), json!([64701, "64702"])]) } }),
        _ => json!({ "setPriority": { "value": dice.pick(&[512, 1024, 3000]) } }),
    }
}
