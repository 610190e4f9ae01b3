"""The files of a pipeline: `pipeline.yml`, a `.sql` file for each derived table, and `.py` files with functions that make tables.

The tables are in order: each after the tables of the pipeline that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from skiway.errors import InvalidArgument, NotFound
from skiway.formats import TableName
from skiway.foundation.clock import parse_duration
from skiway.metastore.pipelines.models.declarations import (
    Declarations,
    Expectation,
    Freshness,
    UnitTest,
    invalid,
    load_yaml,
)
from skiway.metastore.pipelines.models.expectations import QUARANTINE, parents
from skiway.metastore.pipelines.models.incremental import Declared, Increment
from skiway.metastore.pipelines.python_files import PythonFunction, parse_python
from skiway.metastore.pipelines.spark_sql import Query, parse_query

PROJECT_FILE: Final = "pipeline.yml"
SUFFIXES: Final = (".sql", ".py", ".csv")
NOTES: Final = (".yml", ".yaml")
"""Files that describe tables."""
MAX_BYTES: Final = 512 * 1024
MAX_TABLES: Final = 500

Refresh = Literal["incremental", "full"]

_FIELDS: Final = ("name", "catalog", "namespace", "schedule", "on_change", "on_branch", "description")
_OPTIONS: Final = ("table", "refresh", "incremental", "partition_by", "description")
_OPTION: Final = re.compile(r"--\s*@(\w+)\s*:\s*(.*)")


@dataclass(frozen=True)
class DerivedTable:
    """A table and the query or function that makes it. `reads` are full names: the namespace and the name."""

    name: TableName
    file: str
    query: Query | PythonFunction
    reads: Mapping[TableName, TableName]
    """Full names by the names that are written in the file."""
    refresh: Refresh = "incremental"
    partition_by: str = ""
    description: str = ""
    source: str = field(default="", compare=False, repr=False)
    """The text of the file of a query."""
    incremental: tuple[Declared, str] | None = None
    """How changes of an input reach the table, and where its file says so."""
    expect: tuple[Expectation, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of columns."""
    seed: pa.Table | None = field(default=None, compare=False, repr=False)
    """The rows of a CSV file."""

    @property
    def digest(self) -> str:
        """A digest of everything that the content of the table depends on, besides its inputs."""
        names = sorted((str(written), str(full)) for written, full in self.reads.items())
        parts: tuple[object, ...] = (self.query.text, names, self.partition_by)
        if self.seed is not None:
            parts = (*parts, self.source, str(self.seed.schema))
        rules = tuple(rule.definition for rule in self.expect)
        if rules or self.incremental:  # without them, digests are those of earlier versions
            parts = (*parts, rules, self.incremental and self.incremental[0])
        return sha256(repr(parts).encode()).hexdigest()

    def increment(self) -> Increment | None:
        """How changes of an input reach the table. Raise `InvalidArgument` if the query does not allow what its file says."""
        if self.incremental is None or not isinstance(self.query, Query):
            return None
        declared, place = self.incremental
        return Increment.of(self.query, declared, place=place)

    @property
    def rules(self) -> tuple[Expectation, ...]:
        """The expectations, and that a key is one."""
        if self.incremental is None or self.incremental[0].kind != "key":
            return self.expect
        declared, place = self.incremental
        name = next(name for name in ("key", "incremental_key") if name not in {each.name for each in self.expect})
        return (*self.expect, Expectation(name, "unique", declared.columns, "fail", place))


@dataclass(frozen=True)
class Project:
    """A pipeline, as its files declare it. Tables are by their keys; see `key_of`."""

    name: str
    catalog: str
    namespace: tuple[str, ...]
    schedule: timedelta | None = None
    on_change: bool = False
    on_branch: bool = False
    """Whether each run is on a branch of its own, so that all tables are published together."""
    description: str = ""
    tables: Mapping[str, DerivedTable] = field(default_factory=dict)
    sources: Mapping[str, Freshness] = field(default_factory=dict)
    """How fresh tables must be that the pipeline reads, by their keys."""
    unit_tests: Sequence[UnitTest] = ()


def position_of(fragment: str, source: str) -> str:
    """Where a part of a query is in its file, such as `line 3, column 8`; empty if that is not certain.

    White space, quotes of names and case make no difference.
    """
    words = re.findall(r"\w+|[^\w\s`]", fragment)
    if not words:
        return ""
    pattern = r"[\s`]*".join(map(re.escape, words))
    places = [match.start() for match in re.finditer(pattern, source, re.IGNORECASE)]
    if len(places) != 1:
        return ""
    before = source[: places[0]]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def key_of(name: TableName) -> str:
    """The name as tables are looked up: case makes no difference."""
    return str(name).casefold()


