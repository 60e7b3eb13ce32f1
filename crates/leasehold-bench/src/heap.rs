//! Bytes on the heap: what is allocated and not yet freed, whoever asked for it. The memory
//! that a process has from its system says more about the allocator than about a lock.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to write; this one only counts"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Counts only while this is on: two processors that count in one place wait for each other,
/// which would be part of every figure.
static ON: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counted while somebody wants to know.
#[derive(Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "the program makes it, as a static"
)]
pub struct Counted;

/// Counts from here on.
pub(crate) fn count() {
    BYTES.store(0, Ordering::SeqCst);
    ON.store(true, Ordering::SeqCst);
}

/// How many bytes more are in use than at [`count`].
pub(crate) fn counted() -> i64 {
    ON.store(false, Ordering::SeqCst);
    BYTES.load(Ordering::SeqCst)
}

fn add(bytes: usize, sign: i64) {
    if ON.load(Ordering::Relaxed) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        BYTES.fetch_add(sign * bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
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
