"""Parses just enough Rust to find the bodies of functions."""
import re
from dataclasses import dataclass

TOKEN = re.compile(r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<comment>/\*)
  | (?P<text>[bc]?r(?P<hashes>\#*)"[\s\S]*?"(?P=hashes)
            |[bc]?"(?:\\[\s\S]|[^"\\])*"
            |b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])')
  | (?P<lifetime>'\w+)
  | (?P<word>r\#\w+|\w+)
  | (?P<mark>.)
""", re.X)
NESTED = re.compile(r"/\*|\*/")
OPEN, CLOSED = set("([{"), set(")]}")


@dataclass
class Function:
    """An outermost function, and the start and end of its body with the braces."""
    is_const: bool
    start: int
    end: int


def tokens_of(text):
    """Returns the tokens and their positions, without spaces and comments."""
    tokens, at = [], 0
    while at < len(text):
        found = TOKEN.match(text, at)
        at = found.end()
        if found.lastgroup == "comment":
            at = end_of_comment(text, at)
        elif found.lastgroup != "space":
            tokens.append((found.group(), found.start()))
    return tokens


def end_of_comment(text, at):
    """Returns the end of a comment. A comment can contain other comments."""
    depth = 1
    while depth > 0:
        mark = NESTED.search(text, at)
        if mark is None:
            return len(text)
        at = mark.end()
        depth += 1 if mark.group() == "/*" else -1
    return at


def functions_of(text):
    """Returns the tokens outside the bodies of outermost functions, and these functions."""
    tokens = tokens_of(text)
    skeleton, functions, at = [], [], 0
    while at < len(tokens):
        body = body_of(tokens, at) if tokens[at][0] == "fn" else None
        if body is None:
            skeleton.append(tokens[at][0])
            at += 1
            continue
        first, last = body
        skeleton += [word for word, _ in tokens[at:first]] + ["{}"]
        functions.append(Function(is_const(tokens, at), tokens[first][1], tokens[last][1] + 1))
        at = last + 1
    return skeleton, functions


def body_of(tokens, at):
    """Returns the brace tokens around the body of the function whose `fn` is at `at`, or None for
    the type of a function and for a function without a body."""
    name = at + 2 if tokens[at + 1:at + 2] and tokens[at + 1][0] == "$" else at + 1
    if name >= len(tokens) or not re.match(r"\w", tokens[name][0]):
        return None
    depth = 0
    for first in range(name + 1, len(tokens)):
        word = tokens[first][0]
        if depth == 0 and word == "{":
            return first, closing(tokens, first)
        if depth == 0 and (word == ";" or word in CLOSED):
            return None
        depth += (word in OPEN) - (word in CLOSED)
    return None


def closing(tokens, first):
    """Returns the token that closes the bracket at `first`."""
    depth = 0
    for at in range(first, len(tokens)):
        word = tokens[at][0]
        depth += (word in OPEN) - (word in CLOSED)
        if depth == 0:
            return at
    raise ValueError("a bracket is not closed")


def is_const(tokens, at):
    """Returns whether the function whose `fn` is at `at` can run at build time."""
    before = at - 1
    while before >= 0 and (tokens[before][0] in ("async", "unsafe", "extern")
                           or tokens[before][0].startswith('"')):
        before -= 1
    return before >= 0 and tokens[before][0] == "const"
