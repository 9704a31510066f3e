//! A sorted map with structural sharing between copies.
//!
//! The intent is sent to several threads, each of which keeps the current one. A copy costs one pointer, a
//! change copies the path from the root to the entry, and the comparison of two copies skips the subtrees
//! that they share. So adding an endpoint costs nearly the same with ten endpoints as with ten thousand.
//!
//! It is a weight-balanced tree (Adams 1992, with the parameters of Hirai and Yamamoto 2011): for any keys,
//! inserted in any order, the depth is at most about two and a half times the logarithm of the size.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

/// A sorted map with structural sharing between copies.
pub struct Persistent<K, V> {
    root: Link<K, V>,
    len: usize,
}

type Link<K, V> = Option<Arc<Node<K, V>>>;

struct Node<K, V> {
    /// Shared as well: values are large, and the path to a changed entry is copied without them.
    entry: Arc<(K, V)>,
    /// Number of entries in this subtree.
    size: usize,
    left: Link<K, V>,
    right: Link<K, V>,
}

/// Difference at a key: the key, the value before, and the value now.
pub type Difference<'a, K, V> = (&'a K, Option<&'a V>, Option<&'a V>);

impl<K, V> Persistent<K, V> {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all entries, sorted by key.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { stack: Vec::new() };
        iter.down(&self.root);
        iter
    }

    /// Iterates over all keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Iterates over all values, sorted by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> Persistent<K, V> {
    /// Returns the value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut link = &self.root;
        while let Some(node) = link {
            link = match key.cmp(node.key().borrow()) {
                Ordering::Less => &node.left,
                Ordering::Greater => &node.right,
                Ordering::Equal => return Some(&node.entry.1),
            };
        }
        None
    }

    /// Returns true if the map contains the key.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Iterates over the entries from this key on.
    #[must_use]
    pub fn range_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let (mut iter, mut link) = (Iter { stack: Vec::new() }, &self.root);
        while let Some(node) = link {
            link = if node.key().borrow() < key {
                &node.right
            } else {
                iter.stack.push(node);
                &node.left
            };
        }
        iter
    }
}

impl<K: Ord, V> Persistent<K, V> {
    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        let known = put(&mut self.root, Arc::new((key, value)));
        self.len += usize::from(!known);
    }
}

impl<K: Ord + Clone, V: Clone> Persistent<K, V> {
    /// Removes a key and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Avoids copying the path to a missing key.
        if !self.contains_key(key) {
            return None;
        }
        self.len -= 1;
        let entry = take(&mut self.root, key)?;
        Some(Arc::unwrap_or_clone(entry).1)
    }

    /// Returns a mutable reference to the value of a key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        let mut link = &mut self.root;
        while let Some(node) = link {
            let order = key.cmp(node.key().borrow());
            let node = Arc::make_mut(node);
            link = match order {
                Ordering::Less => &mut node.left,
                Ordering::Greater => &mut node.right,
                Ordering::Equal => return Some(&mut Arc::make_mut(&mut node.entry).1),
            };
        }
        None
    }
}

