"""Packages import only lower packages, and only libraries that their users must install."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

from skiway import airport

PROJECT = Path(__file__).parents[1]
SOURCE = PROJECT / "src"

# All packages may import these, so these may import only each other.
BOTTOM_ROW = {"model", "errors", "foundation", "sandbox", "config", "telemetry"}

# Our packages that a package may import besides itself and the bottom row. A dotted name means that module only.
MAY_IMPORT: dict[str, set[str]] = {
    **{package: set() for package in BOTTOM_ROW},
    "airport": set(),
    "client": {"airport.conversion", "airport.wire"},
    "testing": {"airport", "client"},
    "storage": set(),
    "security": set(),
    "formats": {"airport.filters", "airport.conversion", "client", "security.redaction", "security.source_access"},
    "metastore": {"storage", "security", "formats"},
    "spark_jobs": {"client", "metastore", "formats", "security"},
    "spark_queries": {"spark_jobs", "spark", "client", "airport.wire", "metastore", "formats", "security"},
    "request_path": {"metastore", "security"},
    "sql": {"airport", "client"},
    "duckdb": {"airport.conversion", "airport.wire", "client", "sql.pushdown"},
    "flightsql": {"airport"},
    "lake": {"request_path", "sql", "spark_queries", "flightsql", "airport", "metastore", "formats", "security"},
    "rpc": {"request_path", "metastore", "security"},
    "vending": {"metastore", "formats", "security"},
    "rest": {"request_path", "vending", "metastore", "formats", "security"},
    "presentation": {"airport.wire", "client"},
    "mcp": {"client", "metastore.records", "presentation"},
    "setup": {"client"},
    "web": {"airport.wire", "client", "metastore.records", "presentation"},
    "spark": {"client"},
}
MAY_IMPORT_ALL = {"cli", "demo", "doctor", "runtime"}

# The plain install, `pip install skiway`, by the names its libraries are imported under. The library for
# writing a server, its clients and their dependencies must work with it; modules with their own extra may use more.
PLAIN_INSTALL = {"google.protobuf", "grpc", "msgspec", "pyarrow"}
MAY_USE: dict[str, set[str]] = {
    "errors": set(),
    "foundation": set(),
    "foundation.cache": {"cachetools"},
    "foundation.doors": {"grpc"},
    "foundation.memory_budget": {"pyarrow"},
    "foundation.resources": PLAIN_INSTALL,
    "foundation.native": {"grpc"},
    "foundation.threads": {"grpc"},
    "foundation.transport": {"grpc"},
    "sandbox": {"duckdb", "fsspec", "pyarrow"},
    "model": PLAIN_INSTALL,
    "client": PLAIN_INSTALL,
    "duckdb": PLAIN_INSTALL | {"duckdb", "sqlglot"},
    "client.airport.results": PLAIN_INSTALL | {"duckdb"},  # to read the files that a server returns
    "telemetry.context": set(),
    "testing": {"pytest"},
    "airport": PLAIN_INSTALL,
    "flightsql": PLAIN_INSTALL,
    "airport.filters.dialects": PLAIN_INSTALL | {"sqlglot"},
    "airport.memory": PLAIN_INSTALL | {"duckdb"},
    "airport.geometry": PLAIN_INSTALL | {"geoarrow", "numpy", "shapely"},
}

# The storage layout of the metastore is private: other packages call its functions.
METASTORE_PRIVATE = {f"skiway.metastore.records.{module}" for module in ("keys", "kinds", "repository")}
STORES = {"pointers", "blobs"}
MAY_KNOW_THE_LAYOUT = {
    "skiway.runtime.gc.schedule": "stores the state of each sweep, which all servers share, in a pointer",
    "skiway.runtime.process": "passes the pointer store to that schedule",
}

# Managed tables are Iceberg tables, so these parts of the metastore may import `formats.iceberg`. Beyond that, the
# metastore imports only what `skiway.formats` exports.
MANAGES_TABLES = {
    f"skiway.metastore.{part}"
    for part in (
        "branches",
        "exports",
        "managed",
        "gc.warehouse",
        "ingest",
        "pipelines",
        "maintenance",
        "seeding",
        "reconcile.profiling",
        "reconcile.reconciler",
        "table_maintenance",
        "transactions",
    )
}

HEAVY = {"boto3", "deltalake", "duckdb", "pyiceberg", "pyspark", "shapely"}


def test_packages_import_only_lower_packages() -> None:
    assert list(violations(SOURCE)) == []


def test_there_are_no_import_cycles() -> None:
    """Imports inside functions and for type checking count too."""
    assert import_cycles(SOURCE) == []


def test_planted_cycle_is_detected(tmp_path: Path) -> None:
    plant(tmp_path, "lake/table.py", "def f():\n    from skiway.lake import schema")
    plant(tmp_path, "lake/schema.py", "if TYPE_CHECKING:\n    from skiway.lake.table import Table")
    assert import_cycles(tmp_path) == [["skiway.lake.schema", "skiway.lake.table"]]


def test_modules_use_only_public_names_of_others() -> None:
    assert list(private_uses(SOURCE)) == []


def test_planted_use_of_a_private_name_is_detected(tmp_path: Path) -> None:
    plant(tmp_path, "lake/__init__.py", "__all__ = ['Table']\nclass Table: ...\nclass Rows: ...")
    plant(tmp_path, "lake/table.py", "class Table: ...\ndef _helper(): ...")
    plant(tmp_path, "lake/rows.py", "from skiway.lake.table import Table, _helper")
    plant(tmp_path, "lake/parts.py", "from skiway.lake import table\ntable._helper()")
    plant(tmp_path, "lake/views.py", "from skiway.lake import Rows, Table, table")
    assert list(private_uses(tmp_path)) == [
        "skiway.lake.parts uses _helper of skiway.lake.table",
        "skiway.lake.rows uses _helper of skiway.lake.table",
        "skiway.lake.views uses Rows of skiway.lake",
    ]


def test_every_export_exists() -> None:
    for module in modules(SOURCE):
        missing = (module.exports or set()) - module.defined
        assert not missing, f"{module.name} exports {missing}, which it does not define"


def test_only_the_metastore_knows_its_storage_layout() -> None:
    found = list(layout_uses(SOURCE))
    assert [use for module, use in found if module not in MAY_KNOW_THE_LAYOUT] == []
    assert {module for module, _ in found} == MAY_KNOW_THE_LAYOUT.keys(), "no longer needed"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("lake/table.py", "from skiway.metastore.records import keys"),
        ("lake/table.py", "from skiway.metastore.records.kinds import TABLE"),
        ("rest/tables.py", "import skiway.metastore.records.repository"),
        ("rest/tables.py", "def f(realm):\n    return realm.stores.pointers.get('/a')"),
        ("rpc/tables.py", "def f(stores):\n    return stores.blobs"),
    ],
)
def test_planted_use_of_the_storage_layout_is_detected(tmp_path: Path, module: str, line: str) -> None:
    plant(tmp_path, module, line)
    assert [found for found, _ in layout_uses(tmp_path)] == [f"skiway.{module.removesuffix('.py').replace('/', '.')}"]


def test_metastore_uses_formats_through_their_interface() -> None:
    assert list(format_uses(SOURCE)) == []


@pytest.mark.parametrize(
    ("module", "line", "violation"),
    [
        ("managed/tables.py", "from skiway.formats.delta.log import x", "skiway.formats.delta.log.x"),
        ("managed/tables.py", "from skiway.formats import secret", "skiway.formats.secret"),
        ("jobs/queue.py", "from skiway.formats.iceberg.commits import append", "skiway.formats.iceberg.commits.append"),
        ("reconcile/profiling.py", "def f():\n    import skiway.formats.parquet", "skiway.formats.parquet"),
    ],
)
def test_planted_use_of_a_format_is_detected(tmp_path: Path, module: str, line: str, violation: str) -> None:
    plant(tmp_path, "formats/__init__.py", "__all__ = ['open_source']")
    plant(tmp_path, f"metastore/{module}", line)
    name = f"skiway.metastore.{module.removesuffix('.py').replace('/', '.')}"
    assert list(format_uses(tmp_path)) == [f"{name} imports {violation}"]


def test_architecture_page_shows_the_same_table() -> None:
    shown = {package: row[2] for package, row in architecture_table().items()}
    assert {package for package, cell in shown.items() if cell == "all"} == MAY_IMPORT_ALL
    for package in (shown.keys() | MAY_IMPORT.keys()) - MAY_IMPORT_ALL:
        assert set(re.findall(r"`([\w.]+)`", shown[package])) == MAY_IMPORT[package], package


def test_architecture_page_lists_the_existing_packages() -> None:
    shown = {package for package, row in architecture_table().items() if row[3] != "not yet"}
    walked = {package_of(module.name.partition(".")[2]) for module in modules(SOURCE)} - {""}
    assert shown == walked, "docs/architecture.md, column 'status', is not up to date"


def loaded_by(statement: str) -> set[str]:
    """The modules that a new interpreter has loaded after a statement."""
    program = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize("module", ["skiway.airport", "skiway.client", "skiway.formats", "skiway.spark_jobs.session"])
def test_importing_a_package_loads_no_heavy_library(module: str) -> None:
    loaded = loaded_by(f"from {module} import *")
    assert module in loaded
    assert loaded & HEAVY == set()


def test_clients_load_the_wire_format_but_not_the_server() -> None:
    loaded = loaded_by("import skiway.client")
    assert "skiway.airport.wire" in loaded
    assert [name for name in loaded if name.startswith(("skiway.airport.server", "skiway.airport.filters"))] == []


def test_commands_of_a_server_set_up_grpc_and_memory_before_they_import_it() -> None:
    loaded = loaded_by("import skiway.cli.server")
    assert loaded & {"grpc", "pyarrow", "skiway.runtime", "skiway.metastore"} == set()


@pytest.mark.parametrize("command", ["serve", "work"])
def test_servers_and_workers_let_arrow_use_the_allocator_of_the_c_library(tmp_path: Path, command: str) -> None:
    program = f"""
