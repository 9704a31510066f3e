//! The kernel thread of an agent with `--kernel off`: it neither reads nor writes.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use super::messages::newest;
use super::state::State;
use super::view::KernelView;
use crate::facts::KernelFact;
use crate::facts::Sink;
use crate::thread::messages::ToKernel;
use tortie_engine::routing::Resolved;

/// Answers messages: every next hop is reachable, everything is applied at once.
pub(crate) fn run_off(inbox: &Receiver<ToKernel>, mut sink: Sink, view: &State) {
    sink(KernelFact::Started { routes_v4: 0, routes_v6: 0, blackholes: [0; 2] });
    while let Ok(message) = inbox.recv() {
        match message {
            ToKernel::Intent(intent) => sink(KernelFact::Applied {
                generation: intent.generation,
                change: intent.change,
                failed: Vec::new(),
                acknowledged: Vec::new(),
                micros: 0,
            }),
            ToKernel::Policy(policy) => sink(KernelFact::Enforced {
                serial: policy.serial,
                change: policy.change,
                failed: BTreeMap::new(),
                micros: 0,
            }),
            ToKernel::Learned(batch) => sink(KernelFact::Learned {
                change: newest(&batch),
                prefixes: batch.len(),
                written: 0,
                deleted: 0,
                failed: Vec::new(),
                sample: Vec::new(),
                micros: 0,
            }),
            ToKernel::Track(addr) => sink(KernelFact::NextHop(addr, Some(REACHABLE))),
            ToKernel::SweepStale => sink(KernelFact::Swept(0)),
            ToKernel::Query(question) => question(&KernelView { state: view, rules: None }),
            ToKernel::HoldDrift(_, done) => done(),
            ToKernel::Untrack(_) | ToKernel::Events(_) | ToKernel::Arrival(_) => {}
            ToKernel::Stop => return,
        }
    }
}

/// Resolution reported for every next hop.
const REACHABLE: Resolved = Resolved { ifindex: 0, gateway: None, metric: 0 };
