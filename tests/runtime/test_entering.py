"""Access to a running server: TLS, tokens, and their accounts."""

from __future__ import annotations

from pathlib import Path

import grpc
import httpx
import pytest

from airport.certificates import Authority
from runtime.servers import Caller, calling, eventually, skiway, started
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.platform import AccountDirectory
from skiway.metastore.resources import accounts
from skiway.model import v1
from skiway.storage import CallCounter, Stores, open_stores


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def make_account(stores: Stores, account_id: str, name: str) -> None:
    spec = v1.AccountSpec(display_name=name)
    request = v1.CreateAccountRequest(spec=spec, account_id=v1.ResourceId(id=account_id))
    accounts.create(Realm(stores, PLATFORM), request)


def test_accounts_are_found_by_id_and_by_name():
    with open_stores("memory://") as stores:
        directory = AccountDirectory(stores)
        assert (directory.first(), directory.find("a2"), directory.find("")) == (None, None, None)
        make_account(stores, "a2", "Beta & Söhne")
        make_account(stores, "a1", "alpha")
        make_account(stores, "alpha", "another")
        assert directory.find("a2") == directory.find("Beta  & Söhne ") == "a2"
        assert directory.find("alpha") == "alpha", "an id takes precedence over a name"
        assert directory.first() == "a2"
        accounts.delete(Realm(stores, PLATFORM), v1.DeleteAccountRequest(account_id=v1.ResourceId(id="a2")))
        assert directory.find("a2") is None


def test_accounts_are_looked_up_again_after_each_change_of_the_store(tmp_path):
    url, blobs, calls = f"sqlite:///{tmp_path}/pointers.db", tmp_path.as_uri(), CallCounter()
    with open_stores(url, blobs, on_call=calls) as stores, open_stores(url, blobs) as of_another_server:
        directory = AccountDirectory(stores)
        assert directory.find("a1") is None
        make_account(of_another_server, "a1", "alpha")
        assert directory.find("a1") == directory.find("alpha") == "a1"
        calls.reset()
        assert [directory.find(each) for each in ("a1", "alpha", "a1")] == ["a1"] * 3
        assert calls.total == 0
        request = v1.DeleteAccountRequest(account_id=v1.ResourceId(id="a1"))
        accounts.delete(Realm(of_another_server, PLATFORM), request)
        assert directory.find("a1") is directory.find("alpha") is None


def test_tls_server_accepts_clients_that_trust_its_authority(home, tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = ("--set", f"server.grpc.tls.cert={pair.certificate}", "--set", f"server.grpc.tls.key={pair.key}")
    with started(home, *tls) as server:
        trusted = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        with grpc.secure_channel(server.address, trusted) as channel:
            assert Caller(channel).catalogs() == ["lake"]
        with calling(server.address) as plaintext, pytest.raises(grpc.RpcError):
            plaintext.catalogs()


def test_tokens_are_created_used_and_revoked_without_a_restart(home):
    made = skiway("tokens", "create", "ada", "--account", "default", "--role", "administrator", "--home", home)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert token not in (home / "tokens.toml").read_text()
    with started(home, "--set", "auth.mode=token") as server, calling(server.address, token) as ada:
        assert ada.catalogs() == ["lake"]
        ada.create_catalog("hers")
        with calling(server.address) as stranger:
            assert error_code(stranger) is grpc.StatusCode.UNAUTHENTICATED
        with calling(server.address, token + "x") as forger:
            assert error_code(forger) is grpc.StatusCode.UNAUTHENTICATED
        reader = skiway("tokens", "create", "bob", "--account", "default", "--home", home).stdout.strip()
        with calling(server.address, reader) as bob:
            eventually(lambda: error_code(bob) is None)
            assert bob.catalogs() == ["hers", "lake"]
            with pytest.raises(grpc.RpcError) as denied:
                bob.create_catalog("his")
            assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        form = {"grant_type": "client_credentials", "client_id": "ada", "client_secret": token}
        issued = httpx.post(f"{server.addresses['http']}/iceberg/v1/oauth/tokens", data=form).json()
        with calling(server.address, issued["access_token"]) as by_access_token:
            assert by_access_token.catalogs() == ["hers", "lake"]
            (home / "tokens.toml").write_text("")
            eventually(lambda: error_code(ada) is grpc.StatusCode.UNAUTHENTICATED)
            assert error_code(by_access_token) is grpc.StatusCode.UNAUTHENTICATED


def test_message_over_the_limit_is_rejected(home):
    with started(home, "--set", "server.grpc.max_message_bytes=65536") as server, calling(server.address) as caller:
        with pytest.raises(grpc.RpcError) as too_large:
            caller.create_catalog("x" * 70_000)
        assert too_large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def error_code(caller: Caller) -> grpc.StatusCode | None:
    try:
        caller.catalogs()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return None
