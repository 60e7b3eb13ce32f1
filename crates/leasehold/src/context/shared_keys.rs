//! The names in braces that a client has used. `{x}` and `x` share their additional keys, because
//! Redisson derives the additional keys of `x` from `{x}`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::key::Key;
use crate::sync::Mutex;

/// The maximum number of names in the map. At this number, the client forgets all of them and
/// checks each again. Names with braces around them are rare.
const MAX_NAMES: usize = 1024;

/// The names in braces. In `braced`, the key is the name without braces, and the value is whether
/// this client was warned that it uses both names.
#[derive(Default)]
pub(crate) struct SharedKeys {
    any: AtomicBool,
    braced: Mutex<HashMap<Key, bool>>,
}

/// The action of a client that is about to use a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SharedKeysAction {
    /// Check on the server whether this other name is in use.
    Check(Key),
    /// Warn that this client has also used this other name.
    Warn(Key),
}

impl SharedKeys {
    pub(crate) fn used(&self, key: &Key) -> Option<SharedKeysAction> {
        if let Some(bare) = key.without_braces() {
            let mut braced = self.braced.lock();
            // Each name is checked only once: the check costs a request, and each acquire calls
            // this function.
            if braced.contains_key(&bare) {
                return None;
            }
            if braced.len() >= MAX_NAMES {
                braced.clear();
            }
            braced.insert(bare.clone(), false);
            // Set the flag while the map is locked: a thread that reads `true` waits for the lock,
            // and then finds the entry.
            self.any.store(true, Ordering::Release);
            return Some(SharedKeysAction::Check(bare));
        }
        // A client that does not use names in braces does not pay for the lock.
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let warned = std::mem::replace(self.braced.lock().get_mut(key)?, true);
        (!warned).then(|| SharedKeysAction::Warn(key.in_braces()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::parse(name).expect("a name")
    }

    #[test]
    fn a_name_in_braces_is_looked_at_once() {
        let shared_keys = SharedKeys::default();
        let check = Some(SharedKeysAction::Check(key("x")));
        assert_eq!(shared_keys.used(&key("{x}")), check);
        assert_eq!(shared_keys.used(&key("{x}")), None);
        // Redisson puts braces around a name only if it has no `{`. So none of these names shares
        // its additional keys with another name that is used here.
        for other in ["x}", "a{x}", "{x}a", "{", "{}", "{{x}}", "y"] {
            assert_eq!(shared_keys.used(&key(other)), None, "{other}");
        }
    }

    #[test]
    fn who_uses_both_is_told_once() {
        let shared_keys = SharedKeys::default();
        assert_eq!(shared_keys.used(&key("x")), None);
        shared_keys.used(&key("{x}"));
        let warn = Some(SharedKeysAction::Warn(key("{x}")));
        assert_eq!(shared_keys.used(&key("x")), warn);
        assert_eq!(shared_keys.used(&key("x")), None);
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let shared_keys = SharedKeys::default();
        // A program may lock `{user:17}` for each user that it ever meets.
        for n in 0..5000 {
            assert!(shared_keys.used(&key(&format!("{{{n}}}"))).is_some());
        }
        assert!(shared_keys.braced.lock().len() <= MAX_NAMES);
    }
}
