//! Traffic control as messages (`linux/pkt_sched.h`, `pkt_cls.h`, tc-tbf(8), tc-mirred(8)).

use crate::netlink::codec::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Writer};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
pub(crate) const RTM_REPLY: u16 = RTM_NEWQDISC;
const RTM_NEWTFILTER: u16 = 44;
pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
/// `struct tcmsg`: family, padding, interface, handle, parent, info.
pub(crate) const TCMSG: usize = 20;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;
/// Handle of the one ingress qdisc of an interface.
const INGRESS: u32 = 0xffff_0000;
/// Handle of our root qdisc.
const OWN: u32 = 0x0179_0000;
const ETH_P_ALL: u16 = 3;

pub(crate) const TCA_TBF_PARMS: u16 = 1;
pub(crate) const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// `TC_LINKLAYER_ETHERNET`: no table of rates is needed.
const ETHERNET: u8 = 1;

const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
const TCA_EGRESS_REDIR: u32 = 1;

/// A token bucket, in octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// A second.
    pub(crate) rate: u64,
    /// At once.
    pub(crate) burst: u32,
    /// Most that waits; what comes then is dropped.
    pub(crate) queue: u32,
}

fn header(w: &mut Writer<'_>, index: u32, handle: u32, parent: u32, info: u32) {
    w.raw(&[0; 4]).raw(&index.to_ne_bytes()).raw(&handle.to_ne_bytes());
    w.raw(&parent.to_ne_bytes()).raw(&info.to_ne_bytes());
}

/// Writes the request for a token bucket that all that leaves by the interface passes, in place of any other.
pub(crate) fn encode_bucket(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32, bucket: Bucket) {
    let mut w = Writer::begin(buf, RTM_NEWQDISC, flags | NLM_F_CREATE | NLM_F_REPLACE, seq);
    header(&mut w, index, OWN, TC_H_ROOT, 0);
    w.attr_text(TCA_KIND, "tbf");
    w.nested(TCA_OPTIONS, |w| {
        // struct tc_tbf_qopt: two struct tc_ratespec (rate, peak), queue, burst as time, peak's burst.
        let mut parms = Vec::with_capacity(36);
        let rate = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
        parms.extend_from_slice(&[0, ETHERNET, 0, 0, 0, 0, 0, 0]);
        parms.extend_from_slice(&rate.to_ne_bytes());
        parms.extend_from_slice(&[0; 12]);
        parms.extend_from_slice(&bucket.queue.to_ne_bytes());
        parms.extend_from_slice(&[0; 8]);
        w.attr(TCA_TBF_PARMS, &parms);
        w.attr_u32(TCA_TBF_BURST, bucket.burst);
        if bucket.rate > u64::from(u32::MAX) {
            w.attr(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes());
        }
    });
    w.end();
}

/// Writes the request for the place where what comes in by an interface can be looked at.
pub(crate) fn encode_ingress(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32) {
    let mut w = Writer::begin(buf, RTM_NEWQDISC, flags | NLM_F_CREATE | NLM_F_EXCL, seq);
    header(&mut w, index, INGRESS, TC_H_INGRESS, 0);
    w.attr_text(TCA_KIND, "ingress");
    w.end();
}

/// Writes the request that sends all that comes in by one interface out by another.
pub(crate) fn encode_redirect(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32, to: u32) {
    let mut w = Writer::begin(buf, RTM_NEWTFILTER, flags | NLM_F_CREATE | NLM_F_EXCL, seq);
    let info = (1 << 16) | u32::from(ETH_P_ALL.to_be());
    header(&mut w, index, 0, INGRESS, info);
    w.attr_text(TCA_KIND, "u32");
    w.nested(TCA_OPTIONS, |w| {
        // struct tc_u32_sel with one key that everything matches.
        let mut sel = [0u8; 32];
        (sel[0], sel[2]) = (TC_U32_TERMINAL, 1);
        w.attr(TCA_U32_SEL, &sel);
        w.nested(TCA_U32_ACT, |w| {
            w.nested(1, |w| {
                w.attr_text(TCA_ACT_KIND, "mirred");
                w.nested(TCA_ACT_OPTIONS, |w| {
                    // struct tc_mirred: index, capabilities, action, two counters, what, where to.
                    let mut mirred = Vec::with_capacity(28);
                    for field in [0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to] {
                        mirred.extend_from_slice(&field.to_ne_bytes());
                    }
                    w.attr(TCA_MIRRED_PARMS, &mirred);
                });
            });
        });
    });
    w.end();
}

/// Writes the request that removes what [`encode_bucket`] made (`root`), or what [`encode_ingress`] did.
pub(crate) fn encode_remove(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32, root: bool) {
    let mut w = Writer::begin(buf, RTM_DELQDISC, flags, seq);
    let (handle, parent) = if root { (OWN, TC_H_ROOT) } else { (INGRESS, TC_H_INGRESS) };
    header(&mut w, index, handle, parent, 0);
    w.end();
}

/// Writes the request for all qdiscs of an interface.
pub(crate) fn encode_dump(buf: &mut Vec<u8>, seq: u32, index: u32) {
    let mut w = Writer::begin(buf, RTM_GETQDISC, crate::netlink::codec::NLM_F_DUMP, seq);
    header(&mut w, index, 0, 0, 0);
    w.end();
}
