//! Names: from an entry to the object that was written, and from a v1 key to the object that it became.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::Key;
use tortie_engine::model::is_projected;
use tortie_engine::routing::{NodeOptions, PeerSource, intent};

use crate::network::network;
use crate::pair::Pair;

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Every entry in force names an object that was written, and every object that gives this host something
    /// is named by an entry.
    #[test]
    fn entries_and_objects_lead_to_each_other(store in network()) {
        let pair = Pair::of(&store, &[]);
        let model = &pair.v3;
        let objects = &pair.names.converted.objects;
        let mut named: BTreeSet<ObjectKey> = BTreeSet::new();
        for entry in entries(&pair) {
            let key = Key::parse(&entry).unwrap();
            if !is_projected(&entry) {
                prop_assert_eq!(model.object_of(&entry), None);
                prop_assert_eq!(&model.written_key(&key), &entry);
                prop_assert_eq!(&model.name_of(&key), &entry);
                continue;
            }
            let origin = model.origin_of(&entry);
            let object = model.object_of(&entry);
            prop_assert_eq!(origin.first(), object.as_ref(), "{}", entry);
            let Some(object) = object else { return Err(TestCaseError::fail(format!("no object gave {entry}"))) };
            prop_assert_eq!(model.written_key(&key), object.to_string());
            prop_assert_eq!(model.name_of(&key), object.title());
            let is_built_in = object == ObjectKey::global(Kind::Profile, "projectcalico-default-allow");
            for object in &origin {
                prop_assert!(is_built_in || objects.contains_key(object), "{entry}: {object}");
            }
            named.extend(origin);
        }
        for (key, object) in objects {
            let is_of_another_host = |prefix: &str| key.name.strip_prefix(prefix).is_some_and(|host| host != "h1");
            let is_unread = match key.kind {
                Kind::FelixConfiguration => is_of_another_host("node."),
                // Peers of other hosts, and peers that equal another one.
                Kind::BGPPeer => true,
                _ => object.spec.is_empty(),
            };
            prop_assert!(is_unread || named.contains(key), "{key} gives nothing that names it");
        }
    }

    /// Each session names the BGPPeer of the v1 peer that it came from.
    #[test]
    fn sessions_name_the_peers_that_they_came_from(store in network()) {
        let pair = Pair::of(&store, &[]);
        for session in intent(&pair.v3, &NodeOptions::default()).peers.values() {
            let PeerSource::Object { key, title } = &session.source else { continue };
            let Some(object) = pair.v3.object_of(&key.to_string()) else {
                return Err(TestCaseError::fail(format!("no object gave {key}")));
            };
            prop_assert_eq!(title, &object.title());
            let from = &pair.names.converted.objects[&object].from;
            prop_assert!(from.iter().all(|key| store.contains_key(key)), "{:?}", from);
            // A reverse peering came from the peer of another host at an address of this one.
            let own = from.iter().any(|from| from.contains("/global/") || from.contains("/host/h1/"));
            let reverse = from.iter().all(|from| {
                ["192.0.2.1", "2001:db8::1", "203.0.113.1"].iter().any(|own| from.rsplit('/').next().is_some_and(|addr| addr.starts_with(own)))
            });
            prop_assert!(own || reverse, "{:?} for {}", from, session.remote);
        }
    }
}

/// Returns the keys of all entries of the v3 model.
fn entries(pair: &Pair) -> Vec<String> {
    pair.projected.iter().map(|kv| kv.key.clone()).collect()
}
