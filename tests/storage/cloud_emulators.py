"""Emulators of Google Cloud Storage and Azure on this machine, each with a bucket `lake`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
from azure.core.exceptions import AzureError
from azure.storage.blob import BlobServiceClient

from ports import free_port

START_S = 60
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that every Azurite has."""


@contextmanager
def fake_gcs() -> Iterator[str]:
    """Run fake-gcs-server and yield its endpoint."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    public = ("-external-url", endpoint, "-public-host", f"127.0.0.1:{port}")
    listen = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory")
    with _running("fake-gcs-server", *listen, *public, "-log-level", "error"):

        def create_bucket() -> None:
            httpx.post(f"{endpoint}/storage/v1/b?project=test", json={"name": "lake"}).raise_for_status()

        _once_ready(create_bucket, httpx.HTTPError)
        yield endpoint


@contextmanager
def azurite() -> Iterator[str]:
    """Run Azurite and yield its endpoint."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    listen = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry")
    with _running("azurite-blob", *listen, "--skipApiVersionCheck", "--silent"):

        def create_container() -> None:
            url = f"{endpoint}/{AZURE_ACCOUNT}"
            with BlobServiceClient(url, credential=AZURE_KEY, retry_total=0, connection_timeout=5) as service:
                service.create_container("lake")

        _once_ready(create_container, AzureError)
        yield endpoint


@contextmanager
def _running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(START_S)


def _once_ready(act: Callable[[], None], error: type[Exception]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return act()
        except error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
