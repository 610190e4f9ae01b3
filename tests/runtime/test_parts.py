"""The parts of a server process, tested individually."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from metastore.resource_factory import ResourceFactory, mask
from skiway import __version__
from skiway.config import Settings, load
from skiway.errors import InvalidArgument, NotFound, Unauthorized
from skiway.metastore.gc import Slice
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.runtime import workers
from skiway.runtime.authentication import authenticator, credential_headers
from skiway.runtime.gc import sweeps
from skiway.runtime.gc.schedule import Sweep, Tick
from skiway.runtime.lifecycle import StopSignals, announced, opened, remove_stale
from skiway.runtime.process import running
from skiway.runtime.stores import secrets_of
from skiway.runtime.telemetry import GcMetrics, logging_as_configured, measure_usage
from skiway.security import MemorySecrets, new_token
from skiway.storage import open_stores
from skiway.telemetry.metrics import Metrics


def settings(home: Path | None = None, **flags: str) -> Settings:
    """Settings by key, with double underscores for dots: `auth__mode="token"`."""
    return load(home, flags={key.replace("__", "."): value for key, value in flags.items()})


class KnownAccounts:
    def find(self, id_or_name: str) -> str | None:
        return id_or_name if id_or_name == "default" else None

    def first(self) -> str | None:
        return "default"


# --- the ready file -----------------------------------------------------------------------------------------------


def test_ready_file_exists_during_the_block(tmp_path):
    file = tmp_path / "new" / "ready.json"
    with announced(file, {"rpc": "127.0.0.1:1", "http": "http://127.0.0.1:2"}):
        found = json.loads(file.read_text())
        addresses = {"rpc": "127.0.0.1:1", "http": "http://127.0.0.1:2"}
        assert found == {**addresses, "pid": os.getpid(), "version": __version__}
        assert list(file.parent.iterdir()) == [file]
    assert not file.exists()


def test_ready_file_of_another_server_is_not_deleted(tmp_path):
    file = tmp_path / "ready.json"
    with announced(file, {"rpc": "127.0.0.1:1"}), announced(file, {"rpc": "127.0.0.1:2"}):
        file.write_text("mine")
    assert file.read_text() == "mine"


def test_stale_ready_file_is_removed_and_that_of_a_running_process_is_not(tmp_path):
    file = tmp_path / "ready.json"
    remove_stale(file)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for stale in (int(ended.stdout), os.getpid(), "x", None):
        file.write_text(json.dumps({"rpc": "127.0.0.1:1", "pid": stale}))
        remove_stale(file)
        assert not file.exists(), stale
    for text in ("", '{"rpc": "127.0.0.1:1"}', "[]"):
        file.write_text(text)
        remove_stale(file)
        assert not file.exists(), text
    file.write_text(json.dumps({"rpc": "127.0.0.1:1", "pid": os.getppid()}))
    remove_stale(file)
    assert file.exists()


def test_deleted_ready_file_is_not_an_error(tmp_path):
    file = tmp_path / "ready.json"
    with announced(file, {"rpc": "127.0.0.1:1"}):
        file.unlink()
    with announced(None, {}):
        assert list(tmp_path.iterdir()) == []


# --- signals ------------------------------------------------------------------------------------------------------


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_before_the_wait_is_received_and_handlers_are_reset(handlers, number):
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
        assert signals.wait() is number
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# --- doors --------------------------------------------------------------------------------------------------------


class Recorder:
    def __init__(self, name: str, events: list[str], *, broken: bool = False) -> None:
        self._name, self._events, self._broken = name, events, broken

    def start(self) -> Mapping[str, str]:
        if self._broken:
            raise InvalidArgument("no such port")
        self._events.append(f"start {self._name}")
        return {self._name: f"at {self._name}"}

    def drain(self) -> None:
        self._events.append(f"drain {self._name}")

    def close(self) -> None:
        self._events.append(f"close {self._name}")


def test_doors_drain_together():
    events: list[str] = []
    with opened([Recorder("rpc", events), Recorder("http", events)]) as addresses:
        assert addresses == {"rpc": "at rpc", "http": "at http"}
    assert events == ["start rpc", "start http", "drain rpc", "drain http", "close http", "close rpc"]


def test_door_that_fails_to_start_closes_the_others():
    events: list[str] = []
    with pytest.raises(InvalidArgument), opened([Recorder("rpc", events), Recorder("http", events, broken=True)]):
        pass
    assert events == ["start rpc", "drain rpc", "close rpc"]


# --- authentication -----------------------------------------------------------------------------------------------


def test_dev_mode_takes_the_account_from_a_header():
    dev = authenticator(settings(), KnownAccounts())
    assert dev.authenticate({}).account_id == "default"
    with pytest.raises(Unauthorized):
        dev.authenticate({"x-skiway-account": "other"})
    renamed = authenticator(settings(interceptor__dev_account__header="x-who"), KnownAccounts())
    with pytest.raises(Unauthorized):
        renamed.authenticate({"x-who": "other"})


@pytest.mark.parametrize("validated", ["true", "false"])
def test_tokens_for_accounts_that_do_not_exist_are_always_rejected(tmp_path, validated):
    from skiway.security import new_token

    made = new_token("ada", "elsewhere", roles=["administrator"])
    (tmp_path / "tokens.toml").write_text(made.entry.toml())
    by_token = authenticator(
        settings(tmp_path, auth__mode="token", interceptor__validate__account=validated), KnownAccounts()
    )
    with pytest.raises(Unauthorized, match="elsewhere, which does not exist"):
        by_token.authenticate({"authorization": f"Bearer {made.text.reveal()}"})


def test_oidc_reads_tokens_from_the_configured_headers(tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "issuer.pem").write_bytes(pem)
    configured = settings(
        auth__mode="oidc",
        auth__oidc__issuer="https://issuer.example",
        auth__oidc__audience="skiway",
        auth__oidc__public_key=str(tmp_path / "issuer.pem"),
        interceptor__session__header="x-session",
    )
    with pytest.raises(Unauthorized, match="authorization or x-session"):
        authenticator(configured, KnownAccounts()).authenticate({})
    assert credential_headers(configured) == ("x-session", "authorization")


def test_unreadable_issuer_key_is_reported(tmp_path):
    configured = settings(
        auth__mode="oidc",
        auth__oidc__issuer="https://issuer.example",
        auth__oidc__audience="skiway",
        auth__oidc__public_key=str(tmp_path / "no.pem"),
    )
    with pytest.raises(InvalidArgument, match=r"no\.pem cannot be read: No such file"):
        authenticator(configured, KnownAccounts())


# --- secrets ------------------------------------------------------------------------------------------------------


def test_secrets_are_encrypted_files_in_the_home_by_default(tmp_path):
    secrets = secrets_of(settings(tmp_path))
    secrets.put("default", "connectors", "c1", b"correct horse")
    assert secrets_of(settings(tmp_path)).get("default", "connectors", "c1") == b"correct horse"
    files = [file for file in (tmp_path / "secrets").rglob("*") if file.is_file()]
    assert files
    assert all(b"correct horse" not in file.read_bytes() for file in files)
    memory = secrets_of(settings(tmp_path, secrets__backend="memory"))
    with pytest.raises(NotFound):
        memory.get("default", "connectors", "c1")


def test_file_secrets_require_a_directory():
    with pytest.raises(InvalidArgument, match=r"secrets\.file\.directory"):
        secrets_of(settings())


# --- gc -----------------------------------------------------------------------------------------------------------


def later() -> datetime:
    """A clock for the collector that is ahead, because the age of blobs comes from the system clock."""
    return datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def factory():
    with open_stores("memory://") as stores:
        yield ResourceFactory(stores)


def create_unused_blob(factory: ResourceFactory) -> str:
    """Create a blob that is no longer referenced and return its URI."""
    catalog = factory.catalog()
    before = {pointer.blob_uri for pointer in factory.stores.pointers.scan()}
    spec = v1.CatalogSpec(description="changed")
    request = v1.UpdateCatalogRequest(catalog_id=catalog.resource_id, spec=spec, update_mask=mask("description"))
    catalogs.update(factory.home, request)
    (gone,) = before - {pointer.blob_uri for pointer in factory.stores.pointers.scan()}
    return gone


def deleted_by_gc(factory: ResourceFactory, *, dry_run: bool, **flags: str) -> dict[str, list[str]]:
    rounds = sweeps.once_round(settings(**flags), factory.stores, MemorySecrets(), dry_run=dry_run, clock=later)
    found: dict[str, list[str]] = {}
    for page in rounds:
        found.setdefault(page.kind.name, []).extend(page.result.removed)
    return found


def test_dry_run_lists_what_the_next_run_deletes(factory):
    unused = create_unused_blob(factory)
    nothing = {"idempotency": [], "pointer": [], "jobs": [], "secrets": [], "events": [], "cas": []}
    would_delete = deleted_by_gc(factory, dry_run=True)
    assert would_delete == {**nothing, "cas": [unused]}
    assert factory.stores.blobs.head(unused) is not None
    assert deleted_by_gc(factory, dry_run=False) == would_delete
    assert factory.stores.blobs.head(unused) is None
    assert deleted_by_gc(factory, dry_run=False) == nothing


def test_run_processes_all_pages(factory):
    for number in range(7):
        factory.catalog(f"c{number}")
    unused = create_unused_blob(factory)
    assert deleted_by_gc(factory, dry_run=True, gc__cas__page_size="2", gc__pointer__page_size="2")["cas"] == [unused]


def test_minimum_age_of_blobs_is_a_setting(factory):
    create_unused_blob(factory)
    assert deleted_by_gc(factory, dry_run=True, gc__cas__min_age_ms="7200000")["cas"] == []


def test_failing_sweep_does_not_prevent_the_others(factory, monkeypatch):
    unused = create_unused_blob(factory)

    def fail(*_: object, **__: object) -> None:
        raise KeyError("transactions")

    monkeypatch.setattr("skiway.metastore.gc.sweep_jobs", fail)
    pages = [*sweeps.once_round(settings(), factory.stores, MemorySecrets(), dry_run=False, clock=later)]
    assert [(page.kind.name, str(page.error)) for page in pages if page.error] == [("jobs", "'transactions'")]
    assert unused in [name for page in pages for name in page.result.removed]


def test_sweeps_that_servers_do_not_run_are_run_by_the_command(factory):
    unused = create_unused_blob(factory)
    assert not sweep_named(factory, "cas", gc__cas__enabled="false").enabled
    assert deleted_by_gc(factory, dry_run=False, gc__cas__enabled="false")["cas"] == [unused]


def sweep_named(factory: ResourceFactory, name: str, **flags: str) -> Sweep:
    made = sweeps.sweeps(settings(**flags), factory.stores, MemorySecrets(), clock=later)
    return next(each for each in made if each.name == name)


def test_sweeps_use_their_configured_intervals(factory):
    flags = {"gc__cas__tick_every": "90s", "gc__cas__max_tick_millis": "250", "gc__pointer__enabled": "false"}
    cas, pointer = sweep_named(factory, "cas", **flags), sweep_named(factory, "pointer", **flags)
    assert (cas.every_s, cas.slice_s, cas.enabled) == (90.0, 0.25, True)
    assert not pointer.enabled
    idempotency = sweep_named(factory, "idempotency")
    assert (idempotency.every_s, idempotency.slice_s, idempotency.batch_limit) == (60.0, 1.5, 2000)


def test_sweep_steps_count_deletions(factory):
    create_unused_blob(factory)
    done = sweep_named(factory, "cas").step(None)
    assert (done.count, done.next_token) == (1, None)


def test_blobs_are_not_old_because_the_clock_jumped(factory):
    unused, jump = create_unused_blob(factory), timedelta(0)
    made = sweeps.sweeps(settings(), factory.stores, MemorySecrets(), clock=lambda: datetime.now(UTC) + jump)
    jump = timedelta(days=2)
    assert next(each for each in made if each.name == "cas").step(None).count == 0
    assert factory.stores.blobs.head(unused) is not None


def test_expired_keys_are_deleted_page_by_page(factory):
    for number in range(5):
        factory.stores.pointers.compare_and_set(
            f"/gone/{number}", "x", expect=0, expires_at=datetime(2020, 1, 1, tzinfo=UTC)
        )
    step = sweep_named(factory, "idempotency", gc__idempotency__page_size="2").step
    assert [step(None).next_token is None for _ in range(3)] == [False, False, True]


def test_finished_jobs_are_deleted_after_their_retention(factory):
    from skiway.metastore.records.kinds import JOB
    from skiway.metastore.records.realm import timestamp

    long_ago = timestamp(datetime(2020, 1, 1, tzinfo=UTC))
    job = v1.Job(account_id="a1", job_id="j1", state=v1.JS_SUCCEEDED, finished_at=long_ago)
    factory.home.all(JOB).create(job)
    assert sweep_named(factory, "jobs", gc__reconcile_jobs__retention_ms="999999999999").step(None).count == 0
    assert sweep_named(factory, "jobs").step(None).count == 1
    assert factory.stores.pointers.get(JOB.key(job)) is None
    assert not sweep_named(factory, "jobs", gc__reconcile_jobs__enabled="false").enabled


def test_gc_metrics_are_recorded():
    metrics = Metrics()
    gc = GcMetrics(metrics)
    sweep = Sweep("cas", lambda _: Slice(), every_s=1, slice_s=1)
    gc.scheduled([sweep])
    gc.began(sweep)
    assert 'skiway_core_task_running{task="gc.cas"} 1.0' in metrics.prometheus_text()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    gc.ended(Tick("cas", moment, 2.0, Slice(10, unnamed=3)))
    gc.ended(Tick("cas", moment, 2.0, Slice(), error="Unavailable"))
    text = metrics.prometheus_text()
    for line in (
        'skiway_core_task_enabled{task="gc.cas"} 1.0',
        'skiway_core_task_running{task="gc.cas"} 0.0',
        'skiway_core_gc_collections_total{collector="cas"} 2.0',
        'skiway_core_gc_removed_total{collector="cas"} 3.0',
        'skiway_core_gc_errors_total{collector="cas"} 1.0',
    ):
        assert line in text


def test_storage_usage_of_accounts_is_measured(factory):
    factory.catalog()
    metrics = Metrics()
    measure_usage(metrics, factory.stores, settings().metrics.storage)
    pointers = factory.stores.pointers.count("/accounts/a1/")
    assert f'skiway_service_storage_account_pointers{{account="a1"}} {pointers}.0' in metrics.prometheus_text()


# --- the whole process --------------------------------------------------------------------------------------------


def test_in_memory_process_records_its_calls(tmp_path):
    from runtime.servers import calling

    configured = settings(tmp_path, kv="memory", server__grpc__address="127.0.0.1:0", log__file=str(tmp_path / "log"))
    with running(configured, tmp_path) as process:
        with calling(process.addresses["rpc"]) as caller:
            assert caller.catalogs() == ["lake"]
        assert "memory" in {thread.name for thread in threading.enumerate()}, "no thread returns freed memory"
        text = process.observers.metrics.prometheus_text()
    assert 'operation="ListCatalogs"' in text
    assert 'skiway_core_store_requests_total{component="pointers"' in text
    assert "ListCatalogs" in (tmp_path / "audit" / "catalog.log").read_text()
    assert "ready: rpc at 127.0.0.1:" in (tmp_path / "log").read_text()


# -- settings without effect


def test_startup_warns_once_about_each_setting_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    settings = load(
        flags={"query.safety_expiry_minutes": "3", "reconciler.authorization.token": "hunter2", "kv": "memory"}
    )
    with logging_as_configured(settings):
        pass
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        (
            "WARNING",
            "the setting query.safety_expiry_minutes has no effect: queries live in the store until they expire",
        ),
        (
            "WARNING",
            "the setting reconciler.authorization.token has no effect: "
            "a worker opens the stores itself, as `kv` and `blob` say",
        ),
    ]


def test_startup_does_not_warn_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_configured(load()):
        pass
    assert capsys.readouterr().err == ""


def test_workers_and_schedules_know_the_roles_of_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = list[Any]()
    monkeypatch.setattr(workers, "jobs_of", lambda *_, current_roles, **__: given.append(current_roles))
    monkeypatch.setattr(workers, "PipelineSchedule", lambda _stores, _realms, area: given.append(area.current_roles))
    monkeypatch.setattr(workers, "repeating", lambda *_, **__: nullcontext())
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(new_token("ann", "a1", roles=["member"]).entry.toml())
    flags = {"pipelines.enabled": "true", "auth.mode": "token", "auth.tokens.file": str(tokens)}
    with open_stores("memory://") as stores:
        reconciler = Reconciler(MemorySecrets(), warehouse=cast(Any, "warehouse"))
        with workers.at_work(load(flags=flags), stores, reconciler, Metrics(enabled=False)):
            pass
    assert [(roles("a1", "ann"), roles("a1", "bob")) for roles in given] == [({"member"}, None)] * 2


@pytest.mark.parametrize("enabled", ["false", "true"])
def test_operator_decides_whether_workers_run_pipelines(monkeypatch: pytest.MonkeyPatch, enabled: str) -> None:
    given = list[Any]()
    monkeypatch.setattr(workers, "jobs_of", lambda _realms, _reconciler, queries, **_: given.append(queries))
    monkeypatch.setattr(workers, "PipelineSchedule", lambda *_: given.append("schedule"))
    monkeypatch.setattr(workers, "repeating", lambda *_, **__: nullcontext())
    with open_stores("memory://") as stores:
        reconciler = Reconciler(MemorySecrets(), warehouse=cast(Any, "warehouse"))
        with workers.at_work(load(flags={"pipelines.enabled": enabled}), stores, reconciler, Metrics(enabled=False)):
            pass
    found = [each for each in given if each is not None]
    assert len(found) == (2 if enabled == "true" else 0)
