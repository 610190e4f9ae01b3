"""Secrets in AWS Secrets Manager, each tagged with its account."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from skiway.errors import LimitExceeded, SkiwayError, Unavailable
from skiway.security.aws_sessions import ACCOUNT_TAG, Clients
from skiway.security.secrets import check_size, no_such_secret, secret_key

__all__ = ["AwsSecrets"]

MAX_NAME = 512
DELETED = {"ResourceNotFoundException", "InvalidRequestException"}  # the latter: somebody scheduled it for deletion


class AwsSecrets:
    """Secrets as those of AWS, named `{prefix}/accounts/{account}/{kind}/{id}`, with the tag `AccountId`."""

    def __init__(self, clients: Clients, *, prefix: str = "skiway") -> None:
        self._clients = clients
        self._prefix = prefix.strip("/")

    def put(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        name = self._name(account_id, kind, resource_id)
        check_size(name, data)
        with _explained(name):
            client = self._clients.client(account_id)
            tags = [{"Key": ACCOUNT_TAG, "Value": account_id}]
            try:
                client.create_secret(Name=name, SecretBinary=data, Tags=tags)
            except client.exceptions.ResourceExistsException:
                client.tag_resource(SecretId=name, Tags=tags)
                client.put_secret_value(SecretId=name, SecretBinary=data)

    def get(self, account_id: str, kind: str, resource_id: str) -> bytes:
        """See `SecretsStore`. One that was written by hand as text is given in UTF-8."""
        name = self._name(account_id, kind, resource_id)
        with _explained(name, absent=DELETED):
            found = self._clients.client(account_id).get_secret_value(SecretId=name)
        return bytes(found["SecretBinary"]) if "SecretBinary" in found else str(found["SecretString"]).encode()

    def update(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        name = self._name(account_id, kind, resource_id)
        check_size(name, data)
        with _explained(name, absent=DELETED):
            self._clients.client(account_id).put_secret_value(SecretId=name, SecretBinary=data)

    def delete(self, account_id: str, kind: str, resource_id: str) -> None:
        """See `SecretsStore`. Without the usual days of grace, in which the secret would still be there."""
        name = self._name(account_id, kind, resource_id)
        with _explained(name):
            client: Any = self._clients.client(account_id)
            try:
                client.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
            except client.exceptions.ResourceNotFoundException:
                return

    def __repr__(self) -> str:
        return f"AwsSecrets(prefix={self._prefix!r})"

    def _name(self, account_id: str, kind: str, resource_id: str) -> str:
        # AWS takes no percent sign. `=` stands for it: encoding leaves none of its own.
        key = secret_key(account_id, kind, resource_id).replace("%", "=")
        name = f"{self._prefix}/{key}" if self._prefix else key
        if len(name) > MAX_NAME:
            raise LimitExceeded(
                f"the secret's name {name[:80]}… has {len(name)} characters, and AWS takes {MAX_NAME}: use shorter ids",
                key="secret.name.too_long",
            )
        return name


@contextmanager
def _explained(name: str, *, absent: set[str] | None = None) -> Iterator[None]:
    """A block whose SDK errors become ours. Only their codes are told: their texts may quote what was sent."""
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        raise no_such_secret(name) if code in (absent or ()) else _failed(name, code) from None
    except BotoCoreError as error:
        raise _failed(name, type(error).__name__) from None


def _failed(name: str, why: str) -> SkiwayError:
    return Unavailable(
        f"secret {name}: AWS answers {why}: see region, credentials, the role to assume and its policy",
        key="secret.unavailable",
    )
