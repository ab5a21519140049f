"""The text of a constraint: its words, its grammar, and errors that show the place. Columns are not looked up here."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import NamedTuple

from pyro_mbde._checks import argument_error

#: Characters of a text, and levels it may be nested in.
MAX_LENGTH, MAX_DEPTH = 2000, 100
#: How tightly operators bind, from the loosest; a prefix minus binds tighter than all of them.
_BINDING = {"where": 1, "or": 2, "and": 3, "compare": 5, "+": 6, "*": 7}
_NOT, _MINUS = 4, 8
_KEYWORDS = frozenset(("and", "or", "not", "in", "is", "where", "if"))
_COMPARISONS = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "≠": "!=",
    "<": "<",
    "<=": "<=",
    "≤": "<=",
    ">": ">",
    ">=": ">=",
    "≥": ">=",
}
_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    |(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?(?!\w|-[0-9]))
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[^\W\d]\w*)
    |(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<sign><=(?!>)|>=|==|!=|[<>=≤≥≠+\-−*/(),\[\]{}])""",
    re.VERBOSE,
)
_QUOTES = "Columns with other names go in `backticks`, levels in 'quotes'."
#: What to write in place of signs that other languages have.
_OTHER_SIGNS = {
    "&": "Write and.",
    "|": "Write or.",
    "~": "Write not.",
    "!": "Write not, or != for unequal.",
    ":": "Put a date with a time in quotes, as in '2020-01-31 12:00'.",
    "^": "There are no powers: multiply.",
    "%": "There are no remainders and no percentages: write 0.25 for 25%.",
    "'": "A quotation mark is not closed.",
    '"': "A quotation mark is not closed.",
    "`": "A backtick is not closed.",
} | dict.fromkeys("‘’“”„«»´", "Write straight quotation marks: 'text'.")


class Token(NamedTuple):
    """One word or sign, at ``text[start:end]``; what is in quotes or backticks without them."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Node:
    """A part of a constraint, at ``text[start:end]``.

    Attributes:
        kind: ``number``, ``date``, ``text`` (in quotes), ``name`` (in backticks) and ``word``, with the text itself as
            ``value``; ``sum`` with the sign of each part as ``value``; ``*``, ``/``, ``negate``; ``compare`` with the
            comparisons between its parts, by blanks, as ``value``; ``range`` and ``set``, the first part of which is
            what they hold; ``missing``; ``and``, ``or``, ``not``; ``where``: the first wherever the second.
    """

    kind: str
    start: int
    end: int
    parts: tuple[Node, ...] = ()
    value: str = ""
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        """Counts the levels."""
        object.__setattr__(self, "depth", 1 + max((part.depth for part in self.parts), default=0))


class Source(NamedTuple):
    """A text, and what errors call it."""

    what: str
    text: str

    def piece(self, node: Node | Token) -> str:
        """Returns the text of a part."""
        return self.text[node.start : node.end]

    def error(self, constraint: str, place: Node | Token, remedy: str = "") -> ValueError:
        """Returns an error that names the text, the cause and what to do, and shows the place."""
        short = self.text if len(self.text) <= 100 else f"{self.text[:97]}..."
        first = max(0, min(place.start - 40, len(self.text) - 100))
        line = "".join(" " if sign.isspace() else sign for sign in self.text[first : first + 100])
        before = " " * _columns(line[: place.start - first])
        marks = "^" * max(1, _columns(line[place.start - first : place.end - first]))
        return ValueError(f"{argument_error(self.what, constraint, short, remedy)}\n    {line}\n    {before}{marks}")


def parse(source: Source) -> Node:
    """Returns the parts of a text, or raises a ValueError that shows what cannot be read.

    Example:
        >>> node = parse(Source("constraint", "age <= 65 where not retired"))
        >>> node.kind, [part.kind for part in node.parts]
        ('where', ['compare', 'not'])
    """
    if len(source.text) > MAX_LENGTH:
        start = Token("end", "", MAX_LENGTH, MAX_LENGTH)
        raise source.error(f"have at most {MAX_LENGTH:,} characters", start, "State it as several constraints.")
    return _Parser(source).whole()


def _columns(line: str) -> int:
    """How many places a line fills on a terminal."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in line)
    return len(line) + wide - sum(unicodedata.category(sign) in ("Mn", "Me", "Cf") for sign in line)


