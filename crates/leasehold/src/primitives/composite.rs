//! Locks that are made of several others. A holder has all of them ([`MultiLock`]) or a majority of
//! them ([`RedLock`]).

mod majority;
mod member;
mod member_hold;
mod multi;
mod quorum;
mod rejoined;

use std::sync::Arc;

use super::any::{AcquireFuture, Any, AnyKind, AnyLock, Composite, Erased};
use super::lock::Lock;
use super::lock::kind::Acquire;
use crate::wait::Deadline;
pub use majority::{Majority, RedLock};
pub use multi::{Multi, MultiLock};
pub(super) use quorum::Quorum;

/// Makes composite locks convertible to [`AnyLock`]. Each kind is listed: a blanket implementation
/// would conflict with the one for `OneKey`, because Rust can't know that no kind is both.
macro_rules! impl_composite {
    ($($kind:ty)+) => {
        $(
            impl Erased for $kind {
                fn acquire(&self, lock: &AnyLock, deadline: Deadline) -> AcquireFuture {
                    let lock = lock.clone().of_kind(self.clone());
                    Box::pin(async move { Self::acquire_by(&lock, deadline).await })
                }
            }

            impl Composite for $kind {
                fn members(&self) -> &[AnyLock] {
                    &self.members
                }

                fn quorum(&self) -> usize {
                    // This calls the kind's own method, which takes precedence over the trait's
                    // method, so there is no recursion.
                    self.quorum()
                }

                fn distrusts_restarted(&self) -> bool {
                    // As in `quorum`: this calls the kind's own method.
                    self.distrusts_restarted()
                }
            }

            impl From<Lock<$kind>> for AnyLock {
                fn from(lock: Lock<$kind>) -> Self {
                    let kind = Any(AnyKind::Composite(Arc::new(lock.kind().clone())));
                    lock.of_kind(kind)
                }
            }

            impl From<&Lock<$kind>> for AnyLock {
                fn from(lock: &Lock<$kind>) -> Self {
                    lock.clone().into()
                }
            }
        )+
    };
}

impl_composite! { Multi Majority }
