//! Checks that routes and sessions of hosts do not change during another operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Instant;

use super::{Hosts, PATIENCE, within};

impl Hosts {
    /// Starts to watch these hosts for changes.
    pub(crate) fn watch_unchanged(&self, hosts: &[usize]) -> Unchanged {
        let watch = |host: &usize| {
            let file = self.dir.path().join(format!("monitor{host}-{}", rand::random::<u32>()));
            let out = std::fs::File::create(&file).unwrap();
            let others = self.netlink_listeners(*host);
            let child =
                self.lab.spawn(&Self::node(*host), &["ip", "-ts", "monitor", "route", "nexthop"], |c| {
                    c.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
                });
            within(PATIENCE, "ip monitor listens", || {
                let now = self.netlink_listeners(*host);
                if now.is_subset(&others) { Err(format!("{now:?}")) } else { Ok(()) }
            });
            // The age of a session is compared with the time since `begin`, so it is read before.
            let before = self.sessions(*host);
            let begin = Instant::now();
            let routes = self.routes(*host);
            Watched { host: *host, file, child: child.unwrap(), begin, before, routes }
        };
        Unchanged { watched: hosts.iter().map(watch).collect() }
    }

    /// Returns the inodes of a host's sockets that receive notifications of rtnetlink.
    fn netlink_listeners(&self, host: usize) -> BTreeSet<String> {
        let netns = self.lab.netns(&Self::node(host)).unwrap();
        let process = netns.ancestors().nth(2).unwrap();
        let table = std::fs::read_to_string(process.join("net/netlink")).unwrap();
        let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Columns: address, protocol (0: NETLINK_ROUTE), port, groups, ..., inode.
        let listens = |row: &Vec<&str>| row.get(1) == Some(&"0") && row.get(3) != Some(&"00000000");
        rows.filter(listens).filter_map(|row| row.last().map(|inode| (*inode).to_owned())).collect()
    }
}

struct Watched {
    host: usize,
    file: PathBuf,
    child: Child,
    begin: Instant,
    before: BTreeMap<String, (String, u64, u64)>,
    routes: BTreeSet<String>,
}

/// State that must not change: the kernel's routes and next hops, and the sessions.
pub(crate) struct Unchanged {
    watched: Vec<Watched>,
}

impl Unchanged {
    /// Panics if anything has changed since the start; watching continues.
    pub(crate) fn assert_unchanged(&mut self, hosts: &Hosts, what: &str) {
        for w in &mut self.watched {
            let changes = std::fs::read_to_string(&w.file).unwrap();
            assert!(w.child.try_wait().unwrap().is_none(), "ip monitor ended");
            assert!(
                changes.is_empty(),
                "{what}: host{}: routes moved:\n{changes}\n{}",
                w.host,
                hosts.log(w.host)
            );
            assert_eq!(hosts.routes(w.host), w.routes, "{what}: host{}", w.host);
            assert_sessions_held(hosts, w, what);
        }
    }

    /// Panics if a session has changed; routes may have.
    pub(crate) fn assert_sessions_unchanged(&self, hosts: &Hosts, what: &str) {
        self.watched.iter().for_each(|w| assert_sessions_held(hosts, w, what));
    }

    /// Returns the output of `ip monitor` on a host.
    pub(crate) fn monitor_output(&self, host: usize) -> String {
        let watched = self.watched.iter().find(|w| w.host == host).expect("watched");
        std::fs::read_to_string(&watched.file).unwrap()
    }
}

fn assert_sessions_held(hosts: &Hosts, w: &Watched, what: &str) {
    let since = w.begin.elapsed().as_secs();
    let now = hosts.sessions(w.host);
    let names = |m: &BTreeMap<String, _>| m.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&now), names(&w.before), "{what}: host{}", w.host);
    for (session, (state, seconds, flaps)) in &now {
        let (before, was, flapped) = &w.before[session];
        let held = state == before && flaps == flapped && seconds + 2 >= was + since;
        // A session that was down may keep trying.
        assert!(
            held || before != "Established" && state != "Established",
            "{what}: host{}: {session} moved: {state} for {seconds}s, {flaps} flaps; before {before} {was}s, {flapped}\n{}",
            w.host,
            hosts.log(w.host)
        );
    }
}

impl Drop for Unchanged {
    fn drop(&mut self) {
        for w in &mut self.watched {
            let _ = w.child.kill();
            let _ = w.child.wait();
        }
    }
}
