//! The recipes: uses of locks that most users would otherwise write themselves. Each has a file
//! here, and a folder if it needs several files.
//!
//! A recipe uses the public API, and has its own steps for changes that must happen in one request.
//! No code below this layer knows the recipes.

pub(crate) mod election;
pub(crate) mod fence;
#[cfg(feature = "macros")]
pub(crate) mod locked;
pub(crate) mod progress;
pub(crate) mod slot;
pub(crate) mod ticket;
pub(crate) mod watch;

use crate::backend::step::Step;
use crate::client::ClientBuilder;
use crate::operate;

/// Returns all steps from which the script of a call is assembled. The steps of recipes are last.
pub(crate) fn steps() -> Vec<&'static Step> {
    [
        &operate::steps()[..],
        &slot::steps::ALL,
        &ticket::steps::ALL,
        &election::steps::ALL,
    ]
    .concat()
}

impl ClientBuilder {
    /// Returns the steps that a client can send.
    // This function is here and not in `client.rs`, which may not import the recipes.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) fn steps() -> Vec<&'static Step> {
        steps()
    }
}
