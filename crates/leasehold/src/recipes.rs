//! The recipes, which users build on locks: each has a file here, and a folder if it needs several.
//!
//! A recipe uses the public API, and steps of its own for what must happen in one request. Nothing
//! below this layer knows the recipes.

pub(crate) mod fence;
#[cfg(feature = "macros")]
pub(crate) mod locked;
pub(crate) mod watch;
