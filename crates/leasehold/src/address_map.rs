//! Translates the addresses that servers announce, with the user's callback.

use crate::observe::log;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type MapFn = dyn Fn(&str, u16) -> Option<(String, u16)> + Send + Sync;

/// The callback that translates each announced address, if the user has set one.
#[derive(Clone, Default)]
pub(crate) struct AddressMap(Option<Arc<Mapper>>);

struct Mapper {
    map: Box<MapFn>,
    has_panicked: AtomicBool,
}

impl AddressMap {
    pub(crate) fn new(
        map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(Mapper {
            map: Box::new(map),
            has_panicked: AtomicBool::new(false),
        })))
    }

    /// Returns the address at which the client reaches a server that is announced at this address.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) fn translate(&self, host: &str, port: u16) -> (String, u16) {
        let announced = || (host.to_owned(), port);
        let Some(Mapper { map, has_panicked }) = self.0.as_deref() else {
            return announced();
        };
        // A callback that panics must not end the task that maintains the connection.
        match catch_unwind(AssertUnwindSafe(|| map(host, port))) {
            Ok(mapped) => mapped.unwrap_or_else(announced),
            Err(_) => {
                // Logged only once, because the callback runs each time that servers announce
                // addresses.
                if !has_panicked.swap(true, Ordering::Relaxed) {
                    log(|| {
                        tracing::warn!(
                            host,
                            port,
                            "`map_address` panicked; the client connects to the announced addresses"
                        )
                    });
                }
                announced()
            }
        }
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressMap")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_that_is_not_mapped_is_the_announced_one() {
        let moved = |host: &str, port| (host == "inside").then(|| ("outside".into(), port + 1));
        let map = AddressMap::new(moved);
        assert_eq!(map.translate("inside", 1), ("outside".into(), 2));
        assert_eq!(map.translate("other", 1), ("other".into(), 1));
        assert_eq!(AddressMap::default().translate("a", 1), ("a".into(), 1));
    }

    #[test]
    fn callback_that_panics_leaves_the_announced_address() {
        let map = AddressMap::new(|_, _| panic!("on purpose"));
        for _ in 0..2 {
            assert_eq!(map.translate("a", 1), ("a".into(), 1));
        }
    }
}
