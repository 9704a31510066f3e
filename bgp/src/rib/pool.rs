//! Slab of values with stable numbers, in chunks that are freed when empty.

/// Slots per chunk, as a power of two: large enough that an allocator maps a chunk separately and little of
/// its last page is unused.
const CHUNK_BITS: u32 = 14;
const CHUNK: usize = 1 << CHUNK_BITS;

/// Values by number. A `Vec` would copy its contents while growing and never shrink, with up to a million
/// routes added and removed.
#[derive(Debug, Clone)]
pub(crate) struct Pool<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with free slots, each once; the last one is filled first.
    partial: Vec<u32>,
    len: usize,
    /// Upper bound of all numbers ever assigned.
    limit: u32,
}

#[derive(Debug, Clone)]
struct Chunk<T> {
    items: Vec<T>,
    free: Vec<u16>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), partial: Vec::new(), len: 0, limit: 0 }
    }
}

fn split(id: u32) -> (usize, usize) {
    ((id >> CHUNK_BITS) as usize, id as usize & (CHUNK - 1))
}

impl<T: Default> Pool<T> {
    /// Returns the value of a slot; a default value if the slot is free.
    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        let (chunk, item) = split(id);
        self.chunks.get(chunk)?.items.get(item)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let (chunk, item) = split(id);
        self.chunks.get_mut(chunk)?.items.get_mut(item)
    }

    /// Stores a value in a free slot and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        let number = match self.partial.last() {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
                // The first chunk grows on demand, for small tables. Later chunks are allocated whole, to
                // avoid copies.
                let room = if self.chunks.is_empty() { 0 } else { CHUNK };
                self.chunks.push(Chunk { items: Vec::with_capacity(room), free: Vec::new() });
                self.partial.push(number);
                number
            }
        };
        let Some(chunk) = self.chunks.get_mut(number as usize) else { return u32::MAX };
        let item = match chunk.free.pop() {
            Some(item) => {
                if let Some(slot) = chunk.items.get_mut(usize::from(item)) {
                    *slot = value;
                }
                item
            }
            None => {
                chunk.items.push(value);
                u16::try_from(chunk.items.len() - 1).unwrap_or(u16::MAX)
            }
        };
        if chunk.free.is_empty() && chunk.items.len() == CHUNK {
            self.partial.pop();
        }
        let id = number << CHUNK_BITS | u32::from(item);
        self.limit = self.limit.max(id + 1);
        id
    }

    /// Removes the value of a slot, which must be in use.
    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let (number, item) = split(id);
        let chunk = self.chunks.get_mut(number)?;
        let value = std::mem::take(chunk.items.get_mut(item)?);
        self.len -= 1;
        if chunk.free.is_empty() && chunk.items.len() == CHUNK {
            self.partial.push(u32::try_from(number).unwrap_or(u32::MAX));
        }
        chunk.free.push(u16::try_from(item).unwrap_or(u16::MAX));
        if chunk.free.len() == chunk.items.len() {
            *chunk = Chunk { items: Vec::new(), free: Vec::new() };
        }
        Some(value)
    }

    /// Returns the number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the upper bound of slot numbers. It never decreases; scans of the pool rely on that.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Iterates over all slots with their numbers; free slots hold default values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.chunks).flat_map(|(number, chunk)| {
            (0u32..).zip(&chunk.items).map(move |(item, value)| (number << CHUNK_BITS | item, value))
        })
    }

    /// Returns the octets allocated.
    pub(crate) fn memory(&self) -> usize {
        let chunks = self.chunks.iter();
        chunks
            .map(|c| c.items.capacity() * size_of::<T>() + c.free.capacity() * 2 + size_of::<Chunk<T>>())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_chunks_given_back() {
        let mut pool = Pool::<u64>::default();
        let ids: Vec<u32> = (0..40_000).map(|n| pool.insert(n)).collect();
        assert_eq!(pool.len(), 40_000);
        let full = pool.memory();
        for id in &ids {
            assert!(pool.remove(*id).is_some());
        }
        assert_eq!(pool.len(), 0);
        assert!(pool.memory() < full / 20, "{} of {full}", pool.memory());
        let mut again: Vec<u32> = (0..40_000).map(|n| pool.insert(n + 7)).collect();
        assert_eq!(pool.limit(), 40_000);
        for (n, id) in (0..).zip(&again) {
            assert_eq!(pool.get(*id), Some(&(n + 7)));
        }
        again.sort_unstable();
        again.dedup();
        assert_eq!(again.len(), 40_000);
    }
}