def _tokens(source: Source) -> list[Token]:
    text, tokens, start = source.text, [], 0
    while start < len(text):
        found = _TOKEN.match(text, start)
        if found is None:
            remedy = _OTHER_SIGNS.get(text[start], _QUOTES)
            raise source.error("hold names, numbers and signs of the language", Token("", "", start, start + 1), remedy)
        kind, piece, end = str(found.lastgroup), found.group(), found.end()
        if kind in ("word", "number", "date"):
            # Marks such as accents belong to the letter before them, but are none for a regular expression.
            while kind == "word" and end < len(text) and (text[end].isalnum() or _continues_word(text[end])):
                end += 1
            if kind != "word" and end < len(text) and (text[end].isalnum() or _continues_word(text[end])):
                raise source.error("have names that start with a letter", Token("", "", start, end + 1), _QUOTES)
            piece = text[start:end]
        if kind in ("text", "name"):
            piece = piece[1:-1].replace(piece[0] * 2, piece[0])
        if kind == "word" and piece.casefold() in _KEYWORDS:
            kind, piece = "keyword", piece.casefold()
        if kind == "sign":
            piece = piece.replace("−", "-")
        if kind != "blank":
            tokens.append(Token(kind, piece, start, end))
        start = end
    return [*tokens, Token("end", "", len(text), len(text))]


def _continues_word(sign: str) -> bool:
    return sign == "_" or unicodedata.category(sign) in ("Mn", "Mc")


