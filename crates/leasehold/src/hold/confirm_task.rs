//! The task that asks the server for the confirmation of releases that wait for one.

use std::sync::Arc;
use std::time::Duration;

use super::Grant;
use super::confirm::Confirmation;
use super::watchdog::{Renewed, try_renew, why_lost};
use crate::backend::Backend;
use crate::backend::failure::Cause;
use crate::backend::retry::RetryDelays;
use crate::clock::Timers;

/// Renews a grant that is handed over from holder to holder, as long as a holder waits for a
/// confirmation. One request at a time answers all holders that waited when it was sent. The task
/// ends when a release is sent: its reply answers the remaining holders. A hold that was left to
/// expire has no release, and this task does not prolong it.
pub(crate) async fn ask_for_confirmation(backend: Backend, timers: Timers, grant: Arc<Grant>) {
    let pauses = || RetryDelays::from(Duration::from_millis(10)).up_to(Duration::from_secs(1));
    let mut pause = pauses();
    while let Some(mark) = grant.pending_confirmations.next_to_confirm() {
        let lease = match grant.is_over() {
            // The hold is left to expire with its lease, which this request must not prolong.
            true => Duration::from_millis(1),
            false => grant.lease_to_request(timers.now()),
        };
        match try_renew(&backend, &timers, &grant, lease).await {
            Ok(Renewed::Yes) => {
                pause = pauses();
                grant.deliver(mark, &Confirmation::Held);
            }
            // The hold was released before this request was sent. The reply to the release has the
            // answer.
            Ok(Renewed::Lost) if grant.pending_confirmations.is_released() => {}
            Ok(Renewed::Lost) => {
                let reason = match grant.loss() {
                    Some(reason) => reason,
                    None => why_lost(&backend, &grant, &timers).await,
                };
                grant.deliver(mark, &Confirmation::of_loss(&reason));
                grant.ended_lost(&reason);
            }
            Err(failure) if failure.may_heal() => {
                // Earlier holders only need the server's own reply, without confirmations of
                // replicas.
                if matches!(failure.cause, Cause::Unconfirmed(_)) {
                    grant.deliver(mark, &Confirmation::Held);
                }
                timers.sleep(pause.next_delay()).await;
            }
            Err(failure) => grant.deliver(mark, &Confirmation::Failed(failure)),
        }
    }
}
