"""Exports of mirrored tables: new versions, several servers, who may read them, and what garbage collection deletes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError

from lake.mirrored_source import Source, source_of, values
from lake.test_refused_exports import column_mapping, deletion_vector
from skiway.formats.iceberg.export.versions import ZERO_ID
from skiway.lake.policies import PolicyChecks
from skiway.metastore import exports, policies, tables
from skiway.model import v1
from skiway.security import Principal, Roles
from skiway.sql import QueryEngine


@pytest.fixture(params=["delta", "parquet"])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A source with one file, of which the mirror knows."""
    with source_of(tmp_path, request.param) as source:
        source.write(1, 2)
        source.sync()
        yield source


def test_new_versions_appear_after_they_are_synchronized(source: Source) -> None:
    with source.lake.rest("c") as catalog:
        first = catalog.load_table("s.t")
        source.write(3)
        assert values(catalog.load_table("s.t")) == [1, 2]
        source.sync()
        second = catalog.load_table("s.t")
        assert (values(first), values(second)) == ([1, 2], [1, 2, 3])
        old, new = (each.snapshot_id for each in second.snapshots())
        assert (old, new) == ((ZERO_ID, 1) if source.kind == "delta" else (1, 2))
        assert (values(second, snapshot_id=old), values(second, snapshot_id=new)) == ([1, 2], [1, 2, 3])
        assert second.metadata.table_uuid == first.metadata.table_uuid
        assert second.snapshots()[0].manifest_list == first.snapshots()[0].manifest_list, "it was made before"


def test_deleted_rows_and_rewritten_files(tmp_path: Path) -> None:
    with source_of(tmp_path, "delta") as source, source.lake.rest("c") as catalog:
        source.write(1, 2)
        source.sync()
        catalog.load_table("s.t")
        upstream = deltalake.DeltaTable(str(source.folder / "t"))
        source.write(3)
        upstream.update_incremental()
        upstream.delete("x = 1")
        upstream.optimize.compact()
        source.sync()
        table = catalog.load_table("s.t")
        assert [values(table, snapshot_id=each.snapshot_id) for each in table.snapshots()] == [
            [1, 2],
            [1, 2, 3],
            [2, 3],
            [2, 3],
        ]
        operations = [each.summary.operation.value for each in table.snapshots() if each.summary]
        assert operations == ["append", "append", "overwrite", "replace"]


@pytest.mark.parametrize(("policy", "expected"), [(v1.SNS_CURRENT, [[1, 2, 3, 4]]), (v1.SNS_LATEST_N, None)])
def test_snapshots_are_those_that_the_mirror_keeps(tmp_path: Path, policy: Any, expected: Any) -> None:
    with source_of(tmp_path, "delta") as source, source.lake.rest("c") as catalog:
        source.policy = v1.ConnectorPolicy(scope=policy, latest_n=2)
        for value in (1, 2, 3, 4):
            source.write(value)
        source.sync()
        table = catalog.load_table("s.t")
        found = [values(table, snapshot_id=each.snapshot_id) for each in table.snapshots()]
        assert found == (expected or [[1, 2, 3], [1, 2, 3, 4]])


def test_replaced_file_ends_the_listings_that_had_it(tmp_path: Path) -> None:
    with source_of(tmp_path, "parquet") as source, source.lake.rest("c") as catalog:
        source.write(1, 2)
        source.sync()
        source.write(5)
        source.sync()
        assert len(catalog.load_table("s.t").snapshots()) == 2
        pq.write_table(pa.table({"x": pa.array([7, 8, 9], pa.int64())}), source.folder / "t" / "1.parquet")
        table = catalog.load_table("s.t")
        assert values(table) == [5, 7, 8, 9]
        assert [each.snapshot_id for each in table.snapshots()] == [3]
        source.sync()
        assert [each.snapshot_id for each in catalog.load_table("s.t").snapshots()] == [3]


