"""Python files of a pipeline: each function with the decorator of `pyspark.pipelines` makes a table.

    from pyspark import pipelines as dp
    from pyspark.sql import DataFrame, SparkSession

    spark = SparkSession.active()

    @dp.materialized_view(comment="Orders that are worth a look", partition_cols=["region"])
    def big_orders() -> DataFrame:
        return spark.table("orders").where("price > 100")

The code is only parsed here, never run: the tables and what they read are those that the text of the file shows. A table that a
function tries to read without showing it does not exist for the function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from skiway.errors import InvalidArgument
from skiway.formats import TableName
from skiway.metastore.pipelines.spark_sql import CHANGING_FUNCTIONS

DECORATOR: Final = "materialized_view"
_ARGUMENTS: Final = ("name", "comment", "partition_cols")
_MODULE: Final = "pyspark.pipelines"
_NOT_PYTHON: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python's parser raises. Code that is nested too deeply causes the last two."""

_PART: Final = re.compile(r"`((?:[^`]|``)+)`|([^\s.`()]+)")
_NAME: Final = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class PythonFunction:
    """A function that makes the table `table`, and the file that it is in. `tables` are the names in calls of `spark.table`."""

    file: str
    table: str
    source: str
    text: str
    """The code in one spelling: equal for files that differ only in comments or white space."""
    tables: Mapping[str, TableName]
    changes_by_itself: bool = False
    """Whether the result can differ although all tables are the same: the code calls a function of time or chance."""
    comment: str = ""
    partition_cols: tuple[str, ...] = ()

    why_not_row_wise: Final = "Python functions are refreshed in full"

    @property
    def reads(self) -> tuple[TableName, ...]:
        """The names of the tables that the function reads, as they are written."""
        return tuple(dict.fromkeys(self.tables.values()))


def parse_python(source: str, *, file: str) -> list[PythonFunction]:
    """The functions in a file that make tables. Raise `InvalidArgument` if there are none, or their tables are not known."""
    try:
        module = ast.parse(source)
        text = ast.unparse(module)
    except _NOT_PYTHON as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        _invalid(file, f"it is not valid Python{line}: {_reason(error)}")
    imports = _Imports.of(module)
    uses = {id(each): _Uses.of(each, imports, file) for each in module.body}
    defined = {each.name: uses[id(each)] for each in module.body if isinstance(each, Function | ast.ClassDef)}
    shared = [uses[id(each)] for each in module.body if not isinstance(each, Function | ast.ClassDef)]
    found = []
    for function in (each for each in module.body if isinstance(each, Function)):
        arguments = _decorated(function, imports, file)
        if arguments is None:
            continue
        used = _reachable([*shared, uses[id(function)]], defined)
        found.append(
            PythonFunction(
                file,
                arguments.get("name") or function.name,
                source,
                text,
                {written: name for each in used for written, name in each.tables.items()},
                any(each.is_changing for each in used),
                arguments.get("comment") or "",
                tuple(arguments.get("partition_cols") or ()),
            )
        )
    if not found:
        _invalid(
            file,
            f"no function makes a table: write @dp.{DECORATOR} before one, after `from pyspark import pipelines as dp`",
        )
    return found


@dataclass(frozen=True)
class _Imports:
    """The names by which a file knows `pyspark.pipelines`, what it has imported from there, and other modules."""

    modules: frozenset[str]
    members: Mapping[str, str]
    others: frozenset[str]

    @classmethod
    def of(cls, module: ast.Module) -> _Imports:
        modules, members, others = set[str](), dict[str, str](), set[str]()
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                modules |= {alias.asname or alias.name for alias in node.names if alias.name == _MODULE}
                others |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module == "pyspark":
                modules |= {alias.asname or alias.name for alias in node.names if alias.name == "pipelines"}
            elif isinstance(node, ast.ImportFrom) and node.module == _MODULE:
                members |= {alias.asname or alias.name: alias.name for alias in node.names}
        return cls(frozenset(modules), members, frozenset(others))

    def member(self, node: ast.expr) -> str:
        """The member of `pyspark.pipelines` that an expression names; empty if it is something else."""
        if isinstance(node, ast.Name):
            return self.members.get(node.id, "")
        if isinstance(node, ast.Attribute) and _dotted(node.value) in self.modules:
            return node.attr
        return ""


