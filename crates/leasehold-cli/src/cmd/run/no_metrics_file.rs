//! The replacement for [`MetricsFile`] in a build without the feature `metrics`.

use std::path::Path;

use crate::exit_code::Exit;
use crate::failure::Failure;

/// A file of metrics, which does not exist in this build.
pub(super) enum MetricsFile {}

impl MetricsFile {
    pub(super) fn start(_: &Path, _: &str) -> Result<Self, Failure> {
        Err(Failure::not_built("--metrics-file", "metrics"))
    }

    pub(super) fn refresh(&self) {
        match *self {}
    }

    pub(super) fn end(self) -> Result<(), Failure> {
        match self {}
    }
}

pub(super) fn command_starts() {}

pub(super) fn command_ended() {}

pub(super) fn run_ended(_: Exit) {}
