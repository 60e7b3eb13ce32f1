//! Measures how fast the locks are and what they cost, in comparison with bare scripts, rslock and
//! live Redisson clients.

use leasehold_bench::heap::Counted;

#[global_allocator]
static HEAP: Counted = Counted;

fn main() -> std::process::ExitCode {
    leasehold_bench::main()
}