def read_folder(folder: Path) -> dict[str, str]:
    """The files of a project, by their paths in the folder. Hidden files and folders are left out."""
    if not (folder / PROJECT_FILE).is_file():
        raise NotFound(f"{folder} is not the folder of a pipeline: it has no {PROJECT_FILE}", key="pipeline.folder")
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix in (*SUFFIXES, *NOTES) and not any(part.startswith(".") for part in inside.parts):
            found[inside.as_posix()] = _text(path)
    return {PROJECT_FILE: _text(folder / PROJECT_FILE), **found}


def read_project(files: Mapping[str, str]) -> Project:
    """Parse the files of a project. Raise `InvalidArgument` if something in them is wrong."""
    size = sum(len(text.encode()) for text in files.values())
    if size > MAX_BYTES or len(files) > MAX_TABLES + 1:
        invalid(
            PROJECT_FILE,
            f"the project has {len(files)} files with {size} bytes; at most {MAX_TABLES} tables and {MAX_BYTES} bytes are "
            "allowed: split it into several pipelines",
        )
    if PROJECT_FILE not in files:
        invalid(PROJECT_FILE, "the file is missing")
    head = _head(files[PROJECT_FILE])
    namespace = tuple(_required(head, "namespace").split("."))
    project = Project(
        _required(head, "name"),
        _required(head, "catalog"),
        namespace,
        _duration(head.get("schedule")),
        _flag(head, "on_change"),
        _flag(head, "on_branch"),
        str(head.get("description") or ""),
    )
    if project.schedule is not None and project.on_change:
        invalid(PROJECT_FILE, "it has both schedule and on_change: choose one of them")
    tables: dict[str, DerivedTable] = {}
    notes = Declarations()
    for file, text in sorted(files.items()):
        if file == PROJECT_FILE:
            continue
        if PurePosixPath(file).suffix in NOTES:
            notes.add(file, text)
            continue
        for table in _tables(project, file, text):
            known = tables.setdefault(key_of(table.name), table)
            if known is not table:
                invalid(file, f"{known.file} also defines table {table.name}: remove or rename one of them")
    if not tables:
        invalid(PROJECT_FILE, "the project has no .sql, .py or .csv files, so it has no tables")
    if len(tables) > MAX_TABLES:
        invalid(PROJECT_FILE, f"the project has {len(tables)} tables; at most {MAX_TABLES} are allowed: split it")
    _describe(project, tables, notes)
    sources = {key_of(_full(project, _dotted(name, PROJECT_FILE))): each for name, each in notes.sources.items()}
    made = next((str(tables[key].name) for key in sources if key in tables), None)
    if made is not None:
        invalid(PROJECT_FILE, f"{made} is a source of the pipeline and a table of it: remove it from sources")
    project = replace(project, tables=tables, sources=sources, unit_tests=tuple(notes.unit_tests))
    for table in tables.values():
        table.increment()  # raises if the query does not allow it
    return project


def _describe(project: Project, tables: dict[str, DerivedTable], notes: Declarations) -> None:
    """Add to the tables what YAML files say about them."""
    for name, note in notes.models.items():
        key = key_of(_full(project, _dotted(name, note.place)))
        table = tables.get(key)
        if table is None:
            known = ", ".join(sorted(str(each.name) for each in tables.values()))
            invalid(note.place, f"the pipeline has no table {name}; its tables are {known}")
        if note.expect and isinstance(table.query, PythonFunction):
            invalid(
                note.place,
                f"{name} is made by a Python function, whose rows cannot be checked: derive a table from it with a .sql file, "
                "and give that the expectations",
            )
        if note.description and table.description:
            invalid(note.place, f"{name} is described here and in {table.file}: remove one of the descriptions")
        reads = dict(table.reads)
        for written in parents(note.expect).values():
            reads.setdefault(written, _full(project, written))
        tables[key] = replace(
            table,
            reads=reads,
            expect=note.expect,
            columns=note.columns,
            description=note.description or table.description,
        )
    for table in list(tables.values()):
        clash = tables.get(key_of(quarantine_of(table.name)))
        if clash is not None and any(rule.on_failure == "drop" for rule in table.expect):
            invalid(clash.file, f"{clash.name} is the quarantine of {table.name}: give the table another name")


