"""The DynamoDB table of a pointer store: its keys, its index of what expires, its format."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from skiway.errors import PreconditionFailed
from skiway.storage.format_version import FORMAT_VERSION, check_format

__all__ = ["ensure_table"]

FORMAT_KEY = {"pk": {"S": "format"}, "sk": {"B": b"format"}}


def ensure_table(client: Any, table: str, *, create: bool) -> None:
    """Make `table` if it is missing and may be made, and check that its format is ours."""
    if not _exists(client, table):
        if not create:
            raise PreconditionFailed(f"DynamoDB table {table} does not exist: create it, or open it with create=true")
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
            # Sparse: only pointers that expire have the attribute, so only they are in the index.
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
        if _code(error) != "ResourceInUseException":  # somebody else is making it
            raise
    client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 120})
    _enable_sweep(client, table)


def _enable_sweep(client: Any, table: str) -> None:
    try:
        client.update_time_to_live(TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"})
    except ClientError as error:
        if _code(error) != "ValidationException":  # it is enabled already
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
        check_format(found["Item"]["format"]["S"], f"DynamoDB table {table}")


def _code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])
