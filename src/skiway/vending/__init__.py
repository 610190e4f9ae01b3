"""Access for Iceberg clients to the files of single tables in object stores, without keys of their own.

A client gets temporary credentials that are limited to the folder of one table, or the server signs its requests to S3.
Both are limited to reading unless the caller may write the table, and both are refused to restricted callers.

    credentials      which access a caller has, credentials for clients, and tokens for tables that do not exist yet
    sts              credentials from AWS STS, or from the STS of MinIO
    gcs_tokens       access tokens of Google Cloud that are limited to a table
    azure_sas        shared access signatures for the folder of a table
    signing          the signer: permits and signs requests to S3
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from skiway.vending.credentials import (
    Credentials,
    CredentialsProvider,
    S3Keys,
    StagedTable,
    StagedTables,
    StaticKeys,
    TableAccess,
    table_access,
)
from skiway.vending.signing import S3Request, S3Service, Signer

__all__ = [
    "Credentials",
    "CredentialsProvider",
    "S3Keys",
    "S3Request",
    "S3Service",
    "Signer",
    "StagedTable",
    "StagedTables",
    "StaticKeys",
    "TableAccess",
    "Vending",
    "table_access",
]


@dataclass(frozen=True, slots=True)
class Vending:
    """How clients get access to files: credentials, signatures, both, or neither. `staged` is needed for signatures.

    There can be one provider of `credentials` for each scheme of locations: `s3`, `gs` and `abfss`.
    """

    credentials: Mapping[str, CredentialsProvider] = field(default_factory=dict)
    signer: Signer | None = None
    staged: StagedTables | None = None
