//! Endpoints by what selectors can see of them: own labels and profiles.
//!
//! Endpoints with equal labels and profiles are one *class*: a selector is asked once for all of them, and a label of a
//! profile moves classes, not endpoints. A class goes with its last endpoint.
//!
//! Inheritance: own labels come first, then the profiles in the endpoint's order; in a profile labels beat tags, and a tag
//! is a label with an empty value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slab::Slab;
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::Labels;
use tortie_config::{Resource, Selector};

use super::select::Needs;
use crate::model::Model;

/// What endpoints inherit from a profile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Profile {
    labels: Labels,
    tags: Vec<String>,
}

impl Profile {
    /// What a profile of the store gives.
    pub(super) fn of(model: &Model, name: &str) -> Self {
        let part = |part| model.resource(&Key::Profile { name: name.to_owned(), part }).map(|r| &**r);
        let labels = match part(ProfilePart::Labels) {
            Some(Resource::ProfileLabels(labels)) => labels.clone(),
            _ => Labels::new(),
        };
        let tags = match part(ProfilePart::Tags) {
            Some(Resource::ProfileTags(tags)) => tags.clone(),
            _ => Vec::new(),
        };
        Self { labels, tags }
    }
}

/// Where a label of an endpoint comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelOrigin<'a> {
    /// The endpoint's own value.
    Endpoint,
    /// The labels of this profile.
    Profile(&'a str),
    /// The tags of this profile.
    Tag(&'a str),
}

/// Endpoints that no selector can tell apart.
#[derive(Debug, Clone)]
struct LabelClass {
    /// One of them, or what one of them was: all have its labels and profiles.
    like: Arc<Resource>,
    endpoints: BTreeSet<usize>,
}

/// The classes, and which of them have a label.
#[derive(Debug, Clone, Default)]
pub(super) struct LabelClasses {
    classes: Slab<LabelClass>,
    by_content: BTreeMap<ByFacets, usize>,
    profiles: BTreeMap<String, Profile>,
    by_profile: BTreeMap<String, BTreeSet<usize>>,
    by_label: BTreeMap<Box<str>, BTreeMap<Box<str>, BTreeSet<usize>>>,
}

impl LabelClasses {
    /// Puts an endpoint into its class, and says which that is and whether it is new.
    pub(super) fn join(&mut self, endpoint: usize, resource: &Arc<Resource>) -> Option<(usize, bool)> {
        let (_, profiles) = facets(resource)?;
        let content = ByFacets(Arc::clone(resource));
        if let Some(at) = self.by_content.get(&content).copied() {
            if let Some(class) = self.classes.get_mut(at) {
                class.endpoints.insert(endpoint);
            }
            return Some((at, false));
        }
        let endpoints = BTreeSet::from_iter([endpoint]);
        let at = self.classes.insert(LabelClass { like: Arc::clone(resource), endpoints });
        self.by_content.insert(content, at);
        for profile in profiles {
            self.by_profile.entry(profile.clone()).or_default().insert(at);
        }
        self.index(at);
        Some((at, true))
    }

    /// Takes an endpoint out of its class; true when the class went with it.
    pub(super) fn leave(&mut self, endpoint: usize, at: usize) -> bool {
        let Some(class) = self.classes.get_mut(at) else { return false };
        class.endpoints.remove(&endpoint);
        if !class.endpoints.is_empty() {
            return false;
        }
        self.unindex(at);
        let class = self.classes.remove(at);
        self.by_content.remove(&ByFacets(Arc::clone(&class.like)));
        for profile in facets(&class.like).map_or(&[][..], |(_, profiles)| profiles) {
            if let Some(of_profile) = self.by_profile.get_mut(profile) {
                of_profile.remove(&at);
                if of_profile.is_empty() {
                    self.by_profile.remove(profile);
                }
            }
        }
        true
    }

    /// Whether an endpoint belongs to a class.
    pub(super) fn is_like(&self, at: usize, resource: &Resource) -> bool {
        self.classes.get(at).is_some_and(|class| facets(&class.like) == facets(resource))
    }

    /// The endpoints of a class.
    pub(super) fn endpoints(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.classes.get(at).into_iter().flat_map(|class| class.endpoints.iter().copied())
    }

    /// What a profile gives changed; the classes that have it.
    pub(super) fn set_profile(&mut self, name: &str, profile: Profile) -> Vec<usize> {
        if self.profiles.get(name).map_or(profile == Profile::default(), |known| *known == profile) {
            return Vec::new();
        }
        let concerned: Vec<usize> = self.by_profile.get(name).into_iter().flatten().copied().collect();
        concerned.iter().for_each(|at| self.unindex(*at));
        if profile == Profile::default() {
            self.profiles.remove(name);
        } else {
            self.profiles.insert(name.to_owned(), profile);
        }
        concerned.iter().for_each(|at| self.index(*at));
        concerned
    }

    /// The value of a label for a class.
    pub(super) fn label(&self, at: usize, name: &str) -> Option<&str> {
        self.label_with_origin(at, name).map(|(value, _)| value)
    }

    /// The value of a label for a class, and where it comes from.
    pub(super) fn label_with_origin(&self, at: usize, name: &str) -> Option<(&str, LabelOrigin<'_>)> {
        let (own, profiles) = facets(&self.classes.get(at)?.like)?;
        if let Some(value) = own.get(name) {
            return Some((value, LabelOrigin::Endpoint));
        }
        profiles.iter().filter_map(|profile| Some((profile, self.profiles.get(profile)?))).find_map(
            |(id, profile)| {
                let tagged =
                    || profile.tags.iter().any(|tag| tag == name).then_some(("", LabelOrigin::Tag(id)));
                profile
                    .labels
                    .get(name)
                    .map(|value| (value.as_str(), LabelOrigin::Profile(id)))
                    .or_else(tagged)
            },
        )
    }

    /// All labels of a class, each once.
    pub(super) fn labels(&self, at: usize) -> Vec<(&str, &str)> {
        let Some((own, profiles)) = self.classes.get(at).and_then(|class| facets(&class.like)) else {
            return Vec::new();
        };
        let own = own.iter().map(|(name, value)| (&**name, &**value));
        let inherited =
            profiles.iter().filter_map(|profile| self.profiles.get(profile)).flat_map(|profile| {
                let labels = profile.labels.iter().map(|(name, value)| (&**name, &**value));
                labels.chain(profile.tags.iter().map(|tag| (&**tag, "")))
            });
        let mut first: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, value) in own.chain(inherited) {
            first.entry(name).or_insert(value);
        }
        first.into_iter().collect()
    }

    /// Whether a selector selects a class.
    pub(super) fn selects(&self, selector: &Selector, at: usize) -> bool {
        selector.matches_with(|name| self.label(at, name))
    }

    /// The classes that a selector selects.
    pub(super) fn selected(&self, selector: &Selector) -> Vec<usize> {
        let matches = |at: &usize| self.selects(selector, *at);
        match Needs::of(selector) {
            Needs::Nothing => self.classes.iter().map(|(at, _)| at).filter(matches).collect(),
            Needs::Label(label) => {
                let values = self.by_label.get(label).into_iter().flat_map(BTreeMap::values);
                values.flatten().copied().filter(matches).collect()
            }
            Needs::Values(label, values) => {
                let Some(of_label) = self.by_label.get(label) else { return Vec::new() };
                values
                    .iter()
                    .filter_map(|value| of_label.get(*value))
                    .flatten()
                    .copied()
                    .filter(matches)
                    .collect()
            }
        }
    }

    fn index(&mut self, at: usize) {
        let labels: Vec<(Box<str>, Box<str>)> =
            self.labels(at).into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        for (name, value) in labels {
            self.by_label.entry(name).or_default().entry(value).or_default().insert(at);
        }
    }

    fn unindex(&mut self, at: usize) {
        let labels: Vec<(String, String)> =
            self.labels(at).into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        for (name, value) in labels {
            let Some(values) = self.by_label.get_mut(&*name) else { continue };
            if let Some(ids) = values.get_mut(&*value) {
                ids.remove(&at);
                if ids.is_empty() {
                    values.remove(&*value);
                }
            }
            if values.is_empty() {
                self.by_label.remove(&*name);
            }
        }
    }
}

