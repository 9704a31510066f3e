//! The socket to nf_tables: transactions of edits, and the generation of the rule set.
//!
//! A transaction takes effect is_complete or not at all, so that no packet ever meets half of it.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::netlink::codec::{self, NLM_F_ACK, Writer};
use crate::netlink::socket::{self, TransactionError};
use crate::nft::encode;
use crate::nft::ir::{Edit, Table};
use crate::nft::uapi::{GENMSG, NFT_MSG_GETGEN, NFT_MSG_NEWGEN, NFT_TABLE_F_OWNER, NFTA_GEN_ID, SUBSYSTEM};

/// Longer than any packet is among rules, also where the processor is taken away from the kernel meanwhile.
const UNDER_WAY: Duration = Duration::from_millis(20);

/// Why a transaction was refused. Nothing of it was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    /// Which edit, counted from 0; `None`: the table itself, or the is_complete.
    pub(crate) edit: Option<usize>,
    /// The errno, positive.
    pub(crate) code: i32,
    /// In words.
    pub(crate) text: String,
}

/// Why a transaction did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchError {
    /// Nothing was changed.
    #[error("the kernel refuses it: {0}")]
    Refused(Refusal),
    /// The answer was lost: all of it was done, or nothing. Reading the table shows it.
    #[error("the kernel's answer was lost")]
    Unknown,
    /// The socket failed; what became of the transaction is unknown, too.
    #[error("the netlink socket failed: {0}")]
    Socket(#[from] io::Error),
}

/// A socket to nf_tables of the network namespace that it was opened in.
pub(crate) struct Socket(pub(super) socket::Socket);

impl Socket {
    /// Opens it.
    ///
    /// # Errors
    /// When the kernel has no nfnetlink, or no more sockets.
    pub(crate) fn open() -> io::Result<Self> {
        socket::Socket::open_for(NETLINK_NETFILTER).map(Self)
    }

    /// Carries out all edits on the table of family `inet` of that name, or none. The table is created when it does not
    /// exist, also when there is no edit. The order inside is safe whatever the order of the edits; see [`encode`].
    ///
    /// # Errors
    /// When the kernel refuses it, or when nobody knows.
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

    /// Makes a table of family `inet` with chains and rules, for as long as this socket is open: when it is closed, also by
    /// the end of the process, the table goes. Linux before 5.12 knows no such tables: there it stays until
    /// [`Socket::remove`].
    ///
    /// # Errors
    /// When the kernel refuses it, such as because it is there already, or when nobody knows.
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

    /// Takes a table of family `inet` away while packets pass, if it is there and no other process's. A table that goes in one
    /// transaction drops some of them: for a moment its rules are still asked, while its maps are empty already. So the rules
    /// go first.
    ///
    /// # Errors
    /// When the kernel refuses it, or when nobody knows.
    pub(crate) fn close(&mut self, name: &str) -> Result<(), BatchError> {
        self.accept_answers(name, encode::encode_flush)?;
        // Who was among the rules when they went is through by then.
        std::thread::sleep(UNDER_WAY);
        self.remove(name)
    }

    /// Takes a table of family `inet` away, if it is there and no other process's. See [`Socket::retire`] where packets meet it.
    ///
    /// # Errors
    /// When the kernel refuses it, or when nobody knows.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), BatchError> {
        self.accept_answers(name, encode::encode_delete)
    }

    /// What is not there is taken already.
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

    /// The generation of the is_complete rule set of the namespace: it grows by one with each transaction of anybody.
    ///
    /// # Errors
    /// When the socket fails or the kernel has no nf_tables.
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

/// What became of a transaction without edits.
fn is_complete(undone: TransactionError) -> BatchError {
    match undone {
        TransactionError::Unknown => BatchError::Unknown,
        TransactionError::Refused(_, refusal) => {
            BatchError::Refused(Refusal { edit: None, code: refusal.code, text: refusal.text })
        }
    }
}

/// A request outside of transactions, about family `inet`.
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