import sys
from pathlib import Path
from skiway.cli import command, output, server
call = command.HomeCall(Path({str(tmp_path)!r}), None, [], output.Output.table)
server._check_shared = lambda *given: None
class Runtime:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
    def __call__(self, *given, **named):
        return None
names = ["runtime", "runtime.process", "runtime.workers", "runtime.lifecycle"]
sys.modules.update((f"skiway.{{name}}", Runtime()) for name in names)
server.{command}(call)
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
    run = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert run.stdout == "system\n", run.stderr


def test_server_is_ready_before_it_imports_the_explorer_and_what_jobs_need(tmp_path: Path) -> None:
    store = f"skiway.storage.open_pointers('sqlite:///{tmp_path}/pointers.db').close()"
    loaded = loaded_by(f"import skiway.runtime.process, skiway.storage; {store}")
    late = {"datasketches", "jinja2", "skiway.client", "skiway.spark_jobs.profile", "skiway.web"}
    assert loaded & {*late, "sqlalchemy.dialects.postgresql"} == set()
    assert loaded & HEAVY == set()


def test_names_of_the_library_are_imported_when_they_are_used() -> None:
    assert sorted(airport._PLACES) == sorted(airport.__all__)
    for name in airport.__all__:
        assert getattr(airport, name) is getattr(import_module(f"skiway.airport.{airport._PLACES[name]}"), name)
    assert set(airport.__all__) <= set(dir(airport))
    with pytest.raises(AttributeError, match="has no attribute 'Sever'"):
        airport.Sever  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("module", "line", "violation"),
    [
        ("airport/server.py", "import skiway.metastore.gc", "skiway.airport.server imports skiway.metastore.gc"),
        ("airport/server.py", "from skiway import client", "skiway.airport.server imports skiway.client"),
        ("airport/deep/er.py", "from ...lake import views", "skiway.airport.deep.er imports skiway.lake.views"),
        ("airport/__init__.py", "from ..rpc import door", "skiway.airport imports skiway.rpc.door"),
        ("client/calls.py", "from skiway.airport import Server", "skiway.client.calls imports skiway.airport.Server"),
        ("client/calls.py", "from skiway.airport.wires import x", "skiway.client.calls imports skiway.airport.wires.x"),
        ("metastore/gc.py", "def f():\n    import skiway.lake", "skiway.metastore.gc imports skiway.lake"),
        ("errors.py", "from skiway.storage import blobs", "skiway.errors imports skiway.storage.blobs"),
        ("__init__.py", "from skiway.airport import Server", "skiway imports skiway.airport.Server"),
        ("helpers/text.py", "", "skiway.helpers.text is in no package of the table"),
        ("airport/server.py", "import duckdb", "skiway.airport.server uses duckdb"),
        ("airport/memory/tables.py", "from shapely import wkb", "skiway.airport.memory.tables uses shapely.wkb"),
        ("airport/server.py", "from google.cloud import storage", "skiway.airport.server uses google.cloud.storage"),
    ],
)
def test_planted_violation_is_detected(tmp_path: Path, module: str, line: str, violation: str) -> None:
    plant(tmp_path, module, line)
    assert list(violations(tmp_path)) == [violation]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("airport/server.py", "from skiway import errors, __version__"),
        ("airport/server.py", "from . import wire\nfrom .wire.frames import decode\nimport skiway.airport.filters"),
        ("airport/server.py", "import grpc, pyarrow.ipc, collections.abc\nfrom google.protobuf import message"),
        ("airport/memory/tables.py", "import duckdb"),
        ("airport/geometry.py", "import geoarrow.pyarrow, shapely"),
        ("client/airport.py", "from skiway.airport.wire import frames\nfrom skiway.airport import wire"),
        ("formats/iceberg.py", "import pyiceberg\nfrom skiway.airport import filters\nimport skiway.client.airport"),
        ("config.py", "from skiway.errors import InvalidArgument"),
        ("cli/serve.py", "import skiway.runtime, skiway.web"),
    ],
)
def test_permitted_import_is_accepted(tmp_path: Path, module: str, line: str) -> None:
    plant(tmp_path, module, line)
    assert list(violations(tmp_path)) == []


