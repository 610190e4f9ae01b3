"""The SQL of Spark that callers may use: one SELECT over tables of the lake, with functions that only compute values.

Spark runs the queries of pipelines in the process of the worker, so everything in a query must be known to be harmless: the kinds of
nodes of its tree, and the names of its functions. Spark gets the text that is generated from the tree that was checked here, never the
text of the caller. So a construct that the parser does not understand is an error, and cannot pass the checks by being read differently.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import pairwise
from typing import Final, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from skiway.errors import InvalidArgument
from skiway.metastore.pipelines.functions import FUNCTIONS_WITHOUT_PARENTHESES, SAFE_FUNCTIONS

__all__ = ["called_functions", "checked_select", "sql_text"]

_ALLOWED: Final = (
    *(exp.Select, exp.SetOperation, exp.Subquery, exp.With, exp.CTE, exp.Values, exp.Table, exp.TableAlias, exp.From),
    *(exp.Join, exp.Lateral, exp.Pivot, exp.PivotAlias, exp.TableSample, exp.Where, exp.Group, exp.Having, exp.Qualify),
    *(exp.Cube, exp.Rollup, exp.GroupingSets, exp.Order, exp.Sort, exp.Cluster, exp.Distribute, exp.Ordered, exp.Limit),
    *(exp.Offset, exp.Distinct, exp.Window, exp.WindowSpec, exp.Filter, exp.WithinGroup, exp.IgnoreNulls),
    *(exp.RespectNulls, exp.Identifier, exp.Column, exp.Star, exp.Alias, exp.Aliases, exp.Literal, exp.HexString),
    *(exp.RawString, exp.Null, exp.Boolean, exp.Interval, exp.IntervalSpan, exp.Var, exp.DataType, exp.DataTypeParam),
    *(exp.ColumnDef, exp.Tuple, exp.Bracket, exp.Lambda, exp.Case, exp.AtTimeZone, exp.Func, exp.Binary, exp.Unary),
    exp.Predicate,
)
"""What a query may consist of. The functions are checked by name."""

_TABLE_PARTS: Final = frozenset(("this", "db", "catalog", "alias", "joins", "laterals", "pivots", "sample"))
_WORDS: Final = """
    all and as by case cluster cube distinct else end except exists filter for from group having in intersect interval is join
    lateral limit not offset on or order over partition pivot qualify rollup rows select sets sort tablesample then union unpivot
    using values varchar when where with
"""
_KEYWORDS: Final = frozenset(_WORDS.split())
"""Words that can be followed by a parenthesis, and are not functions then."""


class _PipelineSpark(Spark):
    """The dialect of Spark, in which functions keep their names and arguments.

    The usual parser understands functions, and writes some of them in another way, which is not always equivalent.
    """

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 - since version 4, two quotes in a text are one

    class Parser(SparkParser):
        FUNCTIONS = {"ARRAY": SparkParser.FUNCTIONS["ARRAY"]}  # noqa: RUF012 - without it, `array(1, 2)[0]` is misread
        FUNCTION_PARSERS = {  # noqa: RUF012 - the functions with keywords among their arguments
            name: SparkParser.FUNCTION_PARSERS[name]
            for name in ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST")
        }


def checked_select(sql: str, *, file: str = "") -> exp.Query:
    """The SELECT in a text, which may be that of a file. Raise `InvalidArgument` if it is not one, or may leave the lake."""
    try:
        statements = [each for each in sqlglot.parse(sql, dialect=_PipelineSpark) if each is not None]
    except (SqlglotError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else "syntax error"
        _refuse(file, f"it cannot be parsed as SQL of Spark: {first}")
    except RecursionError:
        _refuse(file, "it is nested too deeply")
    if len(statements) != 1:
        _refuse(file, f"it has {len(statements)} statements: write one SELECT")
    tree = statements[0]
    if not isinstance(tree, exp.Select | exp.SetOperation):
        _refuse(file, "it is not a SELECT")
    for node in tree.walk():
        _check(node, file)
    if "${" in sql_text(tree):
        _refuse(file, "it contains '${', which Spark replaces by settings of the server: write it in another way")
    for function in sorted(called_functions(tree) - SAFE_FUNCTIONS):
        similar = get_close_matches(function, SAFE_FUNCTIONS, 1, cutoff=0.8)
        _refuse(
            file,
            f"the function {function} is not allowed: queries may call functions of Spark that only compute values"
            + (f"; did you mean {similar[0]}?" if similar else ", so write the query without it"),
        )
    return tree


def sql_text(node: exp.Expr) -> str:
    """The text that Spark gets, without comments. Equal trees have equal texts."""
    return node.sql(_PipelineSpark, comments=False, normalize_functions=False)


def _check(node: exp.Expr, file: str) -> None:
    """Refuse what is not known to be harmless."""

    def refuse(why: str) -> None:
        _refuse(file, why.format(repr(sql_text(node)[:60])))

    if isinstance(node, exp.Hint):
        refuse("it has the hint {}: remove it, Spark chooses by itself")
    if not isinstance(node, _ALLOWED):
        refuse("{} is not allowed")
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
        refuse("{} calls a function of a catalog: call functions of Spark, by their names alone")
    if isinstance(node, exp.Column) and not node.table and node.name.lower() in FUNCTIONS_WITHOUT_PARENTHESES:
        refuse("Spark may read {} as a function: write the table before the name of the column")
    if isinstance(node, exp.With) and node.recursive:
        refuse("it has WITH RECURSIVE: write it without recursion")
    if isinstance(node, exp.Table):
        if not isinstance(node.this, exp.Identifier | exp.Dot):
            refuse("{} is not a table: name a table of the lake")
        if node.args.get("version") is not None or node.args.get("when") is not None:
            refuse("{} reads a fixed version: only current tables can be read")
        if any(value for key, value in node.args.items() if key not in _TABLE_PARTS):
            refuse("{} is not just the name of a table: name a table of the lake")


def called_functions(tree: exp.Query) -> frozenset[str]:
    """The names of the functions that Spark finds in a query, in lower case.

    They are taken from the text that Spark gets, because the names in the tree are not always those in the text.
    """
    shown = tree.copy()
    for alias in shown.find_all(exp.TableAlias):
        alias.set("columns", None)  # in `t(a, b)`, t is not a function
    found = set()
    for token, following in pairwise(sqlglot.tokenize(sql_text(shown), _PipelineSpark)):
        name = token.text.lower()
        if following.token_type is not TokenType.L_PAREN or token.token_type is TokenType.STRING:
            continue
        if token.token_type is TokenType.IDENTIFIER or (name.isidentifier() and name not in _KEYWORDS):
            found.add(name)
    plain = [each for each in tree.find_all(exp.Func) if next(each.iter_expressions(), None) is None]
    return frozenset(found.union(sql_text(each).lower().removesuffix("()") for each in plain))


def _refuse(file: str, why: str) -> NoReturn:
    if not file:
        raise InvalidArgument(f"the query cannot be used: {why}", key="spark.query")
    raise InvalidArgument(f"the query in {file} cannot be used: {why}", key="pipeline.query", file=file)
