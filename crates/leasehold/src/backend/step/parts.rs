//! The keys and arguments of an operation, in one block of memory. Every acquire and every release
//! makes an operation. An allocation for each key and argument would cost more than the rest of the
//! operation.

use std::fmt::{self, Display};
use std::io::Write as _;

/// A list of byte strings in one block, each preceded by its length.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    bytes: Vec<u8>,
    count: usize,
}

/// The size of the length before each string.
const LENGTH: usize = size_of::<u32>();

impl Parts {
    /// Makes an empty list with capacity for `texts` strings of `bytes` bytes in total.
    pub(crate) fn with_capacity(texts: usize, bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(texts * LENGTH + bytes),
            count: 0,
        }
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        self.push_with(|bytes| bytes.extend_from_slice(text));
    }

    /// Adds the string that `thing` is displayed as.
    pub(crate) fn push_display(&mut self, thing: &impl Display) {
        // Writing to memory never fails.
        self.push_with(|bytes| drop(write!(bytes, "{thing}")));
    }

    fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let length_at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH]);
        write(&mut self.bytes);
        let text_at = length_at + LENGTH;
        // A name has 64 KiB at most, and no other string is longer than a few names.
        let length = u32::try_from(self.bytes.len() - text_at).expect("a text of less than 4 GiB");
        self.bytes[length_at..text_at].copy_from_slice(&length.to_ne_bytes());
        self.count += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the first string, or an empty one if there is none.
    #[cfg(any(feature = "redis", feature = "testing", test))]
    pub(crate) fn first(&self) -> &[u8] {
        self.iter().next().unwrap_or_default()
    }

    /// Returns the total number of bytes in all strings.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() - self.count * LENGTH
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk()?;
            let length = u32::from_ne_bytes(*length) as usize;
            let (text, tail) = tail.split_at_checked(length)?;
            rest = tail;
            Some(text)
        })
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Parts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut parts = Self::default();
        texts.into_iter().for_each(|text| parts.push(text.as_ref()));
        parts
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.iter().map(String::from_utf8_lossy);
        f.debug_list().entries(texts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_out_as_they_went_in() {
        let texts = [&b"name"[..], b"", &[0xff; 70_000], b"-7"];
        let mut parts: Parts = texts[..3].iter().collect();
        parts.push_display(&-7);
        assert_eq!(parts.iter().collect::<Vec<_>>(), texts);
        assert_eq!((parts.len(), parts.first()), (4, &b"name"[..]));
        assert_eq!(parts.size(), 4 + 70_000 + 2);
        assert_eq!(Parts::default().first(), b"");
    }
}
