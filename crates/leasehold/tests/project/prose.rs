//! Comments and pages are plain English: a doc comment names its subject first, and phrases that
//! make a reader look back may only become rarer.

use std::collections::BTreeMap;

use super::root;
use crate::support::sources::files;

/// The beginnings of a doc comment that do not name its subject.
const OPENINGS: [&str; 16] = [
    "those", "that of", "the same", "what", "whose", "who", "whom", "how", "so many", "so much",
    "so long", "such a", "one that", "nobody", "none of", "all that",
];

/// Phrases to avoid, and how often they are still used. A number is only ever lowered.
const PHRASES: [(&str, usize); 22] = [
    ("nobody", 0),
    ("somebody", 0),
    ("everybody", 0),
    ("whoever", 0),
    ("those of", 1),
    ("that of", 0),
    ("those who", 0),
    ("so many", 0),
    ("so long", 1),
    ("is told", 0),
    ("are told", 0),
    ("was told", 0),
    ("behind it", 15),
    ("behind them", 2),
    ("behind that", 0),
    ("comes", 1),
    ("came", 0),
    ("goes", 0),
    ("gone", 0),
    ("stands", 0),
    ("stand", 0),
    ("all the same", 0),
];

/// The pages whose prose is read.
const PAGES: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
];

/// A paragraph: the place where it begins, and its text without quoted code.
struct Paragraph {
    place: String,
    text: String,
    /// Whether it is the beginning of a doc comment.
    opens: bool,
}

/// Returns the comments of a program. `marks` are their beginnings; the first `docs` of them begin
/// doc comments.
fn comments(file: &str, text: &str, marks: &[&str], docs: usize) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let (mut mark_before, mut quoted) = (None, false);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let mark = marks.iter().position(|mark| line.starts_with(mark));
        let continues = mark.is_some() && mark == mark_before;
        mark_before = mark;
        let Some(mark) = mark else { continue };
        let words = line[marks[mark].len()..].trim();
        if words.starts_with("```") {
            quoted = !quoted;
            continue;
        }
        if quoted {
            continue;
        }
        match found.last_mut() {
            Some(paragraph) if continues => {
                paragraph.text.push(' ');
                paragraph.text.push_str(words);
            }
            _ => found.push(Paragraph {
                place: format!("{file}:{}", number + 1),
                text: words.to_owned(),
                opens: mark < docs,
            }),
        }
    }
    found
}

/// Returns the paragraphs of a page, without its quoted blocks.
fn page(file: &str, text: &str) -> Vec<Paragraph> {
    let mut quoted = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        quoted ^= is_fence;
        !quoted && !is_fence
    });
    let paragraphs = lines.map(|(number, line)| Paragraph {
        place: format!("{file}:{}", number + 1),
        text: line.to_owned(),
        opens: false,
    });
    paragraphs.collect()
}

/// Returns the words of a text in lower case. Code between backticks is one word.
fn words(text: &str) -> Vec<String> {
    let prose: Vec<_> = text.split('`').step_by(2).collect();
    prose
        .join(" `` ")
        .split(|c: char| !(c.is_alphanumeric() || c == '`' || c == '\''))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn count(words: &[String], phrase: &str) -> usize {
    let phrase: Vec<_> = phrase.split(' ').collect();
    words
        .windows(phrase.len())
        .filter(|at| *at == phrase)
        .count()
}

fn opening(paragraph: &Paragraph) -> Option<&'static str> {
    let words = words(&paragraph.text);
    let begins = |opening: &&str| {
        let opening: Vec<_> = opening.split(' ').collect();
        words.iter().take(opening.len()).eq(opening.iter())
    };
    OPENINGS
        .into_iter()
        .filter(|_| paragraph.opens)
        .find(begins)
}

/// Returns all comments and pages.
fn prose() -> Vec<Paragraph> {
    let mut all = Vec::new();
    for path in PAGES
        .iter()
        .map(|page| root().join(page))
        .chain([root().join("crates")])
    {
        for path in files(&path, &["rs", "lua", "md"]) {
            let text = std::fs::read_to_string(&path).unwrap();
            let file = path.strip_prefix(root()).unwrap().display().to_string();
            all.extend(match path.extension().and_then(|end| end.to_str()) {
                Some("rs") => comments(&file, &text, &["///", "//!", "//"], 2),
                // The head of a script is its documentation.
                Some("lua") => comments(&file, &text, &["--"], 1),
                _ => page(&file, &text),
            });
        }
    }
    assert!(all.len() > 5000, "{} paragraphs", all.len());
    all
}

#[test]
fn doc_comments_name_their_subject_first() {
    let wrong: Vec<_> = prose()
        .iter()
        .filter_map(|paragraph| Some(format!("{}: {}", paragraph.place, opening(paragraph)?)))
        .collect();
    assert!(
        wrong.is_empty(),
        "begin with a verb, or with a noun and its article: {wrong:#?}"
    );
}

#[test]
fn phrases_that_look_back_become_fewer() {
    let mut found = BTreeMap::<&str, Vec<String>>::new();
    for paragraph in prose() {
        let words = words(&paragraph.text);
        for (phrase, _) in PHRASES {
            let here = count(&words, phrase);
            let places = found.entry(phrase).or_default();
            places.extend(std::iter::repeat_n(paragraph.place.clone(), here));
        }
    }
    let changed: Vec<_> = PHRASES
        .iter()
        .filter(|(phrase, allowed)| found[phrase].len() != *allowed)
        .map(|(phrase, allowed)| {
            let places = &found[phrase];
            let order = if places.len() > *allowed {
                "write it another way"
            } else {
                "lower the number"
            };
            format!(
                "`{phrase}`: {} instead of {allowed}; {order}: {places:?}",
                places.len()
            )
        })
        .collect();
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

#[test]
fn habits_are_seen() {
    let text = "/// Those of a lock. `nobody`\n/// and nobody else\nfn a() {}\n// What is held\n";
    let seen = comments("a.rs", text, &["///", "//!", "//"], 2);
    assert_eq!(seen.len(), 2);
    assert_eq!(opening(&seen[0]), Some("those"));
    assert_eq!(opening(&seen[1]), None, "not documentation");
    assert_eq!(count(&words(&seen[0].text), "nobody"), 1);
    let seen = page("a.md", "One that\n```\nnobody\n```\nstands behind it\n");
    assert_eq!(seen.len(), 2);
    assert_eq!(count(&words(&seen[1].text), "behind it"), 1);
}
