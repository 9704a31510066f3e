//! Initial dump and later resyncs: reads the kernel's state and applies differences to the actual state.
//!
//! The kernel takes about one second to dump a million routes. They are processed one datagram at a time, and
//! queries are answered in between; messages that change the state wait for the end. During the initial dump
//! there is no actual state yet, so queries wait.

use std::io;
use std::time::{Duration, Instant};

use super::Thread;
use crate::endpoints;
use crate::facts::KernelFact;
use crate::fib::drift_hold::HOLD_MAX;
use crate::fib::route_state::Actual;
use crate::netlink::dump;
use crate::netlink::nexthop::Nexthop;
use crate::options::Mode;
use crate::thread::resync_pass::members_first;
use crate::thread::resync_timer::SOON;
use crate::thread::view::KernelView;

impl Thread {
    /// Reads the initial dump: Tortie's routes are kept as stale, Tortie's nexthop objects adopted.
    pub(super) fn start(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let (links, addresses) = dump::devices(&mut self.reader)?;
        self.state.endpoints.set_links(links.iter(), begin);
        self.state.network.replace_devices(links, addresses);
        self.state.check_tunnel();
        self.state.find_vxlan_devices();
        if self.state.table.objects().enabled() {
            let (list, _) = dump::nexthops(&mut self.reader)?;
            let mut own: Vec<&Nexthop> = Vec::new();
            for nexthop in list.values() {
                if self.state.nexthop_is_ours(nexthop) {
                    own.push(nexthop);
                } else {
                    self.state.table.objects_mut().reserve(nexthop.id);
                }
            }
            members_first(&mut own);
            for nexthop in own {
                self.state.table.objects_mut().adopt(nexthop.id, &nexthop.content, true);
            }
        }
        let neighbours = endpoints::neighbours(&mut self.reader)?;
        let protocol = self.state.table.marks().protocol;
        let mut foreign = Vec::new();
        let (mut found, mut blackholes) = ([0usize; 2], [0usize; 2]);
        let (table, endpoints) = (&mut self.state.table, &self.state.endpoints);
        let complete = dump::routes(&mut self.reader, |route| {
            if route.protocol != protocol || endpoints.is_ours(&route) {
                foreign.push(route);
                return;
            }
            table.load(&route);
            let Some(entry) = table.entries().get(&route.prefix) else { return };
            let count = if entry.actual() == Actual::Blackhole { &mut blackholes } else { &mut found };
            if let Some(n) = count.get_mut(usize::from(!route.prefix.is_v4())) {
                *n += 1;
            }
        })?;
        self.state.compare_foreign(foreign, &neighbours, complete, true);
        let now = Instant::now();
        self.state.last_compare = Some((now, now - begin));
        self.state.metrics.compare.time(now - begin);
        *self.state.metrics.compares.entry("start").or_default() += 1;
        if !complete {
            self.comparisons.soon(SOON, "interrupted");
        }
        let [routes_v4, routes_v6] = found;
        (self.sink)(KernelFact::Started { routes_v4, routes_v6, blackholes });
        Ok(())
    }

    /// Reads everything and applies differences to the actual state. Queries are answered meanwhile.
    pub(super) fn compare(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        self.state.counters.compares += 1;
        let reason = std::mem::replace(&mut self.comparisons.reason, "timer");
        *self.state.metrics.compares.entry(reason).or_default() += 1;
        let mut complete = true;
        let nexthops = if self.state.table.objects().enabled() {
            let (list, whole) = dump::nexthops(&mut self.reader)?;
            complete &= whole;
            whole.then_some(list)
        } else {
            None
        };
        let neighbours = endpoints::neighbours(&mut self.reader)?;
        let mut found = self.state.begin_comparison(nexthops.as_ref());
        let (state, inbox, rules) = (&mut self.state, &mut self.inbox, &self.firewall);
        complete &= dump::route_slices(&mut self.reader, |slice| {
            for route in slice.drain(..) {
                state.compare_route(&mut found, route);
            }
            inbox.answer_queries(&KernelView { state, rules: Some(rules) });
        })?;
        // Read last: a device that changed meanwhile explains missing routes.
        let (links, addresses) = dump::devices(&mut self.reader)?;
        self.state.endpoints.set_links(links.iter(), begin);
        let moved = self.state.network.replace_devices(links, addresses);
        self.state.end_comparison(found, &neighbours, complete, moved);
        self.state.check_tunnel();
        self.state.forget_next_hops();
        let took = begin.elapsed();
        let now = Instant::now();
        self.state.last_compare = Some((now, took));
        self.state.metrics.compare.time(took);
        self.comparisons.finished(now, took);
        if !complete || moved {
            self.comparisons.soon(SOON, "interrupted");
        }
        Ok(())
    }

    /// Detects nexthop objects that were removed without notification.
    pub(super) fn check_nexthops(&mut self) -> io::Result<()> {
        if self.state.table.objects().enabled() {
            let (list, complete) = dump::nexthops(&mut self.reader)?;
            if complete {
                let gone = self.state.take_nexthops(&list).routes;
                self.state.counters.vanished += gone as u64;
            } else {
                self.comparisons.soon(SOON, "interrupted");
            }
        }
        Ok(())
    }

    /// Begins a drift hold, or ends it and repairs everything.
    pub(super) fn hold(&mut self, span: Option<Duration>) -> io::Result<()> {
        if self.state.mode != Mode::Program {
            return Ok(());
        }
        if let Some(span) = span {
            let until = Instant::now() + span.min(HOLD_MAX);
            self.state.table.drift_hold_mut().hold(until);
            self.firewall.hold(true);
            return Ok(());
        }
        for prefix in self.state.table.drift_hold_mut().release() {
            self.state.table.mark_prefix(&prefix);
        }
        self.firewall.hold(false);
        // A resync finds missed changes.
        self.compare()?;
        self.conclude()?;
        self.check_rules(Instant::now())
    }
}
