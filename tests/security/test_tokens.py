"""Mode token: static tokens, kept as hashes, revoked by changing a file."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from security.accounts import KnownAccounts
from skiway.errors import InvalidArgument, Unauthorized
from skiway.security import TokenAuthenticator, TokenEntry, TokenFile, TokenHeaders, new_token, tokens

NOW = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
CLEAR = "correct-horse-battery-staple-0123456789"


def authenticator(*entries, accounts=None, **more):
    return TokenAuthenticator(lambda: entries, accounts=accounts or KnownAccounts(), clock=lambda: NOW, **more)


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def refusal(authenticator, headers):
    with pytest.raises(Unauthorized) as refused:
        authenticator.authenticate(headers)
    assert CLEAR not in f"{refused.value!r} {refused.value.params}"
    return refused.value


def entry(**facts):
    return TokenEntry.of(CLEAR, **{"name": "etl", "account": "acme", **facts})


def test_the_bearer_of_a_token_is_its_owner():
    ends = NOW + timedelta(seconds=1)
    found = authenticator(entry(roles=["Administrator"], expires_at=ends)).authenticate(bearer(CLEAR))
    assert (found.subject, found.account_id, found.roles) == ("etl", "acme", {"administrator"})
    assert "table.write" in found.permissions
    assert found.expires_at == ends


@pytest.mark.parametrize("value", [f"bearer {CLEAR}", f"BEARER   {CLEAR}", CLEAR, f"  {CLEAR} "])
def test_the_scheme_is_optional_and_has_no_case(value):
    assert authenticator(entry()).authenticate({"authorization": value}).subject == "etl"


@pytest.mark.parametrize("headers", [{}, {"authorization": ""}, {"authorization": "  "}, {"x-session": CLEAR}])
def test_a_call_without_a_token_is_refused(headers):
    assert refusal(authenticator(entry()), headers).key == "token.missing"


@pytest.mark.parametrize(
    "value", ["Bearer", "Bearer ", "Basic YWRhOnNlY3JldA==", f"{CLEAR} {CLEAR}", "Bearer \u00fcber"]
)
def test_something_else_than_a_bearer_token_is_malformed(value):
    assert refusal(authenticator(entry()), {"authorization": value}).key == "token.malformed"


def test_an_endless_token_is_not_even_looked_at():
    found = refusal(authenticator(entry()), bearer("x" * 16_385))
    assert (found.key, "16385 characters" in found.message) == ("token.malformed", True)


def test_a_token_of_somebody_else_is_unknown():
    assert refusal(authenticator(entry()), bearer(CLEAR + "x")).key == "token.unknown"


def test_a_token_ends_at_its_time():
    found = refusal(authenticator(entry(expires_at=NOW)), bearer(CLEAR))
    assert (found.key, "valid until 2031-01-02T03:04:05+00:00" in found.message) == ("token.expired", True)


def test_tokens_are_compared_in_constant_time_and_all_of_them(monkeypatch):
    compared = []

    def watched(kept, sent):
        compared.append((kept, sent))
        return kept == sent

    monkeypatch.setattr(tokens, "compare_digest", watched)
    entries = [entry(), *(TokenEntry.of(f"{CLEAR}-{n}", name=f"n{n}", account="acme") for n in range(3))]
    assert authenticator(*entries).authenticate(bearer(CLEAR)).subject == "etl"
    digest = sha256(CLEAR.encode()).hexdigest()
    assert compared == [(each.sha256, digest) for each in entries]


def test_the_account_must_exist():
    found = refusal(authenticator(entry(account="moon")), bearer(CLEAR))
    assert (found.key, found.params) == ("token.account", {"account_id": "moon"})


def test_an_account_is_known_by_its_id_not_by_a_name_that_can_change():
    found = refusal(authenticator(entry(account="Acme Inc.")), bearer(CLEAR))
    assert (found.key, "the name of an account, not its id" in found.message) == ("token.account", True)


def test_the_account_is_believed_where_nobody_can_look_it_up():
    keeper = TokenAuthenticator(lambda: [entry(account="moon")], accounts=None)
    assert keeper.authenticate(bearer(CLEAR)).account_id == "moon"


def test_without_an_account_only_the_platforms_administrator_gets_in():
    found = authenticator(entry(account="", roles=["platform-admin", "administrator"])).authenticate(bearer(CLEAR))
    assert (found.account_id, found.roles) == ("", {"platform-admin"})
    assert found.permissions == {"account.read", "account.write", "account.delete"}
    assert refusal(authenticator(entry(account="", roles=["administrator"])), bearer(CLEAR)).key == "token.account"


def test_the_session_header_wins():
    headers = {"x-session": CLEAR, "authorization": "Bearer something-else"}
    assert authenticator(entry(), headers=TokenHeaders("X-Session")).authenticate(headers).subject == "etl"


def test_a_new_token_is_long_random_and_shown_only_when_asked():
    made, other = new_token("etl", "acme", roles=["administrator"]), new_token("etl", "acme")
    text = made.text.reveal()
    assert text.startswith("skiway_")
    assert len(text) == len("skiway_") + 43
    assert text != other.text.reveal()
    assert text not in f"{made} {made!r} {made.text} {made.entry.toml()}"
    assert authenticator(made.entry).authenticate(bearer(text)).roles == {"administrator"}


def test_randomness_is_an_argument():
    made = new_token("etl", "acme", randomness=lambda size: "r" * size)
    assert made.text.reveal() == "skiway_" + "r" * 32


@pytest.mark.parametrize("weak", ["", "hunter2", "x" * 31, "x" * 32 + "\n", "x" * 32 + " ", "\u00fc" * 40])
def test_a_weak_token_is_not_registered(weak):
    with pytest.raises(InvalidArgument, match="at least 32") as refused:
        TokenEntry.of(weak, name="etl", account="acme")
    assert not weak or weak not in refused.value.message


@pytest.mark.parametrize(
    "facts", [{"name": ""}, {"name": "a\nb"}, {"account": "a\x7f"}, {"expires_at": datetime(2031, 1, 1)}]
)
def test_an_entry_that_a_file_would_not_take_is_not_made(facts):
    with pytest.raises(InvalidArgument, match="cannot be stored"):
        entry(**facts)


# the file


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tokens.toml"


def save(file, text):
    """Write `text`, with a time of change that no earlier version had, however coarse the file system's clock is."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    changed = max(file.stat().st_mtime_ns, before + 1_000)
    os.utime(file, ns=(changed, changed))


