"""What engines bring along: which of it an engine is shown, and what files may say."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from metastore.resource_factory import behavior, refused
from skiway.errors import Internal, InvalidArgument
from skiway.metastore.system import objects as system_objects
from skiway.metastore.system import validation
from skiway.metastore.system.objects import SHIPPED, EngineCatalogs, SystemFiles, get, read
from skiway.metastore.system.validation import check, objects, signature, version_key
from skiway.model import v1

PROJECT = Path(__file__).parents[3]


def rule(low: str | None = None, high: str | None = None, **more: Any) -> v1.EngineSpecific:
    return v1.EngineSpecific(min_version=low, max_version=high, **more)


def function(name: str, *rules: v1.EngineSpecific, **more: Any) -> v1.SqlFunction:
    given_ = {"namespace": "main", "return_type": "INT", "origin": v1.OO_BUILTIN, **more}
    return v1.SqlFunction(name=name, engine_specific=rules, **given_)


def registry(*functions: v1.SqlFunction, **more: Any) -> v1.SystemObjectsRegistry:
    """A sound one, with one type."""
    types = [v1.SqlType(namespace="main", name="INT", category="NUMERIC", origin=v1.OO_BUILTIN)]
    return v1.SystemObjectsRegistry(functions=functions, **{"types": types, "namespaces": ["main"], **more})


def write(folder: Path, said: v1.SystemObjectsRegistry, name: str = "engine.pbtxt") -> Path:
    file = folder / name
    if file.suffix == ".pb":
        file.write_bytes(said.SerializeToString())
    else:
        file.write_text(text_format.MessageToString(said))
    return file


def shown(folder: Path, version: str, *, kind: str = "engine") -> list[str]:
    answer = get(EngineCatalogs(SystemFiles(folder)), kind, version)
    return [each.name for each in answer.registry.functions]


# --- which engine -----------------------------------------------------------------------------------------------------


@behavior(82)
def test_an_engine_says_its_kind_and_its_version():
    catalogs = EngineCatalogs()
    for blank in ("", " \t"):
        with refused(InvalidArgument, "builtin.engine.kind.required", header="x-engine-kind"):
            get(catalogs, blank, "1.5.5")
        with refused(InvalidArgument, "builtin.engine.version.required", header="x-engine-version"):
            get(catalogs, "duckdb", blank)


@behavior(82)
def test_an_unknown_kind_has_nothing_and_an_unknown_version_what_carries_no_rule(tmp_path):
    write(tmp_path, registry(function("always"), function("later", rule("1.0"))))
    assert get(EngineCatalogs(SystemFiles(tmp_path)), "other", "1.0") == v1.GetSystemObjectsResponse(
        registry=v1.SystemObjectsRegistry()
    )
    assert shown(tmp_path, "nobody knows") == ["always"]
    assert shown(tmp_path, "1.0") == ["always", "later"]


@behavior(82)
def test_both_ends_of_a_window_belong_to_it(tmp_path):
    write(tmp_path, registry(function("f", rule("1.2", "1.4"))))
    versions = ["1.2-rc1", "1.1.9", "1.2", "1.2.0", "1.3", "1.4", "1.4.0.0", "1.4.1", "1.4-rc1", "v1.3.1"]
    assert [version for version in versions if shown(tmp_path, version)] == [
        "1.2",
        "1.2.0",
        "1.3",
        "1.4",
        "1.4.0.0",
        "1.4-rc1",
        "v1.3.1",
    ]


def test_one_rule_that_holds_is_enough_and_a_rule_of_another_engine_never_holds(tmp_path):
    either = function("either", rule(high="1.0"), rule("3.0"))
    foreign = function("foreign", rule(engine_kind="other"))
    own = function("own", rule("1.0", engine_kind="Engine"))
    write(tmp_path, registry(either, foreign, own))
    assert shown(tmp_path, "0.9") == ["either"]
    assert shown(tmp_path, "2.0") == ["own"]
    assert shown(tmp_path, "3.0", kind=" ENGINE ") == ["either", "own"]


def test_an_answer_carries_the_rules_that_hold_and_the_last_of_each_payload_type(tmp_path):
    first, second = rule("1.0", payload_type="p", payload=b"1"), rule("2.0", payload_type="p", payload=b"2")
    other, late = rule(payload_type="q", payload=b"3"), rule("9.0", payload_type="r")
    said = registry(function("f", first, second, other, late), engine_specific=[first, second, late])
    write(tmp_path, said)
    catalogs = EngineCatalogs(SystemFiles(tmp_path))
    (old,) = get(catalogs, "engine", "1.5").registry.functions
    (new,) = get(catalogs, "engine", "2.0").registry.functions
    assert list(old.engine_specific) == [first, other]
    assert list(new.engine_specific) == [second, other]
    assert list(get(catalogs, "engine", "1.5").registry.engine_specific) == [first]
    assert read(tmp_path / "engine.pbtxt") == said


@behavior(82)
def test_rules_hold_for_every_class_of_objects_and_no_namespaces_are_shown(tmp_path):
    rules = [rule("2.0")]
    common: dict[str, Any] = {"origin": v1.OO_BUILTIN, "engine_specific": rules}
    said = v1.SystemObjectsRegistry(
        namespaces=["main"],
        types=[v1.SqlType(namespace="main", name="INT", **common)],
        functions=[v1.SqlFunction(namespace="main", name="f", return_type="INT", **common)],
        operators=[v1.SqlOperator(name="-", right_type="INT", return_type="INT", **common)],
        casts=[v1.SqlCast(name="c", source_type="INT", target_type="INT", method=v1.CM_EXPLICIT, **common)],
        collations=[v1.SqlCollation(name="de", **common)],
        aggregates=[v1.SqlAggregate(name="sum", return_type="INT", **common)],
        engine_specific=rules,
    )
    write(tmp_path, said)
    catalogs = EngineCatalogs(SystemFiles(tmp_path))
    assert get(catalogs, "engine", "1.9").registry == v1.SystemObjectsRegistry()
    said.ClearField("namespaces")
    assert get(catalogs, "engine", "2.0").registry == said


@pytest.mark.parametrize("kind", ["../engine", "/etc/passwd", "a/b", "a\\b", "..", ".hidden", "a\0b", "x" * 65, "é"])
def test_a_kind_cannot_leave_the_directory(tmp_path, kind):
    inside = tmp_path / "inside"
    inside.mkdir()
    write(tmp_path, registry(function("f")))
    with refused(InvalidArgument, "field.invalid", field="engine_kind"):
        shown(inside, "1.0", kind=kind)


def test_a_version_has_a_reasonable_length():
    with refused(InvalidArgument, "field.invalid", field="engine_version"):
        get(EngineCatalogs(), "duckdb", "1" * 101)


# --- files and caches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine.pb", "engine.pbtxt"])
def test_files_are_text_or_binary(tmp_path, name):
    write(tmp_path, registry(function("f")), name)
    assert SystemFiles(tmp_path).kinds() == ["engine"]
    assert shown(tmp_path, "1.0") == ["f"]


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    file = write(tmp_path, registry(function("old")))
    reads = []
    monkeypatch.setattr(system_objects, "read", lambda path: reads.append(path) or read(path))
    catalogs = EngineCatalogs(SystemFiles(tmp_path))
    for version in ("1.0", "1.0.0", "2.0"):
        assert [each.name for each in get(catalogs, "engine", version).registry.functions] == ["old"]
    assert get(catalogs, "engine", "1.0") is get(catalogs, "engine", "v1.0.0")
    assert len(reads) == 1
    write(tmp_path, registry(function("new")))  # of the same length
    os.utime(file, ns=(1, 1))
    assert [each.name for each in get(catalogs, "engine", "1.0").registry.functions] == ["new"]
    assert len(reads) == 2
    file.unlink()
    assert get(catalogs, "engine", "1.0").registry == v1.SystemObjectsRegistry()


def test_those_who_come_together_read_a_file_once(tmp_path, monkeypatch):
    write(tmp_path, registry(function("f")))
    reads = []
    monkeypatch.setattr(system_objects, "read", lambda path: reads.append(path) or read(path))
    catalogs, barrier = EngineCatalogs(SystemFiles(tmp_path)), Barrier(4)

    def ask() -> None:
        barrier.wait()
        get(catalogs, "engine", "1.0")

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1


def test_many_versions_do_not_fill_the_memory(tmp_path):
    write(tmp_path, registry(function("f")))
    catalogs = EngineCatalogs(SystemFiles(tmp_path), max_kept=4)
    for number in range(12):
        get(catalogs, "engine", f"1.{number}")
    assert len(catalogs._responses) == 4


def test_two_files_of_one_kind_are_an_error(tmp_path):
    for name in ("engine.pb", "engine.pbtxt"):
        write(tmp_path, registry(), name)
    with refused(Internal, "system.file.invalid", file=str(tmp_path / "engine.pb")):
        shown(tmp_path, "1.0")


@pytest.mark.parametrize(
    ("name", "content"),
    [("engine.pbtxt", b"functions { nome: 1 }"), ("engine.pb", b"\xff\xff"), ("engine.pbtxt", b"\xff")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with refused(Internal, "system.file.invalid", file=str(tmp_path / name)):
        shown(tmp_path, "1.0")


def test_a_fault_is_told_with_file_object_and_reason(tmp_path):
    file = write(tmp_path, registry(function("f", return_type="TEXT")))
    with pytest.raises(Internal) as raised:
        shown(tmp_path, "1.0")
    assert str(file) in raised.value.message
    assert "function main.f() uses the type TEXT, which is not in the list of types" in raised.value.message


def test_many_faults_are_counted(tmp_path):
    write(tmp_path, registry(*(function(f"f{number}", origin=0) for number in range(15))))
    with pytest.raises(Internal, match=r"f9\(\) has no origin; and 5 more"):
        shown(tmp_path, "1.0")


# --- what files may say -------------------------------------------------------------------------------------------------

OURS: dict[str, Any] = {"origin": v1.OO_BUILTIN}


@pytest.mark.parametrize(
    ("said", "fault"),
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
def test_what_is_wrong_is_found(said, fault):
    faults = check(said)
    assert [each for each in faults if each.startswith(fault)], faults


def test_a_sound_registry_has_no_faults():
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
def test_versions_are_in_order(ascending):
    found = [version_key(version) for version in ascending]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


@behavior(82)
@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "1.0.0"), ("", "0"), (" 1.2 ", "1.2"), ("v1.5.5", "1.5.5"), ("1.0-RC1", "1.0-rc1"), ("1.0rc1", "1.0-rc.1")],
)
def test_some_versions_are_the_same(one, other):
    assert version_key(one) == version_key(other)


VERSIONS = st.one_of(
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}([-.]?(rc|a|B)?[0-9]{0,2})?", fullmatch=True), st.text()
)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_the_order_of_versions_is_total_and_transitive(one, two, three):
    a, b, c = map(version_key, (one, two, three))
    assert (a < b) + (a == b) + (a > b) == 1
    if a <= b <= c:
        assert a <= c


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.sampled_from(["rc1", "alpha", "7", "Z.9"]))
def test_a_release_comes_after_its_pre_releases_and_before_the_next(core, word):
    release = ".".join(map(str, core))
    following = ".".join(map(str, [*core[:-1], core[-1] + 1]))
    before = version_key(f"{release}-{word}")
    assert before < version_key(release) == version_key(f"{release}.0") < version_key(f"{following}-{word}")


def test_docstrings_are_right():
    assert doctest.testmod(validation).failed == 0


# --- the files that are shipped -----------------------------------------------------------------------------------------


def test_every_shipped_file_is_sound_and_sorted():
    assert SystemFiles().kinds() == ["duckdb", "spark"]
    for kind in SystemFiles().kinds():
        said = SystemFiles().load(kind).registry
        for field in ("functions", "operators", "types", "casts", "collations", "aggregates"):
            found = [signature(each) for each in getattr(said, field)]
            assert found == sorted(found)
            assert len(found) > 10, f"{kind} has hardly any {field}"
        assert {each.origin for each in objects(said)} == {v1.OO_BUILTIN}
        assert all((SHIPPED / f"{kind}{suffix}").stat().st_size < 1_000_000 for suffix in (".pbtxt",))


def test_duckdb_has_what_people_use():
    answer = get(EngineCatalogs(), "DuckDB", "v1.5.5").registry
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


def test_spark_has_what_people_use_since_it_has_it():
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


@pytest.mark.parametrize("version", ["2.4", "3.0.0", "3.2.1", "3.5.6", "4.0.0-preview1", "4.1.4", "99"])
def test_what_is_shown_uses_only_types_that_are_shown(version):
    answer = v1.SystemObjectsRegistry()
    answer.CopyFrom(get(EngineCatalogs(), "spark", version).registry)
    answer.namespaces.append("builtin")
    assert check(answer) == []


def test_the_page_shows_what_is_so():
    page = PROJECT / "docs" / "metastore.md"
    shown_ = doctest.testfile(str(page), module_relative=False)
    assert shown_.attempted >= 3
    assert shown_.failed == 0


def test_the_file_of_duckdb_is_what_duckdb_says():
    script = PROJECT / "scripts" / "generate_builtins.py"
    command = [sys.executable, str(script), "--check", "duckdb"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
