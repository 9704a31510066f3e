//! Adj-RIB-Out: update groups, the routes that each announces, and the encoded messages that its members
//! share.
//!
//! Peers with equal UPDATEs share a [`group::Group`]: one Adj-RIB-Out ([`advertised`]) and one encoding
//! ([`segment`]). A group follows the log of the table ([`evaluate`]): [`group::Group::advance`] evaluates
//! [`export`] for each changed prefix, stores the result in the Adj-RIB-Out and encodes the differences once,
//! as a segment. Members receive ([`produce`]) segments from a short ring. A member that cannot keep up
//! leaves the ring and is served separately from log and Adj-RIB-Out; one that lags further than the log
//! reaches is served by a scan of the table ([`member`]). Nothing is encoded before a member can take it.
//!
//! Split horizon is the only difference between members: each message of a segment has routes of one source,
//! and is not sent to that source.
//!
//! With add-path (RFC 7911) a peer is a member of one group per path. The group of a plane announces the path
//! at that position in the order of the decision process, with the position as path identifier; all other
//! code is the same. The table logs changes of paths other than the best one only while such groups exist.
//!
//! Timers, sockets and the assignment of sessions to groups are not part of this module.

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
