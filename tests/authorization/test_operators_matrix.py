"""Every path of the HTTP server besides Iceberg REST × every caller."""

from __future__ import annotations

from typing import Any, Final

import pytest
from starlette.responses import PlainTextResponse

from authorization.callers import CALLERS, ByName
from runtime.in_process import requested
from skiway.metastore import Realm
from skiway.request_path import Access, Operators
from skiway.runtime.http.door import web_app
from skiway.security import PermissionAuthorizer
from skiway.security.authentication import OBSERVES_PLATFORM
from skiway.storage import open_stores

RULES: Final[dict[str, tuple[str, ...]]] = {
    "/healthz": (),
    "/readyz": (),
    "/metrics": (OBSERVES_PLATFORM,),
    "/v1/config": (),  # says where Iceberg REST is
    "/iceberg": (),  # has a matrix of its own
    "": (),  # the explorer: its calls go through the gRPC door, with the credentials of the visitor
}
"""The permission for each path; none for those that are open to everybody."""


@pytest.fixture(scope="module")
def app() -> Any:
    with open_stores("memory://") as stores:
        access = Access(lambda who: Realm(stores, who.account_id), ByName(), PermissionAuthorizer())
    return web_app(
        iceberg=PlainTextResponse("iceberg"),
        explorer=PlainTextResponse("explorer"),
        metrics=lambda: "metrics",
        not_ready=lambda: (),
        operators=Operators.of(access, ()),
    )


def test_every_path_has_a_rule(app: Any) -> None:
    assert {route.path for route in app.routes} == RULES.keys(), "add what the new path requires to RULES"


@pytest.mark.parametrize("path", RULES)
def test_row(path: str, app: Any) -> None:
    for caller in CALLERS:
        answer = requested(app, path, headers={"authorization": f"Bearer {caller.name}"}, peer="203.0.113.5")
        allowed = not RULES[path] or caller.has_role_for(RULES[path])
        where = f"{path} by {caller}: {answer.status_code}"
        assert allowed == (answer.status_code not in (401, 403)), where
        assert allowed or "metrics" not in answer.text.split(), where
