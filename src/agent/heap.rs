//! The allocator of the C library, told to give back what a withdrawn table leaves, and to hold what is largest in huge
//! pages (`benches/README.md`).
#![expect(
    unsafe_code,
    reason = "mallopt, malloc_trim and madvise have no safe wrapper, GlobalAlloc is an unsafe trait"
)]

use std::alloc::{GlobalAlloc, Layout, System};

/// Blocks from this size on are mapped by themselves, and unmapped when they are freed: the chunks of the BGP tables
/// (256 KB and more) are, what lies between them is not.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 64 * 1024;

/// Blocks from this size on may lie in huge pages: the indexes of tables from half a million prefixes on, where nearly
/// each look-up is another page. They are filled when they are made, so it costs no memory.
const HUGE_FROM: usize = 4 << 20;

/// Sets it. Without it glibc raises the size with each block that is freed, up to 32 MB, and returns a heap from its end
/// only. Before threads start.
pub(super) fn prepare() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two numbers and changes how later allocations are made; it touches no memory of ours.
        let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM) };
        if set == 0 {
            tracing::debug!(target: "tortie", "the allocator keeps its own threshold for mapped blocks");
        }
    }
}

/// Gives back what lies free between used blocks: after a list of the whole store, of which nothing stays as it came, that
/// is a good part of the heap. Takes some milliseconds for each hundred megabytes.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: returns unused pages of the allocator's own to the system; it touches no memory of ours.
        let released = unsafe { libc::malloc_trim(0) };
        tracing::debug!(target: "tortie", released, "memory that a list of the store left is given back");
    }
}

/// The allocator of the system; it asks for huge pages where a block is large. The binary takes it; whoever embeds the
/// library decides for himself.
#[derive(Debug)]
pub struct Heap;

/// Asks for huge pages for the whole pages of a block. A hint: nothing depends on the answer.
#[cold]
fn in_huge_pages(block: *mut u8, size: usize) {
    const PAGE: usize = 4096;
    let skipped = block.align_offset(PAGE);
    if !block.is_null() && skipped < size {
        let (start, len) = (block.wrapping_add(skipped), (size - skipped) & !(PAGE - 1));
        // SAFETY: the range lies within a block that was just allocated; the advice changes no contents.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
    }
}

// SAFETY: every call goes to the system's allocator as it came, and its answer goes back.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        let block = unsafe { System.alloc(layout) };
        if layout.size() >= HUGE_FROM {
            in_huge_pages(block, layout.size());
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}
