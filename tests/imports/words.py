"""Find hard words and long sentences in every text that a person reads.

``python -m tests.imports.words`` prints the figures. ``python -m tests.imports.words pages docs/lane.md`` prints each
hard word and each long sentence of a kind, of every file or of the named ones.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("airflow_tx", "spark_apps", "dags", "examples")
LONG = 25
"""A sentence of more words is long."""

HARD = {
    r"((is|are|be|was|were|been) )?told": "name the one that tells: 'the log says', 'pass'",
    r"whoever|whom": "name the person or the process",
    r"whatever|whichever": "use 'any' or 'every', with the noun",
    r"somebody|someone": "say 'you', or name the person or the process",
    r"nobody": "use 'no', with the noun: 'no process', 'no one else'",
    r"anew": "use 'again', or say what is created",
    r"go(es)? on|went on|gone on|going on": "use 'continue' or 'resume'",
    r"by then": "name the moment",
    r"meanwhile": "use 'while', with the event",
    r"stands? for": "use 'is', 'means' or 'represents'",
    r"thereby|hence|thereof|therein": "use 'so', or a new sentence",
    r"upon|lest": "use 'on'; 'so that … not'",
    r"of it (is|are)( \w+)?": "put the subject first",
    r"(come|comes|came) between": "say that no other step can run between the two",
    r"(was|were|is) done to": "put the actor first: 'the test stopped the server'",
    r"as (it|they) (is|are|was|were|stands?|stood)": "use 'unchanged' or 'current'",
    r"as ever|as before that": "say what happens",
    r"for good": "use 'permanently' or 'finally'",
    r"but for": "use 'except'",
    r"none of (it|them|those|these)|all of (it|those)|nothing of": "put the noun: 'no row', 'all rows'",
    r"those (that|of|who|which|whose)|that of( an?| the| its)?": "repeat the noun",
    r"what (is|was|were|are|has|had) (not|no longer|of|to be|already|still)": "put the noun: 'rows that are not'",
    r"all that": "put the noun: 'all rows that', 'everything'",
    r"nor": "use 'and … not'",
    r"(lie|lies|lay|lain)": "use 'is', 'is stored' or 'is kept'",
    r"(say|says|said) so": "name what is written and where",
    r"to speak of|at hand|take[sn]? for dead|is at it|be it": "say it with a verb of computing",
    r"goes along|go along|went along": "say what moves with it",
    r"makes? no difference|know(s)? no|knows? nothing": "say what happens",
    r"ha(s|ve|d) to be": "use 'must be'",
}
"""Hard words, as patterns, and what to write instead. A space also matches a break of the line."""

OPENINGS = {
    r"What( else)? (is|was|it|has|an?|the|they)\b(?![^.!?]*\?)": "begin with the subject: the noun that 'what' hides",
    r"(Whoever|Nobody|Somebody|Of (those|these|it|them)|Nothing of|Nor)\b": "begin with the subject",
}
"""Hard openings of a sentence; a question may begin with 'What is'."""


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{_spaced(words)})(?![\w-])", re.IGNORECASE)


def _spaced(words: str) -> str:
    return words.replace(" ", r"\s+")


BEGIN = r"(?:\A|(?<=[.!?])\s|\n\s*\n|\n(?:[#>*-]|\d+\.)|\|)[\s#>*|_-]*"
PATTERNS = [(_pattern(words), remedy) for words, remedy in HARD.items()]
BEGINNINGS = [(re.compile(f"{BEGIN}({_spaced(words)})"), remedy) for words, remedy in OPENINGS.items()]
ANY = re.compile("|".join(f"(?:{words.pattern})" for words, _ in PATTERNS), re.IGNORECASE)


@dataclass(frozen=True)
class Text:
    """A text that a person reads, and where it begins."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A hard word or a long sentence."""

    file: str
    line: int
    words: str
    remedy: str

    def __str__(self) -> str:
        """Write it as editors read it: file, line, words, remedy."""
        return f"{self.file}:{self.line}: '{self.words}': {self.remedy}"


