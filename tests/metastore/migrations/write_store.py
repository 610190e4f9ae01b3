"""Write `format_2.tar.xz`: a store with records of every kind, and what they contain, as this version writes and reads them.

Run it after `FORMAT_VERSION` was increased (then change the name here and in the tests), or after a kind of record was added:

    PYTHONPATH=src:tests python -m metastore.migrations.write_store
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.json_format import MessageToDict

from metastore.integrity import kind_of
from metastore.resource_factory import ResourceFactory, key
from rpc.requests import column_stats, file_stats, lake
from skiway.metastore import statistics
from skiway.metastore.jobs.api import keep_log
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import KINDS
from skiway.metastore.resources import catalogs, grants, policies
from skiway.model import v1
from skiway.storage import Stores, open_stores
from skiway.telemetry.job_logs import CollectedLog
from storage.homes import Clock

ARCHIVE = Path(__file__).with_name("format_2.tar.xz")

Records = dict[str, dict[str, dict[str, Any]]]
"""What records contain, by their kind and their key."""

Fields = dict[str, dict[str, list[int]]]
"""The number, the type and the label of each field, by message and name."""


def fill(stores: Stores) -> None:
    """Write records of every kind into an empty store."""
    factory = ResourceFactory(stores)
    made, realm = lake(factory), factory.home
    table_id = made.table.resource_id
    grants.add(realm, v1.AddGrantRequest(object_id=table_id, grantee="user:grace", privilege=v1.PV_READ))
    policies.set_tags(realm, v1.SetColumnTagsRequest(table_id=table_id, column="name", tags=["pii"]))
    stats = v1.TableStats(row_count=5, total_size_bytes=50)
    statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=2, stats=stats))
    statistics.put_columns(realm, [column_stats(made, 1)])
    statistics.put_files(realm, [file_stats(made, "a.parquet")])
    catalogs.create(realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="again"), idempotency=key("k")))
    queue = JobQueue(stores, clock=factory.clock)
    ended, running = queue.lease("worker-1"), queue.lease("worker-2")
    assert ended is not None
    assert running is not None
    log = CollectedLog(ended.job.account_id)
    log.write("one line")
    keep_log(queue, ended, log)
    queue.complete(ended, Progress(2, 1, {"sales.people": "it cannot be read"}))


def records_in(stores: Stores) -> Records:
    """All records of a store."""
    records: Records = {}
    for pointer in stores.pointers.scan():
        if keys.owner(pointer) == pointer.key:
            kind = kind_of(pointer.key)
            value = kind.message.FromString(stores.blobs.get(pointer.blob_uri))
            records.setdefault(kind.noun, {})[pointer.key] = MessageToDict(value, preserving_proto_field_name=True)
    return records


def fields_now() -> Fields:
    """The fields of all messages that records consist of."""
    return {name: dict(_fields(descriptor)) for name, descriptor in _messages().items()}


def _fields(descriptor: Descriptor) -> Iterator[tuple[str, list[int]]]:
    for field in descriptor.fields:
        yield field.name, [field.number, field.type, int(field.is_repeated)]


def _messages() -> dict[str, Descriptor]:
    found: dict[str, Descriptor] = {}
    waiting = [kind.message.DESCRIPTOR for kind in KINDS]
    while waiting:
        descriptor = waiting.pop()
        if descriptor.full_name not in found:
            found[descriptor.full_name] = descriptor
            waiting += [field.message_type for field in descriptor.fields if field.message_type is not None]
    return dict(sorted(found.items()))


def write(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri(), clock=Clock()) as stores:
            fill(stores)
            content = {"records": records_in(stores), "fields": fields_now()}
        database = sqlite3.connect(home / "pointers.db")
        (home / "dump.sql").write_text("\n".join(database.iterdump()))
        database.close()
        (home / "content.json").write_text(json.dumps(content, indent=1, sort_keys=True))
        with tarfile.open(archive, "w:xz") as packed:
            for name in ("dump.sql", "content.json", "blobs"):
                packed.add(home / name, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    write(ARCHIVE)