def test_older_version_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """An older version had a column of an unsupported type; the current one does not."""
    with source_of(tmp_path, "delta") as source, source.lake.rest("c") as catalog:
        folder = str(source.folder / "t")
        source.write(1, 2)
        mixed = pa.table({"x": pa.array([5], pa.int64())})
        deltalake.write_deltalake(folder, mixed, mode="append")
        (odd,) = (each for each in Path(folder).glob("*.parquet") if pq.read_table(each).num_rows == 1)
        pq.write_table(pa.table({"x": pa.array([5], pa.int64()), "y": [1]}), odd)
        deltalake.write_deltalake(folder, pa.table({"x": pa.array([9], pa.int64())}), mode="overwrite")
        source.sync()
        table = catalog.load_table("s.t")
        assert [each.snapshot_id for each in table.snapshots()] == [ZERO_ID, 2]
        assert [values(table, snapshot_id=each.snapshot_id) for each in table.snapshots()] == [[1, 2], [9]]


def test_servers_return_the_same_metadata(source: Source) -> None:
    path = "/v1/c/namespaces/s/tables/t"
    with source.lake.rest_served() as one, source.lake.rest_served() as other, httpx.Client(verify=False) as http:
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda uri: http.get(f"{uri}{path}"), [one, other, one, other]))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["metadata"]["table-uuid"] for answer in answers}) == 1
        later = [http.get(f"{uri}{path}") for uri in (one, other)]
        assert later[0].text == later[1].text
        etag = later[0].headers["etag"]
        assert http.get(f"{other}{path}", headers={"if-none-match": etag}).status_code == 304
        for path_in in source.generated:
            path_in.unlink()
        again = http.get(f"{one}{path}").json()
        assert {key: value for key, value in again["metadata"].items() if key in ("table-uuid", "schemas")} == {
            key: later[0].json()["metadata"][key] for key in ("table-uuid", "schemas")
        }
        assert Path(again["metadata-location"].removeprefix("file://")).is_file()


def test_response_has_no_credentials_and_names_no_writer(source: Source) -> None:
    with source.lake.rest_served() as uri, httpx.Client(verify=False) as http:
        headers = {"x-iceberg-access-delegation": "vended-credentials,remote-signing"}
        answer = http.get(f"{uri}/v1/c/namespaces/s/tables/t", headers=headers).json()
    assert answer.get("storage-credentials", []) == []
    assert answer["config"] == {}
    assert json.dumps(answer).count("secret") == 0


def test_changes_are_refused(source: Source) -> None:
    with source.lake.rest("c") as catalog:
        table = catalog.load_table("s.t")
        with pytest.raises(ForbiddenError, match="belongs to connector"):
            table.append(pa.table({"x": pa.array([1], pa.int64())}))
        with pytest.raises(ForbiddenError):
            catalog.drop_table("s.t")
        with pytest.raises(ForbiddenError):
            catalog.purge_table("s.t")
    assert values_upstream(source) == [1, 2]


def values_upstream(source: Source) -> list[int]:
    with source.lake.client("c") as db:
        return sorted(db.scan(("s", "t")).read_all()["x"].to_pylist())


def test_restricted_callers_get_no_files(source: Source, queries: QueryEngine) -> None:
    spec = v1.PolicySpec(
        display_name="few rows",
        subjects=["everyone"],
        exceptions=["user:writer"],
        objects=[source.id],
        row_filter=v1.PolicyFilter(predicate="x = 1"),
    )
    policies.calls(PolicyChecks(queries)).create(source.lake.realm, v1.CreatePolicyRequest(spec=spec))
    with source.lake.rest_served() as uri, httpx.Client(verify=False) as http:
        analyst = {"authorization": "Bearer analyst"}
        for path in ("v1/c/namespaces/s/tables/t", "polaris/v1/c/namespaces/s/generic-tables/t"):
            answer = http.get(f"{uri}/{path}", headers=analyst)
            assert answer.status_code == 403
            assert str(source.folder) not in answer.text
        assert http.post(f"{uri}/v1/c/namespaces/s/tables/t/plan", json={}, headers=analyst).status_code == 403
        assert http.head(f"{uri}/v1/c/namespaces/s/tables/t", headers=analyst).status_code == 204
        assert http.get(f"{uri}/v1/c/namespaces/s/tables/t").status_code == 200, "others read it"


