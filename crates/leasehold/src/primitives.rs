//! What users hold: one file each, with its promise, its API, its guard and its
//! steps.

pub(crate) mod lock;

use crate::backend::step::Step;

/// The steps of all primitives: what the call's script is put together from.
#[cfg_attr(not(feature = "redis"), expect(dead_code))]
pub(crate) fn steps() -> Vec<&'static Step> {
    lock::steps::ALL.to_vec()
}
