"""Settings of storage: pointers, blobs, secrets, managed tables, and access to clouds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from skiway.config.fields import (
    FLAG,
    PATH,
    SECRET,
    TEXT,
    WEB_URL,
    Kind,
    Secret,
    choice,
    listed,
    pairs,
    pattern,
    section,
    setting,
    store_url,
    whole,
)

KvBackend = Literal["memory", "sqlite", "postgresql", "dynamodb"]
BlobBackend = Literal["memory", "file", "s3"]
SecretsBackend = Literal["file", "aws", "memory"]


def _always(value: object) -> bool:
    if not FLAG.read(value):
        raise ValueError("cannot be turned off")
    return True


ALWAYS = Kind("true", _always)


@section
class Kv:
    """The pointer store."""

    backend: KvBackend = setting(
        "sqlite", choice(KvBackend), "Pointer store; `sqlite` is a file in the home directory."
    )
    url: str | None = setting(
        None,
        store_url("postgresql://user@host/database"),
        "URL of the pointer store; replaces `kv.backend` and `kv.table`.",
    )
    password: Secret | None = setting(
        None, SECRET, "Password of the PostgreSQL user; a password in `kv.url` is moved here."
    )
    table: str = setting("skiway_pointers", TEXT, "Name of the DynamoDB table.")
    auto_create: bool = setting(True, FLAG, "Create the DynamoDB table if it does not exist.")
    ttl_enabled: bool = setting(True, ALWAYS, "Let DynamoDB delete expired items; cannot be turned off.")


@section
class BlobS3:
    """Blobs in S3."""

    bucket: str | None = setting(None, TEXT, "S3 bucket for blobs; it must exist.")
    prefix: str | None = setting(None, TEXT, "Key prefix within the bucket.")


@section
class Blob:
    """The blob store."""

    backend: BlobBackend | None = setting(
        None,
        choice(BlobBackend),
        "Blob store; unless set, memory if pointers are in memory, and files in the home directory if they are in "
        "SQLite.",
    )
    url: str | None = setting(
        None,
        store_url("s3://bucket/folder"),
        "URL of the blob store; replaces `blob.backend` and `blob.s3`.",
    )
    s3: BlobS3 = BlobS3()


@section
class AwsS3:
    """Access to S3."""

    endpoint: str | None = setting(None, WEB_URL, "Endpoint of an S3-compatible service.")
    path_style_access: bool = setting(
        True, FLAG, "Use path-style URLs; otherwise the bucket name is part of the host name."
    )


@section
class AwsDynamodb:
    """Access to DynamoDB."""

    endpoint_override: str | None = setting(None, WEB_URL, "Endpoint of a DynamoDB-compatible service.")


@section
class Aws:
    """Access to AWS, for stores and secrets."""

    region: str | None = setting(None, TEXT, "AWS region; unless set, the AWS SDK's default.")
    access_key_id: Secret | None = setting(
        None, SECRET, "Access key ID; unless set, the AWS SDK's default credentials."
    )
    secret_access_key: Secret | None = setting(None, SECRET, "Secret access key.")
    session_token: Secret | None = setting(None, SECRET, "Session token of temporary credentials.")
    s3: AwsS3 = AwsS3()
    dynamodb: AwsDynamodb = AwsDynamodb()

    def credentials(self, prefix: str = "") -> dict[str, str]:
        """The credentials that are set, in plain text, by their names with a prefix."""
        names = ("access_key_id", "secret_access_key", "session_token")
        secrets = {name: getattr(self, name) for name in names}
        return {f"{prefix}{name}": secret.reveal() for name, secret in secrets.items() if secret is not None}


@section
class Gcs:
    """Access to Google Cloud Storage, for the warehouse."""

    service_account_file: Path | None = setting(
        None, PATH, "Key file of a service account; unless set, Google's default credentials."
    )
    endpoint: str | None = setting(
        None,
        WEB_URL,
        "Endpoint of an emulator. It gets no credentials unless `storage.gcs.service_account_file` is set.",
    )


@section
class Azure:
    """Access to Azure Data Lake Storage, for the warehouse."""

    account_name: str | None = setting(None, TEXT, "Storage account of the key.")
    account_key: Secret | None = setting(
        None, SECRET, "Key of the storage account; unless set, and for other accounts, Azure's default credentials."
    )
    endpoint: str | None = setting(
        None, WEB_URL, "Endpoint of an emulator, without the account. It requires `storage.azure.account_key`."
    )


@section
class Storage:
    """Cloud services used by the stores and the warehouse."""

    aws: Aws = Aws()
    gcs: Gcs = Gcs()
    azure: Azure = Azure()


VendedCredentials = Literal["off", "sts", "static"]


@section
class VendingSts:
    """Credentials from STS."""

    role_arn: str | None = setting(
        None, TEXT, "Role that sessions of clients assume; it needs access to the warehouse. MinIO accepts any text."
    )
    endpoint: str | None = setting(
        None, WEB_URL, "Endpoint of STS; unless set, that of AWS, or `storage.aws.s3.endpoint` if that is set."
    )
    external_id: str | None = setting(None, TEXT, "External ID, if the role requires one.")
    duration_seconds: int = setting(
        3600,
        whole(at_least=900, at_most=43200, of=" of seconds"),
        "How long credentials are valid. AWS permits up to the maximum of the role, and an hour if the server itself has assumed a "
        "role.",
    )


@section
class VendingKeys:
    """Keys that clients receive. They are not limited to a table."""

    accounts: tuple[str, ...] = setting(
        (),
        listed("a list of account ids, such as default; acme", str),
        "Accounts with callers that may receive the keys.",
    )
    read_access_key_id: Secret | None = setting(None, SECRET, "Access key ID for callers who may read all tables.")
    read_secret_access_key: Secret | None = setting(None, SECRET, "Secret access key for these callers.")
    write_access_key_id: Secret | None = setting(None, SECRET, "Access key ID for callers who may write all tables.")
    write_secret_access_key: Secret | None = setting(None, SECRET, "Secret access key for these callers.")


@section
class VendingGcs:
    """Tokens for tables in Google Cloud Storage."""

    enabled: bool = setting(
        False, FLAG, "Issue access tokens that are limited to the table to clients that ask for credentials."
    )
    token_endpoint: str = setting(
        "https://sts.googleapis.com/v1/token", WEB_URL, "Endpoint that exchanges tokens of the server for limited ones."
    )


@section
class VendingAzure:
    """Shared access signatures for tables in Azure."""

    enabled: bool = setting(
        False, FLAG, "Issue signatures that are limited to the folder of the table to clients that ask for credentials."
    )
    duration_seconds: int = setting(
        3600, whole(at_least=900, at_most=43200, of=" of seconds"), "How long signatures are valid."
    )


@section
class Vending:
    """Access of Iceberg clients to the files of tables in object stores."""

    credentials: VendedCredentials = setting(
        "off",
        choice(VendedCredentials),
        "Credentials for tables in S3, for clients that ask for them: `sts` issues temporary ones that are limited to the table, "
        "`static` hands out configured keys.",
    )
    remote_signing: bool = setting(
        False, FLAG, "Sign requests to S3 of clients that ask for it with the keys of the server, one at a time."
    )
    sts: VendingSts = VendingSts()
    static: VendingKeys = VendingKeys()
    gcs: VendingGcs = VendingGcs()
    azure: VendingAzure = VendingAzure()


@section
class Warehouse:
    """The files of managed tables."""

    uri: str | None = setting(
        None,
        pattern(
            r"/[^\n]+|file:[^\n]+|(?:s3|gs|abfss):\S+", "an absolute path, or a location such as s3://bucket/folder"
        ),
        "Location of managed tables: a local directory, or a folder in S3, Google Cloud Storage (`gs://bucket/folder`) or Azure "
        "(`abfss://container@account.dfs.core.windows.net/folder`).",
        under_home="warehouse",
    )
    locations: tuple[str, ...] = setting(
        (),
        pairs("default/sales=s3://bucket/sales; default/hr=/srv/hr"),
        "Further locations of managed tables by account id and catalog: clients may create tables of the catalog in folders "
        "below them. Connectors cannot read them.",
    )
    vending: Vending = Vending()


@section
class SecretsFile:
    """Secrets in encrypted files."""

    directory: Path | None = setting(
        None, PATH, "Directory of the encrypted files and the key file.", under_home="secrets"
    )
    key_file: Path | None = setting(None, PATH, "File of the encryption keys; unless set, in the same directory.")
    keys: Secret | None = setting(
        None, SECRET, "Encryption keys, separated by commas: the first one encrypts, all of them decrypt."
    )


@section
class SecretsAws:
    """Secrets in AWS Secrets Manager."""

    role_arn: str | None = setting(None, TEXT, "Role to assume for each account, to read and write its secrets.")
    prefix: str = setting("skiway", TEXT, "Prefix of the secrets' names.")


@section
class Secrets:
    """The store of connector credentials."""

    backend: SecretsBackend = setting("file", choice(SecretsBackend), "Store of connector credentials.")
    file: SecretsFile = SecretsFile()
    aws: SecretsAws = SecretsAws()