class Foreigners:
    """Everybody is an administrator of another account."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return Principal("foreigner", "a2", frozenset({"administrator"}), Roles().permissions(["administrator"]))


def test_other_accounts_see_nothing(source: Source) -> None:
    with source.lake.rest("c") as catalog:
        catalog.load_table("s.t")
    with source.lake.rest_served(Foreigners()) as uri, httpx.Client(verify=False) as http:
        for path in ("tables", "tables/t", "tables/t/plan/x"):
            answer = http.get(f"{uri}/v1/c/namespaces/s/{path}")
            assert (answer.status_code, str(source.folder) in answer.text) == (404, False)
        for path in ("generic-tables", "generic-tables/t"):
            assert http.get(f"{uri}/polaris/v1/c/namespaces/s/{path}").status_code == 404
        assert http.get(f"{uri}/v1/config?warehouse=c").status_code == 404


# --- garbage collection -----------------------------------------------------------------------------------------------


def test_files_of_the_current_metadata_are_kept(source: Source) -> None:
    with source.lake.rest("c") as catalog:
        catalog.load_table("s.t")
        before = source.generated
        assert source.sweep() == ()
        assert source.generated == before
        source.write(3)
        source.sync()
        table = catalog.load_table("s.t")
        kept = source.generated
        source.sweep()
        assert source.generated == kept, "what was replaced last is still in its log"
        for value in (4, 5):
            source.write(value)
            source.sync()
            table = catalog.load_table("s.t")
        removed = source.sweep()
        assert len(removed) >= 1
        assert values(table.refresh()) == [1, 2, 3, 4, 5]
        assert [len(values(table, snapshot_id=each.snapshot_id)) for each in table.snapshots()] == [2, 3, 4, 5]


def test_files_of_a_removed_table_are_deleted(source: Source) -> None:
    with source.lake.rest("c") as catalog:
        catalog.load_table("s.t")
        tables.delete(source.lake.realm, v1.DeleteTableRequest(table_id=source.id))
        with pytest.raises(NoSuchTableError):
            catalog.load_table("s.t")
    assert source.sweep(days=0.1) == (), "somebody may still read them"
    assert source.generated
    assert source.sweep()
    assert source.generated == set()
    assert exports.exports_of(source.lake.realm) == {}
    assert not [each.key for each in source.lake.stores.pointers.scan("/folders/")]
    assert (source.folder / "t").is_dir(), "the files of the source stay"


# --- generic tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [deletion_vector, column_mapping])
def test_generic_tables_are_listed_before_anybody_loads_them(tmp_path: Path, make: Any) -> None:
    with source_of(tmp_path, "delta") as source:
        make(source.folder)
        source.sync()
        with source.lake.rest_served() as uri, httpx.Client(verify=False) as http:
            assert http.get(f"{uri}/v1/c/namespaces/s/tables").json()["identifiers"] == []
            generic = f"{uri}/polaris/v1/c/namespaces/s/generic-tables"
            assert [each["name"] for each in http.get(generic).json()["identifiers"]] == ["t"]
            location = f"file://{source.folder}/t"
            assert http.get(f"{generic}/t").json() == {
                "table": {"name": "t", "format": "delta", "base-location": location, "properties": {}}
            }
            nothing = {"authorization": "Bearer nothing"}
            assert http.get(f"{generic}/t", headers=nothing).status_code in (403, 404)
            assert http.post(f"{generic}/t").status_code == 405


def test_exported_tables_are_not_generic(source: Source) -> None:
    with source.lake.rest_served() as uri, httpx.Client(verify=False) as http:
        generic = f"{uri}/polaris/v1/c/namespaces/s/generic-tables"
        assert http.get(generic).json() == {"identifiers": [], "next-page-token": None}
        catalog = RestCatalog("lake", uri=uri, warehouse="c", token="writer")
        assert catalog.list_tables("s") == [("s", "t")]
        assert http.get(f"{generic}/t").json()["table"]["format"] == source.kind
        assert http.get(f"{generic}/unknown").status_code == 404
