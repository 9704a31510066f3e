//! Configuration of BIRD 2 and FRR for a node of a Calico 3 cluster, as Calico's templates configure BIRD 1.6.
//!
//! This is the referee: it is written from the description of Calico's behaviour, not from the product, and uses
//! nothing of it. What Calico decides (sessions, order of the export rules, filters) is computed here again from
//! the objects.

pub(super) mod bird;
pub(super) mod filters;
pub(super) mod frr;
pub(super) mod node;
pub(super) mod peers;
