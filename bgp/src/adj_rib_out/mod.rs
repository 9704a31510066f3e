//! Adj-RIB-Out: update groups, the routes each announces and the messages their members share.
//!
//! Peers whose UPDATEs would be equal share a [`group::Group`]: one Adj-RIB-Out ([`advertised`]) and one encoding ([`segment`]).
//! A group follows the table's log ([`evaluate`]): [`group::Group::advance`] asks [`export`] about each changed prefix, writes
//! the outcome to the Adj-RIB-Out and encodes the differences into a segment, once. Members are served ([`produce`]) segments
//! from a short ring. One that cannot keep up loses its place in the ring and is then served alone from log and
//! Adj-RIB-Out, and one that lags further than the log reaches by a walk over the table ([`member`]). Nothing is encoded
//! before some member can take it.
//!
//! Split horizon is the one difference between members: each message of a segment carries routes of one source, and its
//! own member leaves it out.
//!
//! Where several paths of a prefix are announced (RFC 7911) a peer is a member of one group for each: the group of a plane
//! announces the path at that place in the order of the decision process, with the place as path identifier. All else is
//! the same code. The table logs changes of other than best paths only while there are such groups.
//!
//! Not here: timers, sockets, and the choice of groups for a session.

pub(crate) mod advertised;
pub(crate) mod attr_sets;
mod evaluate;
pub(crate) mod export;
pub(crate) mod group;
pub(crate) mod member;
mod produce;
pub(crate) mod segment;
#[cfg(test)]
mod tests;
