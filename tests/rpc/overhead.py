"""The cost of the gRPC layers per call, without a network: `python tests/rpc/overhead.py`.

The called function returns immediately, so that only our own layers are measured.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf.message import Message

from rpc.rpc_server import Callers, principal
from skiway.config.telemetry import Telemetry, Traces
from skiway.metastore import Realm
from skiway.model import v1
from skiway.request_path import Access
from skiway.rpc import Door, Rule, Service, all_services
from skiway.security import PermissionAuthorizer, Principal
from skiway.telemetry import traces as tracing
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.metrics import Metrics

CALLS = 20_000
ANSWER = v1.ListCatalogsResponse()
HEADERS = (
    ("user-agent", "grpc-python/1.85.1"),
    ("authorization", "Bearer ada"),
    ("x-correlation-id", "0b0c5a9e-0d0c-4a6e-9d0e-3f2f1a1b2c3d"),
    ("x-query-id", "q-1"),
    ("x-engine-kind", "duckdb"),
    ("x-engine-version", "1.5.5"),
)


class Caller:
    """Stands in for gRPC's side of a call."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return HEADERS

    def send_initial_metadata(self, metadata: Any) -> None: ...

    def set_trailing_metadata(self, metadata: Any) -> None: ...

    def is_active(self) -> bool:
        return True


def answer(realm: Realm, request: Any) -> Message:
    return ANSWER


def door(**arguments: Any) -> Door:
    """A door whose functions return immediately."""
    services = [
        Service(
            each.descriptor,
            each.category,
            {name: Rule(answer, rule.permissions, rule.changes) for name, rule in each.rules.items()},
            each.for_platform,
        )
        for each in all_services()
    ]
    realm = Realm(None, "a1")  # type: ignore[arg-type]

    def realm_of(_: Principal) -> Realm:
        return realm

    callers = Callers(principal("ada", "catalog.read", "catalog.write"))
    return Door(Access(realm_of, callers, PermissionAuthorizer()), services=services, **arguments)


class Handlers:
    """Collects the handlers that a door adds to a server."""

    def __init__(self, door: Door) -> None:
        self._added: list[Any] = []
        door.add_to(self)  # type: ignore[arg-type]

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._added.extend(handlers)

    def find(self, operation: str) -> Callable[[Iterator[bytes], Any], bytes]:
        class Details:
            method = f"/skiway.v1.{operation}"

        found = next(handler for each in self._added if (handler := each.service(Details)) is not None)
        return found.stream_unary


def microseconds(door: Door, operation: str, request: Message) -> float:
    """CPU time per call, the best of five runs."""
    serve, data, caller = Handlers(door).find(operation), request.SerializeToString(), Caller()
    return (
        min(timeit.repeat(lambda: serve(iter((data,)), caller), timer=time.process_time, number=CALLS, repeat=5))
        / CALLS
        * 1e6
    )


def main() -> None:
    reading, writing = v1.ListCatalogsRequest(), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"))
    settings = Telemetry(traces=Traces(enabled=True))
    with TemporaryDirectory() as folder, closing(tracing.Traces.start(settings)) as traces:
        audit = AuditLog(Path(folder))
        for name, telemetry in (
            ("nothing", {}),
            ("metrics", {"metrics": Metrics()}),
            ("metrics, audit", {"metrics": Metrics(), "audit": audit}),
            ("metrics, audit, spans", {"metrics": Metrics(), "audit": audit, "traces": traces}),
        ):
            measured = door(**telemetry)
            read = microseconds(measured, "CatalogService/ListCatalogs", reading)
            write = microseconds(measured, "CatalogService/CreateCatalog", writing)
            print(f"{name:22} read {read:6.1f} µs, write {write:6.1f} µs")
        audit.close()


if __name__ == "__main__":
    main()
