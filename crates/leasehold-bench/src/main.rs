//! Measures how fast the locks are and what they cost, beside bare scripts, rslock and live
//! Redissons.

use leasehold_bench::heap::Counted;

#[global_allocator]
static HEAP: Counted = Counted;

fn main() -> std::process::ExitCode {
    leasehold_bench::main()
}
