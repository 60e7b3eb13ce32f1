//! The recipes, which users build on locks: each has a file here, and a folder if it needs several.
//!
//! A recipe uses the public API, and steps of its own for what must happen in one request. Nothing
//! below this layer knows the recipes.

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

/// Returns all steps, from which the script of a call is assembled. The steps of recipes are last.
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
    // Here and not in `client.rs`, which may not import the recipes.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) fn steps() -> Vec<&'static Step> {
        steps()
    }
}
