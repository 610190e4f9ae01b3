"""`skiway login` and `skiway logout`: get a token once, and use it in all commands and in DuckDB.

DuckDB itself stores its persistent secrets, in a process of its own: the format of its files is its own affair, and a secret of
type `airport` needs the extension. Statements go to its standard input, because other users can see the arguments of a process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from skiway.cli.command import TIMEOUT_S, Call, command, group, progress
from skiway.cli.stored_logins import StoredLogin, forget_login, store_login, valid_login
from skiway.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SkiwayError,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from skiway.security.identity_provider import DeviceLogin, IssuedTokens

PASTE: Final = "store one with: skiway login --token-file -"
MAX_TOKEN_BYTES: Final = 65_536

app = group("login", None)


@command(app, "login")
def login(
    call: Call,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Store the token in a file instead, or the one on standard input (-)."),
    ] = None,
    duckdb: Annotated[
        bool, typer.Option("--duckdb", help="Store the token as a persistent secret of DuckDB, too.")
    ] = False,
) -> None:
    """Log in to the server, so that commands need no token.

    It prints a page to open in any browser, and a code to enter there. The token is stored for this user and this server.
    """
    location = call.location
    if call.token is not None:
        typer.echo("note: --token or SKIWAY_TOKEN is set, and takes precedence over this login", err=True)
    if token_file is not None:
        stored = _checked(location, StoredLogin(location, _token_in(token_file)))
    else:
        stored = (_current(location) if duckdb else None) or _new_login(location)
    store_login(stored)
    secret = None
    if duckdb:
        with progress("storing the secret of DuckDB"):
            secret = store_secret(location, stored.token)
    record = {
        "server": location,
        "issuer": stored.issuer or None,
        "expires_at": stored.expires_at,
        "renews": bool(stored.refresh_token),
        "duckdb_secret": secret,
    }
    call.print_result(_summary(stored, secret), record)


@command(app, "logout")
def logout(
    call: Call,
    duckdb: Annotated[bool, typer.Option("--duckdb", help="Remove the persistent secret of DuckDB, too.")] = False,
) -> None:
    """Forget the login to the server."""
    location = call.location
    existed, found = forget_login(location)
    if duckdb:
        drop_secret(location)
    if not existed and not duckdb:
        raise NotFound(f"you are not logged in to {location}")
    revoked = False
    if found is not None and found.refresh_token:
        with suppress(SkiwayError):  # the login is forgotten here in any case
            revoked = found.provider().revoke(found.refresh_token)
    call.print_result(f"logged out of {location}", {"server": location, "revoked": revoked})


def _current(location: str) -> StoredLogin | None:
    """The existing login, if it is still good: DuckDB then gets its token without another login."""
    with suppress(SkiwayError):
        found = valid_login(location)
        return _checked(location, found) if found is not None else None
    return None


def _new_login(location: str) -> StoredLogin:
    """Log in at the identity provider that the server names."""
    issuer, client_id, scopes = _advertised(location)
    provider = DeviceLogin(issuer, client_id, scopes=scopes)
    code = provider.begin()
    _say(
        f"to log in to {location}, open this page in any browser:\n\n  {code.uri}\n\nand enter the code {code.user_code}"
    )
    if code.direct_uri:
        _say(f"\nor open {code.direct_uri}\nand compare the code")
    minutes = max(round(code.lifetime_s / 60), 1)
    _say(f"\nwaiting for {provider.name}; the code expires in {minutes} min (Ctrl-C cancels)")
    with progress(f"waiting for {provider.name}"):
        tokens = provider.wait(
            code, slower=lambda interval_s: _say(f"the identity provider is busy: asking every {interval_s:g} s")
        )
    return _accepted(StoredLogin(location, "", issuer=issuer, client_id=client_id, scopes=scopes), tokens)


def _accepted(login: StoredLogin, tokens: IssuedTokens) -> StoredLogin:
    """The login with the token that the server accepts. Some providers issue access tokens that only they can read."""
    import msgspec

    now, refusal = datetime.now(UTC), None
    for uses_id_token in [False] * bool(tokens.access_token) + [True] * bool(tokens.id_token):
        found = msgspec.structs.replace(login, uses_id_token=uses_id_token).renewed(tokens, now)
        try:
            return _checked(login.server, found)
        except Unauthorized as error:
            refusal = refusal or error
    raise refusal or Unauthorized(f"{login.issuer} issued no token")


def _advertised(location: str) -> tuple[str, str, str]:
    """The issuer, the client and the scopes of logins, which the server names to callers without a token."""
    try:
        _call(location, None)
    except Unauthorized as error:
        refused = error
    else:
        raise Unsupported(f"{location} requires no token: there is no need to log in", key="login.unneeded")
    issuer, client_id = refused.params.get("login_issuer", ""), refused.params.get("login_client_id", "")
    if not issuer:
        raise Unsupported(
            f"{location} accepts tokens of its operator, and has no identity provider to log in at: ask for a token, and {PASTE}",
            key="login.unsupported",
        )
    if not client_id:
        raise Unsupported(
            f"{location} accepts tokens of {issuer}, but names no client for logins on the command line: ask its operator to set "
            f"auth.oidc.device_client_id, or get a token in another way, and {PASTE}",
            key="login.unsupported",
        )
    return issuer, client_id, refused.params.get("login_scopes", "") or "openid"


def _checked(location: str, login: StoredLogin) -> StoredLogin:
    """The login, if the server accepts its token, whatever its owner may see."""
    try:
        _call(location, login.token)
    except Unauthorized as error:  # commands do not add to this error that a token is needed
        raise Unauthorized(f"the server rejects this token: {error.message}", key="login.rejected") from error
    return login


def _call(location: str, token: str | None) -> None:
    from skiway.client import Metastore

    with Metastore(location, token=token, timeout_s=TIMEOUT_S) as lake, suppress(PermissionDenied):
        next(iter(lake.catalogs(page_size=1)), None)


def _token_in(file: Path) -> str:
    if str(file) == "-":
        is_terminal = sys.stdin.isatty()
        text = typer.prompt("token", hide_input=True, err=True) if is_terminal else sys.stdin.read(MAX_TOKEN_BYTES)
    else:
        try:
            with file.expanduser().open(encoding="utf-8") as opened:
                text = opened.read(MAX_TOKEN_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InvalidArgument(f"the token file {file} cannot be read: {reason}") from None
    token = text.strip().removeprefix("Bearer ").strip()
    if not token or len(token.split()) != 1:
        source = "standard input" if str(file) == "-" else file
        raise InvalidArgument(f"{source} contains no token: give one, on one line")
    return token


def _summary(login: StoredLogin, secret: str | None) -> str:
    until = "" if login.expires_at is None else f"{login.expires_at:%Y-%m-%d %H:%M} UTC"
    lines = [f"logged in to {login.server}; commands use this login until skiway logout"]
    if until and not login.refresh_token:
        lines = [f"logged in to {login.server} until {until}"]
    if secret:
        lines.append(f"DuckDB sends the token to this server (secret {secret})")
        if until:
            lines.append(f"DuckDB cannot renew it: after {until}, run skiway login --duckdb again")
    return "\n".join(lines)


def _say(text: str) -> None:
    typer.echo(text, err=True)


DUCKDB_TIMEOUT_S: Final = 120.0
"""The first run downloads the extension."""
LOADS: Final = (["LOAD airport;"], ["INSTALL airport FROM community;", "LOAD airport;"])
RUNNER: Final = """
import sys, duckdb
try:
    duckdb.connect().execute(sys.stdin.read())
