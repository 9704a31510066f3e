//! Tuning of the C library's allocator: returns the memory of a withdrawn table to the system, places the
//! largest blocks in huge pages, and releases memory that only the start used (`benches/README.md`).
#![expect(
    unsafe_code,
    reason = "mallopt, malloc_trim and madvise have no safe wrapper, GlobalAlloc is an unsafe trait"
)]

use std::alloc::{GlobalAlloc, Layout, System};

/// Size in octets from which glibc maps a block separately and unmaps it when it is freed. It covers the
/// chunks of the BGP tables (256 KB and more), but not the smaller blocks between them.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 64 * 1024;

/// Size in octets from which a block may use huge pages: the indexes of tables with half a million prefixes
/// and more, where nearly each look-up touches another page. They are filled when they are created, so huge
/// pages cost no memory.
const HUGE_PAGE_THRESHOLD: usize = 4 << 20;

/// Sets the mapping threshold; must run before threads start. By default glibc raises the threshold with each
/// freed block, up to 32 MB, and returns only the end of a heap.
pub(in crate::agent) fn prepare() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two numbers and only changes later allocations.
        let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD) };
        if set == 0 {
            tracing::debug!(target: "tortie", "the allocator keeps its own threshold for mapped blocks");
        }
    }
}

/// Returns free memory between used blocks to the system. After a list of the whole store, whose values are
/// all converted, that is a considerable part of the heap. Takes some milliseconds per hundred megabytes.
pub(in crate::agent) fn release_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: only returns unused pages of the allocator to the system.
        let released = unsafe { libc::malloc_trim(0) };
        tracing::debug!(target: "tortie", released, "memory used by a list of the store is released");
    }
}

/// Releases the resident pages of the program's code. The start runs most of it once: command line, store
/// schema, first reads. Code that runs again is reloaded from the page cache; 4 to 5 MB of 17 are not.
pub(in crate::agent) fn release_startup_code() {
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return };
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in code_ranges(&maps, &program.to_string_lossy()) {
        // SAFETY: the mapping is a file's, readable, executable and never written, so dropped pages are read
        // again with the same content. If the kernel refuses, they stay.
        let refused = unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DONTNEED) } != 0;
        tracing::debug!(target: "tortie", octets = end - start, refused, "memory of start-up code is \
                                                                          released");
    }
}

/// Returns the address ranges of a program's code in `/proc/PID/maps`, which are not writable.
fn code_ranges<'a>(maps: &'a str, program: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    maps.lines().filter_map(move |line| {
        let (range, rest) = line.split_once(' ')?;
        let ours = rest.starts_with("r-xp ") && rest.split_whitespace().nth(4) == Some(program);
        let (start, end) = range.split_once('-').filter(|_| ours)?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some((address(start)?, address(end)?)).filter(|(start, end)| start < end)
    })
}

/// The system's allocator, with huge pages for large blocks. Only the binary installs it; users of the
/// library choose their own allocator.
#[derive(Debug)]
pub struct SystemAllocator;

/// Requests huge pages for the complete pages of a block. A hint, so errors are ignored.
#[cold]
fn advise_huge_pages(block: *mut u8, size: usize) {
    const PAGE: usize = 4096;
    let skipped = block.align_offset(PAGE);
    if !block.is_null() && skipped < size {
        let (start, len) = (block.wrapping_add(skipped), (size - skipped) & !(PAGE - 1));
        // SAFETY: the range is inside a block that was just allocated, and the advice does not change its
        // contents.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
    }
}

// SAFETY: every call and its result are passed through to the system's allocator unchanged.
unsafe impl GlobalAlloc for SystemAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees the same contract.
        let block = unsafe { System.alloc(layout) };
        if layout.size() >= HUGE_PAGE_THRESHOLD {
            advise_huge_pages(block, layout.size());
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: see `alloc`.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: see `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: see `alloc`.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0394000 r--p 00000000 fe:00 1234   /usr/bin/tortie
55d0c0394000-55d0c173b000 r-xp 00393000 fe:00 1234   /usr/bin/tortie
55d0c173c000-55d0c179e000 r--p 0173a000 fe:00 1234   /usr/bin/tortie
55d0c179e000-55d0c17a3000 rw-p 0179b000 fe:00 1234   /usr/bin/tortie
55d0d0000000-55d0d0021000 rw-p 00000000 00:00 0      [heap]
7f0000000000-7f0000100000 r-xp 00026000 fe:00 99     /usr/lib/x86_64-linux-gnu/libc.so.6
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0      [vdso]
";

    #[test]
    fn code_is_what_can_be_run_and_not_written_of_this_program_alone() {
        let found: Vec<_> = code_ranges(MAPS, "/usr/bin/tortie").collect();
        assert_eq!(found, [(0x55d0_c039_4000, 0x55d0_c173_b000)]);
        assert_eq!(code_ranges(MAPS, "/usr/bin/tort").count(), 0);
        assert_eq!(code_ranges("garbage\n- r-xp 0 0 0 x\n", "x").count(), 0);
    }

    /// The process still runs after its code pages were dropped.
    #[test]
    fn a_process_goes_on_after_it() {
        release_startup_code();
        assert_eq!("31".parse::<u32>().map(|n| n + 1), Ok(32));
    }
}
