"""Pointers in a DynamoDB table, for stores without a database server.

All pointers share one partition key, so that listings are sorted; DynamoDB splits a busy partition by sort key on its own.
Every write is a transaction with a request token. A plain conditional write that the SDK repeats after a lost response
would mistake its own success for a conflict.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby, islice
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from skiway.errors import (
    Contention,
    Internal,
    InvalidArgument,
    LimitExceeded,
    PreconditionFailed,
    SkiwayError,
    Unavailable,
)
from skiway.foundation import extras
from skiway.foundation.clock import Clock, from_micros, to_micros, utc_now
from skiway.storage.calls import FORMAT_VERSION, OnCall, StoreFormat, check_version, require_format
from skiway.storage.pointers.store import (
    HEAD_BYTES,
    Delete,
    KeyParts,
    Operation,
    Pointer,
    PointerStore,
    Put,
    key_range,
    require,
)

with extras.needed("aws", "a pointer store in DynamoDB"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, ReadTimeoutError


Item = dict[str, dict[str, Any]]

FORMAT_KEY = {"pk": {"S": "format"}, "sk": {"B": b"format"}}
ATTEMPTS = 8
MAX_TRANSACTION_BYTES = 4_000_000
PARTITION = {"S": "pointers"}
ABSENT_NOW = "attribute_not_exists(pk) OR expires_at_us <= :now"
AT_VERSION = "version = :version AND (attribute_not_exists(expires_at_us) OR expires_at_us > :now)"
# Reasons for which DynamoDB cancels a transaction although its conditions may hold.
TRANSIENT_REASONS = {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "None"}
CONDITION_ERRORS = {"ConditionalCheckFailedException", "TransactionCanceledException"}
TRANSIENT_ERRORS = {"TransactionInProgressException", "ThrottlingException", "ProvisionedThroughputExceededException"}


def ensure_table(client: Any, table: str, *, create: bool) -> None:
    """Create `table` if it does not exist and `create` is set, and check its format version."""
    if not _exists(client, table):
        if not create:
            raise PreconditionFailed(f"DynamoDB table {table} does not exist; create it, or open it with create=true")
        _create(client, table)
    _ensure_format(client, table)


def _exists(client: Any, table: str) -> bool:
    try:
        client.describe_table(TableName=table)
    except ClientError as error:
        if _code(error) == "ResourceNotFoundException":
            return False
        raise
    return True


def _create(client: Any, table: str) -> None:
    try:
        client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "B"},
                {"AttributeName": "expires_at_us", "AttributeType": "N"},
            ],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            # Sparse: only pointers that expire have the attribute and are in the index.
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "expiry",
                    "KeySchema": [
                        {"AttributeName": "pk", "KeyType": "HASH"},
                        {"AttributeName": "expires_at_us", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
        )
    except ClientError as error:
        if _code(error) != "ResourceInUseException":  # another process is creating it
            raise
    client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 120})
    _enable_ttl(client, table)


def _enable_ttl(client: Any, table: str) -> None:
    try:
        client.update_time_to_live(TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"})
    except ClientError as error:
        if _code(error) != "ValidationException":  # already enabled
            raise


def _ensure_format(client: Any, table: str) -> None:
    try:
        client.put_item(
            TableName=table,
            Item=FORMAT_KEY | {"format": {"S": str(FORMAT_VERSION)}},
            ConditionExpression="attribute_not_exists(pk)",
        )
    except ClientError as error:
        if _code(error) != "ConditionalCheckFailedException":
            raise
        found = client.get_item(TableName=table, Key=FORMAT_KEY, ConsistentRead=True)
        check_version(found["Item"]["format"]["S"], f"DynamoDB table {table}", newest=FORMAT_VERSION)


def _code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


class DynamoPointerStore(PointerStore):
    """Stores pointers as items of one table, which is created if it does not exist."""

    max_batch: ClassVar[int] = 100
    max_large_batch: ClassVar[int] = 100

    def __init__(
        self,
        client: Any,
        table: str,
        *,
        create: bool = True,
        clock: Clock = utc_now,
        on_call: OnCall | None = None,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
        randomness: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(clock=clock, on_call=on_call)
        self._client = client
        self._table = table
        self._ids = ids
        self._randomness = randomness
        with _translated(table):
            ensure_table(client, table, create=create)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _get(self, key: str) -> Pointer | None:
        with _translated(self._table):
            answer = self._client.get_item(TableName=self._table, Key=_item_key(key), ConsistentRead=True)
        return _to_pointer(answer["Item"]) if "Item" in answer else None

    def _apply(self, batch: Sequence[Operation]) -> None:
        size = sum(
            len(operation.key.encode()) + len(getattr(operation, "blob_uri", "").encode()) for operation in batch
        )
        if size > MAX_TRANSACTION_BYTES:
            raise LimitExceeded(
                f"a batch of {size} bytes exceeds DynamoDB's limit of {MAX_TRANSACTION_BYTES}; use shorter keys and "
                "addresses, or split the batch if its parts may succeed independently",
                key="pointer.batch.too_large",
            )
        now, token = self._clock(), self._ids()
        writes = [self._transact_item(operation, now) for operation in batch]
        retrying = Retrying(
            retry=retry_if_exception_type(Contention), wait=self._pause, stop=stop_after_attempt(ATTEMPTS), reraise=True
        )
        retrying(lambda: self._transact(batch, writes, token=token, now=now))

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        return tuple(islice(self._live(prefix, after=after, page_size=limit, now=now), limit))

    def _count(self, prefix: str, *, now: datetime) -> int:
        return sum(1 for _ in self._live(prefix, after="", page_size=1000, now=now))

    def _format(self) -> StoreFormat:
        with _translated(self._table):
            item = self._client.get_item(TableName=self._table, Key=FORMAT_KEY, ConsistentRead=True)["Item"]
        return StoreFormat(int(item["format"]["S"]), complete="incomplete" not in item)

    def _change_format(self, expected: StoreFormat, new: StoreFormat) -> None:
        state = {"format": {"S": str(new.version)}} | ({} if new.complete else {"incomplete": {"BOOL": True}})
        with _translated(self._table):
            try:
                self._client.put_item(
                    TableName=self._table,
                    Item=FORMAT_KEY | state,
                    ConditionExpression=f"#format = :found AND attribute{'_not' if expected.complete else ''}_exists(incomplete)",
                    ExpressionAttributeNames={"#format": "format"},
                    ExpressionAttributeValues={":found": {"S": str(expected.version)}},
                )
            except ClientError as error:
                if _code(error) != "ConditionalCheckFailedException":
                    raise
                require_format(expected, self._format())
                raise Contention("the format of the store changes; try again", key="store.busy") from error

    def _load(self, puts: Iterable[Put]) -> None:
        for put in puts:
            with _translated(self._table):
                self._client.put_item(TableName=self._table, Item=_to_item(put))

    def _purge(self, limit: int, *, now: datetime) -> int:
        expired = self._query(
            "pk = :pk AND expires_at_us <= :now",
            {":now": _number(to_micros(now))},
            page_size=limit,
            IndexName="expiry",
        )
        return sum(self._delete_expired(item, now) for item in islice(expired, limit))

    def _delete_expired(self, item: Item, now: datetime) -> bool:
        """Delete an item if it is still expired, as the index lags behind the table; return whether it was deleted."""
        try:
            with _translated(self._table):
                self._client.delete_item(
                    TableName=self._table,
                    Key={"pk": item["pk"], "sk": item["sk"]},
                    ConditionExpression="expires_at_us <= :now",
                    ExpressionAttributeValues={":now": _number(to_micros(now))},
                )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    def _transact(self, batch: Sequence[Operation], writes: list[Any], *, token: str, now: datetime) -> None:
        try:
            with _translated(self._table, writes=True):
                self._client.transact_write_items(TransactItems=writes, ClientRequestToken=token)
        except self._client.exceptions.TransactionCanceledException as cancelled:
            reasons = cancelled.response["CancellationReasons"]
            for operation, reason in zip(batch, reasons, strict=True):
                if reason["Code"] == "ConditionalCheckFailed":
                    require(operation, _to_pointer(reason["Item"]) if reason.get("Item") else None, now)
            codes = {reason["Code"] for reason in reasons}
            if codes <= TRANSIENT_REASONS:
                raise Contention(
                    "too many concurrent writes to the same keys; try again",
                    key="store.busy",
                    detail=f"DynamoDB table {self._table}",
                ) from cancelled
            raise Internal(
                "DynamoDB cancelled a transaction",
                key="store.failed",
                detail=f"table {self._table}: {', '.join(sorted(codes))}",
            ) from cancelled

    def _transact_item(self, operation: Operation, now: datetime) -> dict[str, Any]:
        """Convert `operation` to an item of a transaction, with its condition."""
        condition: dict[str, Any] = {
            "TableName": self._table,
            "ConditionExpression": AT_VERSION if operation.expect else ABSENT_NOW,
            "ExpressionAttributeValues": {":now": _number(to_micros(now))},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if operation.expect:
            condition["ExpressionAttributeValues"][":version"] = _number(operation.expect)
        if isinstance(operation, Put):
            return {"Put": condition | {"Item": _to_item(operation)}}
        kind = "Delete" if isinstance(operation, Delete) else "ConditionCheck"
        return {kind: condition | {"Key": _item_key(operation.key)}}

    def _live(self, prefix: str, *, after: str, page_size: int, now: datetime) -> Iterator[Pointer]:
        """Iterate over the live pointers with this prefix whose keys are greater than `after`, in order."""
        low, high = key_range(prefix, after)
        if high is not None and low >= high:
            return
        # Long keys with the same head sort by digest in the table; such a group is read completely and sorted here.
        for _, group in groupby(self._between(low, high, page_size), key=lambda item: item["sk"]["B"][:HEAD_BYTES]):
            for pointer in sorted(map(_to_pointer, group), key=lambda pointer: pointer.key):
                key = pointer.key.encode()
                if low <= key and (high is None or key < high) and not pointer.expired(now):
                    yield pointer

    def _between(self, low: bytes, high: bytes | None, page_size: int) -> Iterator[Item]:
        """Iterate over all items whose keys may be in the range, and possibly some more at its ends."""
        values = {":low": {"B": KeyParts.of(low).head or b"\0"}}  # DynamoDB rejects empty keys even in comparisons
        if high is None:
            return self._query("pk = :pk AND sk >= :low", values, page_size=page_size, ConsistentRead=True)
        head = KeyParts.of(high).head
        values[":high"] = {"B": head + b"\xff" * 32 if len(head) == HEAD_BYTES else head}
        return self._query("pk = :pk AND sk BETWEEN :low AND :high", values, page_size=page_size, ConsistentRead=True)

    def _query(self, condition: str, values: Mapping[str, Any], *, page_size: int, **more: Any) -> Iterator[Item]:
        request = {
            "TableName": self._table,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": {":pk": PARTITION, **values},
            "Limit": page_size,
            **more,
        }
        while True:
            with _translated(self._table):
                answer = self._client.query(**request)
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _pause(self, state: RetryCallState) -> float:
        longest: float = min(0.4, 0.01 * 2**state.attempt_number)
        return longest * (0.5 + self._randomness() / 2)


@contextmanager
def _translated(table: str, *, writes: bool = False) -> Iterator[None]:
    """Run a block in which SDK errors become ours, except failed conditions, which callers handle."""
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] in CONDITION_ERRORS:
            raise
        raise _to_skiway_error(error, table) from error
    except BotoCoreError as error:
        if writes and isinstance(error, ConnectionClosedError | ReadTimeoutError):
            raise Unavailable(
                "the connection to DynamoDB broke during a commit, so the change may or may not have happened; read before you "
                "retry",
                key="store.outcome_unknown",
                detail=f"table {table}: {error}",
            ) from error
        raise Unavailable(
            "DynamoDB is unavailable; check the region, credentials and network",
            key="store.unavailable",
            detail=f"table {table}: {error}",
        ) from error


def _to_skiway_error(error: ClientError, table: str) -> SkiwayError:
    code = error.response["Error"]["Code"]
    detail = f"table {table}: {error.response['Error'].get('Message', code)}"
    if code in TRANSIENT_ERRORS:
        return Contention("too many concurrent writes to DynamoDB; try again", key="store.busy", detail=detail)
    if error.response["ResponseMetadata"].get("HTTPStatusCode", 500) >= 500 or "AccessDenied" in code:
        return Unavailable(
            "DynamoDB is unavailable; check the health of the service and the permissions",
            key="store.unavailable",
            detail=detail,
        )
    return Internal("DynamoDB has failed", key="store.failed", detail=detail)


def _item_key(key: str) -> Item:
    parts = KeyParts.of(key.encode())
    return {"pk": PARTITION, "sk": {"B": parts.head + parts.tail_digest}}


def _to_item(put: Put) -> Item:
    parts = KeyParts.of(put.key.encode())
    item = _item_key(put.key) | {"blob_uri": {"S": put.blob_uri}, "version": _number(put.expect + 1)}
    if parts.tail:
        item["tail"] = {"B": parts.tail}
    if put.expires_at is not None:
        expires_at_us = to_micros(put.expires_at)
        # DynamoDB's TTL is in seconds; rounded up, so that nothing is deleted too early.
        item |= {"expires_at_us": _number(expires_at_us), "ttl": _number(-(-expires_at_us // 1_000_000))}
    return item


def _to_pointer(item: Item) -> Pointer:
    head = item["sk"]["B"][:HEAD_BYTES]
    tail = item["tail"]["B"] if "tail" in item else b""
    expires_at = from_micros(int(item["expires_at_us"]["N"])) if "expires_at_us" in item else None
    return Pointer(KeyParts(head, tail).key, item["blob_uri"]["S"], int(item["version"]["N"]), expires_at)


def _number(value: int) -> dict[str, str]:
    return {"N": str(value)}


def open_pointers(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> DynamoPointerStore:
    """Open the store at `dynamodb://table?region=...`; see docs/configuration.md for the stores."""
    parsed = urlsplit(url)
    settings = dict(parse_qsl(parsed.query)) | dict(options)
    known = {"region", "endpoint", "create", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
    if not parsed.netloc or parsed.path.strip("/") or not settings.keys() <= known:
        raise InvalidArgument(
            f"{parsed.scheme}://{parsed.netloc}{parsed.path} with {', '.join(sorted(settings)) or 'no parameters'} cannot "
            f"be opened; use dynamodb://table?region=..., with any of {', '.join(sorted(known))}"
        )
    client = boto3.client(
        "dynamodb",
        region_name=settings.get("region"),
        endpoint_url=settings.get("endpoint"),
        config=Config(retries={"mode": "standard", "max_attempts": 4}, max_pool_connections=64, connect_timeout=5),
        **{name: value for name, value in settings.items() if name.startswith("aws_")},
    )
    create = settings.get("create", "true") == "true"
    return DynamoPointerStore(client, parsed.netloc, create=create, clock=clock, on_call=on_call)
