//! The messages of the compiler for wrong uses of `#[locked]`. After a change,
//! `TRYBUILD=overwrite cargo test -p leasehold-macros --test messages` writes them again.

#[test]
fn wrong_uses_have_messages_that_help() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
