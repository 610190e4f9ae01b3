"""The security page is accurate."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from skiway.config import describe
from skiway.security import Roles, TokenFile, authentication
from skiway.security.secrets import files as file_secrets
from skiway.security.secrets import store
from skiway.security.secrets.aws import RENEW_BEFORE
from skiway.security.secrets.store import MAX_SECRET_BYTES
from skiway.security.signing_keys import MIN_RSA_BITS, PublishedKeys

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
PAGE = (DOCS / "security.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
# Keys of errors that occur only when a server is started or a token is created or revoked.
AT_STARTUP = {"token", "token.ambiguous", "token.weak", "token.entry", "tokens.file", "permission.missing"}


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_print_what_the_page_shows(code, printed, capsys):
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_every_python_block_is_run():
    assert len(EXAMPLES) == PAGE.count("```python") == 1


def test_tokens_file_on_the_page_is_valid(tmp_path):
    block = next(each for each in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[[tokens]]" in each)
    file = tmp_path / "tokens.toml"
    file.write_text(block)
    (entry,) = TokenFile(file).entries()
    assert entry.name == "etl"
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE.partition("| field |")[2].partition("\n\n")[0], re.MULTILINE))
    assert documented == set(entry.__struct_fields__)


def test_policy_on_the_page_is_valid_json():
    assert json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])["Effect"] == "Allow"


def test_table_of_roles_matches_the_code():
    shown = {}
    for line in PAGE.partition("| role | permissions |")[2].partition("\n\n")[0].splitlines()[2:]:
        names, permissions = (re.findall(r"`([\w.-]+)`", cell) for cell in line.strip("|").split("|"))
        inherited = shown["default"] if "default" in permissions else set()
        shown |= {name: inherited | set(permissions) - {"default"} for name in names}
    assert shown == Roles().table()


def test_page_lists_exactly_the_existing_error_keys():
    raised = {
        keyword.value.value
        for file in (PROJECT / "src" / "skiway" / "security").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "key" and isinstance(keyword.value, ast.Constant)
    }
    tables = "".join(table.partition("\n\n")[0] for table in PAGE.split("| key |")[1:])
    shown = set(re.findall(r"^\| `([\w.]+)` \|", tables, re.MULTILINE))
    assert shown == raised - AT_STARTUP
    assert raised >= AT_STARTUP


def test_settings_on_the_page_exist():
    listed = {setting.key for setting in describe()}
    named = set(re.findall(r"`((?:auth|interceptor|secrets)\.[\w.]+)`", PAGE))
    assert named
    assert named <= listed


def test_names_and_numbers_on_the_page_match_the_code():
    defaults = PublishedKeys.__init__.__kwdefaults__
    for phrase in (
        f"every {defaults['refresh_s']:.0f} s in the background",
        f"within {defaults['interval_s']:.0f} s of the last time",
        f"at most {MAX_SECRET_BYTES} bytes",
        f"from {MIN_RSA_BITS} bits",
        f"`{authentication.DEV_ACCOUNT_HEADER}`",
        f"called `{authentication.DEFAULT_ACCOUNT}`",
        f"`{file_secrets.KEY_FILE}`",
        f"`{store.SECRETS_STORES}`",
        f"until {RENEW_BEFORE.seconds // 60} minutes before",
        *(f"`{scheme}:" for scheme in store.BUILT_IN),
    ):
        assert phrase in PAGE, phrase
