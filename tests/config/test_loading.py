"""Settings from all sources: which source wins, what is rejected, and with which message."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from skiway.config import FILE_NAME, Settings, describe, load, shown, without_effect
from skiway.config.fields import values_of
from skiway.errors import InvalidArgument


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def write(home: Path, text: str) -> Path:
    file = home / FILE_NAME
    file.write_text(text)
    return file


def error_message(**arguments) -> str:
    with pytest.raises(InvalidArgument) as caught:
        load(**arguments)
    assert caught.value.__cause__ is None
    return caught.value.message


def test_all_settings_have_defaults():
    assert load() == Settings()


def test_precedence_is_flags_environment_file_defaults(home: Path):
    write(home, "[gc.cas]\npage_size = 1\nmin_age_ms = 10001\ntick_every = '1s'\n")
    environ = {"SKIWAY__GC__CAS__MIN_AGE_MS": "10002", "SKIWAY__GC__CAS__TICK_EVERY": "2s"}
    cas = load(home, environ=environ, flags={"gc.cas.tick_every": "3s"}).gc.cas
    assert (cas.page_size, cas.min_age_ms, cas.tick_every) == (1, 10002, timedelta(seconds=3))
    assert cas.max_tick_millis == 4000


def test_explicit_file_replaces_the_one_in_the_home(home: Path):
    write(home, "query.max_size = 1")
    other = home / "other.toml"
    other.write_text("query.default_ttl_ms = 2")
    query = load(home, other).query
    assert (query.max_size, query.default_ttl_ms) == (10_000, 2)


def test_unrelated_and_empty_variables_are_ignored():
    assert load(environ={"SKIWAY_HOME": "/x", "PATH": "/bin", "SKIWAY__LOG__LEVEL": ""}) == Settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("60s", timedelta(seconds=60)),
        ("10m", timedelta(minutes=10)),
        ("1h", timedelta(hours=1)),
        ("7d", timedelta(days=7)),
    ],
)
def test_durations_are_parsed_with_their_units(text: str, expected: timedelta):
    assert load(flags={"gc.cas.tick_every": text}).gc.cas.tick_every == expected


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("Yes", True), ("0", False), ("off", False)])
def test_booleans_have_several_spellings(text: str, expected: bool):
    assert load(flags={"seed.enabled": text}).seed.enabled is expected


@pytest.mark.parametrize("short", ["kv", "blob", "secrets"])
def test_section_name_is_short_for_its_backend(home: Path, short: str):
    flags = {"kv": "memory", short: "memory"}
    assert getattr(load(flags=flags), short).backend == "memory"
    write(home, "".join(f"{key} = 'memory'\n" for key in flags))
    assert getattr(load(home), short).backend == "memory"


def test_job_store_is_short_for_its_backend():
    environ = {"SKIWAY__RECONCILER__JOB_STORE": "memory", "SKIWAY__RECONCILER__JOB_STORE__MAX_ATTEMPTS": "3"}
    jobs = load(environ=environ).reconciler.job_store
    assert (jobs.backend, jobs.max_attempts) == ("memory", 3)


def test_paths_default_to_the_home_and_can_be_set(home: Path):
    settings = load(home, flags={"secrets.file.directory": "/elsewhere"})
    assert settings.audit.directory == home / "audit"
    assert settings.auth.tokens.file == home / "tokens.toml"
    assert settings.secrets.file.directory == Path("/elsewhere")


def test_relative_path_in_a_file_is_relative_to_the_file(home: Path):
    write(home, "log.file = 'logs/skiway.log'")
    assert load(home).log.file == home / "logs" / "skiway.log"
    assert load(home, environ={"SKIWAY__LOG__FILE": "here.log"}).log.file == Path("here.log")


def test_settings_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().gc.cas.page_size = 3  # type: ignore[misc]
    assert isinstance(hash(load()), int)


def test_every_setting_has_a_variable_that_accepts_its_default(home: Path):
    environ = {each.environment: each.default for each in describe() if not each.under_home}
    assert load(home, environ=environ) == load(home)


# -- error messages


def test_unknown_key_is_rejected_with_the_most_similar_one():
    assert error_message(environ={"SKIWAY__GC__CAS__MIN_AGEMS": "1"}) == (
        "unknown setting gc.cas.min_agems (set by SKIWAY__GC__CAS__MIN_AGEMS): did you mean gc.cas.min_age_ms?"
    )


def test_unknown_key_in_a_file_is_rejected_with_its_line(home: Path):
    file = write(home, "# mine\n[query]\nmax_size = 3\n\n[gc.cas]\nmin-age-ms = 4\n")
    assert error_message(home=home) == (
        f"unknown setting gc.cas.min-age-ms (set in {file}, line 6): did you mean gc.cas.min_age_ms?"
    )


def test_key_unlike_any_other_is_rejected_with_how_to_list_all():
    assert error_message(flags={"zebra": "1"}) == (
        "unknown setting zebra (set on the command line): `skiway config` lists all settings"
    )


def test_section_is_not_a_setting():
    assert error_message(environ={"SKIWAY__GC": "off"}) == (
        "gc (set by SKIWAY__GC) is a section, not a setting: set one of its settings, such as gc.idempotency.enabled"
    )


@pytest.mark.parametrize(
    ("key", "text", "expectation"),
    [
        ("gc.cas.page_size", "many", "a whole number, at least 1"),
        ("gc.cas.page_size", "0", "a whole number, at least 1"),
        ("gc.cas.page_size", "1.5", "a whole number, at least 1"),
        ("gc.cas.min_age_ms", "-1", "a whole number of milliseconds, at least 10000"),
        ("gc.cas.min_age_ms", "9999", "a whole number of milliseconds, at least 10000"),
        ("gc.cas.tick_every", "60", "a duration above zero, such as 500ms, 30s, 10m, 1h or 7d"),
        ("gc.cas.tick_every", "0s", "a duration above zero, such as 500ms, 30s, 10m, 1h or 7d"),
        ("gc.cas.enabled", "maybe", "true or false"),
        ("log.file", "~nobody-of-this-name/skiway.log", "a path"),
        ("auth.mode", "none", "one of dev, token, oidc"),
        ("kv.backend", "mysql", "one of memory, sqlite, postgresql, dynamodb"),
        ("kv.ttl_enabled", "false", "true"),
        ("kv.url", "somewhere", "a URL such as postgresql://user@host/database"),
        ("server.grpc.address", "127.0.0.1:65536", "host:port, such as 127.0.0.1:50051 or [::1]:0"),
        ("server.grpc.address", "127.0.0.1", "host:port, such as 127.0.0.1:50051 or [::1]:0"),
        ("server.grpc.address", "::1:50051", "host:port, such as 127.0.0.1:50051 or [::1]:0"),
        ("server.grpc.drain_seconds", "nan", "a number of seconds, at least 0"),
        ("telemetry.traces.sample_ratio", "1.01", "a number, at least 0 and at most 1"),
        ("auth.oidc.issuer", "issuer", "a URL such as https://host/path, without a user or password in it"),
        ("interceptor.session.header", "X-Session", "a header name in lower case, such as x-account"),
    ],
)
def test_invalid_value_is_rejected_with_what_is_expected(key: str, text: str, expectation: str):
    assert (
        error_message(flags={key: text})
        == f"{key} = {text!r} (set on the command line) is invalid: expected {expectation}"
    )


@pytest.mark.parametrize(
    "line",
    [
        "gc.cas.page_size = true",
        "gc.cas.page_size = 2.5",
        "gc.cas.enabled = 1",
        "kv.table = 5",
        "log.file = 3",
        "log.level = 2026-01-02",
        "server.grpc.drain_seconds = true",
        "gc.cas.tick_every = 60",
    ],
)
def test_value_of_the_wrong_type_in_a_file_is_not_converted(home: Path, line: str):
    file = write(home, line)
    assert error_message(home=home).startswith(f"{line} (set in {file}, line 1) is invalid: expected ")


def test_all_errors_are_reported_at_once():
    documented = error_message(flags={"gc.cas.page_size": "0", "log.level": "LOUD"}).splitlines()
    assert [line.partition(" ")[0] for line in documented] == ["gc.cas.page_size", "log.level"]


def test_invalid_toml_is_rejected_with_the_line(home: Path):
    file = write(home, "[gc\n")
    assert error_message(home=home).startswith(f"the settings file {file} is not valid TOML: ")
    assert "line 1" in error_message(home=home)


def test_explicit_file_must_exist(home: Path):
    missing = home / "missing.toml"
    assert error_message(file=missing) == f"the settings file {missing} does not exist: create it, or omit the option"


def test_file_in_another_encoding_is_rejected(home: Path):
    file = home / FILE_NAME
    file.write_bytes("kv.table = 'tést'".encode("latin-1"))
    assert error_message(home=home) == f"the settings file {file} cannot be read: it is not UTF-8 text"


@pytest.mark.parametrize("door", ["grpc", "http"])
@pytest.mark.parametrize("address", ["0.0.0.0:50051", "[::]:50051", "lake.example.com:443", "10.0.0.1:1"])
def test_remote_clients_require_tls(door: str, address: str):
    name = f"server.{door}"
    flags = {f"{name}.address": address, "auth.mode": "token", "auth.tokens.file": "tokens.toml"}
    assert error_message(flags=flags) == (
        f"{name}.address = '{address}' (set on the command line) is invalid: other machines could connect "
        f"without TLS: set {name}.tls.cert and {name}.tls.key, listen on 127.0.0.1, or set {name}.insecure = true"
    )
    assert load(flags={**flags, f"{name}.insecure": "true"})
    assert load(flags={**flags, f"{name}.tls.cert": "cert.pem", f"{name}.tls.key": "key.pem"})


def test_remote_clients_require_authentication():
    flags = {"server.grpc.address": "0.0.0.0:50051", "server.grpc.insecure": "true"}
    assert error_message(flags=flags) == (
        "server.grpc.address = '0.0.0.0:50051' (set on the command line) is invalid: other machines could connect "
        "without authentication: set auth.mode to token or oidc, listen on 127.0.0.1, or set auth.insecure = true"
    )
    assert load(flags={**flags, "auth.insecure": "true"})


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.8.8:1", "[::1]:50051", "localhost:50051"])
def test_loopback_addresses_require_neither(address: str):
    assert load(flags={"server.grpc.address": address}).server.grpc.address == address


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"auth.mode": "oidc", "auth.oidc.audience": "lake"},
            "auth.oidc.issuer is not set, but auth.mode oidc requires it: set it, or auth.oidc.public_key",
        ),
        (
            {"auth.mode": "oidc", "auth.oidc.issuer": "https://id.example.com"},
            "auth.oidc.audience is not set, but auth.mode oidc requires it: "
            "without it, tokens for other services would be accepted",
        ),
        (
            {"auth.mode": "token"},
            "auth.tokens.file is not set, but auth.mode token requires it: set the path of the tokens file",
        ),
        (
            {"server.grpc.tls.cert": "cert.pem"},
            "server.grpc.tls.key is not set, but a certificate and its key belong together: set both or neither",
        ),
        (
            {"storage.aws.access_key_id": "AKIA"},
            "storage.aws.secret_access_key is not set, but an access key and its secret belong together: "
            "set both or neither",
        ),
        (
            {"kv": "postgresql", "blob": "file"},
            "kv.url is not set, but kv.backend postgresql requires it: set it to postgresql://user@host/database",
        ),
        (
            {"kv": "dynamodb"},
            "blob.backend is not set, but there is no default blob store for pointers in dynamodb: set it, or blob.url",
        ),
        (
            {"kv": "memory", "blob": "s3"},
            "blob.s3.bucket is not set, but blob.backend s3 requires it: set the name of an existing bucket",
        ),
        (
            {"kv": "sqlite", "blob": "memory"},
            "blob.backend = 'memory' (set on the command line) is invalid: blobs in memory are lost when the "
            "process ends, but pointers in sqlite remain: make both persistent, or neither",
        ),
        (
            {"kv": "sqlite", "kv.url": "memory://"},
            "kv.backend = 'sqlite' (set on the command line) is invalid: it contradicts kv.url: set only one of them",
        ),
        (
            {"reconciler.job_store.max_backoff_ms": "1"},
            "reconciler.job_store.base_backoff_ms = '500' (the default) is invalid: "
            "it is longer than reconciler.job_store.max_backoff_ms",
        ),
    ],
)
def test_inconsistent_settings_are_rejected(flags: dict[str, str], message: str):
    assert error_message(flags=flags) == message


# -- secrets


SECRET = "hunter2-correct-horse"
SECRETS = {
    "storage.aws.access_key_id": SECRET,
    "storage.aws.secret_access_key": SECRET,
    "storage.aws.session_token": SECRET,
    "reconciler.authorization.token": SECRET,
    "telemetry.otlp.headers": f"authorization={SECRET}",
    "kv.url": f"postgresql://me:{SECRET}@db/lake",
    "blob.url": "s3://bucket",
}


def test_secrets_do_not_appear_in_repr_or_dumps():
    settings = load(flags=SECRETS)
    assert settings.storage.aws.secret_access_key is not None
    assert settings.storage.aws.secret_access_key.reveal() == SECRET
    everything = [repr(settings), str(settings), f"{settings}", str(shown(settings)), str(dict(values_of(settings)))]
    everything.append(str(dataclasses.asdict(settings)))
    assert not any(SECRET in text for text in everything)


def test_password_in_a_url_becomes_its_own_setting():
    kv = load(flags={"kv.url": "postgresql://me:p%40ss@db/lake", "blob.url": "s3://b"}).kv
    assert kv.url == "postgresql://me@db/lake"
    assert kv.password is not None
    assert kv.password.reveal() == "p@ss"


def test_password_setting_overrides_the_password_in_the_url():
    flags = {"kv.url": "postgresql://me:one@db/lake", "kv.password": "two", "blob.url": "s3://b"}
    kv = load(flags=flags).kv
    assert kv.password is not None
    assert kv.password.reveal() == "two"


@pytest.mark.parametrize(
    "flags",
    [
        {"kv.url": f"postgresql//me:{SECRET}@db/lake"},
        {"kv.url": f"postgres ql://me:{SECRET}@db/lake"},
        {"kv.url": f"dynamodb://table?aws_secret_access_key={SECRET}", "blob.url": "s3://b"},
        {"kv": "memory", "blob.url": f"s3://AKIA:{SECRET}@bucket"},
        {"kv": "memory", "blob.url": f"s3://bucket?secret_access_key={SECRET}"},
        {"auth.oidc.issuer": f"https://me:{SECRET}@id.example.com"},
        {"storage.aws.secret_access_key": SECRET},
        {"kv": "postgresql", "blob": "memory", "kv.password": SECRET},
        {"kv": "sqlite", "kv.url": f"postgresql://me:{SECRET}@db/lake", "blob.url": "s3://b"},
    ],
)
def test_secrets_do_not_appear_in_error_messages(flags: dict[str, str]):
    assert SECRET not in error_message(flags=flags)


def test_secret_of_the_wrong_type_is_rejected_without_showing_it(home: Path):
    file = write(home, "kv.password = 271828")
    assert error_message(home=home) == (
        f"kv.password = **** (set in {file}, line 1) is invalid: expected text, which is never shown"
    )


def test_loading_settings_imports_no_heavy_libraries():
    program = "import sys, skiway.config; skiway.config.load(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    heavy = {"pydantic", "opentelemetry", "prometheus_client", "grpc", "pyarrow", "sqlalchemy", "boto3", "msgspec"}
    assert set(run.stdout.split()) & heavy == set()


# -- settings without effect


WITHOUT_EFFECT = {
    "client.address": "127.0.0.1:1",
    "client.timeout_seconds": "1",
    "client.max_message_bytes": "65536",
    "interceptor.validate.account": "false",
    "query.safety_expiry_minutes": "1",
    "gc.idempotency.accounts_page_size": "1",
    "gc.cas.accounts_page_size": "1",
    "gc.pointer.min_age_ms": "10000",
    "gc.pointer.accounts_page_size": "1",
    "gc.reconcile_jobs.global_ready_batch_limit": "1",
    "reconciler.job_store.backend": "memory",
    "reconciler.job_store.reclaim_interval_ms": "1",
    "reconciler.authorization.header": "x-token",
    "reconciler.authorization.token": "shh",
}


def test_settings_without_effect_are_listed_when_they_are_set():
    assert list(without_effect(load())) == []
    assert [setting.key for setting in without_effect(load(flags=WITHOUT_EFFECT))] == list(WITHOUT_EFFECT)
    assert {setting.key for setting in describe() if setting.without_effect} == WITHOUT_EFFECT.keys()


def test_setting_without_effect_is_not_listed_at_its_default():
    flags = {each.key: each.default for each in describe() if each.without_effect and each.default}
    assert list(without_effect(load(flags=flags))) == []


def test_setting_with_an_effect_is_not_listed():
    assert list(without_effect(load(flags={"metadata.hint.cache_max_weight": "1", "kv": "memory"}))) == []


def test_descriptions_say_which_settings_have_no_effect():
    documented = {setting.key for setting in describe() if "without effect" in setting.description}
    assert documented == WITHOUT_EFFECT.keys()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"storage.azure.account_name": "skiway"}, "storage.azure.account_key is not set, but a storage account"),
        ({"storage.azure.account_key": "planted"}, "storage.azure.account_name is not set, but a storage account"),
        ({"storage.azure.endpoint": "http://127.0.0.1:1"}, "an emulator gets no default credentials"),
        (
            {"warehouse.vending.gcs.enabled": "true", "storage.gcs.endpoint": "http://127.0.0.1:1"},
            "there are no credentials to limit",
        ),
        ({"warehouse.vending.gcs.token_endpoint": "http://example.com/token"}, "it receives tokens of the server"),
        ({"warehouse.vending.azure.duration_seconds": "60"}, "expected a whole number"),
        ({"warehouse.uri": "gcs://lake/x"}, "warehouse.uri"),
    ],
)
def test_contradictions_between_settings_of_clouds_are_rejected(flags: dict[str, str], message: str) -> None:
    found = error_message(flags=flags)
    assert message in found
    assert "planted" not in found


@pytest.mark.parametrize("uri", ["gs://lake/w", "abfss://lake@skiway.dfs.core.windows.net/w"])
def test_warehouse_can_be_in_a_cloud(uri: str) -> None:
    settings = load(flags={"warehouse.uri": uri, "warehouse.locations": f"default/sales={uri}-sales"})
    assert settings.warehouse.uri == uri
    assert settings.warehouse.locations == (f"default/sales={uri}-sales",)
