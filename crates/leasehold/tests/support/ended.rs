//! Runtimes that end while their clients hold something.

use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

pub(crate) fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Ends the runtime. Returns whether the servers have read all requests within the client's time
/// limit (`CLOSE_TIMEOUT` in `backend/redis/driver.rs`). After that limit, requests may be lost.
fn ends_in_time(runtime: Runtime) -> bool {
    let start = Instant::now();
    drop(runtime);
    start.elapsed() < Duration::from_millis(250)
}

/// Runs `work` in a runtime of each flavor, `check` after the runtime has ended, and `again` after
/// each attempt. `check` gets what `work` returned.
pub(crate) fn at_runtime_end<T>(work: impl AsyncFn() -> T, check: impl Fn(T), again: impl Fn()) {
    for flavor in [current_thread, || Runtime::new().unwrap()] {
        // On a busy machine a server sometimes needs longer than the limit, but not always.
        let in_time = (0..20).any(|_| {
            let runtime = flavor();
            let done = runtime.block_on(work());
            let in_time = ends_in_time(runtime);
            if in_time {
                check(done);
            }
            again();
            in_time
        });
        assert!(in_time, "no runtime has ended within the limit");
    }
}
