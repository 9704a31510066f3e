//! Keeps the VXLAN devices, and the entries for other hosts in them, as desired.
//!
//! A device is read every second and after each notification about it. Its entries, one pair per other host,
//! are remembered and read again after a notification about one of them, and every ten seconds.

use std::io;
use std::time::{Duration, Instant};

use super::Thread;
use crate::fib::table::store_routes::RemoteLinks;
use crate::netlink::dump;
use crate::netlink::vxlan::{self as messages, FoundDevice};
use crate::options::Mode;
use crate::vxlan::device::{self, WantedDevice};
use crate::vxlan::name;
use crate::vxlan::read;
use crate::vxlan::remotes::{RemoteChange, RemoteEntries};
use tortie_engine::routing::{VxlanDevice, VxlanIntent};

/// Interval of checks of the devices, in addition to notifications.
const EVERY: Duration = Duration::from_secs(1);
/// Interval of readings of all entries.
const ENTRIES_EVERY: Duration = Duration::from_secs(10);
/// Rounds until a device is as desired: deleted and created, configured, found right.
const ROUNDS: usize = 4;

/// Source of the entries that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The remembered ones, unless they are too old.
    Known,
    /// The kernel.
    Afresh,
}

/// What is known of the devices.
#[derive(Debug, Default)]
pub(super) struct Vxlan {
    due: Option<Instant>,
    problems: [Option<String>; 2],
    entries: [Option<KnownEntries>; 2],
}

/// Entries of a device as they were read or written last.
#[derive(Debug)]
struct KnownEntries {
    ifindex: u32,
    read: Instant,
    entries: RemoteEntries,
}

impl Vxlan {
    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the faults of the devices.
    pub(super) fn problem(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().flatten().map(String::as_str)
    }
}

impl Thread {
    /// Repairs devices and entries, and reports changed faults.
    pub(super) fn check_vxlan(&mut self, reading: Reading) -> io::Result<()> {
        // Without an intent it is not known if an existing device is desired.
        let Some(intent) = self.state.intent.clone() else { return Ok(()) };
        let intent = &*intent.vxlan;
        self.vxlan.due = intent.is_on().then(|| Instant::now() + EVERY);
        let (mut devices, mut links) = ([0; 2], RemoteLinks::default());
        for (at, v4) in [true, false].into_iter().enumerate() {
            let local = self.state.node_addr(v4);
            if let Some(parent) = local.and_then(|local| self.state.network.link_with(local)) {
                links.parents[at] = parent.index;
            }
            self.vxlan.problems[at] = match intent.device(v4) {
                None => self.remove_device(v4)?,
                Some(wanted) => match self.keep_device(wanted)? {
                    Err(problem) => Some(problem),
                    Ok(found) => {
                        (devices[at], links.is_up[at]) = (found.ifindex, found.is_up);
                        self.keep_entries(v4, found.ifindex, intent, reading)?
                    }
                },
            };
        }
        self.state.set_vxlan(devices, links);
        self.report_tunnels();
        Ok(())
    }

    /// Repairs a device; returns it, or the fault that remains.
    fn keep_device(&mut self, wanted: &VxlanDevice) -> io::Result<Result<FoundDevice, String>> {
        let wanted = match WantedDevice::of(wanted, &self.state.network) {
            Ok(wanted) => wanted,
            Err(problem) => return Ok(Err(problem)),
        };
        let name = wanted.name;
        for _ in 0..ROUNDS {
            let found = messages::read(&mut self.reader, name)?;
            let changes = match device::plan(&wanted, found.as_ref(), &self.state.network) {
                Ok(changes) => changes,
                Err(problem) => return Ok(Err(problem)),
            };
            match (changes.first(), found) {
                (None, Some(found)) => return Ok(Ok(found)),
                (Some(change), _) if self.state.mode == Mode::Observe => {
                    return Ok(Err(device::describe(name, change)));
                }
                _ => {}
            }
            for change in &changes {
                let answer = self.writer.request(|(), buf, flags, seq| change.encode(buf, flags, seq))?;
                if let Err(refusal) = answer {
                    return Ok(Err(device::explain(name, change, refusal.code, &refusal.text)));
                }
            }
            self.read_devices()?;
        }
        Ok(Err(format!("{name} does not stay as Tortie sets it: another program changes it, too")))
    }

    fn read_devices(&mut self) -> io::Result<()> {
        let (links, addresses) = dump::devices(&mut self.reader)?;
        self.state.network.replace_devices(links, addresses);
        Ok(())
    }

    /// Deletes a device that is no longer desired, if it is Tortie's; returns the fault that remains.
    fn remove_device(&mut self, v4: bool) -> io::Result<Option<String>> {
        self.vxlan.entries[usize::from(!v4)] = None;
        let name = name(v4);
        if self.state.mode != Mode::Program || self.state.network.link_named(name).is_none() {
            return Ok(None);
        }
        let Some(change) = device::removal(messages::read(&mut self.reader, name)?.as_ref()) else {
            return Ok(None);
        };
        match self.writer.request(|(), buf, flags, seq| change.encode(buf, flags, seq))? {
            Err(refusal) if refusal.code != libc::ENODEV => {
                Ok(Some(format!("{name} is not used and cannot be deleted: {refusal}")))
            }
            _ => {
                self.read_devices()?;
                Ok(None)
            }
        }
    }

    /// Repairs the entries of a device; returns the first fault that remains.
    fn keep_entries(
        &mut self,
        v4: bool,
        ifindex: u32,
        intent: &VxlanIntent,
        reading: Reading,
    ) -> io::Result<Option<String>> {
        let at = usize::from(!v4);
        let wanted = RemoteEntries::wanted(intent.remotes.iter().filter(|(addr, _)| addr.is_ipv4() == v4));
        let now = Instant::now();
        let known = self.vxlan.entries[at].take().filter(|known| known.ifindex == ifindex);
        let current = match known {
            Some(known) if reading == Reading::Known && now < known.read + ENTRIES_EVERY => known,
            known => {
                let entries = read::entries(&mut self.reader, v4, ifindex)?;
                if let Some(known) = known {
                    self.note_foreign(name(v4), &known.entries, &entries);
                }
                KnownEntries { ifindex, read: now, entries }
            }
        };
        let changes = current.entries.changes(&wanted);
        if changes.is_empty() {
            self.vxlan.entries[at] = Some(current);
            return Ok(None);
        }
        if self.state.mode == Mode::Observe {
            self.vxlan.entries[at] = Some(current);
            return Ok(Some(format!("{} has {} entries that differ", name(v4), changes.len())));
        }
        let protocol = self.state.table.marks().protocol;
        let mut refused = None;
        self.writer.batch(
            &changes,
            |change: &RemoteChange, buf, flags, seq| change.encode(buf, flags, seq, ifindex, protocol),
            |change, answer| {
                if let Err(refusal) = answer
                    && !change.is_done(refusal.code)
                {
                    refused.get_or_insert_with(|| {
                        format!("{}: the kernel refuses entries: {refusal}", name(v4))
                    });
                }
            },
        )?;
        // Refused changes are tried again at the next check, from what the kernel has then.
        if refused.is_none() {
            self.vxlan.entries[at] = Some(KnownEntries { entries: wanted, ..current });
        }
        Ok(refused)
    }

    /// Counts entries that another process changed.
    fn note_foreign(&mut self, name: &str, known: &RemoteEntries, found: &RemoteEntries) {
        let changes = known.changes(found).len();
        if changes > 0 {
            self.state.foreign_changes.note(changes, || format!("{changes} entries of {name} were changed"));
        }
    }
}
