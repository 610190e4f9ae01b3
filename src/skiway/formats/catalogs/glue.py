"""Iceberg tables in the AWS Glue Data Catalog, listed with PyIceberg. Their metadata is read as that of other sources."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.files import Files, first_lines
from skiway.formats.iceberg.sources import CatalogSource, metadata_file_of, read_table
from skiway.formats.opening import SourceRequest
from skiway.formats.source import Source
from skiway.foundation import extras
from skiway.security.source_access import web_address
from skiway.security.source_access.connections import ANSWER_S, CONNECT_S

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_HOST_OF_AWS: Final = re.compile(r"https?://glue(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com|api\.aws)")
_KEYS: Final = ("access-key-id", "secret-access-key", "session-token")
_ATTEMPTS: Final = 3
_NO_PROFILE: Final = {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
"""Variables of a session of botocore that uses neither AWS_PROFILE nor the configuration of AWS on this machine."""
_REJECTED: Final = (
    *("AccessDeniedException", "ExpiredTokenException", "IncompleteSignatureException", "InvalidClientTokenId"),
    *("InvalidSignatureException", "MissingAuthenticationTokenException", "SignatureDoesNotMatch"),
    "UnrecognizedClientException",
)
_TEMPORARY: Final = ("ThrottlingException", "Throttling", "TooManyRequestsException", "OperationTimeoutException")


def open_glue(request: SourceRequest) -> Source:
    """Open the catalog at `request.uri`, which is the endpoint of Glue; the databases of Glue are its namespaces."""
    address = web_address(request.uri)
    if "glue.endpoint" in request.options:
        raise InvalidArgument(
            "the address of a source in Glue is its endpoint; remove the property 'glue.endpoint'", key="source.option"
        )
    region = _region(request, address)
    extras.require("boto3", extra="aws", purpose="a source in AWS Glue")
    located = replace(request, options={"s3.region": region, **request.options})
    files = located.files()
    keys = _keys(located)
    request.access.check_url(address)
    relay = files.reach.relay(address, region)

    def connect() -> Catalog:
        client = _client(address, region, keys, relay, request.options.get("glue.id", ""))
        return _catalog(request, files, client)

    return CatalogSource(located, connect, _as_pyiceberg)


def _region(request: SourceRequest, address: str) -> str:
    """The region of Glue: as the properties say, or the address, or else that of S3."""
    given, named = request.properties, _HOST_OF_AWS.match(address)
    host: str = named[1] if named else ""
    for region in (given.get("glue.region"), given.get("client.region"), host, given.get("s3.region")):
        if region:
            return region
    raise InvalidArgument(
        f"the address {request.address!r} does not say which AWS region to use; set the property 'glue.region'",
        key="source.option",
    )


def _keys(request: SourceRequest) -> dict[str, str]:
    """The keys that sign requests, as boto3 names them; none if those of the machine are used, which must be permitted.

    Keys for Glue only are named `glue.…` or `client.…`, as in PyIceberg; otherwise those for S3 are used.
    """
    given = request.properties
    for prefix in ("glue", "client", "s3"):
        found = {name: given[f"{prefix}.{name}"] for name in _KEYS if given.get(f"{prefix}.{name}")}
        if not found:
            continue
        if not all(found.get(name) for name in _KEYS[:2]):
            raise InvalidArgument(
                f"{prefix}.access-key-id and {prefix}.secret-access-key belong together: give both or neither",
                key="source.credentials",
            )
        return {f"aws_{name.replace('-', '_')}": value for name, value in found.items()}
    if given.get("s3.ambient-credentials", "").lower() != "true":
        raise InvalidArgument(
            "AWS Glue does not answer requests without credentials; store credentials of kind aws with the connector",
            key="source.credentials",
        )
    request.access.check_ambient("s3.ambient-credentials")
    return {}


def _client(address: str, region: str, keys: dict[str, str], relay: str, catalog_id: str) -> Any:
    """A client of Glue that connects to `address` only. With a `relay`, it does so through this proxy."""
    import boto3
    from botocore.config import Config
    from botocore.session import Session

    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        proxies={"http": relay, "https": relay} if relay else None,
    )
    core = Session(session_vars=_NO_PROFILE) if keys else Session()
    session = boto3.session.Session(region_name=region, botocore_session=core, **keys)
    client = session.client("glue", endpoint_url=address, config=config)

    def add_catalog_id(params: dict[str, Any], **_: Any) -> None:
        params["CatalogId"] = catalog_id

    if catalog_id:
        client.meta.events.register("provide-client-params.glue", add_catalog_id)
    return client


def _catalog(request: SourceRequest, files: Files, client: Any) -> Catalog:
    from pyiceberg.catalog.glue import GlueCatalog

    class Guarded(GlueCatalog):
        def _convert_glue_to_iceberg(self, glue_table: Any) -> Table:
            """Read the metadata of a table through `files`, which checks its location."""
            name, parameters = (glue_table["DatabaseName"], glue_table["Name"]), glue_table.get("Parameters") or {}
            metadata = metadata_file_of(name, parameters, service="AWS Glue")
            return read_table(files, self, name, metadata)

        def close(self) -> None:
            client.close()

    return Guarded(request.name, client=client)


@contextmanager
def _as_pyiceberg(source: str) -> Iterator[None]:
    """Run a block in which errors of AWS become those that other catalogs raise."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ProfileNotFound
    from pyiceberg.exceptions import ForbiddenError

    try:
        yield
    except (NoCredentialsError, ProfileNotFound) as error:
        raise ForbiddenError(first_lines(error)) from error
    except BotoCoreError as error:
        raise ConnectionError(first_lines(error)) from error
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _REJECTED or status in (401, 403):
            raise ForbiddenError(first_lines(error)) from error
        if code in _TEMPORARY or status >= 500:
            raise ConnectionError(first_lines(error)) from error
        raise PreconditionFailed(
            f"source {source!r} rejected the request ({code}); check the address and the properties of the connector",
            key="source.rejected",
            detail=first_lines(error),
        ) from error
