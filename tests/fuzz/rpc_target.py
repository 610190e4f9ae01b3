"""Calls of the metastore: a valid request of every method, with fields that the descriptors define changed."""

from __future__ import annotations

from random import Random

from fuzz.flight_target import INTERNAL, TIMEOUT_S
from fuzz.mutation import changed_bytes, changed_message
from fuzz.target import Case, Target, captured_errors, logged_fault
from rpc import requests
from rpc.rpc_server import METHODS, SERVICES, opened
from skiway.storage import open_stores

WAITS = {"EventService/WatchEvents"}
"""Calls that send what happens until their client ends them."""
WAITING_S = 0.5
HEADERS = ("x-skiway-account", "x-query-id", "x-engine-kind", "x-engine-version", "x-correlation-id", "traceparent")


class RpcTarget(Target):
    """The gRPC services of the metastore."""

    name = "rpc"

    def open(self) -> None:
        self.errors = self.stack.enter_context(captured_errors())
        stores = self.stack.enter_context(open_stores("memory://"))
        self.server = self.stack.enter_context(opened(stores, services=SERVICES))
        lake = requests.lake(self.server.factory)
        self.names = [
            *(lake.catalog.resource_id.id, lake.namespace.resource_id.id, lake.table.resource_id.id),
            *(lake.view.resource_id.id, lake.connector.resource_id.id, lake.query_id, lake.job_id),
            *("a1", "a2", "lake", "sales", "people", "adults", "files", "display_name", "description", "path", "c1"),
            '{"type":"struct","fields":[{"id":1,"name":"id","required":true,"type":"long"}]}',
        ]
        self.requests = {name: make(lake) for name, make in requests.REQUESTS.items() if name in METHODS}

    def case(self, chance: Random) -> Case:
        operation = chance.choice(sorted(self.requests))
        valid = self.requests[operation]
        sent = valid if isinstance(valid, list) else [valid]
        changed = [changed_message(each, chance, self.names).SerializeToString() for each in sent]
        if chance.random() < 0.1:
            changed[0] = changed_bytes(changed[0], chance)
        headers = {chance.choice(HEADERS): chance.choice(self.names)} if chance.random() < 0.1 else {}
        return {"operation": operation, "messages": changed, "headers": headers}

    def run(self, case: Case) -> str:
        self.errors.take()
        operation, messages = case["operation"], case["messages"]
        request = messages if METHODS[operation].streamed else messages[0]
        headers = {name.replace("-", "_"): value for name, value in case["headers"].items()}
        timeout_s = WAITING_S if operation in WAITS else TIMEOUT_S
        answer = self.server.client(operation, request, timeout=timeout_s, **headers)
        status = answer.code.name
        if status == "DEADLINE_EXCEEDED" and operation not in WAITS:
            raise TimeoutError(f"{operation} did not end within {TIMEOUT_S} seconds")
        if status in INTERNAL and (fault := logged_fault(self.errors, status, answer.text)):
            raise fault
        return str(status)