def test_entries_survive_the_way_through_a_file(file):
    entries = [
        entry(name='o"b\\e\u0142', roles=["a", "b"], expires_at=NOW),
        TokenEntry.of(CLEAR + "2", name="plain", account=""),
    ]
    save(file, "\n".join(each.toml() for each in entries))
    assert list(TokenFile(file).entries()) == entries


def test_a_json_file_does_as_well(tmp_path):
    file = tmp_path / "tokens.json"
    kept = {"name": "etl", "account": "acme", "sha256": entry().sha256, "expires_at": "2031-01-02T03:04:05Z"}
    file.write_text(json.dumps({"tokens": [kept]}))
    assert list(TokenFile(file).entries()) == [entry(expires_at=NOW)]


def test_a_token_taken_out_of_the_file_is_revoked_at_once(file):
    save(file, entry().toml())
    keeper = TokenAuthenticator(TokenFile(file).entries, accounts=None)
    assert keeper.authenticate(bearer(CLEAR)).subject == "etl"
    save(file, "")
    assert refusal(keeper, bearer(CLEAR)).key == "token.unknown"


def test_a_token_put_into_the_file_is_good_at_once(file):
    save(file, "")
    keeper = TokenAuthenticator(TokenFile(file).entries, accounts=None)
    assert refusal(keeper, bearer(CLEAR)).key == "token.unknown"
    save(file, entry().toml())
    assert keeper.authenticate(bearer(CLEAR)).subject == "etl"


def test_a_broken_new_file_keeps_the_old_tokens_and_is_logged_once(file, caplog):
    save(file, entry().toml())
    found = TokenFile(file)
    save(file, "[[tokens]\n")
    assert [list(found.entries()), list(found.entries())] == [[entry()], [entry()]]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the tokens remain unchanged" in caplog.text
    save(file, "")
    assert list(found.entries()) == []


def test_a_vanished_file_keeps_the_old_tokens(file, caplog):
    save(file, entry().toml())
    found = TokenFile(file)
    file.unlink()
    assert list(found.entries()) == [entry()]
    assert "cannot be read: No such file or directory" in caplog.text


def test_an_unchanged_file_is_not_read_again(file):
    save(file, entry().toml())
    found = TokenFile(file)
    assert found.entries() is found.entries()


@pytest.mark.parametrize(
    ("text", "complaint"),
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
def test_a_broken_file_is_refused_at_the_start_without_showing_what_is_in_it(file, text, complaint):
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidArgument, match=complaint) as refused:
        TokenFile(file)
    assert CLEAR not in refused.value.message


def test_a_missing_file_is_refused_at_the_start(file):
    with pytest.raises(InvalidArgument, match="No such file"):
        TokenFile(file)
