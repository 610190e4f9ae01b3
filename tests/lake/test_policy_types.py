"""Rows under a policy have the same values and types as without one, in every table format."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lake.lakes import Lake
from scope import sample
from skiway.client import AirportClient
from skiway.errors import SkiwayError
from skiway.metastore import catalogs, policies
from skiway.model import v1


@pytest.fixture
def restricted(mirrors: Lake) -> Iterator[None]:
    """A policy that hides nothing from `analyst`, but makes the sandbox read all rows."""
    found = [each.resource_id for each in catalogs.scan(mirrors.realm)]
    rule = v1.PolicyFilter(predicate="1 = 1")
    spec = v1.PolicySpec(display_name="all rows", subjects=["user:analyst"], objects=found, row_filter=rule)
    made = policies.calls(lambda *_: []).create(mirrors.realm, v1.CreatePolicyRequest(spec=spec)).policy
    yield
    policies.calls(lambda *_: []).delete(mirrors.realm, v1.DeletePolicyRequest(policy_id=made.resource_id))


@pytest.mark.parametrize("catalog", sample(["iceberg", "delta", "parquet"], every=3))
@pytest.mark.usefixtures("restricted")
def test_values_and_types_are_the_same(mirrors: Lake, catalog: str) -> None:
    with mirrors.client(catalog, token="reader") as reader, mirrors.client(catalog, token="analyst") as analyst:
        names = [f"{schema.name}.{table.name}" for schema in reader.schemas() for table in schema.tables]
        compared = 0
        for name in names:
            if name.startswith("skiway."):
                continue
            expected = outcome(reader, name)
            assert outcome(analyst, name) == expected, name
            compared += isinstance(expected, tuple)
        assert compared > 3


def outcome(client: AirportClient, name: str) -> object:
    """The types and the rows of a table, in any order; or the error."""
    try:
        rows = client.scan(name).read_all()
        return rows.schema.remove_metadata(), sorted(str(row) for row in rows.to_pylist())
    except SkiwayError as error:
        return error.message