def architecture_table() -> dict[str, list[str]]:
    """The cells of the table of packages, by package."""
    lines = (PROJECT / "docs" / "architecture.md").read_text().partition("## Packages")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row for row in rows if len(row) == 4}  # tables of other things have other columns


def plant(root: Path, module: str, code: str) -> None:
    file = root / "skiway" / module
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)


@dataclass(frozen=True)
class Module:
    name: str
    is_package: bool
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def imports(self) -> Iterator[str]:
        """The full names imported anywhere in the module, including inside functions."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (".".join(filter(None, (self._origin(node), alias.name))) for alias in node.names)

    @cached_property
    def exports(self) -> set[str] | None:
        """The names in `__all__`, or None if it is missing."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                return set(ast.literal_eval(node.value))
        return None

    @cached_property
    def defined(self) -> set[str]:
        """The names that the module binds at its top level, or imports for type checkers if it has a `__getattr__`."""
        found: set[str] = set()
        blocks = [node.body for node in self.tree.body if isinstance(node, ast.If)]
        is_lazy = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in chain(*blocks))
        for node in chain(self.tree.body, *(blocks if is_lazy else ())):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found.add(node.name)
                case ast.Import() | ast.ImportFrom():
                    found.update(alias.asname or alias.name for alias in node.names)
                case ast.Assign() | ast.AnnAssign():
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    found.update(name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name))
        return found

    def used_names(self, known: Set[str]) -> Iterator[tuple[str, str]]:
        """Each name used from a module in `known`, with that module: imported, or accessed as an attribute."""
        aliases: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                for alias in node.names:
                    if f"{origin}.{alias.name}" in known:
                        aliases[alias.asname or alias.name] = f"{origin}.{alias.name}"
                    elif origin in known:
                        yield origin, alias.name
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
                yield aliases[node.value.id], node.attr

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        upwards = node.level - self.is_package
        return ".".join([*parts[: len(parts) - upwards], *filter(None, [node.module])])


