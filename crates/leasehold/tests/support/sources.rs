//! The project's own files, for tests that read them.

use std::path::{Path, PathBuf};

/// Returns all Rust files in `folder` and its subfolders.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, &["rs"])
}

/// Returns the files in `path` and its subfolders that have one of these extensions, or `path`
/// itself if it is a file.
pub(crate) fn files(path: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    gather(path.to_owned(), extensions, &mut found);
    found
}

fn gather(path: PathBuf, extensions: &[&str], found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            gather(entry.unwrap().path(), extensions, found);
        }
    } else if path
        .extension()
        .is_some_and(|extension| extensions.iter().any(|one| extension == *one))
    {
        found.push(path);
    }
}
