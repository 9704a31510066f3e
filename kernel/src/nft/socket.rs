//! The nf_tables socket: transactions of edits, and the generation of the ruleset.
//!
//! A transaction takes effect as a whole or not at all, so that no packet meets half of it.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::netlink::codec::{self, NLM_F_ACK, Writer};
use crate::netlink::socket::{self, TransactionError};
use crate::nft::encode;
use crate::nft::ir::{Edit, Table};
use crate::nft::uapi::{GENMSG, NFT_MSG_GETGEN, NFT_MSG_NEWGEN, NFT_TABLE_F_OWNER, NFTA_GEN_ID, SUBSYSTEM};

/// Upper bound of the time that a packet's evaluation takes, even if the kernel is preempted meanwhile.
const UNDER_WAY: Duration = Duration::from_millis(20);

/// Refusal of a transaction. Nothing was executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    /// Index of the refused edit, from 0; `None` for the table itself or the whole transaction.
    pub(crate) edit: Option<usize>,
    /// Positive errno.
    pub(crate) code: i32,
    /// The error as text.
    pub(crate) text: String,
}

/// Failure of a transaction.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchError {
    /// Nothing was changed.
    #[error("the kernel refuses it: {0}")]
    Refused(Refusal),
    /// The answer was lost: either everything was executed or nothing. A dump of the table shows which.
    #[error("the kernel's answer was lost")]
    Unknown,
    /// The socket failed; the transaction may or may not have been executed.
    #[error("the netlink socket failed: {0}")]
    Socket(#[from] io::Error),
}

/// An nf_tables socket of the network namespace in which it was opened.
pub(crate) struct Socket(pub(super) socket::Socket);

impl Socket {
    /// Opens a socket.
    ///
    /// # Errors
    /// The kernel has no nfnetlink, or no more sockets are available.
    pub(crate) fn open() -> io::Result<Self> {
        socket::Socket::open_for(NETLINK_NETFILTER).map(Self)
    }

    /// Executes all edits on the table of family `inet` with this name, or none. The table is created if it
    /// does not exist, even without edits. The order of the messages is safe for any order of the edits; see
    /// [`encode`].
    ///
    /// # Errors
    /// The kernel refuses the transaction, or its result is unknown.
    pub(crate) fn batch(&mut self, edits: &[Edit], table: &str) -> Result<(), BatchError> {
        let mut owners = Vec::new();
        let undone = self.0.transaction(|buf, base| {
            owners = encode::encode(buf, base, edits, table);
            u32::try_from(owners.len()).unwrap_or(u32::MAX)
        })?;
        undone.map_err(|undone| match undone {
            TransactionError::Unknown => BatchError::Unknown,
            TransactionError::Refused(at, refusal) => BatchError::Refused(Refusal {
                edit: usize::try_from(at).ok().and_then(|at| owners.get(at).copied().flatten()),
                code: refusal.code,
                text: refusal.text,
            }),
        })
    }

    /// Creates a table of family `inet` with chains and rules that exists as long as this socket is open:
    /// when it is closed, also by the end of the process, the kernel deletes the table. Linux before 5.12 has
    /// no such tables: there it stays until [`Socket::remove`].
    ///
    /// # Errors
    /// The kernel refuses the table, for example because it exists, or the result is unknown.
    pub(crate) fn keep_generation(&mut self, name: &str, table: &Table) -> Result<(), BatchError> {
        let mut make = |flags| {
            let undone = self.0.transaction(|buf, base| encode::encode_new(buf, base, name, flags, table))?;
            undone.map_err(is_complete)
        };
        match make(NFT_TABLE_F_OWNER) {
            Err(BatchError::Refused(refusal)) if matches!(refusal.code, libc::EOPNOTSUPP | libc::EINVAL) => {
                make(0)
            }
            other => other,
        }
    }

    /// Deletes a table of family `inet` through which packets pass, if it exists and no other process owns
    /// it. Deleting it in one transaction would drop some packets: its rules are still evaluated for a moment
    /// while its maps are empty. So the rules are deleted first.
    ///
    /// # Errors
    /// The kernel refuses, or the result is unknown.
    pub(crate) fn close(&mut self, name: &str) -> Result<(), BatchError> {
        self.accept_answers(name, encode::encode_flush)?;
        // Packets whose evaluation began before the deletion are done after this time.
        std::thread::sleep(UNDER_WAY);
        self.remove(name)
    }

    /// Deletes a table of family `inet`, if it exists and no other process owns it. See [`Socket::close`] for
    /// tables through which packets pass.
    ///
    /// # Errors
    /// The kernel refuses, or the result is unknown.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), BatchError> {
        self.accept_answers(name, encode::encode_delete)
    }

    /// Sends a transaction; a missing table counts as success.
    fn accept_answers(
        &mut self,
        name: &str,
        encode: impl FnOnce(&mut Vec<u8>, u32, &str) -> u32,
    ) -> Result<(), BatchError> {
        match self.0.transaction(|buf, base| encode(buf, base, name))? {
            Err(TransactionError::Refused(_, refusal)) if refusal.code == libc::ENOENT => Ok(()),
            other => other.map_err(is_complete),
        }
    }

    /// Returns the generation of the namespace's whole ruleset, which increases by one with each transaction
    /// of any process.
    ///
    /// # Errors
    /// The socket fails or the kernel has no nf_tables.
    pub(crate) fn generation(&mut self) -> io::Result<u32> {
        let mut id = None;
        let answer = self.0.dump(
            |buf, seq| request(buf, seq, NFT_MSG_GETGEN, NLM_F_ACK, |_| ()),
            |m| {
                if m.kind == (SUBSYSTEM << 8) | NFT_MSG_NEWGEN {
                    let gen_id = codec::Attrs::after(m.body, GENMSG).find(|(kind, _)| *kind == NFTA_GEN_ID);
                    id = gen_id.and_then(|(_, data)| codec::be32(data));
                }
            },
        )?;
        answer.map_err(|r| io::Error::from_raw_os_error(r.code))?;
        id.ok_or_else(|| io::Error::other("the kernel does not report the generation of its packet rules"))
    }
}

/// Converts the failure of a transaction without edits.
fn is_complete(undone: TransactionError) -> BatchError {
    match undone {
        TransactionError::Unknown => BatchError::Unknown,
        TransactionError::Refused(_, refusal) => {
            BatchError::Refused(Refusal { edit: None, code: refusal.code, text: refusal.text })
        }
    }
}

/// Encodes a request outside of transactions, about family `inet`.
pub(super) fn request(
    buf: &mut Vec<u8>,
    seq: u32,
    message: u16,
    flags: u16,
    fill: impl FnOnce(&mut Writer<'_>),
) {
    let mut w = Writer::begin(buf, (SUBSYSTEM << 8) | message, flags, seq);
    w.raw(&[crate::nft::uapi::NFPROTO_INET, 0, 0, 0]);
    fill(&mut w);
    w.end();
}
