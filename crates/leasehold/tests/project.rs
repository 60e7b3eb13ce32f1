//! Checks of the project's statements about itself: its layers, its two surfaces, its pages, its
//! examples.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "project"]
mod project {
    mod api;
    mod examples;
    mod fencing;
    mod guarantees;
    mod layers;
    mod metrics;
    mod packages;
    mod pages;
    mod pairs;
    mod prose;
    mod surfaces;
    mod weight;
    mod wire_format;
    mod workflow;

    /// Returns the folder of the repository.
    fn root() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }
}
