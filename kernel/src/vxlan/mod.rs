//! The VXLAN devices `vxlan.calico` and `vxlan-v6.calico`, and the ends of other hosts in them: what differs
//! from the desired state, and the changes that repair it.
//!
//! Pure but for `read`: no I/O and no clock. `thread` reads the devices and sends the changes. Routes over a
//! device are entries of the table in `fib`.

pub(super) mod device;
pub(super) mod read;
pub(super) mod remotes;

/// Returns the name of a family's VXLAN device, the same as Calico's.
#[must_use]
pub const fn name(v4: bool) -> &'static str {
    if v4 { "vxlan.calico" } else { "vxlan-v6.calico" }
}