@cache
def modules(root: Path) -> list[Module]:
    """The modules below a folder, which must not change between calls."""
    found = []
    for file in sorted(root.glob("skiway/**/*.py")):
        *folders, stem = file.relative_to(root).with_suffix("").parts
        is_package = stem == "__init__"
        name = ".".join(folders if is_package else [*folders, stem])
        found.append(Module(name, is_package, ast.parse(file.read_text(), filename=str(file))))
    return found


def violations(root: Path) -> Iterator[str]:
    """A message for every import under `root` that the tables above do not permit."""
    for module in modules(root):
        _, _, path = module.name.partition(".")
        if path and package_of(path) not in MAY_IMPORT.keys() | MAY_IMPORT_ALL:
            yield f"{module.name} is in no package of the table"
            continue
        for name in module.imports():
            if within(name, {"skiway"}):
                if not may_import(path, name.removeprefix("skiway").lstrip(".")):
                    yield f"{module.name} imports {name}"
            elif not may_use(path, name):
                yield f"{module.name} uses {name}"


def import_cycles(root: Path) -> list[list[str]]:
    """Groups of modules that import each other, directly or indirectly."""
    found = {module.name: module for module in modules(root)}
    graph: dict[str, set[str]] = {name: set() for name in found}
    for name, module in found.items():
        for target in module.imports():
            graph[name].add(target if target in found else target.rpartition(".")[0])
        graph[name] &= found.keys() - {name}
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for target in graph[left.pop()] - found:
            found.add(target)
            left.append(target)
    return found


