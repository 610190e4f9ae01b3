"""Which servers issue access tokens: those with static tokens, unless it is turned off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from skiway.config import Settings
from skiway.runtime.authentication import issuer
from skiway.security import AccessTokens, DevAuthenticator, TokenAuthenticator
from skiway.security.oidc import OidcAuthenticator

BY_TOKEN = TokenAuthenticator(list, accounts=None, access_tokens=AccessTokens(b"k" * 32))


def test_server_with_static_tokens_issues_tokens() -> None:
    settings = Settings()
    assert issuer(settings, BY_TOKEN) is BY_TOKEN
    off = replace(settings, auth=replace(settings.auth, oauth=replace(settings.auth.oauth, enabled=False)))
    assert issuer(off, BY_TOKEN) is None


@pytest.mark.parametrize("kind", [DevAuthenticator, OidcAuthenticator])
def test_other_servers_issue_none(kind: Any) -> None:
    assert issuer(Settings(), cast(Any, kind.__new__(kind))) is None
