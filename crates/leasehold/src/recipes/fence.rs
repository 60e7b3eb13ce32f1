//! Checks that refuse writes by late holders, as statements and scripts for any database driver.

mod memory;
mod sql;

/// Checks for HTTP services, independent of the service's HTTP library.
pub mod http;
/// A fenced write to an object store, which can compare its own versions but not tokens.
pub mod object;
/// Scripts that check and change data in Redis or Valkey in one step.
pub mod redis;

use std::error::Error as StdError;
use std::fmt;

pub use memory::Fences;
pub use sql::{Dialect, Sql};

/// The first number that is not a token. Tokens are below 2^53, so that Lua, JSON and
/// floating-point numbers represent each of them exactly.
pub const LIMIT: u64 = 1 << 53;

/// The refusal of a write. A later holder has already written with a greater token.
///
/// Roll back the change, and stop the work. Another try would also fail, because fences only rise.
///
/// ```
/// let stale = leasehold::fence::Stale::new(7).with_fence(9);
/// assert_eq!(
///     stale.to_string(),
///     "the fencing token 7 is late: a later holder has written with token 9; stop the work"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    token: u64,
    fence: Option<u64>,
}

impl Stale {
    /// Returns the refusal of a write with this token.
    #[must_use]
    pub const fn new(token: u64) -> Self {
        Self { token, fence: None }
    }

    /// Adds the fence to the refusal: the greatest token that the resource has accepted.
    #[must_use = "the setting is only in the returned value"]
    pub const fn with_fence(mut self, fence: u64) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Returns the token of the refused holder.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Returns the greatest token that the resource has accepted. `None` if it did not report the
    /// fence: the row count of a statement does not show it.
    #[must_use]
    pub const fn fence(&self) -> Option<u64> {
        self.fence
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fencing token {} is late: ", self.token)?;
        match self.fence {
            Some(fence) => write!(f, "a later holder has written with token {fence}")?,
            None => f.write_str("a later holder has written")?,
        }
        f.write_str("; stop the work")
    }
}

impl StdError for Stale {}

/// Returns whether a write was accepted. The statement must change rows only if the token is not
/// late: use a statement from [`Sql::raise`], or your own with [`Sql::check`]. `rows` is the number
/// of rows that the database reports as affected.
///
/// # Errors
///
/// [`Stale`] if no row was affected. In that case, roll back the transaction.
///
/// # Examples
///
/// ```
/// use leasehold::fence;
///
/// assert!(fence::verdict(7, 1).is_ok());
/// assert_eq!(fence::verdict(7, 0).unwrap_err().token(), 7);
/// ```
pub const fn verdict(token: u64, rows: u64) -> Result<(), Stale> {
    match rows {
        0 => Err(Stale::new(token)),
        _ => Ok(()),
    }
}

/// Returns a token as the signed number that SQL drivers bind. Tokens are below [`LIMIT`], so the
/// value is the same.
#[must_use]
pub const fn bind(token: u64) -> i64 {
    token.cast_signed()
}
