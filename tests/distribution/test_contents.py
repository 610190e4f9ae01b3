"""The wheel and the sdist contain what they should, and the metadata says what they need."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

from distribution.environments import PROJECT, build, unpack
from skiway import __version__
from skiway.foundation import extras

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
DECLARED: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
FOR_DEVELOPMENT = {"test", "docs", "dev"}

# Libraries that no module imports.
USED_OTHERWISE = {
    "httptools": "uvicorn parses HTTP with it",
    "pandas": "PySpark needs it for Arrow batches",
    "pytz": "DuckDB needs it for rows with TIMESTAMPTZ",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROJECT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROJECT, "sdist", tmp_path_factory.mktemp("sdist"))


def test_the_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    source = PROJECT / "src"
    expected = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    found = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected
    assert "skiway/py.typed" in found


def test_the_wheel_has_the_license_of_every_bundled_library(wheel: Path) -> None:
    """Libraries are files with a version in their name, beside `NAME-LICENSE.txt`, or folders in `vendor`, with a file `LICENSE`."""
    static = PROJECT / "src" / "skiway" / "web" / "static"
    single = [static / f"{file.name.partition('-')[0]}-LICENSE.txt" for file in static.glob("*-[0-9]*.*")]
    expected = [*single, *(folder / "LICENSE" for folder in (static / "vendor").iterdir() if folder.is_dir())]
    assert len(expected) > 1
    names = ZipFile(wheel).namelist()
    wanted = [f"licenses/{file.relative_to(PROJECT)}" for file in expected]
    assert [name for name in wanted if not any(each.endswith(name) for each in names)] == []


@pytest.mark.full
def test_builds_are_reproducible(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    for made, target in ((wheel, "wheel"), (sdist, "sdist")):
        assert build(PROJECT, target, tmp_path / target).read_bytes() == made.read_bytes()


@pytest.mark.full
def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    again = build(unpack(sdist, tmp_path / "unpacked"), "wheel", tmp_path / "wheel")
    assert _contents(again) == _contents(wheel)


def test_the_sdist_contains_no_tests_and_no_local_files(sdist: Path, tmp_path: Path) -> None:
    top = {file.name for file in unpack(sdist, tmp_path).iterdir()}
    assert top == {
        *("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "docs", "examples", "proto", "pyproject.toml", "src"),
        ".gitignore",
    }


def test_the_metadata_comes_from_one_place(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Version"] == __version__
    assert set(metadata.get_all("Provides-Extra", [])) == DECLARED.keys()
    assert {line.partition(",")[0] for line in metadata.get_all("Project-URL", [])} >= {"Source", "Issues", "Changelog"}


def test_the_changelog_has_a_section_for_the_version_or_for_unreleased_changes() -> None:
    sections = re.findall(r"^## \[(.+?)\]", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] in ("Unreleased", __version__)


def test_every_extra_for_users_is_described() -> None:
    assert extras.EXTRAS.keys() == DECLARED.keys() - FOR_DEVELOPMENT
    readme = (PROJECT / "README.md").read_text()
    assert [name for name in extras.EXTRAS if f"| `{name}` |" not in readme] == []


def test_all_contains_every_other_extra_for_users() -> None:
    [(_, contained)] = [_parsed(requirement) for requirement in DECLARED["all"]]
    assert set(contained) == extras.EXTRAS.keys() - {"all"}


def test_every_imported_library_is_declared_and_every_declared_one_is_used() -> None:
    declared = {_parsed(each)[0] for each in PYPROJECT["project"]["dependencies"]}
    for extra in extras.EXTRAS:
        declared |= {_parsed(each)[0] for each in DECLARED[extra]} - {"skiway"}
    imported = set(_imported_distributions())
    assert imported - declared == {"botocore", "py4j"}, "boto3 and pyspark are made of these"
    assert declared - imported == USED_OTHERWISE.keys()


@pytest.mark.parametrize(
    "extra_and_those_it_contains",
    [("lake", "memory", "geometry", "sql"), ("mcp",)],
)
def test_an_extra_adds_every_library_that_is_checked_for(extra_and_those_it_contains: Sequence[str]) -> None:
    added = {_parsed(each)[0] for extra in extra_and_those_it_contains for each in DECLARED[extra]}
    of_module = packages_distributions()
    assert {
        name
        for library in extras.LIBRARIES[extra_and_those_it_contains[0]][1].split()
        for name in _distributions(library, of_module)
    } <= added


def _contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def _imported_distributions() -> Iterator[str]:
    """The distributions that modules of Skiway import from."""
    of_module = packages_distributions()
    for file in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                yield from _distributions(name, of_module)


def _distributions(name: str, of_module: Mapping[str, list[str]]) -> Iterator[str]:
    top = name.partition(".")[0]
    if name.startswith("google.protobuf"):
        yield "protobuf"
    elif name.startswith("google.rpc"):
        yield "googleapis-common-protos"
    elif name.startswith(("google.auth", "google.oauth2")):
        yield "google-auth"
    elif name.startswith("azure."):
        names = {"core": "azure-core", "identity": "azure-identity", "storage": "azure-storage-file-datalake"}
        yield names[name.split(".")[1]]
    elif name.startswith("opentelemetry."):
        exporter = name.startswith("opentelemetry.exporter")
        sdk = name.startswith("opentelemetry.sdk")
        yield "opentelemetry-exporter-otlp-proto-http" if exporter else f"opentelemetry-{'sdk' if sdk else 'api'}"
    elif top == "opentelemetry":
        yield "opentelemetry-api"
    elif top == "geoarrow":
        yield "geoarrow-pyarrow"
    elif top not in sys.stdlib_module_names and top != "skiway":
        [distribution] = set(of_module[top])
        yield _normal(distribution)


def _parsed(requirement: str) -> tuple[str, list[str]]:
    """The name and the extras of a requirement."""
    found = re.match(r"([\w.-]+)(?:\[([^]]*)\])?", requirement)
    assert found
    return _normal(found[1]), [each.strip() for each in (found[2] or "").split(",") if each]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
