//! Filters: accepted and rejected input, error positions, and round trips.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::resource::{
    CommunityPattern, Filter, FilterDefault, FilterThen, MedChange, NextHopChange, PathPattern, PrefixRange,
};
use tortie_net::Cidr;

fn parse(value: &Value) -> Filter {
    Filter::parse(value.to_string().as_bytes()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn refused(value: &Value) -> String {
    Filter::parse(value.to_string().as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_filter_reads() {
    let filter = parse(&json!({
        "import": [
            {"match": {"prefixes": ["0.0.0.0/0", {"cidr": "10.0.0.0/8", "ge": 24}]}, "then": "accept"},
            {"name": "rest", "then": "reject"}
        ],
        "export": [
            {"match": {"communities": ["65000:*"]}, "then": "next",
             "set": {"med": "+10", "prepend": 3, "next_hop": "self", "local_pref": 0,
                     "communities": {"replace": ["65000:1"]}}}
        ],
        "default": "reject"
    }));
    let import = filter.import.as_deref().unwrap();
    let ranges: Vec<_> =
        import[0].matches.prefixes.iter().map(|p| (p.cidr.to_string(), p.ge, p.le)).collect();
    assert_eq!(ranges, [("0.0.0.0/0".to_owned(), 0, 0), ("10.0.0.0/8".to_owned(), 24, 32)]);
    assert_eq!((import[1].name.as_str(), import[1].then), ("rest", FilterThen::Reject));
    let set = &filter.export.as_deref().unwrap()[0].set;
    assert_eq!((set.med, set.local_pref), (Some(MedChange::Add(10)), Some(0)));
    assert_eq!(set.prepend.map(|p| (p.asn, p.count)), Some((None, 3)));
    assert_eq!(set.next_hop, Some(NextHopChange::Own));
    assert_eq!(set.communities.remove, [CommunityPattern::ALL]);
    assert_eq!(set.communities.add, [65000 << 16 | 1]);
    assert_eq!(filter.default, FilterDefault::Reject);
    // A direction without a list is not affected by this filter.
    let one = parse(&json!({"export": []}));
    assert_eq!((one.import, one.export, one.default), (None, Some(Vec::new()), FilterDefault::Continue));
}

#[test]
fn an_error_names_the_place_and_the_next_step() {
    let rule = |rule: Value| json!({"import": [{"then": "next"}, rule]});
    let matching = |m: Value| rule(json!({"match": m, "then": "accept"}));
    let setting = |s: Value| rule(json!({"set": s, "then": "next"}));
    let table = [
        (rule(json!({})), "`import[1].then`: found nothing; write \"accept\", \"reject\" or \"next\""),
        (rule(json!({"then": "drop"})), "`import[1].then`: found `drop`"),
        (rule(json!({"mach": {}, "then": "accept"})), "`import[1].mach`"),
        (rule(json!({"set": {"med": 1}, "then": "reject"})), "`import[1].set`"),
        (json!({"default": "maybe"}), "`default`"),
        (json!({"import": {}}), "`import`"),
        (matching(json!({"prefixes": ["10.0.0.1/8"]})), "`import[1].match.prefixes[0]`: found `10.0.0.1/8`"),
        (matching(json!({"prefixes": []})), "`import[1].match.prefixes`: found an empty list"),
        (matching(json!({"prefixes": [{"cidr": "10.0.0.0/8", "ge": 7}]})), "prefixes[0].ge`: found `7`"),
        (matching(json!({"prefixes": [{"cidr": "10.0.0.0/8", "ge": 24, "le": 23}]})), "prefixes[0].le`"),
        (matching(json!({"prefixes": [{"cidr": "10.0.0.0/8", "lt": 24}]})), "prefixes[0].lt`"),
        (matching(json!({"communities": ["65536:1"]})), "`import[1].match.communities[0]`: found `65536:1`"),
        (matching(json!({"communities": {"some": ["1:1"]}})), "match.communities.some`"),
        (matching(json!({"communities": {}})), "`import[1].match.communities`: found nothing"),
        (matching(json!({"large_communities": ["1:2"]})), "large_communities[0]`"),
        (matching(json!({"ext_communities": ["rt:1"]})), "ext_communities[0]`"),
        (matching(json!({"as_path": {"origin": ["3-1"]}})), "match.as_path.origin[0]`"),
        (matching(json!({"as_path": {"length": {}}})), "match.as_path.length`"),
        (matching(json!({"as_path": {"matches": [".*"]}})), "match.as_path.matches[0]`"),
        (matching(json!({"source": ["all"]})), "match.source[0]`"),
        (matching(json!({"role": ["boss"]})), "match.role[0]`"),
        (matching(json!({"prefix": ["10.0.0.0/8"]})), "match.prefix`"),
        (setting(json!({"med": -1})), "set.med`"),
        (setting(json!({"med": "+"})), "set.med`"),
        (setting(json!({"prepend": 33})), "set.prepend`"),
        (setting(json!({"prepend": {"as": 0}})), "set.prepend.as`"),
        (setting(json!({"next_hop": "self"})), "`import[1].set.next_hop`: found `self`"),
        (setting(json!({"next_hop": "224.0.0.1"})), "set.next_hop`"),
        (setting(json!({"next_hop": "fe80::1"})), "set.next_hop`"),
        (setting(json!({"communities": {"add": ["1:*"]}})), "set.communities.add[0]`"),
        (setting(json!({"communities": {"replace": [], "add": ["1:1"]}})), "set.communities.add`"),
        (setting(json!({"weight": 1})), "set.weight`"),
    ];
    for (value, says) in table {
        let error = refused(&value);
        assert!(error.contains(says), "{value}\n{error}\nnot: {says}");
        assert!(error.contains("; "), "a next step: {error}");
    }
    let many = json!({"export": vec![json!({"then": "next"}); 1001]});
    assert!(refused(&many).contains("1001 rules"), "{}", refused(&many));
}

#[test]
fn prefix_ranges_mean_what_prefix_lists_mean() {
    // As FRR's `ip prefix-list`: without ge and le the length is exact; le alone starts at the length; ge
    // alone ends at the maximum length.
    let range = |value: Value| {
        parse(&json!({"import": [{"match": {"prefixes": [value]}, "then": "accept"}]})).import.unwrap()[0]
            .matches
            .prefixes[0]
    };
    let has = |range: PrefixRange, prefix: &str| range.matches(&prefix.parse::<Cidr>().unwrap());
    let exact = range(json!("10.0.0.0/8"));
    assert!(has(exact, "10.0.0.0/8") && !has(exact, "10.0.0.0/9") && !has(exact, "11.0.0.0/8"));
    let le = range(json!({"cidr": "10.0.0.0/8", "le": 16}));
    assert!(has(le, "10.0.0.0/8") && has(le, "10.1.0.0/16") && !has(le, "10.1.0.0/17"));
    let ge = range(json!({"cidr": "10.0.0.0/8", "ge": 24}));
    assert!(!has(ge, "10.0.0.0/8") && has(ge, "10.1.1.0/24") && has(ge, "10.1.1.1/32"));
    let all6 = range(json!({"cidr": "::/0", "le": 128}));
    assert!(has(all6, "2001:db8::/32") && !has(all6, "10.0.0.0/8"));
}

#[test]
fn communities_have_their_usual_texts() {
    let standard = |text: &str| text.parse::<CommunityPattern<u32>>().unwrap();
    assert_eq!(standard("no-export").single(), Some(0xFFFF_FF01));
    assert_eq!(standard("65535:65281"), standard("no-export"));
    assert_eq!(standard("65535:666"), standard("blackhole"));
    assert!(standard("65000:*").matches(&(65000 << 16 | 7)) && !standard("65000:*").matches(&(65001 << 16)));
    assert!(standard("*:7").matches(&(65001 << 16 | 7)) && standard("*:*").matches(&1));
    let large = |text: &str| text.parse::<CommunityPattern<[u32; 3]>>().unwrap();
    assert!(large("4200000000:*:3").matches(&[4_200_000_000, 9, 3]));
    assert!(!large("4200000000:*:3").matches(&[4_200_000_000, 9, 4]));
    // Examples of RFC 4360 and RFC 5668: type, subtype, administrator, number.
    let ext = |text: &str| text.parse::<CommunityPattern<[u8; 8]>>().unwrap();
    assert_eq!(ext("rt:65000:100").single(), Some([0, 2, 0xfd, 0xe8, 0, 0, 0, 100]));
    assert_eq!(ext("soo:192.0.2.1:7").single(), Some([1, 3, 192, 0, 2, 1, 0, 7]));
    assert_eq!(ext("rt:4200000000:7").single(), Some([2, 2, 0xfa, 0x56, 0xea, 0, 0, 7]));
    assert_eq!(ext("0x00020064*").mask, [255, 255, 255, 255, 0, 0, 0, 0]);
    assert_eq!(ext("0x00020064*"), ext("rt:100:*"));
    for bad in ["", "1", "1:2:3", "65536:1", "1:65536", "a:1", "+1:1", "No-Export"] {
        assert!(bad.parse::<CommunityPattern<u32>>().is_err(), "{bad}");
    }
    for bad in [
        "rt:1:4294967296",
        "rt:4200000000:65536",
        "rt:*:1",
        "rt:0x1:1",
        "0x1",
        "0x0102030405060708*",
        "xx:1:1",
    ] {
        assert!(bad.parse::<CommunityPattern<[u8; 8]>>().is_err(), "{bad}");
    }
}

#[test]
fn path_patterns_stand_for_whole_paths() {
    let matches = |pattern: &str, path: &[u32]| pattern.parse::<PathPattern>().unwrap().matches(path);
    assert!(matches("*", &[]) && matches("* *", &[1, 2]));
    assert!(matches("1 *", &[1]) && matches("1 *", &[1, 2]) && !matches("1 *", &[2, 1]));
    assert!(matches("* 3", &[1, 3, 3]) && !matches("* 3", &[3, 1]));
    assert!(matches("1 ? 3", &[1, 9, 3]) && !matches("1 ? 3", &[1, 3]));
    assert!(matches("* 64512-65534 *", &[1, 65000, 2]) && !matches("* 64512-65534 *", &[1, 2]));
    assert!(matches("* 1 2 * 3", &[1, 1, 2, 1, 3]), "the star gives way");
    assert!(!matches("1", &[]) && !matches("1", &[1, 1]));
    assert!(matches("1.10 *", &[65546]), "RFC 5396");
}

/// Reference matcher that tries every length for every star.
fn slow(elements: &[&str], path: &[u32]) -> bool {
    match (elements.split_first(), path.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((&"*", rest)), _) => (0..=path.len()).any(|n| slow(rest, &path[n..])),
        (Some(_), None) => false,
        (Some((element, rest)), Some((asn, path))) => {
            (*element == "?" || element.parse() == Ok(*asn)) && slow(rest, path)
        }
    }
}

proptest! {
    #[test]
    fn a_path_pattern_is_what_trying_everything_says(
        elements in prop::collection::vec(prop::sample::select(vec!["*", "?", "1", "2", "3"]), 1..7),
        path in prop::collection::vec(1u32..4, 0..8),
    ) {
        let pattern: PathPattern = elements.join(" ").parse().unwrap();
        prop_assert_eq!(pattern.matches(&path), slow(&elements, &path));
        prop_assert_eq!(pattern.to_string().parse::<PathPattern>().unwrap(), pattern);
    }

    #[test]
    fn community_patterns_read_back(text in "(0x[0-9a-f]{0,16}\\*?)|((rt|soo):([0-9]{1,10}|1\\.2\\.3\\.4):([0-9]{1,5}|\\*))|(([0-9]{1,5}|\\*)(:([0-9]{1,5}|\\*)){1,2})") {
        if let Ok(p) = text.parse::<CommunityPattern<u32>>() {
            prop_assert_eq!(p.to_string().parse(), Ok(p));
        }
        if let Ok(p) = text.parse::<CommunityPattern<[u32; 3]>>() {
            prop_assert_eq!(p.to_string().parse(), Ok(p));
        }
        if let Ok(p) = text.parse::<CommunityPattern<[u8; 8]>>() {
            prop_assert_eq!(p.to_string().parse(), Ok(p), "{}", p);
        }
    }

    #[test]
    fn any_extended_community_reads_back(value in any::<[u8; 8]>(), kind in 0u8..4, subtype in 1u8..5, octets in 0usize..9) {
        let mut mask = [0xff; 8];
        mask.iter_mut().skip(octets).for_each(|m| *m = 0);
        let value = [kind, subtype, value[2], value[3], value[4], value[5], value[6], value[7]];
        let mut p = CommunityPattern { value, mask };
        p.value.iter_mut().zip(mask).for_each(|(v, m)| *v &= m);
        prop_assert_eq!(p.to_string().parse(), Ok(p), "{}", p);
    }
}
