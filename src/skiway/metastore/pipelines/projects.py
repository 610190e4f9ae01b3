"""The files of a pipeline: `pipeline.yml`, a `.sql` file for each derived table, and `.py` files with functions that make tables.

The tables are in order: each after the tables of the pipeline that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NoReturn, get_args

import yaml

from skiway.errors import InvalidArgument, NotFound
from skiway.formats import TableName
from skiway.foundation.clock import parse_duration
from skiway.metastore.pipelines.python_files import PythonFunction, parse_python
from skiway.metastore.pipelines.spark_sql import Query, parse_query

PROJECT_FILE: Final = "pipeline.yml"
SUFFIXES: Final = (".sql", ".py")
MAX_BYTES: Final = 512 * 1024
MAX_TABLES: Final = 500

Refresh = Literal["incremental", "full"]

_FIELDS: Final = ("name", "catalog", "namespace", "schedule", "on_change", "description")
_OPTIONS: Final = ("table", "refresh", "partition_by", "description")
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

    @property
    def digest(self) -> str:
        """A digest of everything that the content of the table depends on, besides its inputs."""
        names = sorted((str(written), str(full)) for written, full in self.reads.items())
        return sha256(repr((self.query.text, names, self.partition_by)).encode()).hexdigest()


@dataclass(frozen=True)
class Project:
    """A pipeline, as its files declare it. Tables are by their keys; see `key_of`."""

    name: str
    catalog: str
    namespace: tuple[str, ...]
    schedule: timedelta | None = None
    on_change: bool = False
    description: str = ""
    tables: Mapping[str, DerivedTable] = field(default_factory=dict)


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
        if path.suffix in SUFFIXES and not any(part.startswith(".") for part in inside.parts):
            found[inside.as_posix()] = _text(path)
    return {PROJECT_FILE: _text(folder / PROJECT_FILE), **found}


def read_project(files: Mapping[str, str]) -> Project:
    """Parse the files of a project. Raise `InvalidArgument` if something in them is wrong."""
    size = sum(len(text.encode()) for text in files.values())
    if size > MAX_BYTES or len(files) > MAX_TABLES + 1:
        _invalid(
            PROJECT_FILE,
            f"the project has {len(files)} files with {size} bytes; at most {MAX_TABLES} tables and {MAX_BYTES} bytes are "
            "allowed: split it into several pipelines",
        )
    if PROJECT_FILE not in files:
        _invalid(PROJECT_FILE, "the file is missing")
    head = _head(files[PROJECT_FILE])
    namespace = tuple(_required(head, "namespace").split("."))
    project = Project(
        _required(head, "name"),
        _required(head, "catalog"),
        namespace,
        _duration(head.get("schedule")),
        _flag(head, "on_change"),
        str(head.get("description") or ""),
    )
    if project.schedule is not None and project.on_change:
        _invalid(PROJECT_FILE, "it has both schedule and on_change: choose one of them")
    tables: dict[str, DerivedTable] = {}
    for file, text in sorted(files.items()):
        if file == PROJECT_FILE:
            continue
        for table in _tables(project, file, text):
            known = tables.setdefault(key_of(table.name), table)
            if known is not table:
                _invalid(file, f"{known.file} also defines table {table.name}: remove or rename one of them")
    if not tables:
        _invalid(PROJECT_FILE, "the project has no .sql or .py files, so it has no tables")
    if len(tables) > MAX_TABLES:
        _invalid(PROJECT_FILE, f"the project has {len(tables)} tables; at most {MAX_TABLES} are allowed: split it")
    return replace(project, tables=tables)


def _tables(project: Project, file: str, text: str) -> list[DerivedTable]:
    suffix = PurePosixPath(file).suffix
    if suffix not in SUFFIXES:
        _invalid(file, f"only {' and '.join(SUFFIXES)} files define tables")
    if suffix == ".py":
        return [_table_of_function(project, each) for each in parse_python(text, file=file)]
    return [_table(project, file, text)]


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
    options = _table_options(file, text)
    name = _full(project, _dotted(options.get("table") or PurePosixPath(file).stem, file))
    refresh = options.get("refresh", "incremental")
    if refresh not in get_args(Refresh):
        _invalid(file, f"@refresh is {refresh!r}; it must be {' or '.join(get_args(Refresh))}")
    query = parse_query(text, file=file)
    return DerivedTable(
        name,
        file,
        query,
        {read: _full(project, read) for read in query.reads},
        "full" if refresh == "full" else "incremental",
        options.get("partition_by", ""),
        options.get("description", ""),
        text,
    )


def _table_options(file: str, text: str) -> dict[str, str]:
    """The options in the comments at the beginning of a file."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("--"):
            break
        match = _OPTION.fullmatch(stripped)
        if match is None:
            continue
        if match[1] not in _OPTIONS:
            _invalid(
                file, f"there is no option @{match[1]}; the options are {', '.join(f'@{each}' for each in _OPTIONS)}"
            )
        if match[1] in found:
            _invalid(file, f"the option @{match[1]} is given twice")
        found[match[1]] = match[2].strip()
    return found