except duckdb.Error as error:
    sys.exit(str(error))
"""
MAX_QUOTED: Final = 300


def secret_name(location: str) -> str:
    """The name of the secret for a server. It is part of a file name."""
    parts = urlsplit(location)
    return f"skiway_{re.sub('[^A-Za-z0-9.-]', '_', parts.netloc or parts.path)}"


def store_secret(location: str, token: str) -> str:
    """Store the token for all calls of DuckDB to a server, in the place of an earlier one. Returns the secret's name."""
    from skiway.airport.wire.duckdb_sql import secret_statement  # which imports pyarrow

    name = secret_name(location)
    create = secret_statement(location, token, persistent_name=name)
    problem = ""
    for program in _programs():
        for load in LOADS:
            problem = _problem(program, [*load, create], hidden=token)
            if not problem:
                return name
    raise Unavailable(
        f"you are logged in, but DuckDB could not store its secret: {problem}; where DuckDB has its airport extension, run "
        "skiway login --duckdb again, or the statements of skiway attach --show-token",
        key="duckdb.secret",
    )


def drop_secret(location: str) -> None:
    """Remove the secret for a server, if there is one. This works without the extension."""
    from skiway.airport.wire.duckdb_sql import identifier

    statement = f"DROP PERSISTENT SECRET IF EXISTS {identifier(secret_name(location))};"
    problem = ""
    for program in _programs():
        problem = _problem(program, [statement])
        if not problem:
            return
    raise Unavailable(f"DuckDB could not remove its secret: {problem}", key="duckdb.secret")


def _programs() -> Iterator[list[str]]:
    """The `duckdb` on the path, which most likely has the extension, then the installed Python package."""
    if own := shutil.which("duckdb"):
        yield [own, "-batch", "-bail", "-init", "/dev/null"]
    yield [sys.executable, "-c", RUNNER]


def _problem(program: Sequence[str], statements: Sequence[str], *, hidden: str = "") -> str:
    """What went wrong when the program ran the statements; "" if nothing did. DuckDB's errors may quote a statement."""
    try:
        done = subprocess.run(  # noqa: S603 - DuckDB, with statements of ours
            program, input="\n".join(statements), capture_output=True, text=True, timeout=DUCKDB_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program[0]} does not run: {type(error).__name__}"
    if not done.returncode:
        return ""
    said = " ".join((done.stderr or done.stdout).split()) or f"it ended with exit code {done.returncode}"
    return (said.replace(hidden, "****") if hidden else said)[:MAX_QUOTED]
