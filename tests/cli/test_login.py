"""`skiway login` and `skiway logout`, against a real server and an identity provider: commands then need no token."""

from __future__ import annotations

import io
import json
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from cli.conftest import Done
from runtime.servers import Server, skiway, started
from security.device_provider import CLIENT, DeviceProvider, device_provider
from security.issuer import AUDIENCE
from skiway.cli import login as duckdb_secrets
from skiway.cli import main
from skiway.cli.command import Call
from skiway.cli.stored_logins import LoginToken
from skiway.errors import Unavailable

Login = Callable[..., Done]


@pytest.fixture(scope="module")
def shared_provider() -> Iterator[DeviceProvider]:
    with device_provider() as found:
        yield found


@pytest.fixture(scope="module")
def server(shared_provider: DeviceProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("login") / "home"
    settings = {
        "auth.mode": "oidc",
        "auth.oidc.issuer": shared_provider.published.url,
        "auth.oidc.audience": AUDIENCE,
        "auth.oidc.client_id": "explorer",
        "auth.oidc.client_secret": "a secret",
        "auth.oidc.device_client_id": CLIENT,
        "auth.oidc.scopes": "openid offline_access",
    }
    given = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
    with started(home, *given) as running:
        yield running


@pytest.fixture
def provider(shared_provider: DeviceProvider) -> DeviceProvider:
    shared_provider.reset()
    return shared_provider


@pytest.fixture
def run(
    server: Server,
    provider: DeviceProvider,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Login:
    """Run a command as a user with an own configuration folder; no output of it may contain a secret."""
    for name in ("SKIWAY_TOKEN", "SKIWAY_ACCOUNT", "SKIWAY_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKIWAY_SERVER", server.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run_(*arguments: str | Path, stdin_text: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["skiway", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin_text))
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        if "--show-token" not in arguments:
            assert not any(each in captured.out + captured.err for each in provider.issued)
        return Done(code, captured.out, captured.err)

    return run_


def stored(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "config").rglob("*.json"))


def test_login_shows_the_code_and_commands_need_no_token_any_more(
    run: Login, provider: DeviceProvider, tmp_path: Path
) -> None:
    refused = run("catalogs", "list")
    assert refused.code == 1
    assert "the call has no token" in refused.err
    assert "log in with skiway login, or give a token with --token" in refused.err

    provider.answers = [{"error": "authorization_pending"}] * 2
    done = run("login")
    assert done.code == 0, done.err
    assert f"  {provider.published.url}/device\n" in done.err
    assert "enter the code WDJB-MJHT" in done.err
    assert "waiting for 127.0.0.1; the code expires in 10 min" in done.err
    assert "logged in to grpc://" in done.out
    assert provider.scopes == "openid offline_access"

    assert run("catalogs", "list", "-o", "json").json[0]["name"] == "lake"
    assert run("sql", "SELECT 42 AS answer").out.split() == ["answer", "42"]
    assert "auth_token '…'" in run("attach").out
    shown = run("attach", "--show-token").out
    assert any(each in shown for each in provider.issued)

    (file,) = stored(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_login_of_another_server_is_not_sent(run: Login, server: Server) -> None:
    assert run("login").code == 0
    port = server.address.rpartition(":")[2]
    other = run("catalogs", "list", "--server", f"localhost:{port}")
    assert other.code == 1
    assert "the call has no token" in other.err


def test_given_token_takes_precedence(run: Login, provider: DeviceProvider) -> None:
    assert run("login").code == 0
    refused = run("catalogs", "list", "--token", "not-a-token")
    assert refused.code == 1
    assert "give a token with --token" in refused.err
    noted = run("login", "--token", provider.token())
    assert noted.code == 0
    assert "note: --token or SKIWAY_TOKEN is set, and takes precedence over this login" in noted.err


def test_expired_token_is_renewed_once_and_stored(run: Login, provider: DeviceProvider, tmp_path: Path) -> None:
    provider.lifetime_s = 1  # within the margin, so the first command renews it
    assert run("login").code == 0
    provider.lifetime_s = 300
    before = provider.published.requests["/token"]
    assert run("catalogs", "list").code == 0
    assert run("catalogs", "list").code == 0
    assert provider.published.requests["/token"] == before + 1
    (file,) = stored(tmp_path)
    assert json.loads(file.read_bytes())["refresh_token"] == provider.refresh_token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_long_commands_renew_the_token_while_they_run(run: Login, provider: DeviceProvider, server: Server) -> None:
    provider.lifetime_s = 1  # within the margin, so every call renews it
    assert run("login").code == 0
    call = Call(server.address)
    before = provider.published.requests["/token"]
    with call.metastore(timeout_s=200) as lake, call.airport("lake") as db:
        for number in range(1, 4):
            assert [each.name for each in lake.catalogs()] == ["lake"]
            assert provider.published.requests["/token"] == before + number
        assert db.schemas()
        provider.lifetime_s = 300
        assert list(lake.catalogs())
        renewed = provider.published.requests["/token"]
        assert list(lake.catalogs())
        assert db.schemas()
        assert provider.published.requests["/token"] == renewed, "a valid token is used as long as it is valid"
        provider.refreshes = False
        login = call.renewed_token
        assert isinstance(login, LoginToken)
        assert login.login is not None
        login.login = msgspec.structs.replace(login.login, expires_at=datetime(2020, 1, 1, tzinfo=UTC))
        assert list(lake.catalogs()), "another command has stored a valid one"


def test_login_that_cannot_be_renewed_says_so(run: Login, provider: DeviceProvider) -> None:
    provider.lifetime_s, provider.refreshes = 1, False
    assert run("login").code == 0
    ended = run("catalogs", "list")
    assert ended.code == 1
    assert ended.err == "skiway: the login at 127.0.0.1 has ended: invalid_grant; run skiway login again\n"
    provider.given = {"refresh_token": None}
    assert "until 20" in run("login").out
    expired = run("catalogs", "list")
    assert expired.code == 1
    assert "has expired: run skiway login again" in expired.err
    doctor = run("doctor", "-o", "json")
    assert {"check": "login", "state": "failed"}.items() <= json.loads(doctor.out)[-1].items()


def test_id_token_is_used_if_the_server_cannot_read_access_tokens(run: Login, provider: DeviceProvider) -> None:
    provider.given = {"access_token": provider.secret("an-opaque-access-token"), "id_token": provider.token()}
    provider.lifetime_s = 1
    assert run("login").code == 0
    assert run("catalogs", "list").code == 0  # with the renewed ID token


def test_token_that_the_server_rejects_is_not_stored(run: Login, provider: DeviceProvider, tmp_path: Path) -> None:
    provider.given = {"access_token": provider.token(aud="another")}
    refused = run("login")
    assert refused.code == 1
    assert "the server rejects this token" in refused.err
    assert "audience" in refused.err
    assert not stored(tmp_path)


@pytest.mark.parametrize(
    ("error", "message"),
    [("access_denied", "the login was refused at 127.0.0.1"), ("expired_token", "the code WDJB-MJHT has expired")],
)
def test_refused_login_stores_nothing(
    run: Login, provider: DeviceProvider, tmp_path: Path, error: str, message: str
) -> None:
    provider.answers = [{"error": error}]
    refused = run("login")
    assert refused.code == 1
    assert message in refused.err
    assert not stored(tmp_path)


def test_logout_forgets_the_login_and_tells_the_provider(run: Login, provider: DeviceProvider, tmp_path: Path) -> None:
    assert run("login").code == 0
    done = run("logout", "-o", "json")
    assert done.json["revoked"] is True
    assert provider.revoked == [provider.refresh_token]
    assert not stored(tmp_path)
    again = run("logout")
    assert again.code == 1
    assert "you are not logged in to" in again.err


def test_logout_works_while_the_provider_does_not(run: Login, provider: DeviceProvider, tmp_path: Path) -> None:
    assert run("login").code == 0
    (file,) = stored(tmp_path)
    changed = json.loads(file.read_bytes()) | {"issuer": "http://127.0.0.1:9"}
    file.write_text(json.dumps(changed))
    assert run("logout", "-o", "json").json["revoked"] is False
    assert not stored(tmp_path)


def test_token_can_be_stored_from_standard_input_or_a_file(
    run: Login, provider: DeviceProvider, tmp_path: Path
) -> None:
    assert run("login", "--token-file", "-", stdin_text=f"Bearer {provider.token()}\n").code == 0
    assert run("catalogs", "list").code == 0
    file = tmp_path / "token"
    file.write_text(provider.token())
    assert run("login", "--token-file", file).code == 0
    for text, message in (
        (" ", "contains no token"),
        ("two words", "contains no token"),
        ("abc", "rejects this token"),
    ):
        refused = run("login", "--token-file", "-", stdin_text=text)
        assert refused.code == 1
        assert message in refused.err
    missing = run("login", "--token-file", tmp_path / "nowhere")
    assert "cannot be read: No such file" in missing.err


def test_login_that_others_can_read_is_not_used(run: Login, tmp_path: Path) -> None:
    assert run("login").code == 0
    (file,) = stored(tmp_path)
    file.chmod(0o640)
    refused = run("catalogs", "list")
    assert refused.code == 1
    assert "other users of this machine can open" in refused.err
    assert run("logout").code == 0
    assert not stored(tmp_path)


def test_damaged_login_is_reported(run: Login, tmp_path: Path) -> None:
    assert run("login").code == 0
    stored(tmp_path)[0].write_text('{"server": ')
    assert "is damaged: run skiway login again" in run("catalogs", "list").err


# -- other servers -----------------------------------------------------------------------------------------------------


def test_server_without_a_provider_asks_for_a_token(run: Login, tmp_path: Path) -> None:
    home = tmp_path / "tokens"
    made = skiway("tokens", "create", "ada", "--account", "default", "--home", home)
    assert made.returncode == 0, made.stderr
    with started(home, "--set", "auth.mode=token") as server:
        refused = run("login", "--server", server.address)
        assert refused.code == 1
        assert "has no identity provider to log in at: ask for a token" in refused.err
        assert "store one with: skiway login --token-file -" in refused.err
        assert run("login", "--server", server.address, "--token-file", "-", stdin_text=made.stdout).code == 0
        assert run("catalogs", "list", "--server", server.address).code == 0


def test_server_without_authentication_needs_no_login(run: Login, tmp_path: Path) -> None:
    with started(tmp_path / "dev") as server:
        refused = run("login", "--server", server.address)
    assert refused.code == 1
    assert "requires no token: there is no need to log in" in refused.err


def test_server_without_a_public_client_says_which_setting_is_missing(
    run: Login, provider: DeviceProvider, tmp_path: Path
) -> None:
    issuer = f"auth.oidc.issuer={provider.published.url}"
    with started(tmp_path / "home", "--set", "auth.mode=oidc", "--set", issuer, "--set", "auth.oidc.audience=x") as one:
        refused = run("login", "--server", one.address)
    assert refused.code == 1
    assert "names no client for logins on the command line: ask its operator to set auth.oidc.device_client_id" in (
        refused.err
    )


# -- DuckDB ------------------------------------------------------------------------------------------------------------

DUCKDB = """#!{python}
import json, os, sys
statements = sys.stdin.read()
with open(os.environ["SAID"], "a") as file:
    file.write(json.dumps([sys.argv[1:], statements]) + "\\n")
if statements.startswith(os.environ["FAILS"]):
    sys.exit(f"Parser Error: near {{statements}}")
"""


@pytest.fixture
def duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[list[str], str]]]:
    """A program `duckdb` that records what it gets. The real one with its extension is part of the live tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "duckdb"
    program.write_text(DUCKDB.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("FAILS", "no such text")
    monkeypatch.setattr(duckdb_secrets, "RUNNER", "raise SystemExit('there is no other DuckDB')")
    return lambda: [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]


def test_duckdb_stores_the_token_as_a_persistent_secret(
    run: Login, provider: DeviceProvider, duckdb: Callable[[], list[tuple[list[str], str]]], server: Server
) -> None:
    done = run("login", "--duckdb", "-o", "json")
    name = f"skiway_{server.address.replace(':', '_')}"
    assert done.json["duckdb_secret"] == name
    ((arguments, statements),) = duckdb()
    token = next(each for each in provider.issued if each in statements)
    assert statements.splitlines() == [
        "LOAD airport;",
        f"CREATE OR REPLACE PERSISTENT SECRET \"{name}\" (TYPE airport, auth_token '{token}', "
        f"SCOPE 'grpc://{server.address}');",
    ]
    assert token not in " ".join(arguments)

    asked = provider.published.requests["/device_authorization"]
    again = run("login", "--duckdb")
    assert again.code == 0
    assert provider.published.requests["/device_authorization"] == asked, "the login is still good"
    assert "DuckDB cannot renew it: after 20" in again.out

    assert run("logout", "--duckdb").code == 0
    assert duckdb()[-1][1] == f'DROP PERSISTENT SECRET IF EXISTS "{name}";'


def test_extension_is_installed_if_it_is_missing(
    run: Login, duckdb: Callable[[], list[tuple[list[str], str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "LOAD")
    assert run("login", "--duckdb").code == 0
    scripts = [statements.splitlines()[:-1] for _, statements in duckdb()]
    assert scripts == [["LOAD airport;"], ["INSTALL airport FROM community;", "LOAD airport;"]]


def test_error_of_duckdb_hides_the_token_and_keeps_the_login(
    run: Login, duckdb: Callable[[], list[tuple[list[str], str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "")
    failed = run("login", "--duckdb")
    assert failed.code == 1
    assert "you are logged in, but DuckDB could not store its secret: there is no other DuckDB; where" in failed.err
    assert "skiway attach --show-token" in failed.err
    assert run("catalogs", "list").code == 0


def test_quoted_statement_in_an_error_has_no_token(
    duckdb: Callable[[], list[tuple[list[str], str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "")
    monkeypatch.setattr(duckdb_secrets, "RUNNER", "import sys; sys.exit(sys.stdin.read())")
    with pytest.raises(Unavailable, match=r"auth_token '\*\*\*\*'") as failed:
        duckdb_secrets.store_secret("grpc://127.0.0.1:1", "planted-token")
    assert "planted-token" not in str(failed.value)
    assert len(duckdb()) == 2
