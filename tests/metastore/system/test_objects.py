"""System objects of engines: which of them an engine sees, and validation of the files that define them."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from metastore.resource_factory import behavior, expect_error
from skiway.errors import Internal, InvalidArgument
from skiway.metastore.system import objects as system_objects
from skiway.metastore.system import objects as validation
from skiway.metastore.system.objects import (
    SHIPPED,
    EngineCatalogs,
    SystemFiles,
    check,
    get,
    objects,
    read,
    signature,
    version_key,
)
from skiway.model import v1

PROJECT = Path(__file__).parents[3]

shared_catalogs = cache(EngineCatalogs)
"""The objects of the shipped files, which take a while to read."""


def rule(low: str | None = None, high: str | None = None, **more: Any) -> v1.EngineSpecific:
    return v1.EngineSpecific(min_version=low, max_version=high, **more)


def function(name: str, *rules: v1.EngineSpecific, **more: Any) -> v1.SqlFunction:
    given_ = {"namespace": "main", "return_type": "INT", "origin": v1.OO_BUILTIN, **more}
    return v1.SqlFunction(name=name, engine_specific=rules, **given_)


def registry(*functions: v1.SqlFunction, **more: Any) -> v1.SystemObjectsRegistry:
    """A valid registry with one type."""
    types = [v1.SqlType(namespace="main", name="INT", category="NUMERIC", origin=v1.OO_BUILTIN)]
    return v1.SystemObjectsRegistry(functions=functions, **{"types": types, "namespaces": ["main"], **more})


def write(folder: Path, content: v1.SystemObjectsRegistry, name: str = "engine.pbtxt") -> Path:
    file = folder / name
    if file.suffix == ".pb":
        file.write_bytes(content.SerializeToString())
    else:
        file.write_text(text_format.MessageToString(content))
    return file


def visible_objects(folder: Path, version: str, *, kind: str = "engine") -> list[str]:
    answer = get(EngineCatalogs(SystemFiles(folder)), kind, version)
    return [each.name for each in answer.registry.functions]


# --- visibility by engine ---------------------------------------------------------------------------------------------


@behavior(82)
def test_engine_must_give_its_kind_and_version():
    catalogs = EngineCatalogs()
    for blank in ("", " \t"):
        with expect_error(InvalidArgument, "builtin.engine.kind.required", header="x-engine-kind"):
            get(catalogs, blank, "1.5.5")
        with expect_error(InvalidArgument, "builtin.engine.version.required", header="x-engine-version"):
            get(catalogs, "duckdb", blank)


@behavior(82)
def test_unknown_kind_gets_nothing_and_unknown_version_gets_objects_without_rules(tmp_path):
    write(tmp_path, registry(function("always"), function("later", rule("1.0"))))
    assert get(EngineCatalogs(SystemFiles(tmp_path)), "other", "1.0") == v1.GetSystemObjectsResponse(
        registry=v1.SystemObjectsRegistry()
    )
    assert visible_objects(tmp_path, "nobody knows") == ["always"]
    assert visible_objects(tmp_path, "1.0") == ["always", "later"]


@behavior(82)
def test_version_window_includes_both_ends(tmp_path):
    write(tmp_path, registry(function("f", rule("1.2", "1.4"))))
    versions = ["1.2-rc1", "1.1.9", "1.2", "1.2.0", "1.3", "1.4", "1.4.0.0", "1.4.1", "1.4-rc1", "v1.3.1"]
    assert [version for version in versions if visible_objects(tmp_path, version)] == [
        "1.2",
        "1.2.0",
        "1.3",
        "1.4",
        "1.4.0.0",
        "1.4-rc1",
        "v1.3.1",
    ]


def test_one_matching_rule_is_enough_and_rules_of_other_engines_never_match(tmp_path):
    either = function("either", rule(high="1.0"), rule("3.0"))
    foreign = function("foreign", rule(engine_kind="other"))
    own = function("own", rule("1.0", engine_kind="Engine"))
    write(tmp_path, registry(either, foreign, own))
    assert visible_objects(tmp_path, "0.9") == ["either"]
    assert visible_objects(tmp_path, "2.0") == ["own"]
    assert visible_objects(tmp_path, "3.0", kind=" ENGINE ") == ["either", "own"]


def test_response_has_the_last_matching_rule_of_each_payload_type(tmp_path):
    first, second = rule("1.0", payload_type="p", payload=b"1"), rule("2.0", payload_type="p", payload=b"2")
    other, late = rule(payload_type="q", payload=b"3"), rule("9.0", payload_type="r")
    content = registry(function("f", first, second, other, late), engine_specific=[first, second, late])
    write(tmp_path, content)
    catalogs = EngineCatalogs(SystemFiles(tmp_path))
    (old,) = get(catalogs, "engine", "1.5").registry.functions
    (new,) = get(catalogs, "engine", "2.0").registry.functions
    assert list(old.engine_specific) == [first, other]
    assert list(new.engine_specific) == [second, other]
    assert list(get(catalogs, "engine", "1.5").registry.engine_specific) == [first]
    assert read(tmp_path / "engine.pbtxt") == content


@behavior(82)
def test_rules_apply_to_every_kind_of_object_and_namespaces_are_omitted(tmp_path):
    rules = [rule("2.0")]
    common: dict[str, Any] = {"origin": v1.OO_BUILTIN, "engine_specific": rules}
    content = v1.SystemObjectsRegistry(
        namespaces=["main"],
        types=[v1.SqlType(namespace="main", name="INT", **common)],
        functions=[v1.SqlFunction(namespace="main", name="f", return_type="INT", **common)],
        operators=[v1.SqlOperator(name="-", right_type="INT", return_type="INT", **common)],
        casts=[v1.SqlCast(name="c", source_type="INT", target_type="INT", method=v1.CM_EXPLICIT, **common)],
        collations=[v1.SqlCollation(name="de", **common)],
        aggregates=[v1.SqlAggregate(name="sum", return_type="INT", **common)],
        engine_specific=rules,
    )
    write(tmp_path, content)
    catalogs = EngineCatalogs(SystemFiles(tmp_path))
    assert get(catalogs, "engine", "1.9").registry == v1.SystemObjectsRegistry()
    content.ClearField("namespaces")
    assert get(catalogs, "engine", "2.0").registry == content


@pytest.mark.parametrize("kind", ["../engine", "/etc/passwd", "a/b", "a\\b", "..", ".hidden", "a\0b", "x" * 65, "é"])
def test_engine_kind_cannot_escape_the_directory(tmp_path, kind):
    inside = tmp_path / "inside"
    inside.mkdir()
    write(tmp_path, registry(function("f")))
    with expect_error(InvalidArgument, "field.invalid", field="engine_kind"):
        visible_objects(inside, "1.0", kind=kind)


def test_version_length_is_limited():
    with expect_error(InvalidArgument, "field.invalid", field="engine_version"):
        get(shared_catalogs(), "duckdb", "1" * 101)


# --- files and caches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine.pb", "engine.pbtxt"])
def test_files_may_be_text_or_binary(tmp_path, name):
    write(tmp_path, registry(function("f")), name)
    assert SystemFiles(tmp_path).kinds() == ["engine"]
    assert visible_objects(tmp_path, "1.0") == ["f"]


def test_file_is_read_again_only_after_a_change(tmp_path, monkeypatch):
    file = write(tmp_path, registry(function("old")))
    reads = []
    monkeypatch.setattr(system_objects, "read", lambda path: reads.append(path) or read(path))
    catalogs = EngineCatalogs(SystemFiles(tmp_path))
    for version in ("1.0", "1.0.0", "2.0"):
        assert [each.name for each in get(catalogs, "engine", version).registry.functions] == ["old"]
    assert get(catalogs, "engine", "1.0") is get(catalogs, "engine", "v1.0.0")
    assert len(reads) == 1
    write(tmp_path, registry(function("new")))  # same length
    os.utime(file, ns=(1, 1))
    assert [each.name for each in get(catalogs, "engine", "1.0").registry.functions] == ["new"]
    assert len(reads) == 2
    file.unlink()
    assert get(catalogs, "engine", "1.0").registry == v1.SystemObjectsRegistry()


def test_concurrent_requests_read_a_file_once(tmp_path, monkeypatch):
    write(tmp_path, registry(function("f")))
    reads = []
    monkeypatch.setattr(system_objects, "read", lambda path: reads.append(path) or read(path))
    catalogs, barrier = EngineCatalogs(SystemFiles(tmp_path)), Barrier(4)

    def request_catalog() -> None:
        barrier.wait()
        get(catalogs, "engine", "1.0")

    threads = [Thread(target=request_catalog) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1


def test_number_of_cached_versions_is_limited(tmp_path):
    write(tmp_path, registry(function("f")))
    catalogs = EngineCatalogs(SystemFiles(tmp_path), max_kept=4)
    for number in range(12):
        get(catalogs, "engine", f"1.{number}")
    assert len(catalogs._responses) == 4


def test_two_files_for_one_kind_are_an_error(tmp_path):
    for name in ("engine.pb", "engine.pbtxt"):
        write(tmp_path, registry(), name)
    with expect_error(Internal, "system.file.invalid", file=str(tmp_path / "engine.pb")):
        visible_objects(tmp_path, "1.0")


@pytest.mark.parametrize(
    ("name", "content"),
    [("engine.pbtxt", b"functions { nome: 1 }"), ("engine.pb", b"\xff\xff"), ("engine.pbtxt", b"\xff")],
)
def test_error_names_an_unreadable_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with expect_error(Internal, "system.file.invalid", file=str(tmp_path / name)):
        visible_objects(tmp_path, "1.0")


def test_error_names_file_object_and_reason(tmp_path):
    file = write(tmp_path, registry(function("f", return_type="TEXT")))
    with pytest.raises(Internal) as raised:
        visible_objects(tmp_path, "1.0")
    assert str(file) in raised.value.message
    assert "function main.f() uses the type TEXT, which is not in the list of types" in raised.value.message


def test_long_lists_of_problems_are_shortened_and_counted(tmp_path):
    write(tmp_path, registry(*(function(f"f{number}", origin=0) for number in range(15))))
    with pytest.raises(Internal, match=r"f9\(\) has no origin; and 5 more"):
        visible_objects(tmp_path, "1.0")


# --- validation of files ----------------------------------------------------------------------------------------------

OURS: dict[str, Any] = {"origin": v1.OO_BUILTIN}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (registry(function(" ")), "function main. () has no name"),
        (registry(function("f"), function("f")), "function main.f() occurs 2 times"),
        (registry(function("f", origin=0)), "function main.f() has no origin"),
        (registry(function("f", return_type="")), "function main.f() has no return_type"),
        (registry(function("f", argument_types=["X"])), "function main.f(X) uses the type X"),
        (registry(function("f", variadic_type="X")), "function main.f(X...) uses the type X"),
        (registry(function("f", namespace="")), "function .f() is in the namespace (none)"),
        (registry(function("f", namespace="other")), "function other.f() is in the namespace other"),
        (registry(namespaces=[]), "type main.INT is in the namespace main"),
        (registry(operators=[v1.SqlOperator(name="+", return_type="INT", **OURS)]), "operator + has no operand"),
        (registry(operators=[v1.SqlOperator(name="+", left_type="INT", **OURS)]), "operator INT + has no return_type"),
        (
            registry(casts=[v1.SqlCast(name="c", source_type="INT", method=v1.CM_IMPLICIT, **OURS)]),
            "cast c from INT to  lacks its source_type or target_type",
        ),
        (
            registry(casts=[v1.SqlCast(name="c", source_type="INT", target_type="INT", **OURS)]),
            "cast c from INT to INT has no method",
        ),
        (
            registry(casts=[v1.SqlCast(name="c", source_type="INT", target_type="X", method=v1.CM_IMPLICIT, **OURS)]),
            "cast c from INT to X uses the type X",
        ),
        (registry(collations=[v1.SqlCollation(**OURS)]), "collation  has no name"),
        (
            registry(aggregates=[v1.SqlAggregate(name="sum", return_type="INT", state_type="X", **OURS)]),
            "aggregate sum() uses the type X",
        ),
        (
            registry(types=[v1.SqlType(namespace="main", name="INT[]", is_array=True, **OURS)]),
            "type main.INT[] is an array without element_type",
        ),
        (
            registry(types=[v1.SqlType(namespace="main", name="X", element_type="X", **OURS)]),
            "type main.X has an element_type but is no array",
        ),
        (registry(function("f", rule("2.0", "1.0"))), "function main.f() has a rule from version 2.0 down to 1.0"),
        (registry(function("f", rule("1.0"), rule("1.0.0"))), "function main.f() has two rules with the same"),
        (registry(engine_specific=[rule(), rule()]), "the registry has two rules with the same"),
    ],
)
def test_problems_are_detected(content, fault):
    faults = check(content)
    assert [each for each in faults if each.startswith(fault)], faults


def test_valid_registry_has_no_problems():
    overloads = function("f"), function("f", argument_types=["INT"]), function("f", variadic_type="INT")
    rows = function("f", is_table=True, return_type="")
    assert check(registry(*overloads, rows, function("g", rule("1.0"), rule("1.0", payload_type="p")))) == []


# --- versions ---------------------------------------------------------------------------------------------------------


@behavior(82)
@pytest.mark.parametrize(
    "ascending",
    [
        ["", "0.0.1", "0.1", "1", "1.0.1", "1.2", "1.10", "10"],
        ["1.0-1", "1.0-2", "1.0-10", "1.0-alpha", "1.0-alpha.1", "1.0-beta", "1.0-rc1", "1.0-rc2", "1.0-rc10", "1.0"],
        ["1.5.4", "1.5.5-dev12", "1.5.5rc1", "1.5.5", "1.5.5.1"],
        ["nonsense", "0", "0.1"],
    ],
)
def test_versions_are_ordered(ascending):
    found = [version_key(version) for version in ascending]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


@behavior(82)
@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "1.0.0"), ("", "0"), (" 1.2 ", "1.2"), ("v1.5.5", "1.5.5"), ("1.0-RC1", "1.0-rc1"), ("1.0rc1", "1.0-rc.1")],
)
def test_equivalent_versions_are_equal(one, other):
    assert version_key(one) == version_key(other)


VERSIONS = st.one_of(
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}([-.]?(rc|a|B)?[0-9]{0,2})?", fullmatch=True), st.text()
)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_version_order_is_total_and_transitive(one, two, three):
    a, b, c = map(version_key, (one, two, three))
    assert (a < b) + (a == b) + (a > b) == 1
    if a <= b <= c:
        assert a <= c


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.sampled_from(["rc1", "alpha", "7", "Z.9"]))
def test_release_comes_after_its_prereleases_and_before_the_next_release(core, word):
    release = ".".join(map(str, core))
    following = ".".join(map(str, [*core[:-1], core[-1] + 1]))
    before = version_key(f"{release}-{word}")
    assert before < version_key(release) == version_key(f"{release}.0") < version_key(f"{following}-{word}")


def test_docstring_examples_are_correct():
    assert doctest.testmod(validation).failed == 0


# --- shipped files ----------------------------------------------------------------------------------------------------


def test_every_shipped_file_is_valid_and_sorted():
    assert SystemFiles().kinds() == ["duckdb", "spark"]
    for kind in SystemFiles().kinds():
        content = SystemFiles().load(kind).registry
        for field in ("functions", "operators", "types", "casts", "collations", "aggregates"):
            found = [signature(each) for each in getattr(content, field)]
            assert found == sorted(found)
            assert len(found) > 10, f"{kind} has too few {field}"
        assert {each.origin for each in objects(content)} == {v1.OO_BUILTIN}
        assert all((SHIPPED / f"{kind}{suffix}").stat().st_size < 1_000_000 for suffix in (".pbtxt",))


def test_duckdb_has_commonly_used_functions():
    answer = get(shared_catalogs(), "DuckDB", "v1.5.5").registry
    functions = {each.name: each for each in answer.functions}
    assert functions["sum"].is_aggregate
    assert functions["read_parquet"].is_table
    assert (functions["row_number"].is_window, functions["row_number"].is_aggregate) == (True, False)
    assert functions["list_transform"].argument_types == ["ANY[]", "LAMBDA"]
    assert not any(name.startswith("__internal") for name in functions)
    assert {"sum", "list_transform", "concat", "regexp_matches", "strftime", "read_parquet"} <= functions.keys()
    assert {each.name for each in answer.functions if each.is_aggregate} == {each.name for each in answer.aggregates}
    assert {each.name for each in answer.functions if each.is_window} >= {"lag", "rank", "row_number"}
    methods = {(each.source_type, each.target_type): each.method for each in answer.casts}
    assert methods["INTEGER", "BIGINT"] == v1.CM_IMPLICIT
    assert methods["BIGINT", "INTEGER"] == v1.CM_ASSIGNMENT
    assert ("DATE", "UUID") not in methods
    (plus,) = (each for each in answer.operators if (each.name, each.left_type) == ("+", "DOUBLE"))
    assert (plus.return_type, plus.is_commutative, plus.is_associative) == ("DOUBLE", True, False)
    assert {"nocase", "de"} <= {each.name for each in answer.collations}
    (varchar,) = (each for each in answer.types if each.name == "VARCHAR")
    assert "text" in varchar.engine_specific[0].properties["aliases"].split(", ")
    assert answer.engine_specific[0].properties["generated_from"] == "1.5.5"


def test_spark_has_commonly_used_functions_by_version():
    catalogs = EngineCatalogs()

    def functions(version: str) -> dict[str, v1.SqlFunction]:
        return {each.name: each for each in get(catalogs, "spark", version).registry.functions}

    new, old = functions("4.1.4"), functions("3.3.0")
    assert new["approx_count_distinct"].is_aggregate
    assert new["row_number"].is_window
    assert old.keys() < new.keys()
    assert {"approx_count_distinct", "explode", "transform", "sum", "max_by"} <= old.keys()
    assert {"array_append", "parse_json", "theta_sketch_agg"} <= new.keys() - old.keys()
    assert "parse_json" in functions("4.0.0").keys() - functions("4.0.0-preview2").keys()
    types = {each.name for each in get(catalogs, "spark", "3.5.0").registry.types}
    assert "timestamp_ntz" in types
    assert "variant" not in types
    methods = {
        (each.source_type, each.target_type): each.method for each in get(catalogs, "spark", "4.1").registry.casts
    }
    assert methods["int", "bigint"] == v1.CM_IMPLICIT
    assert methods["bigint", "int"] == v1.CM_ASSIGNMENT
    assert methods["string", "int"] == v1.CM_EXPLICIT


def test_duckdb_has_objects_by_version():
    def names(version: str, field: str) -> set[str]:
        return {each.name for each in getattr(get(shared_catalogs(), "duckdb", version).registry, field)}

    assert {"VARIANT", "TIME_NS"} <= names("1.5.5", "types") - names("1.2.0", "types")
    assert {"INTEGER", "UHUGEINT"} <= names("1.0.0", "types")
    assert names("1.0.0", "functions") < names("1.2.0", "functions") < names("v1.5.5", "functions")
    assert {"sum", "list_transform", "read_parquet"} <= names("1.0.0", "functions")
    casts = {(each.source_type, each.target_type) for each in get(shared_catalogs(), "duckdb", "1.2.0").registry.casts}
    assert ("INTEGER", "BIGINT") in casts
    assert ("INTEGER", "VARIANT") not in casts


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        *(("spark", version) for version in ("2.4", "3.0.0", "3.2.1", "3.5.6", "4.0.0-preview1", "4.1.4", "99")),
        *(("duckdb", version) for version in ("0.10", "1.0.0", "1.1.0", "1.3.0", "1.4.0-rc1", "1.4.4", "1.5.5", "99")),
    ],
)
def test_visible_objects_use_only_visible_types(kind, version):
    answer = v1.SystemObjectsRegistry()
    answer.CopyFrom(get(shared_catalogs(), kind, version).registry)
    answer.namespaces.extend(shared_catalogs().files.load(kind).registry.namespaces)
    assert check(answer) == []


def test_duckdb_file_matches_duckdb():
    script = PROJECT / "scripts" / "generate_builtins.py"
    command = [sys.executable, str(script), "--check", "duckdb"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
