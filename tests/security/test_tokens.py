"""Mode token: static tokens, stored as hashes and revoked by editing a file."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from security.accounts import KnownAccounts
from skiway.errors import InvalidArgument, Unauthorized
from skiway.security import Roles, TokenAuthenticator, TokenEntry, TokenFile, TokenHeaders, new_token, tokens

NOW = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
CLEAR = "correct-horse-battery-staple-0123456789"


def authenticator(*entries, accounts=None, **more):
    return TokenAuthenticator(lambda: entries, accounts=accounts or KnownAccounts(), clock=lambda: NOW, **more)


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def rejection(authenticator, headers):
    with pytest.raises(Unauthorized) as refused:
        authenticator.authenticate(headers)
    assert CLEAR not in f"{refused.value!r} {refused.value.params}"
    return refused.value


def entry(**facts):
    return TokenEntry.of(CLEAR, **{"name": "etl", "account": "acme", **facts})


def test_token_identifies_its_owner():
    ends = NOW + timedelta(seconds=1)
    found = authenticator(entry(roles=["Administrator"], expires_at=ends)).authenticate(bearer(CLEAR))
    assert (found.subject, found.account_id, found.roles) == ("etl", "acme", {"administrator"})
    assert "table.write" in found.permissions
    assert found.expires_at == ends


@pytest.mark.parametrize("value", [f"bearer {CLEAR}", f"BEARER   {CLEAR}", CLEAR, f"  {CLEAR} "])
def test_scheme_is_optional_and_case_insensitive(value):
    assert authenticator(entry()).authenticate({"authorization": value}).subject == "etl"


@pytest.mark.parametrize("headers", [{}, {"authorization": ""}, {"authorization": "  "}, {"x-session": CLEAR}])
def test_call_without_a_token_is_rejected(headers):
    assert rejection(authenticator(entry()), headers).key == "token.missing"


@pytest.mark.parametrize(
    "value", ["Bearer", "Bearer ", "Basic YWRhOnNlY3JldA==", f"{CLEAR} {CLEAR}", "Bearer \u00fcber"]
)
def test_header_without_a_bearer_token_is_malformed(value):
    assert rejection(authenticator(entry()), {"authorization": value}).key == "token.malformed"


def test_overlong_token_is_rejected_without_a_lookup():
    found = rejection(authenticator(entry()), bearer("x" * 16_385))
    assert (found.key, "16385 characters" in found.message) == ("token.malformed", True)


def test_unregistered_token_is_unknown():
    assert rejection(authenticator(entry()), bearer(CLEAR + "x")).key == "token.unknown"


def test_token_is_rejected_when_it_expires():
    found = rejection(authenticator(entry(expires_at=NOW)), bearer(CLEAR))
    assert (found.key, "valid until 2031-01-02T03:04:05+00:00" in found.message) == ("token.expired", True)


def test_token_is_compared_with_all_entries_in_constant_time(monkeypatch):
    compared = []

    def recording_compare(stored, sent):
        compared.append((stored, sent))
        return stored == sent

    monkeypatch.setattr(tokens, "compare_digest", recording_compare)
    entries = [entry(), *(TokenEntry.of(f"{CLEAR}-{n}", name=f"n{n}", account="acme") for n in range(3))]
    assert authenticator(*entries).authenticate(bearer(CLEAR)).subject == "etl"
    digest = sha256(CLEAR.encode()).hexdigest()
    assert compared == [(each.sha256, digest) for each in entries]


def test_account_must_exist():
    found = rejection(authenticator(entry(account="moon")), bearer(CLEAR))
    assert (found.key, found.params) == ("token.account", {"account_id": "moon"})


def test_account_is_identified_by_its_id_and_not_by_its_name():
    found = rejection(authenticator(entry(account="Acme Inc.")), bearer(CLEAR))
    assert (found.key, "the name of an account, not its id" in found.message) == ("token.account", True)


def test_account_is_accepted_without_an_account_directory():
    file_authenticator = TokenAuthenticator(lambda: [entry(account="moon")], accounts=None)
    assert file_authenticator.authenticate(bearer(CLEAR)).account_id == "moon"


def test_without_an_account_only_the_platform_admin_is_accepted():
    found = authenticator(entry(account="", roles=["platform-admin", "administrator"])).authenticate(bearer(CLEAR))
    assert (found.account_id, found.roles) == ("", {"platform-admin"})
    assert found.permissions == Roles().platform_permissions(["platform-admin"])
    assert rejection(authenticator(entry(account="", roles=["administrator"])), bearer(CLEAR)).key == "token.account"


def test_use_of_a_valid_token_is_reported():
    used, valid = [], entry()
    setup = TokenAuthenticator(lambda: [valid], accounts=None, on_use=used.append)
    setup.authenticate(bearer(CLEAR))
    with pytest.raises(Unauthorized):
        setup.authenticate(bearer(f"{CLEAR}x"))
    assert used == [valid]


def test_session_header_takes_precedence():
    headers = {"x-session": CLEAR, "authorization": "Bearer something-else"}
    assert authenticator(entry(), headers=TokenHeaders("X-Session")).authenticate(headers).subject == "etl"


def test_new_token_is_long_random_and_redacted():
    made, other = new_token("etl", "acme", roles=["administrator"]), new_token("etl", "acme")
    text = made.text.reveal()
    assert text.startswith("skiway_")
    assert len(text) == len("skiway_") + 43
    assert text != other.text.reveal()
    assert text not in f"{made} {made!r} {made.text} {made.entry.toml()}"
    assert authenticator(made.entry).authenticate(bearer(text)).roles == {"administrator"}


def test_randomness_is_configurable():
    made = new_token("etl", "acme", randomness=lambda size: "r" * size)
    assert made.text.reveal() == "skiway_" + "r" * 32


@pytest.mark.parametrize("weak", ["", "hunter2", "x" * 31, "x" * 32 + "\n", "x" * 32 + " ", "\u00fc" * 40])
def test_weak_token_is_rejected(weak):
    with pytest.raises(InvalidArgument, match="at least 32") as refused:
        TokenEntry.of(weak, name="etl", account="acme")
    assert not weak or weak not in refused.value.message


@pytest.mark.parametrize(
    "facts", [{"name": ""}, {"name": "a\nb"}, {"account": "a\x7f"}, {"expires_at": datetime(2031, 1, 1)}]
)
def test_entry_that_a_file_cannot_store_is_rejected(facts):
    with pytest.raises(InvalidArgument, match="cannot be stored"):
        entry(**facts)


# the file


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tokens.toml"


def save(file, text):
    """Write `text` with a new modification time, even if the file system's clock is coarse."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    changed = max(file.stat().st_mtime_ns, before + 1_000)
    os.utime(file, ns=(changed, changed))


