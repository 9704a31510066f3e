//! The allocator of the C library, told to give back what a withdrawn table leaves (`benches/README.md`).
#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "mallopt has no safe wrapper"))]

/// Blocks from this size on are mapped by themselves, and unmapped when they are freed: the chunks of the BGP tables
/// (98 KB and more) are, what lies between them is not.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 64 * 1024;

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
