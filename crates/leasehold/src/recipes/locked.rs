//! The attribute [`locked`](leasehold_macros::locked), and the error of a function that did not get
//! its lock.

use std::error::Error as StdError;
use std::fmt;

use crate::text::Shown;

pub use leasehold_macros::locked;

/// The error of a function with the attribute [`locked`](macro@crate::locked) whose lock was still
/// held after its `wait`.
///
/// The error type of such a function must implement `From<Busy>`, unless the attribute has a
/// `busy`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Busy, Client, locked};
///
/// #[derive(Debug)]
/// enum Failure {
///     Lock(leasehold::Error),
///     Busy,
/// }
///
/// impl From<leasehold::Error> for Failure {
///     fn from(error: leasehold::Error) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// impl From<Busy> for Failure {
///     fn from(_: Busy) -> Self {
///         Self::Busy
///     }
/// }
///
/// #[locked("report:{day}", client = client, wait = "10ms")]
/// async fn report(client: &Client, day: u32) -> Result<(), Failure> {
///     Ok(())
/// }
///
/// let client = Client::embedded();
/// let guard = client.lock("report:3").acquire().await?;
/// assert!(matches!(report(&client, 3).await, Err(Failure::Busy)));
/// # guard.release().await
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    name: Box<str>,
}

impl Busy {
    /// Returns the error for the lock called `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into().into(),
        }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the lock `{}` is held; try again later",
            Shown(&self.name)
        )
    }
}

impl StdError for Busy {}
