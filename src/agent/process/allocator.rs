//! Tuning of the C library's allocator: memory of a withdrawn table is returned to the system, the largest blocks lie in huge
//! pages; and release of memory that only the start used (`benches/README.md`).
#![expect(
    unsafe_code,
    reason = "mallopt, malloc_trim and madvise have no safe wrapper, GlobalAlloc is an unsafe trait"
)]

use std::alloc::{GlobalAlloc, Layout, System};

/// Blocks from this size on are mapped by themselves, and unmapped when they are freed: the chunks of the BGP tables
/// (256 KB and more) are, what lies between them is not.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: libc::c_int = 64 * 1024;

/// Blocks from this size on may lie in huge pages: the indexes of tables from half a million prefixes on, where nearly
/// each look-up is another page. They are filled when they are made, so it costs no memory.
const HUGE_PAGE_THRESHOLD: usize = 4 << 20;

/// Sets it. Without it glibc raises the size with each block that is freed, up to 32 MB, and returns a heap from its end
/// only. Before threads start.
pub(in crate::agent) fn prepare() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes two numbers and changes how later allocations are made; it touches no memory of ours.
        let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD) };
        if set == 0 {
            tracing::debug!(target: "tortie", "the allocator keeps its own threshold for mapped blocks");
        }
    }
}

/// Gives back what lies free between used blocks: after a list of the whole store, of which nothing stays as it came, that
/// is a good part of the heap. Takes some milliseconds for each hundred megabytes.
pub(in crate::agent) fn release_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: returns unused pages of the allocator's own to the system; it touches no memory of ours.
        let released = unsafe { libc::malloc_trim(0) };
        tracing::debug!(target: "tortie", released, "memory that a list of the store left is given back");
    }
}

/// Gives back the pages of our own code. The start runs through most of it (the command line, the store's schema, the first
/// look at everything); what is run again comes back from the page cache, and 4 to 5 MB of 17 do not.
pub(in crate::agent) fn release_startup_code() {
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return };
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in code_ranges(&maps, &program.to_string_lossy()) {
        // SAFETY: a mapping of a file that can be read and run and never was written to: what is dropped is read again as
        // it was. Where the kernel refuses, it stays.
        let refused = unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DONTNEED) } != 0;
        tracing::debug!(target: "tortie", octets = end - start, refused, "code of the start is given back");
    }
}

/// The address ranges of a program's code in `/proc/PID/maps`: what nobody can have written to.
fn code_ranges<'a>(maps: &'a str, program: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    maps.lines().filter_map(move |line| {
        let (range, rest) = line.split_once(' ')?;
        let ours = rest.starts_with("r-xp ") && rest.split_whitespace().nth(4) == Some(program);
        let (start, end) = range.split_once('-').filter(|_| ours)?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some((address(start)?, address(end)?)).filter(|(start, end)| start < end)
    })
}

/// The allocator of the system; it asks for huge pages where a block is large. The binary takes it; whoever embeds the
/// library decides for himself.
#[derive(Debug)]
pub struct SystemAllocator;

/// Asks for huge pages for the whole pages of a block. A hint: nothing depends on the answer.
#[cold]
fn advise_huge_pages(block: *mut u8, size: usize) {
    const PAGE: usize = 4096;
    let skipped = block.align_offset(PAGE);
    if !block.is_null() && skipped < size {
        let (start, len) = (block.wrapping_add(skipped), (size - skipped) & !(PAGE - 1));
        // SAFETY: the range lies within a block that was just allocated; the advice changes no contents.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
    }
}

// SAFETY: every call goes to the system's allocator as it came, and its answer goes back.
unsafe impl GlobalAlloc for SystemAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        let block = unsafe { System.alloc(layout) };
        if layout.size() >= HUGE_PAGE_THRESHOLD {
            advise_huge_pages(block, layout.size());
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

    /// Dropped pages of code run again.
    #[test]
    fn a_process_goes_on_after_it() {
        release_startup_code();
        assert_eq!("31".parse::<u32>().map(|n| n + 1), Ok(32));
    }
}
