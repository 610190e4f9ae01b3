"""The rows of system tables without a store: damaged records, unset fields, and what policies hide."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.errors import Internal, NotFound
from skiway.lake.reading.scans import Plan, PlanLog
from skiway.lake.system import administration, tables
from skiway.lake.system import schema as system_schema
from skiway.lake.system import tables as quality_table
from skiway.lake.system.tables import SystemScan, VisibleTable, arrow_table, enum_name, moment_of, readable, unknown
from skiway.metastore import events as metastore_events
from skiway.metastore import policies as metastore_policies
from skiway.metastore import quality as metastore_quality
from skiway.metastore.records.realm import timestamp
from skiway.metastore.resources import hierarchy
from skiway.metastore.usage import Usage
from skiway.model import v1

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"id": 7, "name": "x", "required": True, "type": "long", "doc": "text"},
            {"id": 9, "name": "y", "required": False, "type": "string"},
        ],
    }
)


def table(name: str = "t", **more: Any) -> VisibleTable:
    return VisibleTable("s", v1.Table(resource_id=v1.ResourceId(id=f"id of {name}"), display_name=name, **more))


def scan(*visible: VisibleTable, restricted: tuple[str, ...] = (), may: bool = True, plans: Any = None) -> SystemScan:
    callers = SimpleNamespace(
        may=lambda _permission: may,
        restriction=lambda on: "hidden" if on.display_name in restricted else None,
        principal=SimpleNamespace(subject="me"),
        authenticated=SimpleNamespace(subject="me"),
    )
    context = SimpleNamespace(callers=callers, plans=plans, usage=SimpleNamespace(flush=lambda: None))
    return SystemScan(cast(Any, SimpleNamespace(account_id="a")), cast(Any, context), "c", visible)


def test_values_of_records() -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    assert arrow_table(schema, iter([(1, "x"), (2, None)])).to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert arrow_table(schema, iter([])).schema == schema
    assert unknown(schema, 1) == (None,)
    assert moment_of(timestamp(NOW)) == NOW
    unset, nanosecond = v1.Table().created_at, v1.Table().created_at
    nanosecond.nanos = 1000
    assert moment_of(unset) is None
    assert moment_of(nanosecond) == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert enum_name(v1.JobState, v1.JS_FAILED, "JS_") == "failed"
    assert readable(lambda: 5) == (5, None)


def test_other_internal_errors_are_not_damage() -> None:
    def fail() -> None:
        raise Internal("a bug")

    with pytest.raises(Internal, match="a bug"):
        readable(fail)


def test_rows_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemScan, "current_id", lambda _self, found: None if found.display_name == "empty" else 5)
    stats = v1.TableStats(row_count=1, data_file_count=2, total_size_bytes=3)
    monkeypatch.setattr(SystemScan, "statistics_of", lambda _self, _table, number: stats if number else None)
    monkeypatch.setattr(tables, "_connector", lambda _realm, _table: None)
    shown = [
        table("managed", metadata_location="m", description="text", created_at=timestamp(NOW)),
        table("empty", upstream=v1.UpstreamRef(format=v1.TF_DELTA)),
        table("broken", damage="unreadable"),
    ]
    managed, empty, broken = tables.tables(scan(*shown)).to_pylist()
    facts = ("kind", "format", "current_snapshot_id", "row_count", "file_count", "size_bytes")
    assert [managed[name] for name in facts] == ["managed", "iceberg", 5, 1, 2, 3]
    assert (managed["comment"], managed["created_at"], managed["updated_at"], managed["damage"]) == ("text", NOW, None, None)  # fmt: skip
    assert [empty[name] for name in (*facts, "comment")] == ["mirrored", "delta", *[None] * 5]
    assert {name: value for name, value in broken.items() if value is not None} == {
        "schema_name": "s",
        "table_name": "broken",
        "table_id": "id of broken",
        "damage": "unreadable",
    }


def test_rows_of_columns() -> None:
    found = tables.columns(scan(table(schema_json=SCHEMA), table("bad", schema_json="{"), table("gone", damage="lost")))
    first, second, invalid, broken = found.to_pylist()
    names = ("column_name", "ordinal", "column_id", "type", "is_nullable", "comment", "damage")
    assert [first[name] for name in names] == ["x", 1, 7, "int64", False, "text", None]
    assert [second[name] for name in names] == ["y", 2, 9, "string", True, None, None]
    assert (invalid["table_name"], invalid["column_name"], invalid["damage"][:9]) == ("bad", None, "Expecting")
    assert [broken[name] for name in ("table_name", *names)] == ["gone", None, None, None, None, None, None, "lost"]


def plan(name: str, subject: str = "me", catalog: str = "c", account: str = "a") -> Plan:
    return Plan(account, NOW, subject, catalog, "s", name, 5, "x > 1", ["x"], 10, 4, 100, 40, 2)


def test_plans_of_visible_tables() -> None:
    log = PlanLog()
    for each in (
        plan("t", "you"),
        plan("hidden"),
        plan("hidden", "you"),
        plan("invisible"),
        plan("t", catalog="other"),
        plan("t", account="b"),
        plan("broken", "you"),
    ):
        log.add(each)
    shown = [table("t"), table("hidden"), table("broken", damage="lost")]
    own, restricted = system_schema.plans(scan(*shown, restricted=("hidden",), plans=log)).to_pylist()
    assert (own["table_name"], own["subject"], own["files_pruned"], own["endpoints"]) == ("t", "you", 6, 2)
    assert (own["files_considered"], own["files_read"], own["bytes_considered"], own["bytes_read"]) == (10, 4, 100, 40)
    assert (restricted["table_name"], restricted["subject"], restricted["filter"]) == ("hidden", "me", "x > 1")
    files = ("files_considered", "files_read", "files_pruned", "bytes_considered", "bytes_read", "endpoints")
    assert [restricted[name] for name in files] == [None] * 6


def test_description_of_views() -> None:
    view = v1.View(
        sql_definitions=[v1.ViewSql(dialect="duckdb", sql="FROM t")],
        output_columns=[v1.SchemaColumn(name="x", logical_type="BIGINT")],
        base_relations=[v1.NameRef(catalog="c", path=["s", "u"], name="t")],
        created_at=timestamp(NOW),
    )
    assert system_schema._described(view) == (
        [("duckdb", "FROM t")],
        ["x BIGINT"],
        ["c.s.u.t"],
        "invoker",
        None,
        None,
        NOW,
        None,
        None,
    )
    assert system_schema._described(v1.View(damage="lost")) == (*[None] * 8, "lost")


def test_rows_of_events() -> None:
    event = v1.Event(
        sequence=3, occurred_at=timestamp(NOW), kind="table", action="created", object_id="o", change_id="c"
    )
    assert administration._event_row(event) == (
        3,
        NOW,
        "table",
        "created",
        "o",
        None,
        None,
        None,
        None,
        None,
        "c",
        None,
        None,
        None,
    )
    event.MergeFrom(
        v1.Event(
            name="n", previous_name="p", snapshot_id=0, detail="d", caller="me", table_id="t", job_id="j", door="rest"
        )
    )
    assert administration._event_row(event) == (
        3,
        NOW,
        "table",
        "created",
        "o",
        "n",
        "p",
        0,
        "d",
        "me",
        "c",
        "t",
        "j",
        "rest",
    )


def test_events_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {0: ([1, 2], 2), 2: ([3], 3), 3: ([], 3)}

    def page(_realm: Any, request: v1.ListEventsRequest) -> v1.ListEventsResponse:
        assert request.limit == 1000
        numbers, cursor = pages[request.after]
        return v1.ListEventsResponse(events=[v1.Event(sequence=number) for number in numbers], cursor=cursor)

    monkeypatch.setattr(metastore_events, "list_", page)
    assert administration.events(scan())["sequence"].to_pylist() == [1, 2, 3]


def test_rows_of_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        v1.Policy(display_name="f", row_filter=v1.PolicyFilter(predicate="x > 1"), subjects=["me"]),
        v1.Policy(display_name="m", mask=v1.PolicyMask(kind=v1.MK_HASH, columns=["x"]), description="text"),
        v1.Policy(display_name="d", damage="lost"),
    ]
    monkeypatch.setattr(metastore_policies, "scan", lambda _realm: iter(found))
    filtering, masking, damaged = administration.policies(scan()).to_pylist()
    assert [filtering[name] for name in ("rule", "expression", "columns", "subjects")] == ["filter", "x > 1", None, ["me"]]  # fmt: skip
    assert [masking[name] for name in ("rule", "expression", "columns", "comment")] == ["mask hash", None, ["x"], "text"]  # fmt: skip
    assert (damaged["policy_name"], damaged["rule"], damaged["damage"]) == ("d", None, "lost")
    assert administration.policies(scan(may=False)).num_rows == 0


def test_rows_of_quality_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = v1.RuleCheck(row_count=v1.RowCountCheck(min=2))
    result = v1.RuleResult(status=v1.RST_FAILED, method=v1.RMT_METADATA, observed="1 rows", message="m", snapshot_id=0)
    result.checked_at.FromDatetime(NOW)
    found = [
        v1.CheckedRule(
            rule=v1.QualityRule(display_name="a", severity=v1.RSV_WARNING, check=rows, description="text"),
            result=result,
        ),
        v1.CheckedRule(rule=v1.QualityRule(display_name="b", severity=v1.RSV_ERROR, check=rows)),
        v1.CheckedRule(rule=v1.QualityRule(display_name="c", damage="lost")),
    ]
    monkeypatch.setattr(metastore_quality, "scan", lambda _realm, _table: iter(found))
    failed, new, damaged = quality_table.quality(scan(table())).to_pylist()
    assert [failed[name] for name in ("table_name", "kind", "expected", "severity", "comment")] == [
        *("t", "row_count", '{"min": "2"}', "warning", "text")
    ]
    assert [failed[name] for name in ("status", "method", "observed", "message", "snapshot_id", "checked_at")] == [
        *("failed", "metadata", "1 rows", "m", 0, NOW)
    ]
    assert (new["status"], new["checked_at"], new["severity"]) == (None, None, "error")
    assert (damaged["rule_name"], damaged["kind"], damaged["damage"]) == ("c", None, "lost")
    assert quality_table.quality(scan()).num_rows == 0


def test_usage_and_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    used = Usage(reads=1, writes=2, bytes_read=3, columns=Counter(x=4), callers=Counter(me=5))
    used.sources.update(u=1, gone=1)
    days = [(date(2026, 1, 2), used), (date(2026, 1, 1), Usage(sources=Counter(u=2)))]
    monkeypatch.setattr(administration, "usage_of", lambda _realm, _table: iter(days))
    places = {"u": ("c", "s", "u")}
    monkeypatch.setattr(administration, "place_of", lambda _scan, found: places.get(found))
    first, _ = administration.usage(scan(table())).to_pylist()
    assert (first["reads"], first["writes"], first["bytes_read"]) == (1, 2, 3)
    assert (first["columns"], first["callers"]) == ([("x", 4)], [("me", 5)])
    hidden, _ = administration.usage(scan(table(), restricted=("t",), may=False)).to_pylist()
    assert (hidden["reads"], hidden["bytes_read"], hidden["callers"]) == (1, None, None)
    computed = {"u": [("double", ["price", "tax"])], "v": [("id", ["id"])]}
    monkeypatch.setattr(administration, "columns_by_source", lambda _realm, _table: computed)
    places["v"] = ("c", "s", "v")
    source, derived = administration.lineage(scan(table())).to_pylist()
    assert (source["source_table"], source["writes"], source["columns"]) == ("u", 3, [("double", ["price", "tax"])])
    assert [derived[name] for name in ("source_table", "writes", "first_day", "columns")] == [
        *("v", 0, None, [("id", ["id"])])
    ]
    assert (source["first_day"], source["last_day"]) == (date(2026, 1, 1), date(2026, 1, 2))


def test_sources_that_the_caller_may_not_see_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise NotFound("gone")

    monkeypatch.setattr(hierarchy, "table", missing)
    assert tables.place_of(scan(), "u") is None
