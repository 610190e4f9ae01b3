"""Check the English of the documentation against a list of words, and the length of sentences and pages; `make lint` runs it.

Code, tables' rules and what is generated are not checked. Write plain, short, active sentences; CONTRIBUTING.md says more.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SIZES: Final = runpy.run_path(str(Path(__file__).with_name("check_size.py")))
LONGEST_SENTENCE: Final = 40
LONGEST_PAGE: Final = 2500

INSTEAD: Final = {
    r"utili[sz]e[sd]?": "use",
    r"leverag(?:e[sd]?|ing)": "use",
    r"in order to": "to",
    r"prior to": "before",
    r"subsequent(?:ly)?": "later, then",
    r"due to the fact that": "because",
    r"in the event (?:of|that)": "if",
    r"is able to|are able to": "can",
    r"allows? you to": "name who does what",
    r"functionalit(?:y|ies)": "function, feature",
    r"performant": "fast",
    r"seamless(?:ly)?|effortless(?:ly)?|powerful|robust(?:ly)?|state-of-the-art": "say what it does, with a figure",
    r"simply|easily|obviously|of course|basically|actually": "leave it out",
    r"please": "leave it out",
    r"note that|it should be noted": "leave it out",
    r"and/or": "or",
    r"e\.g\.": "such as",
    r"i\.e\.": "that is",
    r"etc\.": "name them, or leave it out",
    r"whilst|amongst": "while, among",
    r"via": "with, over, by",
    r"aforementioned|respectively": "name it again",
    r"make use of|makes use of": "use",
    r"a number of|a variety of": "say how many, or several",
    r"will be able to": "can",
    r"can not": "cannot",
    r"ensures? that": "say what happens",
    r"out of the box": "without settings",
    r"under the hood": "say where",
    r"best practices?": "say what to do, and why",
    r"legacy": "say which version",
}
"""Words and phrases, and what to write instead."""

WRONG: Final = [(re.compile(rf"\b(?:{words})(?!\w)", re.IGNORECASE), better) for words, better in INSTEAD.items()]
NO_PROSE: Final = re.compile(
    r"^( *)```.*?^\1```$|<!--.*?-->|`[^`]*`|\]\([^)]*\)|<?https?://\S+", re.DOTALL | re.MULTILINE
)


def pages() -> Iterator[Path]:
    """The pages whose English is checked."""
    yield from (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *sorted((ROOT / "releases").glob("*.md")),
    )
    yield from sorted((ROOT / "docs").rglob("*.md"))


def prose(text: str) -> str:
    """The text with blanks in the place of code, links and generated parts, so that lines keep their numbers."""

    def blank(found: re.Match[str]) -> str:
        is_word = re.match(r"`[^`]", found[0])
        return re.sub(r"[^\n]", "x" if is_word else " ", found[0])

    return NO_PROSE.sub(blank, SIZES["GENERATED"].sub(blank, text))


def findings(text: str) -> Iterator[tuple[int, str]]:
    """What is wrong with a text: the number of a line, and a message for people."""
    plain = prose(text)
    for pattern, better in WRONG:
        for found in pattern.finditer(plain):
            yield plain[: found.start()].count("\n") + 1, f"{found[0]!r}: {better}"
    for block in re.finditer(r"(?:^(?! *\||#).*\S.*\n?)+", plain, re.MULTILINE):
        for sentence in re.split(r"(?<=[.!?:;])\s+|\n(?= *(?:[-*]|\d+\.) )", block[0]):
            if (length := len(sentence.split())) > LONGEST_SENTENCE:
                line = plain[: block.start() + block[0].index(sentence)].count("\n") + 1
                yield line, f"a sentence of {length} words: make two of it"


def main() -> int:
    """Print all findings."""
    problems = [
        f"{page.relative_to(ROOT)}:{line}: {message}"
        for page in pages()
        for line, message in findings(page.read_text())
    ]
    for name, words in SIZES["page_words"]().items():
        if words > LONGEST_PAGE:
            problems.append(f"docs/{name}: {words:,} words, at most {LONGEST_PAGE:,}: cut it, or split it")
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
