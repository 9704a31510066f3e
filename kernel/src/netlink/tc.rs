//! Messages about traffic control (`linux/pkt_sched.h`, `pkt_cls.h`, tc-tbf(8), tc-mirred(8)).

use netlink_packet_core::{
    DefaultNla, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption, TcActionType,
    TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcHeader, TcMessage, TcMirror, TcMirrorActionType,
    TcOption, TcU32Key, TcU32Selector, TcU32SelectorFlags,
};

use crate::netlink::codec::{Attrs, Message, u32_at};
use crate::netlink::message;

const RTM_NEWQDISC: u16 = 36;
/// Length of `struct tcmsg`, in octets.
const TCMSG: usize = 20;
/// Handle of the ingress qdisc of an interface.
const INGRESS: u32 = 0xffff_0000;
/// Handle of Tortie's root qdisc.
const OWN: u32 = 0x0179_0000;
const ETH_P_ALL: u16 = 3;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// `TC_LINKLAYER_ETHERNET`: no rate table is needed.
const ETHERNET: u8 = 1;

/// Parameters of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Octets per second.
    pub(crate) rate: u64,
    /// Burst in octets.
    pub(crate) burst: u32,
    /// Maximum length of the queue in octets; further packets are dropped.
    pub(crate) queue: u32,
}

fn of(index: u32, handle: u32, parent: TcHandle, kind: &str) -> TcMessage {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.handle = TcHandle::from(handle);
    message.header.parent = parent;
    if !kind.is_empty() {
        message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    }
    message
}

/// Encodes the request that sets a token bucket as root qdisc of an interface, replacing any other.
pub(crate) fn encode_bucket(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32, bucket: Bucket) {
    // `struct tc_tbf_qopt`: two `struct tc_ratespec` (rate, peak), queue, burst as time, burst of the peak.
    let mut parms = Vec::with_capacity(36);
    let rate = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
    parms.extend_from_slice(&[0, ETHERNET, 0, 0, 0, 0, 0, 0]);
    parms.extend_from_slice(&rate.to_ne_bytes());
    parms.extend_from_slice(&[0; 12]);
    parms.extend_from_slice(&bucket.queue.to_ne_bytes());
    parms.extend_from_slice(&[0; 8]);
    let option = |kind, data| TcOption::Other(DefaultNla::new(kind, data));
    let mut options =
        vec![option(TCA_TBF_PARMS, parms), option(TCA_TBF_BURST, bucket.burst.to_ne_bytes().to_vec())];
    if bucket.rate > u64::from(u32::MAX) {
        options.push(option(TCA_TBF_RATE64, bucket.rate.to_ne_bytes().to_vec()));
    }
    let mut message = of(index, OWN, TcHandle::ROOT, "tbf");
    message.attributes.push(TcAttribute::Options(options));
    let flags = flags | NLM_F_CREATE | NLM_F_REPLACE;
    message::write(buf, flags, seq, RouteNetlinkMessage::NewQueueDiscipline(message));
}

/// Encodes the request that adds the ingress qdisc of an interface.
pub(crate) fn encode_ingress(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32) {
    let message = of(index, INGRESS, TcHandle::INGRESS, "ingress");
    let flags = flags | NLM_F_CREATE | NLM_F_EXCL;
    message::write(buf, flags, seq, RouteNetlinkMessage::NewQueueDiscipline(message));
}

/// Encodes the request that redirects the ingress of one interface to the egress of another.
pub(crate) fn encode_redirect(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32, to: u32) {
    // One key that matches every packet.
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = 1;
    selector.keys = vec![TcU32Key::default()];
    let mut mirror = TcMirror::default();
    mirror.generic.action = TcActionType::Stolen;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = to;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
    ];
    let mut message = of(index, 0, TcHandle::from(INGRESS), TcFilterU32::KIND);
    message.header.info = (1 << 16) | u32::from(ETH_P_ALL.to_be());
    message.attributes.push(TcAttribute::Options(vec![
        TcOption::U32(TcFilterU32Option::Selector(selector)),
        TcOption::U32(TcFilterU32Option::Action(vec![action])),
    ]));
    let flags = flags | NLM_F_CREATE | NLM_F_EXCL;
    message::write(buf, flags, seq, RouteNetlinkMessage::NewTrafficFilter(message));
}

/// Encodes the request that removes the qdisc of [`encode_bucket`] (`root`) or of [`encode_ingress`].
pub(crate) fn encode_remove(buf: &mut Vec<u8>, flags: u16, seq: u32, index: u32, root: bool) {
    let (handle, parent) = if root { (OWN, TcHandle::ROOT) } else { (INGRESS, TcHandle::INGRESS) };
    let message = of(index, handle, parent, "");
    message::write(buf, flags, seq, RouteNetlinkMessage::DelQueueDiscipline(message));
}

/// Encodes the request for all qdiscs of an interface.
pub(crate) fn encode_dump(buf: &mut Vec<u8>, seq: u32, index: u32) {
    let message = of(index, 0, TcHandle::UNSPEC, "");
    message::write(buf, NLM_F_DUMP, seq, RouteNetlinkMessage::GetQueueDiscipline(message));
}

/// A qdisc of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Qdisc {
    /// Kind: `tbf`, `ingress`, ...
    pub(crate) kind: String,
    /// Rate of a token bucket, in octets per second.
    pub(crate) rate: Option<u64>,
}

/// Decodes RTM_NEWQDISC; `None` for qdiscs of other interfaces, which some kernels include.
pub(crate) fn decode(message: &Message<'_>, index: u32) -> Option<Qdisc> {
    let header = TcHeader::parse(message.body).ok()?;
    if message.kind != RTM_NEWQDISC || header.index != index.cast_signed() {
        return None;
    }
    let mut qdisc = Qdisc::default();
    for attribute in message::attributes(message.body, TCMSG) {
        match TcAttribute::parse_with_param(&attribute, qdisc.kind.as_str()) {
            Ok(TcAttribute::Kind(kind)) => qdisc.kind = kind,
            Ok(TcAttribute::Options(_)) if qdisc.kind == "tbf" => qdisc.rate = tbf_rate(attribute.value()),
            _ => {}
        }
    }
    Some(qdisc)
}

/// Decodes the rate of a token bucket, which netlink-packet-route does not support.
fn tbf_rate(options: &[u8]) -> Option<u64> {
    let (mut rate, mut wide) = (None, None);
    for (attr, data) in Attrs(options) {
        match attr {
            TCA_TBF_PARMS => rate = u32_at(data, 8).map(u64::from),
            TCA_TBF_RATE64 => wide = <[u8; 8]>::try_from(data).ok().map(u64::from_ne_bytes),
            _ => {}
        }
    }
    wide.or(rate)
}
