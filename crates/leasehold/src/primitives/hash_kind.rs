//! The rule that distinguishes the kinds of locks from each other, and from hashes that are not
//! locks. Every operation on a lock follows it: acquiring, waiting, inspecting, listing and forced
//! unlock.

use crate::backend::memory::Keyspace;
use crate::backend::step::{Refusal, SharedLua};
use crate::primitives::twin::LUA;

pub(crate) static HASH_KIND: SharedLua = SharedLua::new(&LUA, "hash_kind", &[]);

pub(crate) const PLAIN: &str = "a plain lock";
pub(crate) const READ_WRITE: &str = "a read-write lock";
pub(crate) const GROUP: &str = "a group lock";
pub(crate) const NOT_A_LOCK: &str = "a hash that is not a lock";

/// Returns an error if the hash at `name` is a lock of a kind other than `kind`, or not a lock. If
/// the key does not exist, it is a free lock of any kind. The twin of `wrong_kind` in `common.lua`.
pub(crate) fn check(keyspace: &mut Keyspace, name: &[u8], kind: &str) -> Result<(), Refusal> {
    match kind_of_hash(&keyspace.hgetall(name)?) {
        Some(found) if found != kind => Err(Refusal(format!("WRONGKIND {found}"))),
        _ => Ok(()),
    }
}

/// Returns the kind of lock that has these fields; `None` if there are no fields. In a large hash,
/// the script reads only some fields; this twin reads all of them.
pub(crate) fn kind_of_hash(fields: &[(Vec<u8>, Vec<u8>)]) -> Option<&'static str> {
    let mode = fields.iter().find(|(field, _)| field == b"mode");
    let has_sides = mode.is_some_and(|(_, mode)| mode == b"read" || mode == b"write");
    let kind = match fields {
        [] => return None,
        _ if has_sides => READ_WRITE,
        [_] => PLAIN,
        _ => GROUP,
    };
    let fits = |(field, value): &(Vec<u8>, Vec<u8>)| match kind {
        READ_WRITE => field == b"mode" || is_hold(field, value),
        PLAIN => is_hold(field, value),
        _ => is_of_group(field, value),
    };
    Some(if fields.iter().all(fits) {
        kind
    } else {
        NOT_A_LOCK
    })
}

fn is_hold(field: &[u8], value: &[u8]) -> bool {
    is_id(field) && is_number(value)
}

/// Returns whether this is a field of a group lock: a value with its holder, or the expiry time or
/// count stored next to it.
fn is_of_group(field: &[u8], value: &[u8]) -> bool {
    let beside = [&b":expire_time"[..], b":lock_count"];
    let pair = beside.iter().find_map(|what| field.strip_suffix(*what));
    let id = pair.and_then(|pair| {
        let colon = pair.iter().position(|byte| *byte == b':')?;
        (colon > 0 && colon + 1 < pair.len()).then(|| &pair[colon + 1..])
    });
    match id {
        Some(id) => is_id(id) && is_number(value.strip_prefix(b"-").unwrap_or(value)),
        None => is_id(value),
    }
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// Returns whether `text` is the id of a hold, ours or Redisson's: the random UUID of its client, a
/// colon, and a number.
pub(crate) fn is_id(text: &[u8]) -> bool {
    // The part after the colon is not checked. It is a number, and `:write` or the id of a
    // transaction may follow.
    text.len() > CLIENT
        && text[..CLIENT]
            .iter()
            .enumerate()
            .all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => *byte == b'-',
                36 => *byte == b':',
                _ => byte.is_ascii_hexdigit(),
            })
}

/// The length of a UUID and the colon after it.
const CLIENT: usize = 37;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";

    fn form(fields: &[(&str, &str)]) -> Option<&'static str> {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let fields = fields
            .iter()
            .map(|(field, value)| (bytes(field), bytes(value)));
        kind_of_hash(&fields.collect::<Vec<_>>())
    }

    #[test]
    fn every_form_of_redissons_is_recognised() {
        let (write, inside) = (&*format!("{ID}:write"), &*format!("{ID}:0f1e2d3c"));
        let written_inside = &*format!("{write}:0f1e2d3c");
        let (end, count) = (
            &*format!("f:{ID}:expire_time"),
            &*format!("f:{ID}:lock_count"),
        );
        for (fields, kind) in [
            (&[(ID, "1")][..], PLAIN),
            (&[(ID, "17")], PLAIN),
            (&[(inside, "1")], PLAIN),
            (&[("mode", "read"), (ID, "2")], READ_WRITE),
            (&[(ID, "1"), ("mode", "read"), (inside, "1")], READ_WRITE),
            (&[("mode", "write"), (write, "1"), (ID, "1")], READ_WRITE),
            (&[("mode", "write"), (written_inside, "1")], READ_WRITE),
            (&[("f", ID), (end, "1700000000000"), (count, "1")], GROUP),
            // Redisson does not remove these two fields of a dead holder when it grants the value
            // to another holder.
            (&[(end, "1700000000000"), (count, "0")], GROUP),
        ] {
            assert_eq!(form(fields), Some(kind), "{fields:?}");
        }
        assert_eq!(form(&[]), None);
    }

    #[test]
    fn hash_of_somebody_else_is_no_lock() {
        for fields in [
            &[("visits", "7")][..],
            &[("page:1", "5")],
            &[(ID, "one")],
            &[(ID, "")],
            &[(&ID[..37], "1")],
            &[("8743c9c0-0795-4907-87fd-6c719a6b458g:1", "1")],
            &[("8743c9c00-795-4907-87fd-6c719a6b4586:1", "1")],
            &[("mode", "dark")],
            &[("mode", "read"), ("size", "10")],
            &[("name", "Ann"), ("visits", "7")],
            &[(ID, "1"), ("name", "Ann")],
            &[("f", ID), ("f:a:1:expire_time", "1")],
            &[("f", ID), ("f::lock_count", "1")],
        ] {
            assert_eq!(form(fields), Some(NOT_A_LOCK), "{fields:?}");
        }
    }
}
