"""Load and check settings from a TOML file, environment variables and the command line.

Each value records where it was set, and one error reports every mistake with its place. Secrets in URLs are moved or masked.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from skiway.config.fields import MASK, PREFIX, Setting, as_text, build, is_loopback
from skiway.config.server import Grpc, Http
from skiway.config.settings import SHORT_FORMS, Settings, known
from skiway.errors import InvalidArgument

HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
ASSIGNMENT = re.compile(r"\s*([\w.\-\"' ]+?)\s*=")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was set. `origin` says where; a relative path is relative to `base`."""

    key: str
    value: object
    origin: str
    base: Path = Path()


def from_flags(flags: Mapping[str, str]) -> Iterator[Given]:
    """The values from the command line, by key."""
    for key, value in flags.items():
        yield Given(key, value, "set on the command line")


def from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """The values of variables that start with `SKIWAY__`. An empty variable counts as unset."""
    for name, value in environ.items():
        if name.startswith(PREFIX) and value:
            yield Given(name.removeprefix(PREFIX).lower().replace("__", "."), value, f"set by {name}")


def from_file(path: Path) -> Iterator[Given]:
    """The values in a TOML file, with their line numbers."""
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"the settings file {path} is not valid TOML: {error}", key="config.file") from None
    for key, value in _flat(document):
        line = _line_of(key, text)
        yield Given(key, value, f"set in {path}{f', line {line}' if line else ''}", path.absolute().parent)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidArgument(
            f"the settings file {path} does not exist: create it, or omit the option", key="config.file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument(f"the settings file {path} cannot be read: {reason}", key="config.file") from None


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _line_of(key: str, text: str) -> int | None:
    """The line that sets `key`. A heuristic, since `tomllib` reports no positions."""
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            section = _unquoted(header[1]) + "."
        elif assignment := ASSIGNMENT.match(line):
            name = section + _unquoted(assignment[1])
            if key == name or key.startswith(f"{name}."):
                return number
    return None


def _unquoted(name: str) -> str:
    return re.sub(r"[\"'\s]", "", name)


# Secrets in URLs

SECRET_NAME = re.compile(r"password|secret|token|access_key|credential", re.IGNORECASE)
USER_INFO = re.compile(r"//.*@")
PASSWORD = re.compile(r"(//[^:/?#@]*):(.*)@")


def shown_url(text: str) -> str:
    """The text; if it is a URL, without user, password and query, which may contain secrets."""
    if "//" not in text:
        return text
    return re.sub(r"\?.*", "?...", USER_INFO.sub("//...@", text))


def secret_parameters(url: str) -> list[str]:
    """The names of query parameters that hold a secret."""
    return [name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True) if SECRET_NAME.search(name)]


def with_password_moved(by_key: Mapping[str, Given]) -> Iterator[Given]:
    """The same values, with a password in `kv.url` moved to `kv.password`, which is never shown."""
    for given in by_key.values():
        url = given.value if given.key == "kv.url" and isinstance(given.value, str) else ""
        if match := PASSWORD.search(url):
            yield replace(given, value=PASSWORD.sub(r"\1@", url))
            yield by_key.get("kv.password") or replace(given, key="kv.password", value=unquote(match[2]))
        else:
            yield given


FILE_NAME = "skiway.toml"
SHOWN_CHARACTERS = 80


