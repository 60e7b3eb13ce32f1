//! Counts the bytes on the heap that any code has allocated and not yet freed. (The memory that the
//! operating system has given to a process says more about the allocator than about a lock.) Also
//! counts blocks, which are allocations. Each allocation costs time, and their number is the same
//! on a busy machine.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to write; this one only counts"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Whether allocations are counted. Counting is off by default, because processors that update one
/// counter wait for each other, and this would affect every figure.
static ON: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);
static BLOCKS: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, with counters that are turned on while a measurement needs them.
#[derive(Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "the program makes it, as a static"
)]
pub struct Counted;

/// The result of a count.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Heap {
    /// Number of bytes by which the memory in use has grown since the call to [`count`].
    pub bytes: i64,
    /// Number of blocks that were allocated since that call.
    pub blocks: i64,
}

/// Starts to count.
pub fn count() {
    BYTES.store(0, Ordering::SeqCst);
    BLOCKS.store(0, Ordering::SeqCst);
    ON.store(true, Ordering::SeqCst);
}

/// Stops counting, and returns the counts since the call to [`count`].
pub fn counted() -> Heap {
    ON.store(false, Ordering::SeqCst);
    Heap {
        bytes: BYTES.load(Ordering::SeqCst),
        blocks: BLOCKS.load(Ordering::SeqCst),
    }
}

fn add(bytes: usize, sign: i64) {
    if ON.load(Ordering::Relaxed) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        BYTES.fetch_add(sign * bytes, Ordering::Relaxed);
        BLOCKS.fetch_add(i64::from(sign > 0), Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller keeps the rules of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(layout.size(), -1);
        add(size, 1);
        // SAFETY: the caller keeps the rules of `realloc`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}