impl<K: Ord, V: PartialEq> Persistent<K, V> {
    /// Returns the differences from `before`, sorted by key.
    #[must_use]
    pub fn differences<'a>(&'a self, before: &'a Self) -> Vec<Difference<'a, K, V>> {
        let mut out = Vec::new();
        let (mut old, mut new) = (DiffStack::of(&before.root), DiffStack::of(&self.root));
        loop {
            match (old.0.last(), new.0.last()) {
                (Some(DiffItem::Tree(a)), Some(DiffItem::Tree(b))) => {
                    if Arc::ptr_eq(a, b) {
                        old.0.pop();
                        new.0.pop();
                        continue;
                    }
                    // Shared subtrees have equal sizes in both trees, so the larger subtree is opened until
                    // the shared one is on top.
                    let order = a.size.cmp(&b.size);
                    if order.is_ge() {
                        old.open();
                    }
                    if order.is_le() {
                        new.open();
                    }
                }
                (Some(DiffItem::Tree(_)), _) => old.open(),
                (_, Some(DiffItem::Tree(_))) => new.open(),
                (Some(DiffItem::One(a)), Some(DiffItem::One(b))) => {
                    let order = a.0.cmp(&b.0);
                    match order {
                        Ordering::Less => out.push((&a.0, Some(&a.1), None)),
                        Ordering::Greater => out.push((&b.0, None, Some(&b.1))),
                        Ordering::Equal if Arc::ptr_eq(a, b) || a.1 == b.1 => {}
                        Ordering::Equal => out.push((&b.0, Some(&a.1), Some(&b.1))),
                    }
                    if order.is_le() {
                        old.0.pop();
                    }
                    if order.is_ge() {
                        new.0.pop();
                    }
                }
                (Some(DiffItem::One(a)), None) => {
                    out.push((&a.0, Some(&a.1), None));
                    old.0.pop();
                }
                (None, Some(DiffItem::One(b))) => {
                    out.push((&b.0, None, Some(&b.1)));
                    new.0.pop();
                }
                (None, None) => return out,
            }
        }
    }
}

impl<K, V> Node<K, V> {
    fn key(&self) -> &K {
        &self.entry.0
    }

    fn count(&mut self) {
        self.size = weight(&self.left) + weight(&self.right) - 1;
    }
}

/// Returns the number of entries plus one.
fn weight<K, V>(link: &Link<K, V>) -> usize {
    link.as_ref().map_or(1, |node| node.size + 1)
}

/// Maximum weight ratio between the two subtrees of a node.
const HEAVIER: usize = 3;
/// Minimum weight ratio of inner to outer grandchild for which a double rotation is used.
const INNER: usize = 2;

/// Inserts or replaces an entry. Returns true if the key existed.
fn put<K: Ord, V>(link: &mut Link<K, V>, entry: Arc<(K, V)>) -> bool {
    let Some(node) = link else {
        *link = Some(Arc::new(Node { entry, size: 1, left: None, right: None }));
        return false;
    };
    let order = entry.0.cmp(node.key());
    let node = Arc::make_mut(node);
    let known = match order {
        Ordering::Less => put(&mut node.left, entry),
        Ordering::Greater => put(&mut node.right, entry),
        Ordering::Equal => {
            node.entry = entry;
            true
        }
    };
    if !known {
        balance(link);
    }
    known
}

fn take<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized>(link: &mut Link<K, V>, key: &Q) -> Option<Arc<(K, V)>> {
    let top = link.as_mut()?;
    let order = key.cmp(top.key().borrow());
    let node = Arc::make_mut(top);
    let taken = match order {
        Ordering::Less => take(&mut node.left, key),
        Ordering::Greater => take(&mut node.right, key),
        Ordering::Equal => match (node.left.take(), node.right.take()) {
            (None, rest) | (rest, None) => {
                let entry = Arc::clone(&node.entry);
                // The node releases the entry before it is returned.
                *link = rest;
                return Some(entry);
            }
            (left, mut right) => {
                let next = take_first(&mut right);
                (node.left, node.right) = (left, right);
                next.map(|next| std::mem::replace(&mut node.entry, next))
            }
        },
    };
    balance(link);
    taken
}

fn take_first<K, V>(link: &mut Link<K, V>) -> Option<Arc<(K, V)>> {
    let node = Arc::make_mut(link.as_mut()?);
    if node.left.is_none() {
        let entry = Arc::clone(&node.entry);
        let rest = node.right.take();
        *link = rest;
        return Some(entry);
    }
    let taken = take_first(&mut node.left);
    balance(link);
    taken
}

