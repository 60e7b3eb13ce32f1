//! Imports point down only. `ARCHITECTURE.md` describes the same layers.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::sources;

/// The layers, from the top. A module may import from the rows below it, and from its own row.
const LAYERS: [&[&str]; 27] = [
    &["lib"],
    &["blocking"],
    &["testing"],
    &["recipes"],
    &["client"],
    &["operate"],
    &["primitives"],
    &["guard"],
    &["leave"],
    &["wait"],
    &["context"],
    &["local"],
    &["hold"],
    &["owner"],
    &["backend"],
    &["credentials", "tls", "address_map"],
    &["config"],
    &["acknowledgement"],
    &["observe"],
    // A bad name is an error, and an error contains the name that it is about.
    &["error", "key"],
    &["loss"],
    &["clock"],
    &["process"],
    &["shrink"],
    &["sync"],
    &["text"],
    &["pattern"],
];

fn layer(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&module))
        .unwrap_or_else(|| {
            panic!("`{module}` has no layer; give it one here and in ARCHITECTURE.md")
        })
}

/// Returns the modules of this crate that a file imports, except for its tests.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| {
            rest.chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect::<String>()
        })
        .filter(|module| module.starts_with(char::is_lowercase))
        .collect()
}

#[test]
fn imports_point_down() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let paths = sources::rust_files(&source);
    assert!(paths.len() > 20);
    let mut upward = Vec::new();
    for path in paths {
        let inside = path.strip_prefix(&source).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap();
        let module = module.trim_end_matches(".rs");
        // These modules are compiled for tests only.
        if module == "differential" || path.ends_with("tests.rs") {
            continue;
        }
        let own = layer(module);
        for import in imports(&std::fs::read_to_string(&path).unwrap()) {
            if layer(&import) < own {
                upward.push(format!("{} imports {import}", inside.display()));
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn an_upward_import_is_seen() {
    let seen = imports("use crate::client::Client;\n// crate::wait\n#[cfg(test)]\nmod tests {}");
    assert_eq!(seen, BTreeSet::from(["client".to_owned()]));
    assert!(layer("client") < layer("backend"));
}

#[test]
fn only_the_redis_folder_names_the_driver() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let paths = sources::rust_files(&source);
    for path in paths {
        let inside = path.strip_prefix(&source).unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let names = text.lines().any(|line| {
            let line = line.trim_start();
            line.starts_with("use redis::") || line.starts_with("use ::redis::")
        });
        assert!(
            !names || inside.starts_with("backend/redis"),
            "{inside} names the driver"
        );
    }
}
