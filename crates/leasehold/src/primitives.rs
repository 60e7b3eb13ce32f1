//! What users hold: one file for each primitive, with its promise, its API, its guard and its
//! steps.

mod absence;
pub(crate) mod any;
pub(crate) mod composite;
pub(crate) mod expirable;
pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod guards;
pub(crate) mod holds;
pub(crate) mod latch;
pub(crate) mod lock;
pub(crate) mod name;
mod namesake;
pub(crate) mod presence;
mod request;
pub(crate) mod rw;
pub(crate) mod semaphore;
mod setters;
mod twin;

use crate::backend::step::Step;

/// The steps of all primitives, from which the call's script is put together.
#[cfg_attr(not(any(feature = "redis", test)), expect(dead_code))]
pub(crate) fn steps() -> Vec<&'static Step> {
    [
        &lock::steps::ALL[..],
        &lock::group::steps::ALL,
        &fenced::steps::ALL,
        &fair::steps::ALL,
        &rw::steps::ALL,
        &semaphore::steps::ALL,
        &expirable::steps::ALL,
        &latch::steps::ALL,
        &name::steps::ALL,
        &presence::steps::ALL,
    ]
    .concat()
}
