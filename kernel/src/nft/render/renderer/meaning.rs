//! What a rule of the table stands for, when the kernel names one.

use tortie_config::resource::Action;

use super::Renderer;
use crate::nft::encode::rule_hash;
use crate::nft::ir::{Match, Rule, Statement};
use crate::nft::render::node::{Denied, Node};
use crate::nft::text;
use crate::nft::tracer::RulePlace;
use tortie_engine::policy::{ChainId, Decider};

/// A rule of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleView {
    /// Its place in its chain, counted from 0.
    pub at: usize,
    /// As nft writes it.
    pub text: String,
    /// What it stands for.
    pub meaning: Meaning,
}

/// What a rule stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// A rule of a policy or a profile that allows or denies, or the end of a tier or of the profiles.
    Decides(Decider),
    /// A rule of a policy or a profile, counted from 0, that leaves the packet to others.
    Passes(ChainId, usize),
    /// It accepts packets of connections that were allowed when they began.
    Established,
    /// It drops for a reason that is no policy, in words.
    Drops(String),
    /// Any other.
    Frame,
}

impl Renderer {
    /// The wanted rule that was seen in the kernel; `None`: there is no such rule any more.
    pub(crate) fn rule(&self, chain: &str, place: RulePlace) -> Option<RuleView> {
        let rules = &self.table().chains.get(chain)?.rules;
        let is = |rule: &Rule| Some(rule_hash(rule)) == place.hash;
        // Others of the chain may have come and gone; rules with the same content mean the same, unless they are of
        // different rules of a policy, and those have comments that differ.
        let at = if rules.get(place.at).is_some_and(is) { place.at } else { rules.iter().position(is)? };
        let rule = rules.get(at)?;
        Some(RuleView { at, text: text::rule(rule), meaning: self.meaning(chain, at, rule) })
    }

    fn meaning(&self, chain: &str, at: usize, rule: &Rule) -> Meaning {
        if rule.statement == Statement::Accept && rule.matches.contains(&Match::Established) {
            return Meaning::Established;
        }
        match self.chains.node(chain) {
            Some((Node::Rules { id, .. }, origins)) => {
                let Some(origin) = origins.get(at) else { return Meaning::Frame };
                let of = self.ruleset.chains.get(id).and_then(|chain| chain.rules.get(*origin));
                match of.map(|of| of.action) {
                    Some(Action::Allow | Action::Deny) => {
                        Meaning::Decides(Decider::Rule(id.clone(), *origin))
                    }
                    _ => Meaning::Passes(id.clone(), *origin),
                }
            }
            Some((Node::Denied(denied), _)) => match denied {
                Denied::Rule(id, at) => Meaning::Decides(Decider::Rule(id.clone(), *at)),
                Denied::EndOfTier { tier, .. } => Meaning::Decides(Decider::EndOfTier((&**tier).into())),
                Denied::EndOfProfiles { .. } => Meaning::Decides(Decider::EndOfProfiles),
                other => Meaning::Drops(other.to_string()),
            },
            _ if rule.statement == Statement::Drop => {
                Meaning::Drops(rule.comment.as_deref().unwrap_or("dropped").to_owned())
            }
            _ => Meaning::Frame,
        }
    }
}
