"""How Spark reaches the lake, and what it says if it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from skiway.config import load
from skiway.errors import PreconditionFailed, SkiwayError, Unavailable, Unsupported
from skiway.runtime.lake import optimizer_of
from skiway.runtime.process import rest_address
from skiway.security import MemorySecrets
from skiway.spark_jobs.optimizer import _explained, _require_lineage
from skiway.storage import Stores, open_stores


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as opened:
        yield opened


def rest_uri(stores: Stores, own: str | None, **flags: str) -> str:
    settings = load(flags={name.replace("__", "."): value for name, value in flags.items()})
    return optimizer_of(settings, stores, MemorySecrets(), None if own is None else lambda: own).rest_uri()


def test_configured_door_is_used_or_else_that_of_the_server(stores: Stores) -> None:
    assert rest_uri(stores, "http://own/iceberg") == "http://own/iceberg"
    assert (
        rest_uri(stores, "http://own/iceberg", maintenance__spark__rest_uri="http://a/iceberg/") == "http://a/iceberg"
    )


@pytest.mark.parametrize(
    ("own", "flags"), [(None, {}), ("http://own/iceberg", {"reconciler__spark__remote": "sc://cluster:15002"})]
)
def test_worker_without_a_door_says_which_setting_is_missing(
    stores: Stores, own: str | None, flags: dict[str, str]
) -> None:
    with pytest.raises(
        PreconditionFailed, match=r"set maintenance\.spark\.rest_uri.*or optimize with --engine process"
    ):
        rest_uri(stores, own, **flags)


def test_server_that_starts_is_asked_again_later() -> None:
    with pytest.raises(Unavailable, match="not open yet"):
        rest_address({})
    assert rest_address({"http": "http://127.0.0.1:8181"}) == "http://127.0.0.1:8181/iceberg"


@pytest.mark.parametrize("version", ["1.9.2", "1.5", "0.14.1"])
def test_old_iceberg_would_lose_row_lineage_and_is_refused(version: str) -> None:
    with pytest.raises(Unsupported, match=rf"Iceberg {version}, which loses the row lineage.*1\.10 or newer"):
        _require_lineage(version)
    _require_lineage("1.10.0")
    _require_lineage("2.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SparkException: Cannot find catalog plugin class for catalog 'x'", "there is no Iceberg"),
        ("java.net.ConnectException: Connection refused", "cannot reach the REST door at http://a/iceberg"),
        ("RuntimeException: planted-token", "the log of the worker says why"),
    ],
)
def test_failure_on_spark_is_explained_without_the_token(
    text: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        pytest.raises(SkiwayError, match=re.escape(expected)) as failure,
        _explained("http://a/iceberg", "planted-token", lambda: PreconditionFailed("there is no Iceberg")),
    ):
        raise RuntimeError(text)
    assert "planted-token" not in f"{failure.value!r}{failure.value.detail}{caplog.text}"
