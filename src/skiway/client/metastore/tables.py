"""Tables: a name, a schema, and where the data comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skiway.client.metastore.area import Area
from skiway.client.metastore.changes import KEEP, Json, Keep, filled, masked, precondition, schema_text
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.listing import Listing, Turn
from skiway.client.metastore.names import Name
from skiway.client.metastore.places import Place
from skiway.client.metastore.references import Ref, namespace_id, table_id
from skiway.client.metastore.relations import home_of, moved
from skiway.client.metastore.resources import Meta, Table
from skiway.client.metastore.snapshot import At, snapshot_ref
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Tables"]


class Tables(Area):
    """`lake.tables`: named by catalog, namespaces and table, such as `lake.sales.people`."""

    def __call__(self, namespace: Ref, *, page_size: int | None = None) -> Listing[Table]:
        """The tables of a namespace, by name."""

        def open_() -> Turn[Table]:
            return self._turn(namespace_id(self._calls, namespace))

        return Listing(open_, page_size)

    def get(self, table: Ref, *, at: At = None) -> Table:
        """The table, with the schema it had `at` a snapshot id or a time; `NotFound` if there is none."""
        request = v1.GetTableRequest(
            table_id=table_id(self._calls, table), snapshot=None if at is None else snapshot_ref(at)
        )
        answer = self._calls.ask(request, v1.GetTableResponse)
        return self._table(answer.table, answer.meta)

    def find(self, table: Ref) -> Table | None:
        """The table, or None."""
        try:
            return self.get(table)
        except NotFound:
            return None

    def create(
        self,
        name: Name,
        *,
        schema: Json,
        namespace: Ref | None = None,
        description: str | None = None,
        upstream: v1.UpstreamRef | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Table:
        """A new table, without snapshots. With a `namespace`, `name` is the plain name in it."""
        home = home_of(self._calls, name, namespace, resource="table")
        spec = filled(
            v1.TableSpec,
            display_name=home.name,
            catalog_id=home.catalog_id,
            namespace_id=home.namespace_id,
            schema_json=schema_text(schema),
            description=description,
            upstream=upstream,
            properties=properties,
        )
        request = v1.CreateTableRequest(spec=spec, idempotency=self._calls.key(idempotency_key))
        answer = self._calls.ask(request, v1.CreateTableResponse)
        return self._table(answer.table, answer.meta)

    def update(
        self,
        table: Ref,
        *,
        name: str | Keep = KEEP,
        namespace: Ref | Keep = KEEP,
        description: str | Keep | None = KEEP,
        schema: Json | Keep = KEEP,
        upstream: v1.UpstreamRef | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Table:
        """The table after what is given was changed; None clears.

        `name` is the plain new name, `namespace` where it moves to. Maps are replaced as a whole.
        """
        spec, mask = masked(
            v1.TableSpec,
            display_name=name,
            description=description,
            schema_json=schema_text(schema),
            upstream=upstream,
            properties=properties,
            **moved(self._calls, namespace),
        )
        request = v1.UpdateTableRequest(
            table_id=table_id(self._calls, table),
            spec=spec,
            update_mask=mask,
            precondition=precondition(if_version, if_etag),
        )
        answer = self._calls.ask(request, v1.UpdateTableResponse)
        return self._table(answer.table, answer.meta)

    def delete(self, table: Ref, *, if_version: int | None = None, if_etag: str | None = None) -> Meta:
        """Delete a table with its snapshots and statistics; how it was stored last."""
        request = v1.DeleteTableRequest(
            table_id=table_id(self._calls, table), precondition=precondition(if_version, if_etag)
        )
        return Meta.of(self._calls.ask(request, v1.DeleteTableResponse).meta)

    def profile(self, table: Ref, *, full_rescan: bool = False) -> Job:
        """A job that makes statistics of a managed table's current snapshot; or the one that does it already.

        Tables of a connector are profiled when that is synced.
        """
        request = v1.TriggerReconcileRequest(table_id=table_id(self._calls, table), full_rescan=full_rescan)
        job_id = self._calls.ask(request, v1.TriggerReconcileResponse).job_id
        return Job(self._calls.ask(v1.GetReconcileJobRequest(job_id=job_id), v1.GetReconcileJobResponse).job)

    def _table(self, message: v1.Table, meta: v1.MutationMeta) -> Table:
        return Table(message, self._calls, meta, _place=Place(self._calls, message.namespace_id))

    def _turn(self, namespace: v1.ResourceId) -> Turn[Table]:
        place = Place(self._calls, namespace)

        def turn(page: v1.PageRequest) -> tuple[Sequence[Table], v1.PageResponse]:
            request = v1.ListTablesRequest(namespace_id=namespace, page=page)
            answer = self._calls.ask(request, v1.ListTablesResponse)
            return [Table(table, self._calls, _place=place) for table in answer.tables], answer.page

        return turn