def quarantine_of(name: TableName) -> TableName:
    """The table with the rows that were dropped from another."""
    return TableName(name.namespace, f"{name.name}{QUARANTINE}")


def _tables(project: Project, file: str, text: str) -> list[DerivedTable]:
    suffix = PurePosixPath(file).suffix
    if suffix not in SUFFIXES:
        invalid(file, f"only {' and '.join(SUFFIXES)} files define tables")
    if suffix == ".py":
        return [_table_of_function(project, each) for each in parse_python(text, file=file)]
    if suffix == ".csv":
        name = _full(project, _dotted(PurePosixPath(file).stem, file))
        return [DerivedTable(name, file, _SEED, {}, source=text, seed=_rows_of_csv(file, text))]
    return [_table(project, file, text)]


SEED: Final = TableName((), "seed")
"""The name of the rows of a CSV file in the query that makes their table."""

_SEED: Final = parse_query("SELECT * FROM seed")


def _rows_of_csv(file: str, text: str) -> pa.Table:
    """The rows of a CSV file, in types that fit all values of a column. An empty value is NULL."""
    from pyarrow import csv

    options = csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    try:
        found = csv.read_csv(pa.BufferReader(text.encode()), convert_options=options)
    except pa.ArrowInvalid as error:
        invalid(file, f"it is not a CSV file with a line of names and rows of the same length: {error}")
    names = [each.strip() for each in found.schema.names]
    if not all(names) or len({name.casefold() for name in names}) < len(names):
        invalid(f"{file}, line 1", f"the columns need different names; they are {', '.join(map(repr, names))}")
    types = [pa.string() if pa.types.is_null(each.type) else each.type for each in found.schema]
    types = [pa.timestamp("us", each.tz) if pa.types.is_timestamp(each) else each for each in types]
    return found.rename_columns(names).cast(pa.schema(dict(zip(names, types, strict=True))))


def _table_of_function(project: Project, function: PythonFunction) -> DerivedTable:
    return DerivedTable(
        _full(project, _dotted(function.table, function.file)),
        function.file,
        function,
        {read: _full(project, read) for read in function.reads},
        partition_by=", ".join(function.partition_cols),
        description=function.comment,
    )


def _table(project: Project, file: str, text: str) -> DerivedTable:
    options, lines = _table_options(file, text)
    name = _full(project, _dotted(options.get("table") or PurePosixPath(file).stem, file))
    refresh = options.get("refresh", "incremental")
    if refresh not in get_args(Refresh):
        invalid(file, f"@refresh is {refresh!r}; it must be {' or '.join(get_args(Refresh))}")
    query = parse_query(text, file=file)
    incremental = None
    if "incremental" in options:
        place = f"{file}, line {lines['incremental']}"
        if "refresh" in options:
            invalid(place, "it has both @incremental and @refresh: choose one of them")
        try:
            incremental = Declared.parsed(options["incremental"]), place
        except ValueError as error:
            invalid(place, f"@incremental: {error}")
    return DerivedTable(
        name,
        file,
        query,
        {read: _full(project, read) for read in query.reads},
        "full" if refresh == "full" else "incremental",
        options.get("partition_by", ""),
        options.get("description", ""),
        text,
        incremental,
    )


def _table_options(file: str, text: str) -> tuple[dict[str, str], dict[str, int]]:
    """The options in the comments at the beginning of a file, and the lines that they are in."""
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("--"):
            break
        match = _OPTION.fullmatch(stripped)
        if match is None:
            continue
        place = f"{file}, line {number}"
        if match[1] not in _OPTIONS:
            invalid(
                place, f"there is no option @{match[1]}; the options are {', '.join(f'@{each}' for each in _OPTIONS)}"
            )
        if match[1] in found:
            invalid(place, f"the option @{match[1]} is given twice")
        found[match[1]], lines[match[1]] = match[2].strip(), number
    return found, lines


def _full(project: Project, name: TableName) -> TableName:
    """The name with its namespace, and without the catalog of the pipeline."""
    path = name.namespace or project.namespace
    if len(path) > 1 and path[0].casefold() == project.catalog.casefold():
        path = path[1:]
    return TableName(path, name.name)


def _dotted(text: str, file: str) -> TableName:
    parts = text.split(".")
    if not all(part.strip() == part and part for part in parts):
        invalid(file, f"{text!r} is not the name of a table")
    return TableName(tuple(parts[:-1]), parts[-1])


