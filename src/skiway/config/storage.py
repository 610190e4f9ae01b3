"""Settings of where things are kept: pointers, blobs, secrets, and the AWS account they may be in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from skiway.config.fields import section, setting
from skiway.config.values import FLAG, PATH, SECRET, TEXT, WEB_URL, Kind, Secret, choice, pattern, store_url

__all__ = ["Blob", "Kv", "Secrets", "Storage", "Warehouse"]


KvBackend = Literal["memory", "sqlite", "postgresql", "dynamodb"]
BlobBackend = Literal["memory", "file", "s3"]
SecretsBackend = Literal["file", "aws", "memory"]


def _always(value: object) -> bool:
    if not FLAG.read(value):
        raise ValueError("cannot be switched off")
    return True


ALWAYS = Kind("true", _always)


@section
class Kv:
    """The pointer store."""

    backend: KvBackend = setting(
        "sqlite", choice(KvBackend), "Where pointers are kept; `sqlite` is a file in the home directory."
    )
    url: str | None = setting(
        None,
        store_url("postgresql://user@host/database"),
        "Where pointers are kept, as a URL; it takes the place of `kv.backend` and `kv.table`.",
    )
    password: Secret | None = setting(
        None, SECRET, "Password of the PostgreSQL user; one found in `kv.url` is moved here."
    )
    table: str = setting("skiway_pointers", TEXT, "Name of the DynamoDB table.")
    auto_create: bool = setting(True, FLAG, "Make the DynamoDB table when it is missing.")
    ttl_enabled: bool = setting(True, ALWAYS, "Let DynamoDB itself remove what expired; it cannot be switched off.")


@section
class BlobS3:
    """Blobs in S3."""

    bucket: str | None = setting(None, TEXT, "Bucket for blobs in S3, which must exist.")
    prefix: str | None = setting(None, TEXT, "Folder within the bucket.")


@section
class Blob:
    """The blob store."""

    backend: BlobBackend | None = setting(
        None,
        choice(BlobBackend),
        "Where blobs are kept; unless set, in memory beside pointers in memory, and as files in the home "
        "directory beside SQLite.",
    )
    url: str | None = setting(
        None,
        store_url("s3://bucket/folder"),
        "Where blobs are kept, as a URL; it takes the place of `blob.backend` and `blob.s3`.",
    )
    s3: BlobS3 = BlobS3()


@section
class AwsS3:
    """How S3 is reached."""

    endpoint: str | None = setting(None, WEB_URL, "Address of a service that speaks like S3.")
    path_style_access: bool = setting(
        True, FLAG, "Put the bucket into the path; otherwise an endpoint must have it in its host name."
    )


@section
class AwsDynamodb:
    """How DynamoDB is reached."""

    endpoint_override: str | None = setting(None, WEB_URL, "Address of a service that speaks like DynamoDB.")


@section
class Aws:
    """The AWS account for stores and secrets."""

    region: str | None = setting(None, TEXT, "Region; unless set, as the AWS libraries find it.")
    access_key_id: Secret | None = setting(None, SECRET, "Access key; unless set, as the AWS libraries find it.")
    secret_access_key: Secret | None = setting(None, SECRET, "The access key's secret.")
    session_token: Secret | None = setting(None, SECRET, "Token of temporary credentials.")
    s3: AwsS3 = AwsS3()
    dynamodb: AwsDynamodb = AwsDynamodb()


@section
class Storage:
    """Services that stores live in."""

    aws: Aws = Aws()


@section
class Warehouse:
    """Where managed tables keep their files."""

    uri: str | None = setting(
        None,
        pattern(r"/\S+|file:\S+|s3:\S+", "an absolute path, or a location such as s3://bucket/folder"),
        "Folder of the managed tables, on this machine or in S3.",
        under_home="warehouse",
    )


@section
class SecretsFile:
    """Secrets in encrypted files."""

    directory: Path | None = setting(
        None, PATH, "Directory of the encrypted files and their key.", under_home="secrets"
    )
    key_file: Path | None = setting(None, PATH, "File of the keys; unless set, beside the encrypted files.")
    keys: Secret | None = setting(
        None, SECRET, "The keys themselves, with commas between: the first encrypts, all of them decrypt."
    )


@section
class SecretsAws:
    """Secrets in AWS Secrets Manager."""

    role_arn: str | None = setting(
        None, TEXT, "Role to assume, once per account, before its secrets are read or written."
    )
    prefix: str = setting("skiway", TEXT, "What the names of the secrets begin with.")


@section
class Secrets:
    """Where connectors' credentials are kept."""

    backend: SecretsBackend = setting("file", choice(SecretsBackend), "Where credentials are kept.")
    file: SecretsFile = SecretsFile()
    aws: SecretsAws = SecretsAws()
