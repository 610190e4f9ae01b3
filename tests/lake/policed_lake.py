"""A lake with one table under policies: what of it is hidden is marked, so that it is recognized wherever it appears."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from lake.lakes import Lake, opened_lake
from skiway.lake.policies import PolicyChecks
from skiway.metastore import catalogs, namespaces, policies, tables, views
from skiway.model import v1
from skiway.sql import QueryEngine

CANARY = "canary-7f3a9"
"""Part of every value of the masked columns, and of the names in hidden rows."""

NUMBERS = range(715_517_000, 715_517_040)
"""The values of a masked column of numbers."""

COUNT = 40
ROWS = pa.table(
    {
        "id": pa.array(range(COUNT)),
        "region": ["EU" if i % 4 else "US" for i in range(COUNT)],
        "name": [f"name {i}" if i % 4 else f"{CANARY} hidden {i}" for i in range(COUNT)],
        "email": [f"{CANARY}.{i}@example.com" for i in range(COUNT)],
        "number": pa.array(list(NUMBERS)),
        "day": [date(2024, 1, 1 + i % 28) for i in range(COUNT)],
    },
    schema=pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("region", pa.string()),
            pa.field("name", pa.string()),
            pa.field("email", pa.string(), nullable=False),
            pa.field("number", pa.int64()),
            pa.field("day", pa.date32()),
        ]
    ),
)
VISIBLE = [i for i in range(COUNT) if i % 4]


@dataclass
class PolicedLake:
    """The table `managed.s.people`, and a function that creates policies on it."""

    lake: Lake
    checks: PolicyChecks

    @property
    def table(self) -> v1.Table:
        namespace = self.namespace
        found = tables.find(self.lake.realm, namespace.resource_id.id, "people")
        assert found is not None
        return found

    @property
    def catalog(self) -> v1.Catalog:
        return next(each for each in catalogs.scan(self.lake.realm) if each.display_name == "managed")

    @property
    def namespace(self) -> v1.Namespace:
        found = namespaces.scan(self.lake.realm, self.catalog.resource_id.id)
        return next(each for each in found if each.display_name == "s")

    def view(self, name: str) -> v1.View:
        found = views.find_any_case(self.lake.realm, self.catalog, self.namespace.resource_id.id, name)
        assert found is not None
        return found

    def policy(self, name: str, **more: Any) -> v1.Policy:
        """Create a policy, by default for everyone but `writer`, on the table."""
        given: dict[str, Any] = {
            "subjects": ["everyone"],
            "exceptions": ["user:writer"],
            "objects": [self.table.resource_id],
            **more,
        }
        request = v1.CreatePolicyRequest(spec=v1.PolicySpec(display_name=name, **given))
        return policies.calls(self.checks).create(self.lake.realm, request).policy

    def filter(
        self, predicate: str = "region = caller('region')", *, name: str = "own region", **more: Any
    ) -> v1.Policy:
        return self.policy(name, row_filter=v1.PolicyFilter(predicate=predicate), **more)

    def mask(
        self,
        columns: Sequence[str] = ("email", "number"),
        kind: v1.MaskKind.ValueType = v1.MK_NULL,
        *,
        name: str = "no email",
        expression: str = "",
        **more: Any,
    ) -> v1.Policy:
        mask = v1.PolicyMask(kind=kind, columns=columns, expression=expression)
        return self.policy(name, mask=mask, **more)


@contextmanager
def policed_lake(folder: Path, queries: QueryEngine, **options: Any) -> Iterator[PolicedLake]:
    with opened_lake(folder, queries=queries, **options) as lake, lake.client() as owner:
        owner.create_schema("s")
        owner.create_table("s.people", ROWS.schema)
        for first in range(0, COUNT, 10):
            owner.insert("s.people", ROWS.slice(first, 10))
        yield PolicedLake(lake, PolicyChecks(queries))