def _head(text: str) -> dict[str, Any]:
    found = load_yaml(PROJECT_FILE, text)
    if not isinstance(found, dict):
        invalid(PROJECT_FILE, f"it must be a mapping with {', '.join(_FIELDS[:3])}")
    unknown = [str(key) for key in found if key not in _FIELDS and isinstance(key, str) and key.isprintable()]
    if unknown:
        invalid(PROJECT_FILE, f"there is no field {unknown[0]!r}; the fields are {', '.join(_FIELDS)}")
    return found


def _required(head: Mapping[str, Any], name: str) -> str:
    value = head.get(name)
    if not isinstance(value, str) or not value.strip():
        invalid(PROJECT_FILE, f"{name} is missing: give it as a text")
    return value.strip()


def _flag(head: Mapping[str, Any], name: str) -> bool:
    value = head.get(name, False)
    if not isinstance(value, bool):
        invalid(PROJECT_FILE, f"{name} is {value!r}; it must be true or false")
    return value


def _duration(value: object) -> timedelta | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError:
        invalid(PROJECT_FILE, f"schedule is {value!r}; give the time between two runs, such as 30m, 1h or 1d")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is not a text file in UTF-8", key="pipeline.file", file=str(path)) from None


def in_order(project: Project) -> list[DerivedTable]:
    """The tables of the project, each after those that it reads. Raise `InvalidArgument` if tables read each other."""
    graph = {key: sorted(map(key_of, read_tables(project, table))) for key, table in sorted(project.tables.items())}
    for key, reads in graph.items():
        if key in reads:
            name = project.tables[key].name
            raise InvalidArgument(
                f"table {name} reads itself, in {_place_of_read(project, key, key)}: read the tables that it is made from",
                key="pipeline.cycle",
                cycle=str(name),
            )
    try:
        ordered = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        # The error has each table before one that reads it.
        found = list(reversed(error.args[1]))
        names = [str(project.tables[key].name) for key in found]
        places = ", ".join(_place_of_read(project, *pair) for pair in pairwise(found))
        raise InvalidArgument(
            f"tables of pipeline {project.name} read each other: {' reads '.join(names)} ({places}); remove one of these reads",
            key="pipeline.cycle",
            cycle=" > ".join(names),
        ) from None
    return [project.tables[key] for key in ordered]


def _place_of_read(project: Project, reader: str, read: str) -> str:
    """Where a table reads another: the file, and the line if it is certain."""
    table = project.tables[reader]
    written = next(name for name, full in table.reads.items() if key_of(full) == read)
    line = position_of(str(written), table.source).partition(",")[0]
    return f"{table.file} {line}".strip()


def selected(project: Project, wanted: Sequence[str], changed: Callable[[], AbstractSet[str]]) -> frozenset[str]:
    """The keys of the tables that a selection names; all, if it is empty. `changed` returns those whose definition has changed.

    `+name` adds the tables that it reads, and `name+` those that read it, at any distance. `*` stands for any text.
    """
    if not wanted:
        return frozenset(project.tables)
    above = {key: {key_of(each) for each in read_tables(project, table)} for key, table in project.tables.items()}
    below = {key: {other for other, reads in above.items() if key in reads} for key in above}
    found = set[str]()
    for each in (part for text in wanted for part in text.split(",")):
        name = each.strip().removeprefix("+").removesuffix("+")
        if name == "state:changed":
            chosen = set(changed())
        else:
            full = key_of(_full(project, _dotted(name, "--select"))).casefold()
            chosen = {key for key in project.tables if fnmatchcase(key, full)}
        if not chosen and name != "state:changed":
            known = ", ".join(str(table.name) for table in project.tables.values())
            raise InvalidArgument(
                f"the selection {each!r} names no table of pipeline {project.name}; its tables are {known}",
                key="pipeline.selection",
            )
        found |= chosen
        if each.strip().startswith("+"):
            found |= _reachable(chosen, above)
        if each.strip().endswith("+"):
            found |= _reachable(chosen, below)
    return frozenset(found)


def full_name(project: Project, text: str) -> TableName:
    """The table that a name means in a file of the project."""
    return _full(project, _dotted(text, PROJECT_FILE))


def _reachable(start: AbstractSet[str], edges: Mapping[str, AbstractSet[str]]) -> set[str]:
    found, waiting = set[str](), list(start)
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def read_tables(project: Project, table: DerivedTable) -> Sequence[TableName]:
    """The tables of the same pipeline that a table reads."""
    return [name for name in table.reads.values() if key_of(name) in project.tables]