def _dotted(node: ast.expr) -> str:
    """The text of a name with dots; empty for other expressions."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def _decorated(function: Function, imports: _Imports, file: str) -> dict[str, Any] | None:
    """The arguments of the decorator that makes a table; None for a function without it."""
    for decorator in function.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        member = imports.member(decorator if call is None else call.func)
        if not member:
            continue
        if member != DECORATOR:
            _invalid(file, f"@{member} of {_MODULE} is not supported, in line {decorator.lineno}: use @dp.{DECORATOR}")
        if isinstance(function, ast.AsyncFunctionDef) or _parameters(function):
            _invalid(
                file,
                f"function {function.name} has parameters or is async: a function that makes a table takes nothing and "
                "reads its tables with spark.table('…')",
            )
        return {} if call is None else _arguments(call, file)
    return None


def _parameters(function: Function) -> bool:
    given = function.args
    return bool(given.posonlyargs or given.args or given.kwonlyargs or given.vararg or given.kwarg)


def _arguments(call: ast.Call, file: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg not in _ARGUMENTS or call.args:
            _invalid(
                file,
                f"@{DECORATOR} has the argument {keyword.arg or '**'}, in line {call.lineno}; those that can be used are "
                f"{', '.join(_ARGUMENTS)}",
            )
        try:
            value = ast.literal_eval(keyword.value)
        except _NOT_PYTHON:
            value = object()
        is_list = keyword.arg == "partition_cols"
        if not isinstance(value, list if is_list else str) or (is_list and not all(isinstance(x, str) for x in value)):
            _invalid(
                file,
                f"{keyword.arg} of @{DECORATOR} must be {'a list of texts' if is_list else 'a text'} in the code, in line "
                f"{call.lineno}",
            )
        found[keyword.arg] = value
    return found


@dataclass(frozen=True, eq=False)
class _Uses:
    """What a statement of a file uses: names, tables by the text of their names, and functions of time or chance."""

    names: frozenset[str]
    tables: Mapping[str, TableName]
    is_changing: bool

    @classmethod
    def of(cls, statement: ast.stmt, imports: _Imports, file: str) -> _Uses:
        nodes = list(ast.walk(statement))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        return cls(
            frozenset(node.id for node in nodes if isinstance(node, ast.Name)),
            _tables(calls, imports, file),
            any(_called(call) in CHANGING_FUNCTIONS for call in calls),
        )


def _reachable(used: list[_Uses], defined: Mapping[str, _Uses]) -> list[_Uses]:
    """The statements, and the functions and classes of the file whose names they mention, directly or not."""
    found = dict.fromkeys(used)
    waiting = list(used)
    while waiting:
        new = [defined[name] for name in waiting.pop().names if name in defined and defined[name] not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)


def _called(call: ast.Call) -> str:
    """The last name of what is called, in lower case."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return str(name).lower()


def _tables(calls: Iterable[ast.Call], imports: _Imports, file: str) -> dict[str, TableName]:
    """The tables in calls of `spark.table` and `spark.read.table`, by the text of the name."""
    found: dict[str, TableName] = {}
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "table" or imports.member(call.func):
            continue
        if _dotted(call.func.value).partition(".")[0] in imports.others:
            continue  # a function of a module, such as pyarrow.table
        given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "tableName")]
        if len(given) != 1 or not isinstance(given[0], ast.Constant) or not isinstance(given[0].value, str):
            _invalid(
                file,
                f"the name of the table in line {call.lineno} is computed: write it as a text, such as "
                "spark.table('orders'), because the order of the tables depends on it",
            )
        found[given[0].value] = _name(given[0].value, file, call.lineno)
    return found


def _name(text: str, file: str, line: int) -> TableName:
    parts = [quoted.replace("``", "`") or plain for quoted, plain in _PART.findall(text)]
    if not _NAME.fullmatch(text):
        _invalid(file, f"{text!r} is not the name of a table, in line {line}")
    return TableName(tuple(parts[:-1]), parts[-1])


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    return str(error) if isinstance(error, ValueError) else "it is nested too deeply"


def _invalid(file: str, why: str) -> NoReturn:
    raise InvalidArgument(f"{file}: {why}", key="pipeline.file", file=file)