/// Endpoints and their labels.
#[derive(Debug)]
pub struct EndpointLabels<'a> {
    classes: LabelClasses,
    /// With the class of each.
    endpoints: Vec<(&'a EndpointKey, &'a Arc<Resource>, usize)>,
}

/// A label that selectors see on an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveLabel<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value; a tag has the empty one.
    pub value: &'a str,
    /// Where it comes from. The first place that has a label of the name counts.
    pub origin: LabelOrigin<'a>,
}

impl<'a> EndpointLabels<'a> {
    /// Of the endpoints that are wanted.
    pub fn of(model: &'a Model, wanted: impl Fn(&EndpointKey) -> bool) -> Self {
        let mut classes = LabelClasses::default();
        for (key, _) in model.policy_resources() {
            if let Key::Profile { name, .. } = key {
                classes.set_profile(name, Profile::of(model, name));
            }
        }
        let mut endpoints = Vec::new();
        for (key, resource) in model.endpoint_resources().filter(|(key, _)| wanted(key)) {
            if let Some((class, _)) = classes.join(endpoints.len(), resource) {
                endpoints.push((key, resource, class));
            }
        }
        Self { classes, endpoints }
    }

    /// The endpoints, in the order of their keys.
    pub fn keys(&self) -> impl Iterator<Item = &'a EndpointKey> {
        self.endpoints.iter().map(|(key, _, _)| *key)
    }

    /// The endpoints that a selector selects, in the order of their keys.
    pub fn selected(
        &self,
        selector: &Selector,
    ) -> impl Iterator<Item = (&'a EndpointKey, &'a Arc<Resource>)> {
        let selected = self.classes.selected(selector);
        self.endpoints
            .iter()
            .filter(move |(_, _, class)| selected.contains(class))
            .map(|(key, resource, _)| (*key, *resource))
    }

    /// The labels of an endpoint by name, tags among them.
    #[must_use]
    pub fn labels(&self, endpoint: &EndpointKey) -> Vec<EffectiveLabel<'_>> {
        let found = self.endpoints.iter().find(|(key, _, _)| *key == endpoint);
        let Some((_, _, class)) = found else { return Vec::new() };
        let labels = self.classes.labels(*class).into_iter();
        labels
            .filter_map(|(name, _)| {
                let (value, origin) = self.classes.label_with_origin(*class, name)?;
                Some(EffectiveLabel { name, value, origin })
            })
            .collect()
    }
}

/// What selectors can see of an endpoint; `None`: no endpoint.
fn facets(resource: &Resource) -> Option<(&Labels, &[String])> {
    match resource {
        Resource::WorkloadEndpoint(workload) => Some((&workload.labels, &workload.profile_ids)),
        Resource::HostEndpoint(host) => Some((&host.labels, &host.profile_ids)),
        _ => None,
    }
}

/// An endpoint in the order of what selectors can see of it. Sorted and not hashed: whoever writes endpoints chooses their labels.
#[derive(Debug, Clone)]
struct ByFacets(Arc<Resource>);

impl PartialEq for ByFacets {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByFacets {}

impl PartialOrd for ByFacets {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByFacets {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        facets(&self.0).cmp(&facets(&other.0))
    }
}