def test_entries_are_read_back_from_a_file(file):
    entries = [
        entry(name='o"b\\e\u0142', roles=["a", "b"], expires_at=NOW),
        TokenEntry.of(CLEAR + "2", name="plain", account=""),
    ]
    save(file, "\n".join(each.toml() for each in entries))
    assert list(TokenFile(file).entries()) == entries


def test_json_file_is_accepted_too(tmp_path):
    file = tmp_path / "tokens.json"
    stored = {"name": "etl", "account": "acme", "sha256": entry().sha256, "expires_at": "2031-01-02T03:04:05Z"}
    file.write_text(json.dumps({"tokens": [stored]}))
    assert list(TokenFile(file).entries()) == [entry(expires_at=NOW)]


def test_token_removed_from_the_file_is_revoked_immediately(file):
    save(file, entry().toml())
    file_authenticator = TokenAuthenticator(TokenFile(file).entries, accounts=None)
    assert file_authenticator.authenticate(bearer(CLEAR)).subject == "etl"
    save(file, "")
    assert rejection(file_authenticator, bearer(CLEAR)).key == "token.unknown"


def test_token_added_to_the_file_is_accepted_immediately(file):
    save(file, "")
    file_authenticator = TokenAuthenticator(TokenFile(file).entries, accounts=None)
    assert rejection(file_authenticator, bearer(CLEAR)).key == "token.unknown"
    save(file, entry().toml())
    assert file_authenticator.authenticate(bearer(CLEAR)).subject == "etl"


def test_malformed_new_file_keeps_the_old_tokens_and_is_logged_once(file, caplog):
    save(file, entry().toml())
    found = TokenFile(file)
    save(file, "[[tokens]\n")
    assert [list(found.entries()), list(found.entries())] == [[entry()], [entry()]]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the tokens remain unchanged" in caplog.text
    save(file, "")
    assert list(found.entries()) == []


def test_deleted_file_keeps_the_old_tokens(file, caplog):
    save(file, entry().toml())
    found = TokenFile(file)
    file.unlink()
    assert list(found.entries()) == [entry()]
    assert "cannot be read: No such file or directory" in caplog.text


def test_unchanged_file_is_not_read_again(file):
    save(file, entry().toml())
    found = TokenFile(file)
    assert found.entries() is found.entries()


@pytest.mark.parametrize(
    ("text", "message_pattern"),
    [
        ("[[tokens]\n", "line 1"),
        (f'[[tokens]]\nname = "a"\ntoken = "{CLEAR}"\n', "unknown field `token`"),
        ('[[tokens]]\nname = "a"\n', "missing required field `sha256`"),
        (f'[[tokens]]\nname = "a"\nsha256 = "{CLEAR}"\n', "tokens\\[0\\].sha256"),
        (entry().toml() + "expires_at = 2031-01-01T00:00:00\n", "timezone"),
        (entry().toml() + entry(name="other").toml(), "two entries for one token"),
        ("\udcff", "UTF-8"),
    ],
)
def test_malformed_file_is_rejected_at_startup_without_showing_its_content(file, text, message_pattern):
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidArgument, match=message_pattern) as refused:
        TokenFile(file)
    assert CLEAR not in refused.value.message


def test_missing_file_is_rejected_at_startup(file):
    with pytest.raises(InvalidArgument, match="No such file"):
        TokenFile(file)