def load(
    home: Path | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings of a process. Flags override the environment, which overrides the file, then the defaults.

    Without `file`, `skiway.toml` in `home` is read if it exists. `environ` is usually `os.environ`; `flags` maps keys to
    values. Raises `InvalidArgument` with one line per mistake.
    """
    given = _given(home, file, environ or {}, flags or {})
    values, mistakes = _parsed(given)
    if not mistakes:
        settings = build(Settings, values)
        mistakes = [_explained(problem, given) for problem in problems(settings, given.keys())]
        if not mistakes:
            return settings
    raise InvalidArgument("\n".join(mistakes), key="config.invalid")


def _given(
    home: Path | None, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]
) -> dict[str, Given]:
    """The values that are set, by key, each from the source with the highest precedence."""
    if file is None and home is not None and (home / FILE_NAME).is_file():
        file = home / FILE_NAME
    sources = (_defaults(home), from_file(file) if file else (), from_environment(environ), from_flags(flags))
    by_key = {given.key: given for given in map(_long_form, chain.from_iterable(sources))}
    return {given.key: given for given in with_password_moved(by_key)}


def _defaults(home: Path | None) -> Iterable[Given]:
    """The defaults that depend on the home directory."""
    if home is None:
        return ()
    in_home = (setting for setting in known().values() if setting.under_home)
    return (Given(each.key, str(home.absolute() / each.under_home), "the default") for each in in_home)


def _long_form(given: Given) -> Given:
    return replace(given, key=SHORT_FORMS.get(given.key, given.key))


def _parsed(all_given: Mapping[str, Given]) -> tuple[dict[str, object], list[str]]:
    """The parsed values by key, and a message for each value that is invalid."""
    values: dict[str, object] = {}
    mistakes: list[str] = []
    for key, given in all_given.items():
        setting = known().get(key)
        if setting is None:
            mistakes.append(_unknown(given))
            continue
        try:
            values[key] = _value(setting, given)
        except (ValueError, RuntimeError):  # RuntimeError: the home directory of an unknown user
            mistakes.append(f"{_assignment(setting, given)} is invalid: expected {setting.takes}")
    return values, mistakes


def _value(setting: Setting, given: Given) -> object:
    """The parsed value. A relative path in a file is relative to that file."""
    value = setting.kind.read(given.value)
    return given.base / value.expanduser() if isinstance(value, Path) else value


def _unknown(given: Given) -> str:
    inside = [key for key in known() if key.startswith(f"{given.key}.")]
    if inside:
        return f"{given.key} ({given.origin}) is a section, not a setting: set one of its settings, such as {inside[0]}"
    near = get_close_matches(given.key, known(), n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else "`skiway config` lists all settings"
    return f"unknown setting {given.key} ({given.origin}): {advice}"


def _explained(problem: Problem, all_given: Mapping[str, Given]) -> str:
    setting = known()[problem.key]
    default = Given(problem.key, None if setting.under_home else setting.default, "the default")
    given = all_given.get(problem.key, default)
    if not given.value:
        return f"{problem.key} is not set, but {problem.reason}"
    return f"{_assignment(setting, given)} is invalid: {problem.reason}"


def _assignment(setting: Setting, given: Given) -> str:
    return f"{setting.key} = {_shown(setting, given.value)} ({given.origin})"


def _shown(setting: Setting, value: object) -> str:
    if setting.kind.secret:
        return MASK
    text = re.sub(r"\s+", " ", shown_url(as_text(value)))
    shortened = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    return repr(shortened) if isinstance(value, str) else shortened


# Checks across settings: values that are valid one by one and contradict each other


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid setting, with the reason and the remedy."""

    key: str
    reason: str


def problems(settings: Settings, explicit: Set[str]) -> Iterator[Problem]:
    """Every contradiction between settings. `explicit` holds the keys that were set, as opposed to defaulted."""
    return chain(
        _server_problems(settings),
        _auth_problems(settings),
        _pointer_problems(settings, explicit),
        _blob_problems(settings, explicit),
        _url_problems(settings),
        _location_problems(settings),
        _vending_problems(settings),
        _pair_problems(settings),
    )


def _server_problems(settings: Settings) -> Iterator[Problem]:
    servers: dict[str, Grpc | Http] = {"server.grpc": settings.server.grpc, "server.http": settings.server.http}
    for name, server in servers.items():
        if (server.tls.cert is None) != (server.tls.key is None):
            missing = "cert" if server.tls.cert is None else "key"
            yield Problem(f"{name}.tls.{missing}", "a certificate and its key belong together: set both or neither")
        if server.address is None or is_loopback(server.address):
            continue
        if server.tls.cert is None and not server.insecure:
            yield Problem(
                f"{name}.address",
                f"other machines could connect without TLS: set {name}.tls.cert and {name}.tls.key, listen on "
                f"127.0.0.1, or set {name}.insecure = true",
            )
        if settings.auth.mode == "dev" and not settings.auth.insecure:
            yield Problem(
                f"{name}.address",
                "other machines could connect without authentication: set auth.mode to token or oidc, listen on "
                "127.0.0.1, or set auth.insecure = true",
            )


def _auth_problems(settings: Settings) -> Iterator[Problem]:
    auth = settings.auth
    if auth.mode == "token" and auth.tokens.file is None:
        yield Problem("auth.tokens.file", "auth.mode token requires it: set the path of the tokens file")
    if auth.mode != "oidc":
        return
    if auth.oidc.issuer is None and auth.oidc.public_key is None:
        yield Problem("auth.oidc.issuer", "auth.mode oidc requires it: set it, or auth.oidc.public_key")
    if auth.oidc.audience is None:
        yield Problem(
            "auth.oidc.audience", "auth.mode oidc requires it: without it, tokens for other services would be accepted"
        )


def _pointer_problems(settings: Settings, explicit: Set[str]) -> Iterator[Problem]:
    kv = settings.kv
    if kv.url is None and kv.backend == "postgresql":
        yield Problem("kv.url", "kv.backend postgresql requires it: set it to postgresql://user@host/database")
    if kv.url and "kv.backend" in explicit and urlsplit(kv.url).scheme != kv.backend:
        yield Problem("kv.backend", "it contradicts kv.url: set only one of them")


def _blob_problems(settings: Settings, explicit: Set[str]) -> Iterator[Problem]:
    kv, blob = settings.kv, settings.blob
    pointers = urlsplit(kv.url).scheme if kv.url else kv.backend
    blobs = urlsplit(blob.url).scheme if blob.url else blob.backend
    if blobs is None and pointers not in ("memory", "sqlite"):
        yield Problem("blob.backend", f"there is no default blob store for pointers in {pointers}: set it, or blob.url")
    if blobs == "memory" and pointers != "memory":
        yield Problem(
            "blob.url" if blob.url else "blob.backend",
            f"blobs in memory are lost when the process ends, but pointers in {pointers} remain: make both persistent, "
            "or neither",
        )
    if blob.url and "blob.backend" in explicit and blobs != blob.backend:
        yield Problem("blob.backend", "it contradicts blob.url: set only one of them")
    if blob.url is None and blob.backend == "s3" and blob.s3.bucket is None:
        yield Problem("blob.s3.bucket", "blob.backend s3 requires it: set the name of an existing bucket")


def _url_problems(settings: Settings) -> Iterator[Problem]:
    for key, url in (("kv.url", settings.kv.url), ("blob.url", settings.blob.url)):
        if url and (names := secret_parameters(url)):
            yield Problem(
                key,
                f"it contains {', '.join(names)}: secrets have settings of their own, which are never shown: "
                "storage.aws.access_key_id, storage.aws.secret_access_key, storage.aws.session_token, kv.password",
            )
    if settings.blob.url and "@" in urlsplit(settings.blob.url).netloc:
        yield Problem(
            "blob.url", "it contains a user: set storage.aws.access_key_id and storage.aws.secret_access_key instead"
        )


def _location_problems(settings: Settings) -> Iterator[Problem]:
    for each in settings.warehouse.locations:
        name, _, place = each.partition("=")
        if not re.fullmatch(r"[^/]+/[^/]+", name) or not re.fullmatch(r"/\S+|(?:file|s3|gs|abfss):\S+", place):
            yield Problem(
                "warehouse.locations",
                f"{each} is not an account, a catalog and a location: write account/catalog=/folder or "
                "account/catalog=s3://bucket/folder",
            )


def _vending_problems(settings: Settings) -> Iterator[Problem]:
    vending = settings.warehouse.vending
    if vending.credentials == "sts" and vending.sts.role_arn is None:
        yield Problem("warehouse.vending.sts.role_arn", "warehouse.vending.credentials sts requires it: set a role")
    if vending.gcs.enabled and settings.storage.gcs.endpoint and settings.storage.gcs.service_account_file is None:
        yield Problem(
            "warehouse.vending.gcs.enabled",
            "there are no credentials to limit: with storage.gcs.endpoint, set storage.gcs.service_account_file, too",
        )
    endpoint = urlsplit(vending.gcs.token_endpoint)
    if endpoint.scheme != "https" and not is_loopback(f"{endpoint.hostname}:0"):
        yield Problem("warehouse.vending.gcs.token_endpoint", "it receives tokens of the server: use https")
    if vending.credentials != "static":
        return
    keys = vending.static
    if not keys.accounts:
        yield Problem("warehouse.vending.static.accounts", "warehouse.vending.credentials static requires it")
    if keys.read_access_key_id is None and keys.write_access_key_id is None:
        yield Problem(
            "warehouse.vending.static.read_access_key_id", "warehouse.vending.credentials static requires keys"
        )
    for name, pair in (
        ("read", (keys.read_access_key_id, keys.read_secret_access_key)),
        ("write", (keys.write_access_key_id, keys.write_secret_access_key)),
    ):
        if (pair[0] is None) != (pair[1] is None):
            yield Problem(
                f"warehouse.vending.static.{name}_access_key_id",
                "an access key and its secret belong together: set both",
            )


def _pair_problems(settings: Settings) -> Iterator[Problem]:
    aws, jobs = settings.storage.aws, settings.reconciler.job_store
    if (aws.access_key_id is None) != (aws.secret_access_key is None):
        missing = "access_key_id" if aws.access_key_id is None else "secret_access_key"
        yield Problem(f"storage.aws.{missing}", "an access key and its secret belong together: set both or neither")
    azure = settings.storage.azure
    if (azure.account_name is None) != (azure.account_key is None):
        missing = "account_name" if azure.account_name is None else "account_key"
        yield Problem(f"storage.azure.{missing}", "a storage account and its key belong together: set both or neither")
    elif azure.endpoint is not None and azure.account_key is None:
        yield Problem(
            "storage.azure.endpoint", "an emulator gets no default credentials: set storage.azure.account_key"
        )
    if jobs.base_backoff_ms > jobs.max_backoff_ms:
        yield Problem("reconciler.job_store.base_backoff_ms", "it is longer than reconciler.job_store.max_backoff_ms")