def hard_words(text: Text) -> Iterator[Finding]:
    """Find the hard words of a text."""
    readable = without_code(text.text)
    if ANY.search(readable):
        for pattern, remedy in PATTERNS:
            for match in pattern.finditer(readable):
                yield _finding(text, readable, match.span(), remedy)
    for pattern, remedy in BEGINNINGS:
        for match in pattern.finditer(readable):
            yield _finding(text, readable, match.span(1), remedy)


def _finding(text: Text, readable: str, span: tuple[int, int], remedy: str) -> Finding:
    begin, end = span
    words = " ".join(readable[begin:end].split())
    return Finding(text.file, text.line + readable[:begin].count("\n"), words, remedy)


# --- sentences ---------------------------------------------------------------------------------------------------

SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)]*)\)", re.DOTALL)
END = re.compile(r"(?<=[.!?])[*_)\"']*\s+(?=[A-Z`*_\"'(\[\d])")
ITEM = re.compile(r"^\s*(?:[*-]|\d+\.)\s+")
FIELD = re.compile(r"^\s*:\w[\w ]*:")


def without_code(text: str) -> str:
    """Replace each piece of code by one word and each link by its text; the lines stay the same."""
    text = LINK.sub(lambda match: match[1] + "\n" * match[2].count("\n"), text)
    return SPAN.sub(lambda match: "Code" + "\n" * match[2].count("\n"), text)