class _Parser:
    """Precedence climbing: two calls for a level of nesting."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = _tokens(source)
        self.place = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.place]

    def whole(self) -> Node:
        node = self.expression(0)
        token = self.token
        if token.kind == "end":
            return node
        remedy = "Join conditions by and, or, where."
        if token.text == ",":
            remedy = "Write numbers without commas between thousands; lists only follow in."
        elif token.text in ("(", "[", "{") or token.kind in ("word", "name", "text", "number", "date"):
            remedy = "Columns of several words go in `backticks`, levels in 'quotes'; conditions are joined by and, or."
        raise self.source.error("end or go on after a condition", token, remedy)

    def expression(self, binding: int) -> Node:
        """What follows, up to an operator that binds more loosely."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.too_deep(self.token)
        node = self.prefix()
        while (next_binding := self.binding()) >= max(binding, 1):
            node = self.continued(node, next_binding)
            if node.depth > MAX_DEPTH:
                raise self.too_deep(node)
        self.depth -= 1
        return node

    def binding(self) -> int:
        """How tightly the next operator binds; 0 if none follows."""
        kind, text = self.token.kind, self.token.text
        if kind == "keyword":
            return _BINDING.get({"if": "where", "in": "compare", "is": "compare", "not": "compare"}.get(text, text), 0)
        if kind != "sign":
            return 0
        return _BINDING.get({"-": "+", "/": "*"}.get(text, "compare" if text in _COMPARISONS else text), 0)

    def prefix(self) -> Node:
        token = self.take()
        if token.kind in ("number", "date", "text", "name", "word"):
            return Node(token.kind, token.start, token.end, value=token.text)
        if token[:2] == ("keyword", "not"):
            part = self.expression(_NOT)
            return Node("not", token.start, part.end, (part,))
        if token[:2] in (("sign", "-"), ("sign", "+")):
            part = self.expression(_MINUS)
            return Node("negate", token.start, part.end, (part,)) if token.text == "-" else part
        if token[:2] == ("sign", "("):
            part = self.expression(0)
            self.expect(")", token)
            return part
        wanted = "end with a condition" if token.kind == "end" else "have a column or a value here"
        remedy = "Something is missing here." if token.kind == "end" else ""
        if token.kind == "keyword":
            remedy = f"{token.text} is a word of the language: a column of that name goes in `backticks`."
        elif token.text in ("[", "{"):
            remedy = "Lists only follow in, as in: age in [60, 80]."
        elif token.text == "*":
            remedy = _OTHER_SIGNS["^"]
        raise self.source.error(wanted, token, remedy)

    def continued(self, node: Node, binding: int) -> Node:
        """A node with the operator that follows it."""
        token = self.token
        if binding == _BINDING["compare"]:
            return self.comparison(node)
        if token.text in ("where", "if"):
            self.take()
            other = self.expression(binding + 1)
            if self.token.kind == "keyword" and self.token.text in ("where", "if"):
                raise self.source.error("have one where", self.token, "Join conditions by and, or write parentheses.")
            return Node("where", node.start, other.end, (node, other))
        if token.text in ("*", "/"):
            self.take()
            other = self.expression(binding + 1)
            return Node(token.text, node.start, other.end, (node, other))
        # and, or, sums: one node for all parts, so that long ones are not deep
        parts, signs = [node], "+"
        while self.binding() == binding:
            signs += self.take().text[0]
            parts.append(self.expression(binding + 1))
        kind = token.text if token.kind == "keyword" else "sum"
        return Node(kind, node.start, parts[-1].end, tuple(parts), signs if kind == "sum" else "")

    def comparison(self, node: Node) -> Node:
        """A chain of comparisons, ``in`` or ``is missing``."""
        if self.token.kind == "sign":
            parts, signs = [node], []
            while self.token.kind == "sign" and self.token.text in _COMPARISONS:
                token = self.take()
                if token.text + self.token.text in ("=<", "=>", "<>"):
                    better = {"=<": "<=", "=>": ">=", "<>": "!="}[token.text + self.token.text]
                    place = Token("", "", token.start, self.token.end)
                    raise self.source.error("hold signs of the language", place, f"Write {better}.")
                signs.append(_COMPARISONS[token.text])
                parts.append(self.expression(_BINDING["+"]))
            return Node("compare", node.start, parts[-1].end, tuple(parts), " ".join(signs))
        start = self.token
        if start.text == "is":
            self.take()
            negated = self.taken("not")
            end = self.take()
            if end.kind != "word" or end.text.casefold() != "missing":
                raise self.source.error("have missing or not missing after is", end, "Write = to compare.")
            found = Node("missing", node.start, end.end, (node,))
        else:
            negated = self.taken("not")
            if not self.taken("in"):
                raise self.source.error(
                    "have in after not here", self.token, "Write not in, or not before the condition."
                )
            found = self.listed(node)
        return Node("not", found.start, found.end, (found,)) if negated else found

    def listed(self, node: Node) -> Node:
        """What follows ``in``: a closed range or a set."""
        opening = self.take()
        if opening[:2] not in (("sign", "["), ("sign", "{")):
            raise self.source.error("have a range or a set after in", opening, "Write in [low, high] or in {A, B}.")
        parts = [node]
        while len(parts) == 1 or self.taken(","):
            parts.append(self.expression(_BINDING["+"]))
        end = self.expect("]" if opening.text == "[" else "}", opening)
        if opening.text == "{":
            return Node("set", node.start, end.end, tuple(parts))
        if len(parts) != 3:
            place = Token("", "", opening.start, end.end)
            raise self.source.error("have two ends in a range", place, "For a set of values write braces: {A, B}.")
        return Node("range", node.start, end.end, tuple(parts))

    def take(self) -> Token:
        token = self.token
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def taken(self, text: str) -> bool:
        """Whether the next word or sign is this one, which is then taken."""
        found = self.token.kind in ("sign", "keyword") and self.token.text == text
        if found:
            self.take()
        return found

    def expect(self, text: str, opening: Token) -> Token:
        token = self.take()
        if token[:2] != ("sign", text):
            remedy = "Write numbers without commas between thousands." if token.text == "," else "Something is missing."
            raise self.source.error(
                f"close {opening.text} by {text}", opening if token.kind == "end" else token, remedy
            )
        return token

    def too_deep(self, place: Node | Token) -> ValueError:
        remedy = "State it as several constraints."
        return self.source.error(f"be nested in at most {MAX_DEPTH} levels", place, remedy)
