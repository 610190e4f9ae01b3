"""Create connectors and job queues in tests."""

from __future__ import annotations

from typing import Any

from metastore.resource_factory import ResourceFactory
from skiway.metastore import connectors
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.model import v1
from skiway.security import MemorySecrets, SecretsStore

RULES = JobRules(max_attempts=3, base_backoff_s=1.0, max_backoff_s=3.0, lease_s=10.0)


def spec(factory: ResourceFactory, name: str = "files", **more: Any) -> v1.ConnectorSpec:
    """The spec of a connector that reads Parquet files into the first catalog."""
    destination = v1.ConnectorDestination(catalog_id=factory.first_catalog().resource_id)
    plain = {"kind": v1.CK_PARQUET, "uri": "file:///data", "destination": destination}
    return v1.ConnectorSpec(display_name=name, **{**plain, **more})


def connector(
    factory: ResourceFactory, name: str = "files", *, secrets: SecretsStore | None = None, **more: Any
) -> v1.Connector:
    request = v1.CreateConnectorRequest(spec=spec(factory, name, **more))
    return connectors.create(factory.home, request, secrets=secrets or MemorySecrets()).connector


def queue(factory: ResourceFactory, rules: JobRules = RULES) -> JobQueue:
    """A queue whose delays are exactly those of its rules, without jitter."""
    return JobQueue(factory.stores, rules=rules, clock=factory.clock, jitter=lambda: 1.0)
