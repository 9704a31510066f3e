//! Groups endpoints by the properties that selectors can match: own labels and profiles.
//!
//! Endpoints with equal labels and profiles form one *class*. A selector is evaluated once per class, and a
//! changed label of a profile moves classes between sets instead of single endpoints. A class is removed with
//! its last endpoint.
//!
//! Network sets belong to classes like endpoints, since rule selectors match them; policies select none.
//!
//! Label precedence: the endpoint's own labels, then its profiles in the endpoint's order. Within a profile
//! labels take precedence over tags, and a tag is a label with an empty value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slab::Slab;
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::Labels;
use tortie_config::{Resource, Selector};

use super::select::Needs;
use crate::model::Model;

/// Labels and tags that endpoints inherit from a profile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Profile {
    labels: Labels,
    tags: Vec<String>,
}

impl Profile {
    /// Reads the labels and tags of a profile from the model.
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

/// Origin of an effective label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelOrigin<'a> {
    /// The endpoint's own labels.
    Endpoint,
    /// Labels of the named profile.
    Profile(&'a str),
    /// Tags of the named profile.
    Tag(&'a str),
}

/// Endpoints with equal labels and profiles.
#[derive(Debug, Clone)]
struct LabelClass {
    /// A present or former endpoint of the class, whose labels and profiles all members share.
    like: Arc<Resource>,
    endpoints: BTreeSet<usize>,
}

/// All classes, indexed by label and by profile.
#[derive(Debug, Clone, Default)]
pub(super) struct LabelClasses {
    classes: Slab<LabelClass>,
    by_content: BTreeMap<ByFacets, usize>,
    profiles: BTreeMap<String, Profile>,
    by_profile: BTreeMap<String, BTreeSet<usize>>,
    by_label: BTreeMap<Box<str>, BTreeMap<Box<str>, BTreeSet<usize>>>,
}

impl LabelClasses {
    /// Adds an endpoint to its class. Returns the class, and true if the class is new.
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

    /// Removes an endpoint from its class. Returns true if it was the last one, so that the class was removed
    /// too.
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

    /// Returns true if an endpoint has the labels and profiles of a class.
    pub(super) fn is_like(&self, at: usize, resource: &Resource) -> bool {
        self.classes.get(at).is_some_and(|class| facets(&class.like) == facets(resource))
    }

    /// Returns the endpoints of a class.
    pub(super) fn endpoints(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.classes.get(at).into_iter().flat_map(|class| class.endpoints.iter().copied())
    }

    /// Replaces the labels and tags of a profile. Returns the classes that use the profile if they differ.
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

    /// Returns the effective value of a label for a class.
    pub(super) fn label(&self, at: usize, name: &str) -> Option<&str> {
        self.label_with_origin(at, name).map(|(value, _)| value)
    }

    /// Returns the effective value of a label for a class, with its origin.
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

    /// Returns all effective labels of a class, each name once.
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

    /// Returns true if a selector matches a class.
    pub(super) fn selects(&self, selector: &Selector, at: usize) -> bool {
        selector.matches_with(|name| self.label(at, name))
    }

    /// Returns the classes that a selector matches.
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

/// Endpoints with their effective labels.
#[derive(Debug)]
pub struct EndpointLabels<'a> {
    classes: LabelClasses,
    /// Key, value and class of each endpoint.
    endpoints: Vec<(&'a EndpointKey, &'a Arc<Resource>, usize)>,
}

/// A label of an endpoint as selectors match it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveLabel<'a> {
    /// Label name.
    pub name: &'a str,
    /// Label value; empty for a tag.
    pub value: &'a str,
    /// Origin of the value. The first origin with a label of this name takes precedence.
    pub origin: LabelOrigin<'a>,
}

impl<'a> EndpointLabels<'a> {
    /// Collects the endpoints accepted by `wanted`.
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

    /// Returns the endpoints, in key order.
    pub fn keys(&self) -> impl Iterator<Item = &'a EndpointKey> {
        self.endpoints.iter().map(|(key, _, _)| *key)
    }

    /// Returns the endpoints that a selector matches, in key order.
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

    /// Returns the effective labels of an endpoint, including tags, sorted by name.
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

/// Returns labels and profiles of an endpoint or network set; `None` for other resources.
fn facets(resource: &Resource) -> Option<(&Labels, &[String])> {
    match resource {
        Resource::WorkloadEndpoint(workload) => Some((&workload.labels, &workload.profile_ids)),
        Resource::HostEndpoint(host) => Some((&host.labels, &host.profile_ids)),
        Resource::NetworkSet(set) => Some((&set.labels, &set.profile_ids)),
        _ => None,
    }
}

/// An endpoint ordered by its labels and profiles. Ordered and not hashed, because writers of endpoints
/// choose the labels and could force hash collisions.
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
