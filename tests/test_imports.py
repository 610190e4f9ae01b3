"""Imports go down only, and a package uses no more libraries than its users must install."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
SOURCE = PROJECT / "src"

# Importable by all, so it may import itself only.
BOTTOM_ROW = {"model", "errors", "config", "telemetry"}

# What a package may import of ours, beside itself and the bottom row. A dotted name stands for that module only.
MAY_IMPORT: dict[str, set[str]] = {
    **{package: set() for package in BOTTOM_ROW},
    "airport": set(),
    "client": {"airport.wire"},
    "storage": set(),
    "security": set(),
    "formats": {"airport.filters", "client"},
    "metastore": {"storage", "security", "formats"},
    "pipeline": {"metastore", "formats"},
    "lake": {"airport", "metastore", "formats", "security"},
    "rpc": {"metastore", "security"},
    "rest": {"metastore", "formats", "security"},
    "web": {"metastore", "formats", "lake", "security"},
    "spark": {"client"},
}
MAY_IMPORT_ALL = {"cli", "demo", "runtime"}

# The plain install, `pip install skiway`, by the names its libraries are imported under. The library to write a server
# with, its clients and what they stand on must live on that; modules with an extra of their own may use what it adds.
PLAIN_INSTALL = {"google.protobuf", "grpc", "msgspec", "pyarrow"}
MAY_USE: dict[str, set[str]] = {
    "errors": set(),
    "model": PLAIN_INSTALL,
    "client": PLAIN_INSTALL,
    "client.endpoints": PLAIN_INSTALL | {"duckdb"},  # to read the files that a server hands out
    "telemetry.context": set(),
    "airport": PLAIN_INSTALL,
    "airport.memory": PLAIN_INSTALL | {"duckdb"},
    "airport.geometry": PLAIN_INSTALL | {"geoarrow", "numpy", "shapely"},
}

HEAVY = {"boto3", "deltalake", "duckdb", "pyiceberg", "pyspark", "shapely"}


def test_our_packages_import_downwards_only() -> None:
    assert list(violations(SOURCE)) == []


def test_architecture_page_shows_the_same_table() -> None:
    shown = {package: row[2] for package, row in architecture_table().items()}
    assert {package for package, cell in shown.items() if cell == "all"} == MAY_IMPORT_ALL
    for package in (shown.keys() | MAY_IMPORT.keys()) - MAY_IMPORT_ALL:
        assert set(re.findall(r"`([\w.]+)`", shown[package])) == MAY_IMPORT[package], package


def test_architecture_page_says_which_packages_exist() -> None:
    shown = {package for package, row in architecture_table().items() if row[3] != "not yet"}
    walked = {package_of(module.name.partition(".")[2]) for module in modules(SOURCE)} - {""}
    assert shown == walked, "docs/architecture.md, column 'today', is not up to date"


@pytest.mark.parametrize("module", ["skiway.airport", "skiway.client", "skiway.formats", "skiway.pipeline.session"])
def test_importing_a_package_loads_no_heavy_library(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert module in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
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
def test_a_planted_violation_is_found(tmp_path: Path, module: str, line: str, complaint: str) -> None:
    plant(tmp_path, module, line)
    assert list(violations(tmp_path)) == [complaint]


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
def test_a_permitted_import_is_left_alone(tmp_path: Path, module: str, line: str) -> None:
    plant(tmp_path, module, line)
    assert list(violations(tmp_path)) == []


def architecture_table() -> dict[str, list[str]]:
    """The cells of the table of packages, by package."""
    lines = (PROJECT / "docs" / "architecture.md").read_text().partition("## The packages")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row for row in rows}


def plant(root: Path, module: str, code: str) -> None:
    file = root / "skiway" / module
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    is_package: bool
    tree: ast.Module

    def imports(self) -> Iterator[str]:
        """The full names imported anywhere in the text, also inside functions."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (".".join(filter(None, (self._origin(node), alias.name))) for alias in node.names)

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        upwards = node.level - self.is_package
        return ".".join([*parts[: len(parts) - upwards], *filter(None, [node.module])])


def modules(root: Path) -> Iterator[Module]:
    for file in sorted(root.glob("skiway/**/*.py")):
        *folders, stem = file.relative_to(root).with_suffix("").parts
        is_package = stem == "__init__"
        name = ".".join(folders if is_package else [*folders, stem])
        yield Module(name, is_package, ast.parse(file.read_text(), filename=str(file)))


def violations(root: Path) -> Iterator[str]:
    """Every import under `root` that the tables above do not permit, as a sentence."""
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


def may_import(path: str, name: str) -> bool:
    if not name or name == "__version__":
        return True
    package = package_of(path)
    if not package:
        return False  # the root: what it imported, everybody would load
    return package in MAY_IMPORT_ALL or within(name, MAY_IMPORT[package] | {package} | BOTTOM_ROW)


def may_use(path: str, library: str) -> bool:
    nearest = max((name for name in MAY_USE if within(path, {name})), key=len, default=None)
    return nearest is None or within(library, MAY_USE[nearest] | sys.stdlib_module_names)


def package_of(path: str) -> str:
    return path.partition(".")[0]


def within(name: str, names: Set[str]) -> bool:
    """Is `name` one of `names`, or inside one?"""
    return any(name == other or name.startswith(f"{other}.") for other in names)
