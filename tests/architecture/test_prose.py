"""Plain English: the rules of CONTRIBUTING.md that a program can count, in documents and in docstrings."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))
MODULES = sorted((ROOT / "python" / "mha_native").rglob("*.py"))

# Limits may only fall: lower one when the text has become better, and never raise it.
PER_1000_WORDS = {"what": 1.5, "that of|those of": 0.5, "beside|besides|behind": 0.5}  # in documents and in docstrings
BEGINNINGS = ("What", "Of", "By", "From", "Likewise")

CODE_OF_DOCUMENTS = r"(?ms)^\s*(```+).*?^\s*\1\s*$|`[^`]*`"
CODE_OF_DOCSTRINGS = r"(?m)^\s*(?:>>>|\.\.\.).*$|``[^`]*``|`[^`]*`"


class Passage(NamedTuple):
    file: str
    line: int  # of its first line, from 1
    text: str  # without code, line by line as in the file

    def hits(self, pattern: str) -> Iterator[str]:
        """Yield `file:line: text of the line` for each match of `pattern`."""
        for match in re.finditer(pattern, self.text, re.I):
            row = self.text.count("\n", 0, match.start())
            yield f"{self.file}:{self.line + row}: {self.text.splitlines()[row].strip()}"


def without(code: str, text: str) -> str:
    """Return `text` with spaces in the place of `code`, and the same lines."""
    return re.sub(code, lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def documents() -> Iterator[Passage]:
    for path in DOCUMENTS:
        yield Passage(str(path.relative_to(ROOT)), 1, without(CODE_OF_DOCUMENTS, path.read_text(encoding="utf-8")))


def docstrings_of(file: str, source: str, *, of_modules: bool = True) -> Iterator[Passage]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            text = ast.get_docstring(node, clean=False)
            if text and (of_modules or not isinstance(node, ast.Module)):
                yield Passage(file, node.body[0].lineno, without(CODE_OF_DOCSTRINGS, text))


def docstrings(*, of_modules: bool = True) -> Iterator[Passage]:
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        yield from docstrings_of(str(path.relative_to(ROOT)), source, of_modules=of_modules)


def check(words: str, limit: float, passages: Iterable[Passage]) -> None:
    """Fail with every hit if there are more than `limit` hits per 1,000 words."""
    passages, pattern = list(passages), rf"\b(?:{words})\b".replace(" ", r"\s+")
    hits = [hit for passage in passages for hit in passage.hits(pattern)]
    count = sum(len(re.findall(r"[A-Za-z][\w'-]*", passage.text)) for passage in passages)
    rate = 1000 * len(hits) / count
    assert rate <= limit, "\n".join([f"{words}: {rate:.2f} per 1,000 words, at most {limit}", *hits])


@pytest.mark.parametrize("words", PER_1000_WORDS)
def test_words_of_documents(words: str) -> None:
    check(words, PER_1000_WORDS[words], documents())


@pytest.mark.parametrize("words", PER_1000_WORDS)
def test_words_of_docstrings(words: str) -> None:
    check(words, PER_1000_WORDS[words], docstrings())


def test_lines_of_documents_have_120_columns() -> None:
    lines = [(path, line) for path in DOCUMENTS for line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)]
    long = [f"{path.relative_to(ROOT)}:{number}" for path, (number, text) in lines if len(text) > 120]
    assert long == []


def test_docstrings_begin_with_subject_or_verb() -> None:
    pattern = rf"\A\s*(?-i:{'|'.join(BEGINNINGS)})\b"
    hits = [hit for passage in docstrings(of_modules=False) for hit in passage.hits(pattern)]
    assert hits == []


def test_hits_are_found_where_they_are() -> None:
    text = without(CODE_OF_DOCUMENTS, "a `what`\n```\nwhat\n```\nWhat\nis whatever that\nof what\n")
    passage = Passage("a.md", 1, text)
    assert list(passage.hits(r"\bwhat\b")) == ["a.md:5: What", "a.md:7: of what"]
    check("what", 286, [passage])  # 2 of 7 words
    with pytest.raises(AssertionError, match=r"what: 285.71 per 1,000 words, at most 285\s+a.md:5: What"):
        check("what", 285, [passage])
    with pytest.raises(AssertionError, match=r"a.md:6: is whatever that"):
        check("that of|those of", 0, [passage])


def test_docstrings_are_found() -> None:
    source = '"""Of a."""\ndef f():\n    """Of f, ``what``.\n\n    >>> what\n    What\n    """\n    return "what"\n'
    hits = [hit for passage in docstrings_of("a.py", source) for hit in passage.hits("what|Of")]
    assert hits == ["a.py:1: Of a.", "a.py:3: Of f,         .", "a.py:6: What"]
    assert [passage.line for passage in docstrings_of("a.py", source, of_modules=False)] == [3]