def private_uses(root: Path) -> Iterator[str]:
    """A message for every use of another module's name that begins with `_`, or that a package does not export."""
    found = {module.name: module for module in modules(root) if within(module.name, {"skiway"})}
    for module in found.values():
        for origin, name in module.used_names(found.keys()):
            exports = found[origin].exports
            is_private = name.startswith("_") and not name.startswith("__")
            if is_private or (exports is not None and name not in exports | {"__all__"}):
                yield f"{module.name} uses {name} of {origin}"


def layout_uses(root: Path) -> Iterator[tuple[str, str]]:
    """Every use of the metastore's keys, kinds, repositories or stores by other packages: module and message."""
    for module in modules(root):
        if within(module.name, {"skiway.metastore", "skiway.storage"}):
            continue
        for name in module.imports():
            if within(name, METASTORE_PRIVATE):
                yield module.name, f"{module.name} imports {name}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in STORES and _is_stores(node.value):
                yield module.name, f"{module.name}, line {node.lineno}, uses {ast.unparse(node)}"


def _is_stores(node: ast.expr) -> bool:
    return "stores" in (getattr(node, "id", ""), getattr(node, "attr", ""))


def format_uses(root: Path) -> Iterator[str]:
    """Every import of the metastore from `formats` except public names, and Iceberg where tables are managed."""
    found = {module.name: module for module in modules(root)}
    interface = {f"skiway.formats.{name}" for name in found["skiway.formats"].exports or ()} - found.keys()
    for module in found.values():
        if not within(module.name, {"skiway.metastore"}):
            continue
        iceberg = {"skiway.formats.iceberg"} if within(module.name, MANAGES_TABLES) else set()
        for name in module.imports():
            if within(name, {"skiway.formats"}) and name not in interface and not within(name, iceberg):
                yield f"{module.name} imports {name}"


def may_import(path: str, name: str) -> bool:
    if not name or name == "__version__":
        return True
    package = package_of(path)
    if not package:
        return False  # the root package, whose imports every user would load
    return package in MAY_IMPORT_ALL or within(name, MAY_IMPORT[package] | {package} | BOTTOM_ROW)


def may_use(path: str, library: str) -> bool:
    nearest = max((name for name in MAY_USE if within(path, {name})), key=len, default=None)
    return nearest is None or within(library, MAY_USE[nearest] | sys.stdlib_module_names)


def package_of(path: str) -> str:
    return path.partition(".")[0]


def within(name: str, names: Set[str]) -> bool:
    """Is `name` one of `names`, or inside one?"""
    return any(name == other or name.startswith(f"{other}.") for other in names)
