"""The filters that DuckDB gives a scan of Arrow data, as predicates for the server.

Arrow does not expose the parts of an expression, so this module parses its text. Conditions that it cannot parse are not sent to
the server. Arrow applies the whole expression to the rows in any case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from skiway.client.airport.predicates import Comparison, In, IsNull, Op, Predicate, literal
from skiway.errors import SkiwayError

TOKEN: Final = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d+(?:\.\d+)?(?![\w.:-]))|(?P<word>[A-Za-z_]\w*)|(?P<mark>[=!<>]=|[(){}<>,=:[\]]))',
    re.ASCII,
)
OPERATORS: Final = {
    "==": Op.EQUAL,
    "!=": Op.NOT_EQUAL,
    "<": Op.LESS,
    "<=": Op.LESS_OR_EQUAL,
    ">": Op.GREATER,
    ">=": Op.GREATER_OR_EQUAL,
}
KEYWORDS: Final = frozenset({"and", "false", "if_else", "invert", "is_in", "is_null", "is_valid", "null", "or", "true"})
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "0": "\0"}
IS_NULL_END: Final = (",", "{", "nan_is_null", "=", "false", "}", ")")
IS_IN_END: Final = (",", "null_matching_behavior", "=", "MATCH", "}", ")")
IF_ELSE_END: Final = (",", "null", "[", "bool", "]", ")")


class _NotUnderstood(Exception):
    """The expression has a part that is not sent to the server."""


def predicate_of(expression: ds.Expression, schema: pa.Schema) -> Predicate | None:
    """Return a predicate that is true for the rows for which the expression is true; None if it cannot be parsed."""
    try:
        return _Parser(str(expression), schema).whole()
    except (_NotUnderstood, SkiwayError):
        return None


class _Parser:
    """A recursive descent parser of the text of Arrow's expressions, for those that DuckDB makes."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._tokens = list(_tokens(text))
        self._schema = schema
        self._at = 0

    def whole(self) -> Predicate:
        found = self._condition()
        if self._at != len(self._tokens):
            raise _NotUnderstood
        return found

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise _NotUnderstood
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            if self._next() != token:
                raise _NotUnderstood

    def _condition(self) -> Predicate:
        match self._next():
            case "(":
                return self._binary()
            case "invert":
                self._expect("(")
                found = ~self._condition()
                self._expect(")")
                return found
            case "is_valid":
                self._expect("(")
                found = IsNull(self._field().name, negated=True)
                self._expect(")")
                return found
            case "is_null":
                self._expect("(")
                found = IsNull(self._field().name)
                self._expect(*IS_NULL_END)
                return found
            case "is_in":
                return self._is_in()
            case "if_else":  # if_else(is_valid(x), is_in(x, …), null[bool]), which is x IN (…)
                self._expect("(", "is_valid", "(")
                field = self._field()
                self._expect(")", ",")
                found = self._condition()
                self._expect(*IF_ELSE_END)
                if not isinstance(found, In) or found.column != field.name:
                    raise _NotUnderstood
                return found
        raise _NotUnderstood

    def _binary(self) -> Predicate:
        """Parse `x == 5)`, `(…) and (…))` or `(…) or (…))`."""
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1] in OPERATORS:
            field, operator = self._field(), OPERATORS[self._next()]
            found: Predicate = Comparison(operator, field.name, self._value(field))
        else:
            left, word = self._condition(), self._next()
            if word not in ("and", "or"):
                raise _NotUnderstood
            right = self._condition()
            found = left & right if word == "and" else left | right
        self._expect(")")
        return found

    def _is_in(self) -> Predicate:
        """Parse a list of integers; Arrow does not escape text in lists."""
        self._expect("(")
        field = self._field()
        self._expect(",", "{", "value_set", "=")
        if not pa.types.is_integer(field.type) or not re.fullmatch(r"u?int\d+", self._next()):
            raise _NotUnderstood
        self._expect(":", "[")
        values = []
        while True:
            values.append(self._value(field))
            if (mark := self._next()) == "]":
                break
            if mark != ",":
                raise _NotUnderstood
        self._expect(*IS_IN_END)
        return In(field.name, tuple(values))

    def _field(self) -> pa.Field:
        name = self._next()
        if name in KEYWORDS or not name.isidentifier() or self._schema.names.count(name) != 1:
            raise _NotUnderstood
        return self._schema.field(name)

    def _value(self, field: pa.Field) -> Any:
        value = _constant(self._next(), field.type)
        literal(field, value)  # raises if it is no value of the column
        return value


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        if not (found := TOKEN.match(text, at)):
            raise _NotUnderstood
        yield found[found.lastgroup or 0]
        at = found.end()


def _constant(text: str, kind: pa.DataType) -> Any:
    if text in ("true", "false") and pa.types.is_boolean(kind):
        return text == "true"
    if text.startswith('"') and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        value = re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text[1:-1], flags=re.DOTALL)
        if str(ds.scalar(value)) == text:
            return value
    if re.fullmatch(r"-?\d+", text) and pa.types.is_integer(kind):
        return int(text)
    if re.fullmatch(r"-?\d+(\.\d+)?", text) and pa.types.is_decimal(kind):
        return Decimal(text)
    raise _NotUnderstood
