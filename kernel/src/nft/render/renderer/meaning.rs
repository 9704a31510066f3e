//! Explains a rule of the table, as the kernel reports it in a trace.

use tortie_config::resource::Action;

use super::Renderer;
use crate::nft::encode::rule_hash;
use crate::nft::ir::{Match, Rule, Statement};
use crate::nft::render::node::{Denied, Node};
use crate::nft::text;
use crate::nft::tracer::RulePlace;
use tortie_engine::policy::{ChainId, Decider};

/// A rule of Tortie's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleView {
    /// Index of the rule in its chain, from 0.
    pub at: usize,
    /// The rule in nft syntax.
    pub text: String,
    /// Meaning of the rule.
    pub meaning: Meaning,
}

/// Meaning of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// A deciding rule of a policy or a profile (allow or deny), or the end of a tier or of the profiles.
    Decides(Decider),
    /// A rule of a policy or a profile, counted from 0, that does not decide.
    Passes(ChainId, usize),
    /// Accepts packets of connections that were allowed at their beginning.
    Established,
    /// Drops for a reason other than policy, given as text.
    Drops(String),
    /// Any other rule.
    Frame,
}

impl Renderer {
    /// Returns the desired rule that the kernel reported; `None` if it no longer exists.
    pub(crate) fn rule(&self, chain: &str, place: RulePlace) -> Option<RuleView> {
        let rules = &self.table().chains.get(chain)?.rules;
        let is = |rule: &Rule| Some(rule_hash(rule)) == place.hash;
        // Other rules of the chain may have changed. Rules with equal content have equal meaning, unless they
        // come from different rules of a policy, and those have different comments.
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
