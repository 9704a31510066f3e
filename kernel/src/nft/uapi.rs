//! Constants of `linux/netfilter/nf_tables.h`, `nfnetlink.h` and of nft's userdata, as far as they are used.

use crate::nft::ir::{At, KeyType, Kind, SetType, ValueType};

/// Subsystem of nf_tables in nfnetlink: the high octet of a message type.
pub(super) const SUBSYSTEM: u16 = 10;
pub(super) const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub(super) const NFNL_MSG_BATCH_END: u16 = 0x11;
/// Length of `struct nfgenmsg` (family, version, resource ID), in octets.
pub(super) const GENMSG: usize = 4;
pub(super) const NFPROTO_UNSPEC: u8 = 0;
pub(super) const NFPROTO_INET: u8 = 1;
pub(super) const NFPROTO_IPV4: u8 = 2;
pub(super) const NFPROTO_IPV6: u8 = 10;

pub(super) const NFT_MSG_NEWTABLE: u16 = 0;
pub(super) const NFT_MSG_GETTABLE: u16 = 1;
pub(super) const NFT_MSG_DELTABLE: u16 = 2;
pub(super) const NFT_MSG_NEWCHAIN: u16 = 3;
pub(super) const NFT_MSG_GETCHAIN: u16 = 4;
pub(super) const NFT_MSG_DELCHAIN: u16 = 5;
pub(super) const NFT_MSG_NEWRULE: u16 = 6;
pub(super) const NFT_MSG_GETRULE: u16 = 7;
pub(super) const NFT_MSG_DELRULE: u16 = 8;
pub(super) const NFT_MSG_NEWSET: u16 = 9;
pub(super) const NFT_MSG_GETSET: u16 = 10;
pub(super) const NFT_MSG_DELSET: u16 = 11;
pub(super) const NFT_MSG_NEWSETELEM: u16 = 12;
pub(super) const NFT_MSG_GETSETELEM: u16 = 13;
pub(super) const NFT_MSG_DELSETELEM: u16 = 14;
pub(super) const NFT_MSG_NEWGEN: u16 = 15;
pub(super) const NFT_MSG_GETGEN: u16 = 16;
pub(super) const NFT_MSG_TRACE: u16 = 17;

/// Name of the table, in every message about an object of a table.
pub(super) const NFTA_TABLE: u16 = 1;
pub(super) const NFTA_TABLE_FLAGS: u16 = 2;
/// Table flag: no chain of the table takes effect.
pub(super) const NFT_TABLE_F_DORMANT: u32 = 1;
/// Table flag (Linux 5.12): the kernel deletes the table with the socket that created it, and no other socket
/// may change it.
pub(super) const NFT_TABLE_F_OWNER: u32 = 2;
pub(super) const NFTA_GEN_ID: u16 = 1;
pub(super) const NFTA_LIST_ELEM: u16 = 1;

pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_CHAIN_POLICY: u16 = 5;
pub(super) const NFTA_CHAIN_TYPE: u16 = 7;
pub(super) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(super) const NFTA_HOOK_PRIORITY: u16 = 2;

pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_RULE_HANDLE: u16 = 3;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(super) const NFTA_RULE_USERDATA: u16 = 7;
/// Type of the comment in the userdata of a rule (libnftnl's NFTNL_UDATA_RULE_COMMENT).
pub(super) const UDATA_RULE_COMMENT: u8 = 0;
/// Type of Tortie's hash in the userdata, chosen by Tortie; nft skips unknown types.
pub(super) const UDATA_RULE_HASH: u8 = 179;

pub(super) const NFTA_SET_NAME: u16 = 2;
pub(super) const NFTA_SET_FLAGS: u16 = 3;
pub(super) const NFTA_SET_KEY_TYPE: u16 = 4;
pub(super) const NFTA_SET_KEY_LEN: u16 = 5;
pub(super) const NFTA_SET_DATA_TYPE: u16 = 6;
pub(super) const NFTA_SET_DATA_LEN: u16 = 7;
pub(super) const NFTA_SET_DESC: u16 = 9;
pub(super) const NFTA_SET_ID: u16 = 10;
pub(super) const NFTA_SET_USERDATA: u16 = 13;
pub(super) const NFTA_SET_DESC_SIZE: u16 = 1;
pub(super) const NFTA_SET_DESC_CONCAT: u16 = 2;
pub(super) const NFTA_SET_FIELD_LEN: u16 = 1;
pub(super) const NFT_SET_ANONYMOUS: u32 = 0x1;
pub(super) const NFT_SET_CONSTANT: u32 = 0x2;
pub(super) const NFT_SET_INTERVAL: u32 = 0x4;
pub(super) const NFT_SET_MAP: u32 = 0x8;
pub(super) const NFT_SET_CONCAT: u32 = 0x80;
/// Userdata of sets: nft uses these, and the comment, to print elements.
pub(super) const UDATA_SET_KEYBYTEORDER: u8 = 0;
pub(super) const UDATA_SET_DATABYTEORDER: u8 = 1;
pub(super) const UDATA_SET_COMMENT: u8 = 7;

