//! Validation of transactions by the limits of both stores, and splitting of an import into transactions.

use std::collections::HashSet;

use super::{Compare, MAX_TXN_OPS, Op, StoreError, Txn};

/// Maximum number of bytes of keys and values in one transaction. etcd's default request limit is 1.5 MiB
/// including its framing; both stores use this lower limit, so that a transaction accepted by one is accepted
/// by the other.
pub const MAX_TXN_BYTES: usize = 1_400_000;

/// Framing per operation in etcd, in bytes, rounded up.
const OP_OVERHEAD: usize = 32;

impl Compare {
    /// Returns the key of the condition.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Absent(key) | Self::Present(key) | Self::ModRevision(key, _) | Self::Value(key, _) => key,
        }
    }
}

impl Op {
    /// Returns the key or prefix of the write.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
            Self::DeletePrefix { prefix } => prefix,
        }
    }

    fn size(&self) -> usize {
        let value = if let Self::Put { value, .. } = self { value.len() } else { 0 };
        self.key().len() + value + OP_OVERHEAD
    }
}

impl Txn {
    /// Rejects transactions that etcd would refuse, with the same error for both stores.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for more than [`MAX_TXN_OPS`] conditions or writes, an empty key, a key
    /// written twice or written under a prefix that the same transaction deletes, or more than
    /// [`MAX_TXN_BYTES`].
    pub fn check(&self) -> Result<(), StoreError> {
        let refuse = |text: String| Err(StoreError::Refused(text));
        for (what, n) in [("conditions", self.compare.len()), ("writes", self.ops.len())] {
            if n > MAX_TXN_OPS {
                return refuse(format!(
                    "{n} {what} in one transaction, at most {MAX_TXN_OPS} are possible; split it into several"
                ));
            }
        }
        if self.compare.iter().any(|c| c.key().is_empty()) || self.ops.iter().any(|o| o.key().is_empty()) {
            return refuse("an empty key; keys start with /calico/".into());
        }
        let mut seen = HashSet::with_capacity(self.ops.len());
        for op in self.ops.iter().filter(|o| !matches!(o, Op::DeletePrefix { .. })) {
            if !seen.insert(op.key()) {
                return refuse(format!("key {} is written twice in one transaction", op.key()));
            }
        }
        for op in &self.ops {
            let Op::DeletePrefix { prefix } = op else { continue };
            if let Some(key) = seen.iter().find(|key| key.starts_with(prefix.as_str())) {
                return refuse(format!(
                    "key {key} is written in the transaction that deletes the prefix {prefix}"
                ));
            }
        }
        let compared: usize = self
            .compare
            .iter()
            .map(|c| {
                let value = if let Compare::Value(_, value) = c { value.len() } else { 0 };
                c.key().len() + value + OP_OVERHEAD
            })
            .sum();
        let bytes = compared + self.ops.iter().map(Op::size).sum::<usize>();
        if bytes > MAX_TXN_BYTES {
            return refuse(format!("{bytes} bytes in one transaction, at most {MAX_TXN_BYTES} are possible"));
        }
        Ok(())
    }
}

/// Splits many writes into transactions that both stores accept, in the given order.
///
/// Each transaction is atomic; the sequence is **not**: a reader may see the first ones without the last, and
/// after a failure the first ones stay written. Writing all of them again repairs that.
///
/// # Errors
/// [`StoreError::Refused`] if one write alone is too large or a key occurs twice.
pub fn split(ops: impl IntoIterator<Item = Op>) -> Result<Vec<Txn>, StoreError> {
    let mut txns: Vec<Txn> = Vec::new();
    let mut seen = HashSet::new();
    let mut current = Txn::default();
    let mut bytes = 0;
    for op in ops {
        if !seen.insert(op.key().to_owned()) {
            return Err(StoreError::Refused(format!("key {} occurs twice", op.key())));
        }
        let size = op.size();
        if size > MAX_TXN_BYTES {
            return Err(StoreError::Refused(format!(
                "the value of {} has {size} bytes, at most {MAX_TXN_BYTES} are possible",
                op.key()
            )));
        }
        // A prefix deletion is alone in its transaction: later writes may be below the prefix and must follow
        // it.
        let alone = |op: &Op| matches!(op, Op::DeletePrefix { .. });
        let full = current.ops.len() == MAX_TXN_OPS
            || bytes + size > MAX_TXN_BYTES
            || alone(&op)
            || current.ops.last().is_some_and(alone);
        if full && !current.ops.is_empty() {
            txns.push(std::mem::take(&mut current));
            bytes = 0;
        }
        bytes += size;
        current.ops.push(op);
    }
    if !current.ops.is_empty() {
        txns.push(current);
    }
    Ok(txns)
}