def sentences(text: Text) -> Iterator[tuple[int, str]]:
    """Give each sentence of paragraphs and lists, and its line; headings and tables have none."""
    for line, paragraph in _paragraphs(text.text):
        begin = line
        for sentence in END.split(without_code(paragraph)):
            if len(_words(sentence)) > 1:
                yield text.line + begin, " ".join(sentence.split())
            begin += sentence.count("\n")


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Give each paragraph and each item of a list with its line, counted from 0."""
    found: list[str] = []
    begin = 0
    for number, line in enumerate([*text.splitlines(), ""]):
        ends = not line.strip() or line.lstrip().startswith(("|", "#", ">>>", "!!!", "<"))
        if found and (ends or ITEM.match(line) or FIELD.match(line)):
            yield begin, "\n".join(found)
            found = []
        if not ends:
            begin = begin if found else number
            found.append(ITEM.sub("", line))


def _words(sentence: str) -> list[str]:
    return [word for word in sentence.split() if re.search(r"\w", word)]


# --- the four kinds ----------------------------------------------------------------------------------------------


def pages() -> Iterator[Text]:
    """Give README.md and the pages of docs/, with empty lines in place of blocks of code."""
    for file in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        yield Text(_name(file), 1, without_blocks(file.read_text()))


def without_blocks(page: str) -> str:
    """Empty the lines of the blocks of code of a page."""
    lines: list[str] = []
    in_code = False
    for line in page.splitlines():
        fence = line.lstrip().startswith("```")
        lines.append("" if fence or in_code else line)
        in_code ^= fence
    return "\n".join(lines)


def docstrings() -> Iterator[Text]:
    """Give the docstrings of modules, classes and functions, and the texts below attributes."""
    for file in _code():
        for node in _strings(file):
            if isinstance(node, ast.Expr):
                value = node.value
                assert isinstance(value, ast.Constant)
                yield Text(_name(file), value.lineno, _without_examples(str(value.value)))


def _without_examples(text: str) -> str:
    """Empty the lines that follow ``::`` and are indented more than its line."""
    lines: list[str] = []
    indented: int | None = None
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if indented is not None and line.strip() and depth <= indented:
            indented = None
        lines.append(line if indented is None else "")
        if indented is None and line.rstrip().endswith("::"):
            indented = depth
    return "\n".join(lines)


OTHER_LANGUAGE = re.compile(r"^\s*(SELECT|INSERT|CREATE|WITH|WHERE|AND|local) |redis\.call|ARGV\[|\bSELECT \w+ FROM\b")


def messages() -> Iterator[Text]:
    """Give the literals of several words, such as errors, log lines and help, and the texts of the board."""
    for file in _code():
        for node in _strings(file):
            text = _literal(node)
            if text is not None and len(_words(text)) > 2 and not OTHER_LANGUAGE.search(text):
                yield Text(_name(file), getattr(node, "lineno", 1), text)
    for file in sorted((ROOT / "airflow_tx/plugin/ui/src").rglob("*.ts*")):
        if ".test." not in file.name and not file.name.endswith(".d.ts"):
            yield from _board_texts(file)


def _literal(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return None


BOARD_TEXT = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|`([^`]*)`|>([^<>{}]*)<")
INSERTED = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
BOARD_CODE = re.compile(
    r"[={}]|&&|\|\|| [|+?] |; ?(return|if|const|export)\b|\((null|0)?\)|\($|0\);|calc\(|minmax\(|\dpx|^M\d|^[X\d ]+$"
    r"|[,&] \.|, \w+: \w*\b[ (]|: [A-Z]\w+[A-Z]|\): [A-Z]|, \["
)
"""Code between two quotes or brackets of the board that begin no text, and paths of pictures."""


def _board_texts(file: Path) -> Iterator[Text]:
    source = re.sub(r"^\s*(//|\*|/\*).*$", "", file.read_text(), flags=re.MULTILINE)
    for match in BOARD_TEXT.finditer(source):
        text = " ".join(INSERTED.sub("X", next(filter(None, match.groups()), "")).split())
        if len(text.split()) > 2 and not BOARD_CODE.search(text):
            yield Text(_name(file), source[: match.start()].count("\n") + 1, text)


def comments() -> Iterator[Text]:
    """Give the comments; those of adjacent lines are one text."""
    for file in _code():
        found: list[str] = []
        begin = 0
        for line, comment in _comments(file):
            if found and line != begin + len(found):
                yield Text(_name(file), begin, "\n".join(found))
                found = []
            begin = begin if found else line
            found.append(comment)
        if found:
            yield Text(_name(file), begin, "\n".join(found))


def _comments(file: Path) -> Iterator[tuple[int, str]]:
    source = file.read_text()
    if "#" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (noqa|type:|---)", token.string):
            yield token.start[0], token.string.lstrip("# ")


def _code() -> list[Path]:
    return sorted(chain.from_iterable((ROOT / folder).rglob("*.py") for folder in CODE))


@cache
def _strings(file: Path) -> list[ast.AST]:
    """Return the literals of a file: a docstring as its statement, others as themselves."""
    found: list[ast.AST] = []
    nodes: list[ast.AST] = [ast.parse(file.read_text())]
    while nodes:
        node = nodes.pop()
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        is_docstring = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or is_docstring or isinstance(node, ast.JoinedStr):
            found.append(node)
        else:
            nodes.extend(ast.iter_child_nodes(node))
    return found


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


# --- figures -----------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[], Iterator[Text]]] = {
    "pages": pages,
    "docstrings": docstrings,
    "messages": messages,
    "comments": comments,
}


@dataclass(frozen=True)
class Figures:
    """The hard words and the long sentences of one kind of text."""

    hard: list[Finding]
    long: list[Finding]
    sentences: int
    median: float

    @property
    def share_long(self) -> float:
        """Return how many of a hundred sentences are long."""
        return 100 * len(self.long) / self.sentences


def figures(kind: str, files: tuple[str, ...] = ()) -> Figures:
    """Measure the texts of a kind, of all files or of these."""
    texts = [text for text in KINDS[kind]() if not files or text.file in files]
    found = [(text.file, line, sentence, len(_words(sentence))) for text in texts for line, sentence in sentences(text)]
    long = [
        Finding(file, line, sentence, f"{count} words: make it two sentences")
        for file, line, sentence, count in found
        if count > LONG
    ]
    hard = [finding for text in texts for finding in hard_words(text)]
    return Figures(hard, long, len(found), statistics.median(count for *_, count in found))


def main(*given: str) -> None:
    """Print the figures of all kinds, or the findings of one."""
    for kind in given[:1] or tuple(KINDS):
        measured = figures(kind, given[1:])
        for finding in [*measured.hard, *measured.long] if given else []:
            print(finding)
        print(
            f"{kind:<12}{len(measured.hard):>5} hard words, {measured.sentences:>6,} sentences, median "
            f"{measured.median:g} words, {measured.share_long:.1f} % over {LONG} words"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