pub(super) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_SET_ELEM_LIST_SET_ID: u16 = 4;
pub(super) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(super) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(super) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(super) const NFTA_SET_ELEM_TIMEOUT: u16 = 4;
pub(super) const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub(super) const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub(super) const NFT_SET_ELEM_INTERVAL_END: u32 = 1;
/// Userdata of an interval without end: nft prints it as a network (NFTNL_UDATA_SET_ELEM_FLAGS, "interval
/// open").
pub(super) const UDATA_ELEM_OPEN: [u8; 6] = [1, 4, 1, 0, 0, 0];

pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CODE: u16 = 1;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;
pub(super) const NF_DROP: i32 = 0;
pub(super) const NF_ACCEPT: i32 = 1;
pub(super) const NFT_JUMP: i32 = -3;
pub(super) const NFT_GOTO: i32 = -4;
pub(super) const NFT_RETURN: i32 = -5;
pub(super) const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

/// Multicast group of traces (`NFNLGRP_NFTRACE`).
pub(super) const TRACE_GROUP: u32 = 9;
pub(super) const NFTA_TRACE_TABLE: u16 = 1;
pub(super) const NFTA_TRACE_CHAIN: u16 = 2;
pub(super) const NFTA_TRACE_RULE_HANDLE: u16 = 3;
pub(super) const NFTA_TRACE_TYPE: u16 = 4;
pub(super) const NFTA_TRACE_VERDICT: u16 = 5;
pub(super) const NFTA_TRACE_ID: u16 = 6;
pub(super) const NFTA_TRACE_TRANSPORT_HEADER: u16 = 9;
pub(super) const NFTA_TRACE_POLICY: u16 = 16;
/// `NFT_TRACETYPE_*`: the end of a base chain, the end of another chain, a matching rule.
pub(super) const TRACE_POLICY: u32 = 1;
pub(super) const TRACE_RETURN: u32 = 2;
pub(super) const TRACE_RULE: u32 = 3;

pub(super) const NFTA_EXPR_NAME: u16 = 1;
pub(super) const NFTA_EXPR_DATA: u16 = 2;
pub(super) const NFTA_IMMEDIATE_DATA: u16 = 2;

/// Type of one field of a set's key: nft's number of the data type, and the length in octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldType {
    pub(super) id: u32,
    pub(super) len: u32,
    /// nft's number of the byte order: 1 for host, 2 for network.
    pub(super) order: u32,
}

pub(super) const IPV4_ADDR: FieldType = FieldType { id: 7, len: 4, order: 2 };
pub(super) const IPV6_ADDR: FieldType = FieldType { id: 8, len: 16, order: 2 };
pub(super) const INET_SERVICE: FieldType = FieldType { id: 13, len: 2, order: 2 };
pub(super) const IFNAME: FieldType = FieldType { id: 41, len: 16, order: 1 };

/// Returns the type of addresses of a family.
pub(super) const fn addr_type(v4: bool) -> FieldType {
    if v4 { IPV4_ADDR } else { IPV6_ADDR }
}

/// Returns the fields of a key; the second one exists only in a concatenation.
pub(super) const fn fields(key: KeyType) -> (FieldType, Option<FieldType>) {
    match key {
        KeyType::Addr { v4 } => (addr_type(v4), None),
        KeyType::Interface => (IFNAME, None),
        KeyType::InterfaceAddr { v4 } => (IFNAME, Some(addr_type(v4))),
        KeyType::AddrPair { v4 } => (addr_type(v4), Some(addr_type(v4))),
    }
}

/// Returns NFTA_SET_KEY_TYPE: nft packs the types of a concatenation in six bits each.
pub(super) const fn key_type_id(key: KeyType) -> u32 {
    match fields(key) {
        (one, None) => one.id,
        (one, Some(two)) => (one.id << 6) | two.id,
    }
}

/// Returns NFTA_SET_FLAGS of a Tortie set.
pub(super) fn set_flags(of: SetType) -> u32 {
    let mut flags = 0;
    if of.interval {
        flags |= NFT_SET_INTERVAL;
        if fields(of.key).1.is_some() {
            flags |= NFT_SET_CONCAT;
        }
    }
    if of.value != ValueType::Member {
        flags |= NFT_SET_MAP;
    }
    flags
}

/// Returns NFTA_HOOK_HOOKNUM.
pub(super) const fn hook_number(at: At) -> u32 {
    match at {
        At::Prerouting => 0,
        At::Input => 1,
        At::Forward => 2,
        At::Output => 3,
        At::Postrouting => 4,
    }
}

/// Returns the name of a hook.
pub(super) const fn hook_name(at: At) -> &'static str {
    match at {
        At::Prerouting => "prerouting",
        At::Input => "input",
        At::Forward => "forward",
        At::Output => "output",
        At::Postrouting => "postrouting",
    }
}

/// Returns NFTA_CHAIN_TYPE.
pub(super) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Filter => "filter",
        Kind::Nat => "nat",
    }
}