/// Returns the first text that sorts after every text with this prefix; `None` if there is none, as for an
/// empty prefix.
///
/// Works on characters, so that the bound is valid UTF-8, whose byte order is the order of its code points.
#[must_use]
pub fn prefix_end(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        let next = match last {
            char::MAX => continue,
            '\u{d7ff}' => Some('\u{e000}'),
            c => char::from_u32(u32::from(c) + 1),
        };
        end.extend(next);
        return Some(end.into_iter().collect());
    }
    None
}

/// Sorts prefixes and drops those below another one: ranges that are read or watched must not overlap.
#[must_use]
pub fn disjoint_prefixes(prefixes: &[String]) -> Vec<String> {
    let mut sorted = prefixes.to_vec();
    sorted.sort_unstable();
    sorted.dedup_by(|later, kept| later.starts_with(kept.as_str()));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(key: &str, size: usize) -> Op {
        Op::Put { key: key.into(), value: vec![b'x'; size], lease: None }
    }

    fn refused(txn: &Txn) -> String {
        txn.check().expect_err("must be refused").to_string()
    }

    #[test]
    fn what_etcd_refuses_is_refused_before() {
        let many = |n| Txn { compare: vec![], ops: (0..n).map(|i| put(&format!("/k{i}"), 1)).collect() };
        assert!(many(128).check().is_ok());
        assert!(refused(&many(129)).contains("129 writes"));
        let conditions = Txn { compare: vec![Compare::Absent("/a".into()); 129], ops: vec![] };
        assert!(refused(&conditions).contains("129 conditions"));
        let twice = Txn { compare: vec![], ops: vec![put("/a", 1), Op::Delete { key: "/a".into() }] };
        assert!(refused(&twice).contains("/a is written twice"));
        let below =
            Txn { compare: vec![], ops: vec![put("/a/b", 1), Op::DeletePrefix { prefix: "/a/".into() }] };
        assert!(refused(&below).contains("/a/b"));
        assert!(refused(&Txn { compare: vec![], ops: vec![put("", 1)] }).contains("empty key"));
        assert!(refused(&Txn { compare: vec![], ops: vec![put("/a", 1_400_000)] }).contains("bytes"));
    }

    #[test]
    fn an_import_is_cut_in_order_and_a_prefix_deletion_stands_alone() {
        let mut ops: Vec<Op> = (0..200).map(|i| put(&format!("/a/{i}"), 10)).collect();
        ops.insert(0, Op::DeletePrefix { prefix: "/a/".into() });
        let txns = split(ops.clone()).unwrap();
        assert_eq!(txns.iter().map(|t| t.ops.len()).collect::<Vec<_>>(), [1, 128, 72]);
        assert!(txns.iter().all(|t| t.check().is_ok()));
        assert_eq!(txns.into_iter().flat_map(|t| t.ops).collect::<Vec<_>>(), ops);
        assert!(split([put("/a", 1), put("/a", 2)]).is_err());
        assert!(split([put("/a", 2_000_000)]).is_err());
    }

    #[test]
    fn large_values_are_cut_by_size() {
        let txns = split((0..10).map(|i| put(&format!("/{i}"), 500_000))).unwrap();
        assert_eq!(txns.iter().map(|t| t.ops.len()).collect::<Vec<_>>(), [2; 5]);
    }

    #[test]
    fn prefixes_below_others_go() {
        let got = disjoint_prefixes(&["/b/c".into(), "/a".into(), "/b/".into(), "/a".into(), "/b0".into()]);
        assert_eq!(got, ["/a", "/b/", "/b0"]);
        assert_eq!(prefix_end(""), None);
        assert_eq!(prefix_end("/a/").as_deref(), Some("/a0"));
        assert_eq!(prefix_end("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(prefix_end("\u{d7ff}").as_deref(), Some("\u{e000}"));
    }

    proptest! {
        #[test]
        fn the_range_of_a_prefix_is_its_keys(prefix in "[a-c\u{10ffff}\u{d7ff}]{0,3}", key in "[a-c\u{10ffff}\u{d7ff}\u{e000}]{0,4}") {
            let below_end = prefix_end(&prefix).is_none_or(|end| key.as_str() < end.as_str());
            prop_assert_eq!(key >= prefix && below_end, key.starts_with(&prefix));
        }
    }
}