/// Rebalances a node after one of its subtrees gained or lost an entry.
fn balance<K, V>(link: &mut Link<K, V>) {
    let Some(node) = link.as_mut().map(Arc::make_mut) else { return };
    let (left, right) = (weight(&node.left), weight(&node.right));
    if right > HEAVIER * left {
        if node.right.as_ref().is_some_and(|side| weight(&side.left) >= INNER * weight(&side.right)) {
            rotate_right(&mut node.right);
        }
        rotate_left(link);
    } else if left > HEAVIER * right {
        if node.left.as_ref().is_some_and(|side| weight(&side.right) >= INNER * weight(&side.left)) {
            rotate_left(&mut node.left);
        }
        rotate_right(link);
    } else {
        node.count();
    }
}

/// Rotates left: the right child replaces the node.
fn rotate_left<K, V>(link: &mut Link<K, V>) {
    let Some(mut top) = link.take() else { return };
    let node = Arc::make_mut(&mut top);
    let Some(mut risen) = node.right.take() else {
        *link = Some(top);
        return;
    };
    let above = Arc::make_mut(&mut risen);
    node.right = above.left.take();
    node.count();
    above.left = Some(top);
    above.count();
    *link = Some(risen);
}

/// Rotates right: the left child replaces the node.
fn rotate_right<K, V>(link: &mut Link<K, V>) {
    let Some(mut top) = link.take() else { return };
    let node = Arc::make_mut(&mut top);
    let Some(mut risen) = node.left.take() else {
        *link = Some(top);
        return;
    };
    let above = Arc::make_mut(&mut risen);
    node.left = above.right.take();
    node.count();
    above.right = Some(top);
    above.count();
    *link = Some(risen);
}

/// Subtrees and entries that a comparison has not visited yet, the next one last.
struct DiffStack<'a, K, V>(Vec<DiffItem<'a, K, V>>);

enum DiffItem<'a, K, V> {
    Tree(&'a Arc<Node<K, V>>),
    One(&'a Arc<(K, V)>),
}

impl<'a, K, V> DiffStack<'a, K, V> {
    fn of(root: &'a Link<K, V>) -> Self {
        Self(root.iter().map(DiffItem::Tree).collect())
    }

    /// Replaces the next subtree by its left subtree, its entry and its right subtree.
    fn open(&mut self) {
        if let Some(DiffItem::Tree(node)) = self.0.pop() {
            self.0.extend(node.right.iter().map(DiffItem::Tree));
            self.0.push(DiffItem::One(&node.entry));
            self.0.extend(node.left.iter().map(DiffItem::Tree));
        }
    }
}

/// Iterator over the entries of a [`Persistent`], sorted by key.
pub struct Iter<'a, K, V> {
    stack: Vec<&'a Node<K, V>>,
}

impl<'a, K, V> Iter<'a, K, V> {
    fn down(&mut self, mut link: &'a Link<K, V>) {
        while let Some(node) = link {
            self.stack.push(node);
            link = &node.left;
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.stack.pop()?;
        self.down(&node.right);
        Some((&node.entry.0, &node.entry.1))
    }
}

impl<'a, K, V> IntoIterator for &'a Persistent<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Persistent<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V> Extend<(K, V)> for Persistent<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, value)| self.insert(key, value));
    }
}

impl<K: Ord, V: PartialEq> PartialEq for Persistent<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.differences(other).is_empty()
    }
}

impl<K: Ord, V: Eq> Eq for Persistent<K, V> {}

impl<K: std::fmt::Debug, V: std::fmt::Debug> std::fmt::Debug for Persistent<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K, V> Default for Persistent<K, V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<K, V> Clone for Persistent<K, V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), len: self.len }
    }
}

impl<K, V> Clone for Node<K, V> {
    fn clone(&self) -> Self {
        Self {
            entry: Arc::clone(&self.entry),
            size: self.size,
            left: self.left.clone(),
            right: self.right.clone(),
        }
    }
}

#[cfg(test)]
impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> std::ops::Index<&Q> for Persistent<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("a key that is there")
    }
}

#[cfg(test)]
#[path = "tests/persistent_map.rs"]
mod tests;