def _full(project: Project, name: TableName) -> TableName:
    """The name with its namespace, and without the catalog of the pipeline."""
    path = name.namespace or project.namespace
    if len(path) > 1 and path[0].casefold() == project.catalog.casefold():
        path = path[1:]
    return TableName(path, name.name)


def _dotted(text: str, file: str) -> TableName:
    parts = text.split(".")
    if not all(part.strip() == part and part for part in parts):
        _invalid(file, f"{text!r} is not the name of a table")
    return TableName(tuple(parts[:-1]), parts[-1])


def _head(text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        _invalid(PROJECT_FILE, f"it is not valid YAML: {str(error).splitlines()[0]}")
    if not isinstance(found, dict):
        _invalid(PROJECT_FILE, f"it must be a mapping with {', '.join(_FIELDS[:3])}")
    unknown = [str(key) for key in found if key not in _FIELDS]
    if unknown:
        _invalid(PROJECT_FILE, f"there is no field {unknown[0]!r}; the fields are {', '.join(_FIELDS)}")
    return found


def _required(head: Mapping[str, Any], name: str) -> str:
    value = head.get(name)
    if not isinstance(value, str) or not value.strip():
        _invalid(PROJECT_FILE, f"{name} is missing: give it as a text")
    return value.strip()


def _flag(head: Mapping[str, Any], name: str) -> bool:
    value = head.get(name, False)
    if not isinstance(value, bool):
        _invalid(PROJECT_FILE, f"{name} is {value!r}; it must be true or false")
    return value


def _duration(value: object) -> timedelta | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError:
        _invalid(PROJECT_FILE, f"schedule is {value!r}; give the time between two runs, such as 30m, 1h or 1d")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is not a text file in UTF-8", key="pipeline.file", file=str(path)) from None


def _invalid(file: str, why: str) -> NoReturn:
    raise InvalidArgument(f"{file}: {why}", key="pipeline.file", file=file)


def in_order(project: Project) -> list[DerivedTable]:
    """The tables of the project, each after those that it reads. Raise `InvalidArgument` if tables read each other."""
    graph = {key: sorted(map(key_of, read_tables(project, table))) for key, table in sorted(project.tables.items())}
    for key, reads in graph.items():
        if key in reads:
            name = project.tables[key].name
            raise InvalidArgument(
                f"table {name} reads itself, in {project.tables[key].file}: read the tables that it is made from",
                key="pipeline.cycle",
                cycle=str(name),
            )
    try:
        ordered = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        # The error has each table before one that reads it.
        names = [str(project.tables[key].name) for key in reversed(error.args[1])]
        raise InvalidArgument(
            f"tables of pipeline {project.name} read each other: {' reads '.join(names)}; remove one of these reads",
            key="pipeline.cycle",
            cycle=" > ".join(names),
        ) from None
    return [project.tables[key] for key in ordered]


def read_tables(project: Project, table: DerivedTable) -> Sequence[TableName]:
    """The tables of the same pipeline that a table reads."""
    return [name for name in table.reads.values() if key_of(name) in project.tables]
