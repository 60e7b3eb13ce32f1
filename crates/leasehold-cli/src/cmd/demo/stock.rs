//! The stock for sale: a file that the lock protects, but that has no other connection to the lock.
//!
//! The file contains the number of items left, and a line for each sale. A worker replaces the
//! whole file, so a worker that is killed has written either the complete sale or nothing of it.
//! Access to the file is blocking, because the file has only a few hundred bytes, in a temporary
//! folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The folder of the stock.
#[derive(Clone, Debug)]
pub(crate) struct Stock {
    dir: PathBuf,
}

/// The content of the stock at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shelf {
    /// Number of items left.
    pub(crate) left: u64,
    /// The sales: the number of the worker, and the number of its sale.
    pub(crate) ledger: Vec<(usize, u64)>,
}

impl Stock {
    /// Creates a stock in `dir`.
    pub(crate) fn create(dir: &Path, items: u64) -> Result<Self, Failure> {
        let stock = Self::at(dir);
        stock.write(
            0,
            &Shelf {
                left: items,
                ledger: Vec::new(),
            },
        )?;
        Ok(stock)
    }

    /// Returns the existing stock in `dir`.
    pub(crate) fn at(dir: &Path) -> Self {
        Self { dir: dir.into() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn read(&self) -> Result<Shelf, Failure> {
        let text = fs::read_to_string(self.file())
            .map_err(|error| Failure::io("can't read the stock", error))?;
        parse(&text).ok_or_else(|| {
            let error = io::Error::from(io::ErrorKind::InvalidData);
            Failure::io("can't read the stock", error)
        })
    }

    /// Replaces the content. `worker` names a temporary file for each writer, because without a
    /// lock two workers may write at once.
    pub(crate) fn write(&self, worker: usize, shelf: &Shelf) -> Result<(), Failure> {
        let mut text = format!("{}\n", shelf.left);
        for (worker, serial) in &shelf.ledger {
            text.push_str(&format!("{worker} {serial}\n"));
        }
        let new = self.dir.join(format!("stock.{worker}.new"));
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, self.file()))
            .map_err(|error| Failure::io("can't write the stock", error))
    }

    /// Returns `true` to the first worker that calls this. That worker is to be killed.
    pub(crate) fn become_victim(&self) -> bool {
        fs::File::create_new(self.dir.join("victim")).is_ok()
    }

    fn file(&self) -> PathBuf {
        self.dir.join("stock")
    }
}

fn parse(text: &str) -> Option<Shelf> {
    let mut lines = text.lines();
    let left = lines.next()?.parse().ok()?;
    let ledger = lines
        .map(|line| {
            let (worker, serial) = line.split_once(' ')?;
            Some((worker.parse().ok()?, serial.parse().ok()?))
        })
        .collect::<Option<_>>()?;
    Some(Shelf { left, ledger })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let stock = Stock::create(dir.path(), 3).expect("the stock is there");
        let mut shelf = stock.read().expect("the stock is there");
        assert_eq!((shelf.left, shelf.ledger.len()), (3, 0));
        shelf.left -= 1;
        shelf.ledger.push((2, 1));
        stock.write(2, &shelf).expect("the stock is there");
        assert_eq!(stock.read().expect("the stock is there"), shelf);
        assert!(stock.become_victim());
        assert!(!stock.become_victim());
    }
}
