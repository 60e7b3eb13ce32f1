//! The field name of a group's value in Redis: Redisson's hash of the encoded value.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use highway::{HighwayHash as _, HighwayHasher, Key};

/// The encoding of a [`GroupLock`](crate::GroupLock)'s values before they are hashed. It must be
/// the encoding that the Java clients of the same group use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldNames {
    /// The encoding of Redisson's `StringCodec` (the default of this library).
    #[default]
    Text,
    /// The encoding of a `String` by Redisson's `Kryo5Codec` (Redisson's default).
    Kryo5,
}

impl FieldNames {
    /// Returns the name of the value's field: HighwayHash-128 in base64 without padding.
    pub(super) fn field(self, value: &str) -> String {
        // The words of Redisson's hash key. With other words, Java clients would lock other fields
        // of the same group, and neither side would notice.
        const KEY: Key = Key([
            0x9e37_79b9_7f4a_7c15,
            0xf39c_c060_5ced_c834,
            0x1082_276b_f3a2_7251,
            0xf86c_6a11_d0c1_8e95,
        ]);
        let bytes = match self {
            Self::Text => value.as_bytes().to_vec(),
            Self::Kryo5 => kryo5(value),
        };
        let hash = HighwayHasher::new(KEY).hash128(&bytes);
        STANDARD_NO_PAD.encode(hash.map(u64::to_be_bytes).concat())
    }
}

/// Encodes a string as Kryo does: first the number of its class, then its characters.
fn kryo5(text: &str) -> Vec<u8> {
    const STRING: u8 = 3;
    const HIGH: u8 = 0x80;
    let mut bytes = vec![STRING];
    // Java counts UTF-16 units.
    let chars = text.encode_utf16().count();
    if text.is_ascii() && (2..=32).contains(&chars) {
        bytes.extend(text.as_bytes());
        if let Some(last) = bytes.last_mut() {
            *last |= HIGH;
        }
        return bytes;
    }
    // The length plus one, in groups of bits: the first byte has six bits and two flags, each
    // further byte has seven bits and one flag.
    let mut number = chars + 1;
    let low = |number: usize, bits: u32| u8::try_from(number & ((1 << bits) - 1)).unwrap_or(0);
    let more = |rest: usize, mark: u8| if rest > 0 { mark } else { 0 };
    bytes.push(HIGH | low(number, 6) | more(number >> 6, 0x40));
    number >>= 6;
    while number > 0 {
        bytes.push(low(number, 7) | more(number >> 7, HIGH));
        number >>= 7;
    }
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_called_as_redisson_calls_them() {
        // Tests with only Rust clients can't find a wrong name: these clients would agree on the
        // name and exclude each other, but they would not exclude Java clients.
        for (value, text, kryo5) in [
            ("a", "qwvAS12pR0CgRitaypEjUw", "Jon6GCcO+0QSJkhre5wXYA"),
            ("b", "Q5CdP+xmkHdTGWYr64Lw6A", "oz8KQ6x92JraWxs5okiqFw"),
            (
                "order:42",
                "qCj9C1XTG9WEby0hj4f/Cw",
                "5OzHoosaaUThGHY6izs43Q",
            ),
            ("ä", "8WB+/G00uF8UKQJ9JMeVwg", "t15UTF6OGPuIgjEsa6cSVQ"),
        ] {
            assert_eq!(FieldNames::Text.field(value), text, "{value}");
            assert_eq!(FieldNames::Kryo5.field(value), kryo5, "{value}");
        }
    }

    #[test]
    fn text_lengths_are_encoded_like_kryo() {
        assert_eq!(kryo5(""), [3, 0x81]);
        let long = "x".repeat(100);
        // 101 is 64 + 37.
        assert_eq!(kryo5(&long)[..3], [3, 0x80 | 0x40 | 37, 1]);
        assert_eq!(kryo5(&"x".repeat(33))[..3], [3, 0x80 | 34, b'x']);
    }
}
