"""A lake in S3, and its users: Trino and Spark over Iceberg REST, and DuckDB's rows over Airport."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from examples.pages import PROJECT
from formats.oracles import assert_same_rows
from runtime.servers import Server, started
from skiway.client import AirportClient
from skiway.client.metastore import Metastore
from skiway.spark_jobs.java import ICEBERG
from skiway.spark_jobs.session import session
from trino_script.installation import Installation
from trino_script.trino_server import Trino, running_trino
from trino_script.values import arrow_table
from vending.guarded_s3 import BUCKET, REGION, SERVER_KEY, GuardedS3, guarded_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Lake", "as_arrow", "opened_lake", "page_statements"]

PAGE: Final = PROJECT / "docs" / "trino.md"
AWS: Final = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
CALLERS: Final = {"etl": ["administrator"], "reader": ["member"], "masked": ["member"]}
"""The callers with tokens, and their roles. Members have only what is granted to them."""

Rows = list[tuple[Any, ...]]


def token_of(caller: str) -> str:
    return f"{caller}-token-with-more-than-32-characters"


@dataclass(frozen=True, slots=True)
class Lake:
    """The server, and the engines on it."""

    server: Server
    s3: GuardedS3
    spark: SparkSession
    trino: Trino

    def airport(self, caller: str = "etl") -> AirportClient:
        return AirportClient(self.server.addresses["airport"], catalog="lake", token=token_of(caller))

    def metastore(self) -> Metastore:
        return Metastore(self.server.address, token=token_of("etl"))

    def assert_same(self, found: pa.Table, table: str, *, spark: str = "", **options: Any) -> None:
        """Assert that Trino found the rows of Airport, and those of Spark by the query `spark`."""
        self.assert_same_over_airport(found, table, **options)
        self.assert_same_in_spark(found, spark or f"SELECT * FROM lake.{table}")

    def assert_same_over_airport(self, found: pa.Table, table: str, **options: Any) -> None:
        """Assert that Trino found the rows of Airport."""
        with self.airport() as db:
            assert_same_rows(found, db.scan(table, **options).read_all())

    def assert_same_in_spark(self, found: pa.Table, query: str) -> None:
        """Assert that Trino found the rows of a query of Spark."""
        assert_same_rows(for_spark(found), self.spark.sql(query).toArrow())


def for_spark(table: pa.Table) -> pa.Table:
    """The rows with the types that Spark has: UUIDs are text there."""
    for number, column in enumerate(table.schema):
        if isinstance(column.type, pa.UuidType):
            texts = pa.array([None if each is None else str(each) for each in table[column.name].to_pylist()])
            table = table.set_column(number, column.name, texts)
    return table


def page_properties() -> list[dict[str, str]]:
    """The properties that the page shows: of a catalog, and of one whose warehouse is a local folder."""
    blocks = re.findall(r"^```properties\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [[line for line in block.splitlines() if not line.startswith("#")] for block in blocks]
    return [{name: value for name, _, value in (line.partition("=") for line in each)} for each in lines]


def page_statements() -> list[str]:
    """The statements that the page shows."""
    [block] = re.findall(r"^```trino\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [each.strip() for each in re.sub(r"^--.*$", "", block, flags=re.MULTILINE).split(";") if each.strip()]


def trino_catalog(uri: str, s3: GuardedS3, caller: str = "etl", **more: str) -> dict[str, str]:
    """The properties on the page, with the addresses and the caller of the tests."""
    shown, _ = page_properties()
    own = {
        "iceberg.rest-catalog.uri": uri,
        "iceberg.rest-catalog.oauth2.server-uri": f"{uri}/v1/oauth/tokens",
        "iceberg.rest-catalog.oauth2.credential": f"{caller}:{token_of(caller)}",
        "s3.endpoint": s3.endpoint,
        "s3.region": REGION,
    }
    assert own.keys() <= shown.keys()
    return shown | own | more


def local_catalog(uri: str) -> dict[str, str]:
    """The properties of a catalog with a warehouse in a local folder, as the page describes them; callers need no token."""
    shown, local = page_properties()
    replaced = (
        "s3.",
        "fs.",
        "iceberg.rest-catalog.vended",
        "iceberg.rest-catalog.oauth2",
        "iceberg.rest-catalog.security",
    )
    kept = {name: value for name, value in shown.items() if not name.startswith(replaced)}
    return kept | local | {"iceberg.rest-catalog.uri": uri}


@contextmanager
def opened_lake(folder: Path, installation: Installation) -> Iterator[Lake]:
    """Start everything. Spark starts before this process uses gRPC, because afterwards Java could not be started reliably."""
    with ExitStack() as stack:
        s3 = stack.enter_context(guarded_s3())
        os.environ |= {"AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
        home = folder / "home"
        home.mkdir(parents=True)
        _write_tokens(home / "tokens.toml")
        server = stack.enter_context(started(home, *_settings(s3)))
        uri = f"{server.addresses['http']}/iceberg"
        spark = _spark(uri, s3)
        own_keys = {
            "iceberg.rest-catalog.vended-credentials-enabled": "false",
            "iceberg.register-table-procedure.enabled": "true",
            "s3.aws-access-key": SERVER_KEY["access_key_id"],
            "s3.aws-secret-key": SERVER_KEY["secret_access_key"],
        }
        local = stack.enter_context(started(folder / "local"))
        catalogs = {
            "lake": trino_catalog(uri, s3),
            "reader": trino_catalog(uri, s3, "reader"),
            "masked": trino_catalog(uri, s3, "masked"),
            "stranger": trino_catalog(uri, s3, "stranger"),
            "each_user": trino_catalog(uri, s3, **{"iceberg.rest-catalog.session": "USER"}),
            "with_keys": trino_catalog(uri, s3, **own_keys),
            "local": local_catalog(f"{local.addresses['http']}/iceberg"),
        }
        trino = stack.enter_context(running_trino(installation, folder / "trino", catalogs))
        yield Lake(server, s3, spark, trino)


def _settings(s3: GuardedS3) -> list[str]:
    settings = {
        "auth.mode": "token",
        "warehouse.uri": f"s3://{BUCKET}/tables",
        "warehouse.vending.credentials": "sts",
        "warehouse.vending.sts.role_arn": "arn:aws:iam::123456789012:role/lake",
        "storage.aws.region": REGION,
        "storage.aws.access_key_id": SERVER_KEY["access_key_id"],
        "storage.aws.secret_access_key": SERVER_KEY["secret_access_key"],
        "storage.aws.s3.endpoint": s3.endpoint,
    }
    return [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]


def _write_tokens(file: Path) -> None:
    entries = (
        f'[[tokens]]\nname = "{name}"\naccount = "default"\nroles = {_listed(roles)}\n'
        f'sha256 = "{sha256(token_of(name).encode()).hexdigest()}"\n'
        for name, roles in CALLERS.items()
    )
    file.write_text("\n".join(entries))
    file.chmod(0o600)


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(f'{name!r}' for name in names)}]".replace("'", '"')


def _spark(uri: str, s3: GuardedS3) -> SparkSession:
    catalog: Mapping[str, str] = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": uri,
        ".warehouse": "lake",
        ".credential": f"etl:{token_of('etl')}",
        ".oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        ".header.X-Iceberg-Access-Delegation": "vended-credentials",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".s3.endpoint": s3.endpoint,
        ".s3.path-style-access": "true",
        ".cache-enabled": "false",
    }
    settings: dict[str, Any] = {
        "spark.jars.packages": f"{ICEBERG},{AWS}",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    settings |= {f"spark.sql.catalog.lake{name}": value for name, value in catalog.items()}
    return session("trino", "local[2]", **settings)


def as_arrow(trino: Trino, query: str) -> pa.Table:
    """The rows of a query of Trino."""
    return arrow_table(trino.run(query))
