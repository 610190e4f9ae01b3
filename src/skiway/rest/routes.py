"""The table of routes: the handler of each, and the permission to call it.

Permissions are the same as those of the corresponding gRPC methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_plus

from skiway.errors import InvalidArgument, NotFound
from skiway.rest import (
    commits,
    config,
    delegation,
    generic_tables,
    namespaces,
    oauth,
    reports,
    scan_planning,
    tables,
    views,
)
from skiway.rest.calls import Route

__all__ = ["ROUTES", "matched"]

_NAMESPACES: Final = "/v1/{prefix}/namespaces"
_NAMESPACE: Final = f"{_NAMESPACES}/{{namespace}}"
_TABLES: Final = f"{_NAMESPACE}/tables"
_TABLE: Final = f"{_TABLES}/{{table}}"
_VIEWS: Final = f"{_NAMESPACE}/views"
_VIEW: Final = f"{_VIEWS}/{{view}}"
_GENERIC_TABLES: Final = f"/polaris{_NAMESPACE}/generic-tables"
_PLANS: Final = f"{_TABLE}/plan"
_PLAN: Final = f"{_PLANS}/{{plan-id}}"

_IN_CATALOGS: Final = (
    Route("GET", _NAMESPACES, "ListNamespaces", namespaces.list_, ("namespace.read",), "namespace"),
    Route("POST", _NAMESPACES, "CreateNamespace", namespaces.create, ("namespace.write",), "namespace", changes=True),
    Route("GET", _NAMESPACE, "LoadNamespace", namespaces.load, ("namespace.read",), "namespace"),
    Route("HEAD", _NAMESPACE, "NamespaceExists", namespaces.exists, ("namespace.read",), "namespace"),
    Route("DELETE", _NAMESPACE, "DropNamespace", namespaces.drop, ("namespace.write",), "namespace", changes=True),
    Route(
        "POST",
        f"{_NAMESPACE}/properties",
        "UpdateProperties",
        namespaces.update_properties,
        ("namespace.write",),
        "namespace",
        changes=True,
    ),
    Route("GET", _TABLES, "ListTables", tables.list_, ("table.read",), "table"),
    Route("POST", _TABLES, "CreateTable", commits.create, ("table.write",), "table", changes=True),
    Route("GET", _TABLE, "LoadTable", tables.load, ("table.read",), "table"),
    Route("HEAD", _TABLE, "TableExists", tables.exists, ("table.read",), "table"),
    Route("POST", _TABLE, "CommitTable", commits.commit, ("table.write",), "table", changes=True),
    Route("DELETE", _TABLE, "DropTable", tables.drop, ("table.write",), "table", changes=True),
    Route("POST", _PLANS, "PlanTableScan", scan_planning.plan, ("table.read",), "table", changes=True),
    Route("GET", _PLAN, "FetchPlanningResult", scan_planning.result, ("table.read",), "table"),
    Route("DELETE", _PLAN, "CancelPlanning", scan_planning.cancel, ("table.read",), "table", changes=True),
    Route("POST", f"{_TABLE}/tasks", "FetchScanTasks", scan_planning.tasks, ("table.read",), "table"),
    Route(
        "GET",
        f"{_TABLE}/credentials",
        "LoadCredentials",
        delegation.credentials,
        ("table.read",),
        "table",
        offered=delegation.vends_credentials,
    ),
    Route("POST", f"{_TABLE}/sign", "SignRequest", delegation.sign, ("table.read",), "table", offered=delegation.signs),
    Route("POST", f"{_TABLE}/metrics", "ReportMetrics", reports.report, ("table.read",), "table", changes=True),
    Route("POST", "/v1/{prefix}/tables/rename", "RenameTable", tables.rename, ("table.write",), "table", changes=True),
    Route("POST", f"{_NAMESPACE}/register", "RegisterTable", commits.register, ("table.write",), "table", changes=True),
    Route(
        "POST",
        "/v1/{prefix}/transactions/commit",
        "CommitTransaction",
        commits.commit_transaction,
        ("table.write",),
        "table",
        changes=True,
    ),
    Route("GET", _GENERIC_TABLES, "ListGenericTables", generic_tables.list_, ("table.read",), "table"),
    Route(
        "GET",
        f"{_GENERIC_TABLES}/{{generic-table}}",
        "LoadGenericTable",
        generic_tables.load,
        ("table.read",),
        "table",
    ),
    Route("GET", _VIEWS, "ListViews", views.list_, ("view.read",), "view"),
    Route("POST", _VIEWS, "CreateView", views.create, ("view.write",), "view", changes=True),
    Route("GET", _VIEW, "LoadView", views.load, ("view.read",), "view"),
    Route("HEAD", _VIEW, "ViewExists", views.exists, ("view.read",), "view"),
    Route("POST", _VIEW, "ReplaceView", views.replace, ("view.write",), "view", changes=True),
    Route("DELETE", _VIEW, "DropView", views.drop, ("view.write",), "view", changes=True),
    Route("POST", "/v1/{prefix}/views/rename", "RenameView", views.rename, ("view.write",), "view", changes=True),
    Route("POST", f"{_NAMESPACE}/register-view", "RegisterView", views.register, ("view.write",), "view", changes=True),
)

ROUTES: Final = (
    Route(
        "GET",
        "/v1/config",
        "GetConfig",
        config.config_of(_IN_CATALOGS),
        ("catalog.read",),
        "catalog",
    ),
    Route("POST", "/v1/oauth/tokens", "GetToken", oauth.tokens, (), "catalog", takes_form=True),
    *_IN_CATALOGS,
)
"""The route without permissions is open to everybody: it authenticates its callers by what they send in the form."""


_BY_LENGTH: Final[dict[int, list[tuple[Route, list[str]]]]] = {}
for _route in ROUTES:
    _segments = _route.path.split("/")
    _BY_LENGTH.setdefault(len(_segments), []).append((_route, _segments))


def matched(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """Match a raw path, and decode the names in it.

    The path is split into segments before it is decoded, so names can contain slashes. A segment is always a name, so
    `..` has no special meaning.
    """
    segments = path.split("/")
    alike = _BY_LENGTH.get(len(segments), ())
    for route, template in alike:
        if route.method == method and (names := _names(template, segments)) is not None:
            return route, {name: _decoded(text) for name, text in names.items()}
    fitting = [route for route, template in alike if _names(template, segments) is not None]
    if not fitting:
        raise NotFound(
            f"there is no endpoint {path[:200]!r}: clients start with GET /v1/config?warehouse=<catalog>, and add the "
            "prefix that it returns after /v1",
            key="route.unknown",
        )
    allowed = ", ".join(route.method for route in fitting)
    raise InvalidArgument(f"{method} is not supported at {path[:200]!r}: use {allowed}", key="method.unknown")


def _names(template: list[str], segments: list[str]) -> dict[str, str] | None:
    names = {}
    for wanted, found in zip(template, segments, strict=True):
        if wanted.startswith("{"):
            names[wanted[1:-1]] = found
        elif wanted != found:
            return None
    return names


def _decoded(segment: str) -> str:
    """Decode a segment. A plus is a space, as Java clients encode it; all clients encode a plus itself."""
    try:
        return unquote_plus(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"{segment[:100]!r} in the path is not UTF-8: percent-encode names in UTF-8", key="path.invalid"
        ) from None
