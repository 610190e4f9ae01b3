"""Every page, tab and form of the explorer, and every tool and resource of the MCP server × callers.

Pages show less to some callers, instead of failing. So each row names a text that its page contains, and exactly those who may see
it must get it. All objects of the rows exist. Forms must be refused to everybody else, and then change nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pyarrow as pa
import pytest
from starlette.responses import Response

from authorization.callers import CALLERS, RESTRICTED, ROLES_ONLY, Caller, Least
from authorization.worlds import RUNNING_QUERY, SCHEMA, World, Worlds, copied, unchanged
from rpc.requests import CLEAN, FILES, ROWS, SIGNING, URL, connector_spec
from skiway.client import AirportClient
from skiway.config import Settings
from skiway.errors import NotFound, PermissionDenied, SkiwayError, Unauthorized
from skiway.lake import Handles, Sources, airport_service
from skiway.mcp.server import mcp_server
from skiway.metastore import Realm, connectors, jobs, quality, tables, webhooks
from skiway.metastore.pipelines import api as pipelines
from skiway.metastore.pipelines.inputs import owner_realm
from skiway.metastore.queries.history import FinishedQuery, add_finished
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.resources import catalogs, namespaces
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.transactions import StagingArea
from skiway.model import v1
from skiway.presentation.results import OpenClients
from skiway.request_path import Observers
from skiway.rpc import Door, all_services
from skiway.security import MemorySecrets
from skiway.security.tokens import new_token
from skiway.web import Explorer
from skiway.web.forms.showing import FORMS, REMOVALS
from skiway.web.logins import CALLBACK
from skiway.web.pages import PAGES
from skiway.web.pages.objects.tables import TABS, TASKS
from skiway.web.rendering import json_text
from skiway.web.visits import Clients, Page, Visit, Visitor

ADMINISTRATOR: Final = "administrator"
ALL: Final = {caller.name: caller for caller in (*CALLERS, RESTRICTED)}
READERS: Final = [
    ALL[name]
    for name in ("nobody", "stranger", "default", ADMINISTRATOR, "member", "read on table", "manage on elsewhere")
]
WRITERS: Final = [*READERS, ALL["write on table"], ALL["manage on catalog"]]
REFUSALS: Final = (NotFound, PermissionDenied, Unauthorized)

VALUE: Final = "Grace"
"""A value in a row that policies hide from the restricted caller."""

QUERY: Final = "SELECT name FROM lake.sales.people WHERE id = 2"
PEOPLE: Final = ("lake", "sales", "people")
ON_BRANCH: Final = ("lake@dev", "sales", "people")
READ_TABLE, READ_NAMESPACE = Least("read", "table"), Least("read", "namespace")
WRITE_TABLE, MANAGE_TABLE = Least("write", "table"), Least("manage", "table")
WRITE_CATALOG: Final = Least("write", "catalog")


@dataclass(frozen=True)
class Row:
    """A text that a page `shows` to callers with a permission or a privilege, and whether to one whom policies restrict.

    Names and texts that begin with `$` are ids, by the name of what they identify.
    """

    shows: str
    permission: str = "table.read"
    least: Least | None = READ_TABLE
    names: tuple[str, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    is_hidden_by_policies: bool = False


def tab(name: str, shows: str, **more: Any) -> Row:
    return Row(shows, names=PEOPLE, query={"tab": name}, **more)


def by_role(permission: str, shows: str, *names: str) -> Row:
    return Row(shows, permission, ROLES_ONLY, names)


TAB_ROWS: Final[dict[str, Row]] = {
    "columns": tab("columns", '"small"'),
    "rows": tab("rows", VALUE, is_hidden_by_policies=True),
    "snapshots": tab("snapshots", '"append"'),
    "statistics": tab("statistics", '"lake.sales.people"'),
    "files": tab("files", ".parquet", is_hidden_by_policies=True),
    "lineage": tab("lineage", '"lake.sales.people"'),
    "plans": tab("plans", '"lake.sales.people"'),
    "quality": tab("quality", "canary rule", is_hidden_by_policies=True),
    "health": tab("health", '"decisions"'),
    "access": tab("access", "user:write on table", permission="grant.manage", least=MANAGE_TABLE),
    "connect": tab("connect", "ATTACH"),
}
PAGE_ROWS: Final[dict[str, list[Row]]] = {
    "": [Row('"people"', "catalog.read")],
    "search": [Row('"people"', "catalog.read", query={"q": "PEOPLE"})],
    **{
        kind: [
            row
            for catalog in ("lake", "lake@dev")
            for row in (
                Row('"sales"', "catalog.read", names=(catalog,)),
                Row('"people"', names=(catalog, "sales")),
                Row('"orders"', least=READ_NAMESPACE, names=(catalog, "sales")),
            )
        ]
        for kind in ("catalogs", "tree")
    },
    "branches": [
        *(Row('"lake@dev"', "catalog.read", names=names) for names in ((), ("lake",))),
        Row('"sales.people"', names=("lake@dev",)),
    ],
    "tables": [
        *TAB_ROWS.values(),
        Row('"small"', names=ON_BRANCH, query={"tab": "columns"}),
        Row(VALUE, names=ON_BRANCH, query={"tab": "rows"}, is_hidden_by_policies=True),
        Row(".parquet", names=ON_BRANCH, query={"tab": "files"}, is_hidden_by_policies=True),
    ],
    "views": [Row("SELECT 1", "view.read", READ_NAMESPACE, (each, "sales", "adults")) for each in ("lake", "lake@dev")],
    "connectors": [by_role("connector.manage", "canary-source", *names) for names in ((), ("files",))],
    "pipelines": [
        by_role("connector.manage", "derived"),
        by_role("connector.manage", FILES["copy.sql"], "derived"),
    ],
    "jobs": [by_role("connector.manage", "$job", *names) for names in ((), ("$job",))],
    "queries": [by_role("grant.manage", "$query")],
    "events": [Row('"people"', "catalog.read")],
    "webhooks": [by_role("webhook.manage", URL, *names) for names in ((), ("hook",))],
    "settings": [by_role("grant.manage", "quotas.caller.calls")],
    "health": [by_role("connector.manage", "2 jobs wait"), Row("lake.sales.orders", least=READ_NAMESPACE)],
    "accounts": [by_role("account.read", '"account a1"')],
    "tokens": [by_role("grant.manage", "canary token")],
    "audit": [by_role("grant.manage", "canary operation")],
    "access": [Row("user:write on table", "grant.manage", MANAGE_TABLE)],
    "policies": [by_role("policy.manage", "1 = 2")],
    "sql": [Row(VALUE, query={"sql": QUERY, "catalog": "lake"}, is_hidden_by_policies=True)],
    "results": [Row(VALUE, query={"sql": QUERY, "catalog": "lake", "format": "csv"}, is_hidden_by_policies=True)],
    "run": [Row(VALUE, query={"sql": QUERY, "catalog": "lake", "run": "0123456789"}, is_hidden_by_policies=True)],
    "complete": [Row('"small"', query={"sql": "FROM sales.people", "q": "x", "catalog": "lake"})],
    "history": [by_role("grant.manage", '"canary query"')],
}
WITHOUT_DATA: Final = {"new", "delete", "progress"}
"""Pages that show nothing of the lake, or as a stream, which has a test of its own."""


@dataclass(frozen=True)
class Form:
    """What a form is about, and who may send it."""

    names: tuple[str, ...]
    permission: str = "connector.manage"
    least: Least | None = ROLES_ONLY
    fields: Mapping[str, str] = field(default_factory=dict)
    changes: bool = True
    names_nothing: bool = False
    """Whether it refers to nothing in the account, so that callers of other accounts may send it, for theirs."""


def new(
    form: str, permission: str, least: Least | None = ROLES_ONLY, /, *, action: str = "make", **fields: str
) -> Form:
    return Form((form,), permission, least, {"action": action, **fields}, changes=action == "make")


POLICY: Final = {
    "on": "lake.sales.people",
    "to": "user:bob",
    "rule": "mask: null",
    "columns": "name",
    "preview": "lake.sales.people",
    "as": "bob",
}
SOURCE: Final = {"kind": "parquet", "uri": "s3://canary-source/y", "catalog": "lake"}
FORM_ROWS: Final[dict[tuple[str, str], Form]] = {
    **{("tables", action): Form(PEOPLE, "table.write", WRITE_TABLE) for action in TASKS},
    **{("connectors", action): Form(("files",)) for action in ("sync", "pause", "resume")},
    **{("pipelines", action): Form(("derived",)) for action in ("run", "refresh")},
    ("jobs", ""): Form(("$job",)),
    ("queries", ""): Form(("$query",), "grant.manage"),
    **{
        ("webhooks", action): Form(("hook",), permission="webhook.manage")
        for action in ("pause", "resume", "redeliver")
    },
    ("new", "grant"): new(
        *("grant", "grant.manage", MANAGE_TABLE),
        kind="table",
        object="lake.sales.people",
        grantee="user:bob",
        privilege="read",
    ),
    ("new", "policy"): new("policy", "policy.manage", name="new one", **POLICY),
    ("new", "policy preview"): new("policy", "policy.manage", action="preview", **POLICY),
    ("new", "tag"): new("tag", "policy.manage", table="lake.sales.people", column="name", tags="x"),
    ("new", "comment"): new("comment", "table.write", WRITE_TABLE, kind="table", object="lake.sales.people", text="x"),
    ("new", "view"): new("view", "view.write", Least("write", "namespace"), name="lake.sales.v", sql="SELECT 1 AS a"),
    ("new", "rule"): new(
        "rule", "table.write", WRITE_TABLE, name="r", table="lake.sales.people", kind="row_count", min="1"
    ),
    ("new", "webhook"): replace(
        new("webhook", "webhook.manage", name="other", url=URL, events="*", secret=SIGNING), names_nothing=True
    ),
    ("new", "connector"): new("connector", "connector.manage", name="other", **SOURCE),
    ("new", "connector test"): replace(
        new("connector", "connector.manage", action="test", name="other", **SOURCE), names_nothing=True
    ),
    ("new", "branch"): new("branch", "namespace.write", WRITE_CATALOG, name="lake@other", kind="branch"),
    ("new", "merge"): new("merge", "namespace.write", WRITE_CATALOG, name="lake@dev"),
    ("new", "merge plan"): new("merge", "namespace.write", WRITE_CATALOG, action="plan", name="lake@dev"),
    ("new", "schedule"): new("schedule", "connector.manage", name="files", every="3h"),
    ("delete", "grant"): Form(
        ("grant", "lake.sales.people", "user:write on table", "table"), "grant.manage", MANAGE_TABLE
    ),
    ("delete", "policy"): Form(("policy", "no names"), "policy.manage"),
    ("delete", "rule"): Form(("rule", "canary rule"), "table.write", WRITE_TABLE),
    ("delete", "webhook"): Form(("webhook", "hook"), "webhook.manage"),
    ("delete", "connector"): Form(("connector", "files")),
    ("delete", "branch"): Form(("branch", "lake@dev"), "catalog.write", Least("manage", "catalog")),
    ("delete", "view"): Form(("view", "lake.sales.adults"), "view.write", Least("write", "namespace")),
}
TOOL_ROWS: Final[dict[str, tuple[dict[str, Any], Row]]] = {
    "search_tables": ({"text": "PEOPLE"}, Row("lake.sales.people", "catalog.read")),
    "describe_table": ({"name": "lake.sales.people"}, Row("small")),
    "sample_rows": ({"name": "lake.sales.people"}, Row(VALUE, is_hidden_by_policies=True)),
    "run_sql": ({"sql": QUERY, "catalog": "lake"}, Row(VALUE, is_hidden_by_policies=True)),
    "explain_sql": ({"sql": QUERY, "catalog": "lake"}, Row("Projections")),
}
RESOURCE_ROWS: Final[dict[str, tuple[str, Row]]] = {
    "skiway://{catalog}": ("skiway://lake", Row("people", "catalog.read")),
    "skiway://{catalog}/{schema}/{table}": ("skiway://lake/sales/people", Row("small")),
}


@dataclass
class Site:
    """A server with all gRPC services, and clients of it that act for visitors."""

    worlds: Worlds
    clients: Clients
    location: str
    ids: Mapping[str, str]

    def filled(self, text: str) -> str:
        return self.ids[text[1:]] if text.startswith("$") else text

    def visit(self, caller: Caller, names: tuple[str, ...], **more: Any) -> Visit:
        return Visit(Visitor(caller.name), self.clients, tuple(map(self.filled, names)), **more)

    def page(self, kind: str, row: Row, caller: Caller) -> str:
        """What a page shows; nothing if it is refused."""
        try:
            shown = PAGES["GET", kind](self.visit(caller, row.names, query=row.query))
        except REFUSALS:
            return ""
        if isinstance(shown, Response):
            return bytes(shown.body).decode()
        assert not hasattr(shown, "to"), "pages do not redirect"
        return json_text({name: value for name, value in shown.data.items() if name not in row.query})


def is_allowed(row: Row | Form, caller: Caller) -> bool:
    return caller.account_id == "a1" and (caller.has_role_for([row.permission]) or caller.has_grant_for(row.least))


def filled_world(worlds: Worlds) -> dict[str, str]:
    """Add an object for every page and form, and return the ids of those without a name."""
    realm, secrets = Realm(worlds.now.stores, "a1"), MemorySecrets()
    catalog = catalogs.find(realm, "lake")
    assert catalog is not None
    sales = namespaces.lookup(realm, catalog.value.resource_id, ["sales"])
    people = tables.find(realm, sales.resource_id.id, "people") if sales else None
    assert people is not None
    spec = connector_spec(display_name="files")
    spec.uri = "s3://canary-source/x"
    connector = connectors.create(realm, v1.CreateConnectorRequest(spec=spec), secrets=secrets).connector
    job = connectors.trigger(realm, v1.TriggerReconcileRequest(connector_id=connector.resource_id))
    jobs.enqueue(realm, v1.Job(table_id=people.resource_id, maintenance=CLEAN))
    hook = v1.WebhookSpec(display_name="hook", url=URL, events=["*"], secret=SIGNING)
    webhooks.calls(secrets, None).create(realm, v1.CreateWebhookRequest(spec=hook))
    ann = owner_realm(realm, v1.PipelineOwner(subject="ann", roles=[ADMINISTRATOR]))
    pipelines.CALLS.create(ann, v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=FILES)))
    rule = v1.QualityRuleSpec(display_name="canary rule", table_id=people.resource_id, check=ROWS)
    quality.CALLS.create(realm, v1.CreateRuleRequest(spec=rule))
    ran = FinishedQuery(
        started_at=1.8e9, query_id="q", caller="ada", door="airport", kind="query", text="canary query", duration_ms=1.0
    )
    add_finished(realm, [ran], kept=timedelta(days=1))
    return {"job": job.job_id, "query": RUNNING_QUERY}


def settings_in(folder: Path) -> Settings:
    """Settings with a token and a call of the account."""
    base = Settings()
    (folder / "tokens.toml").write_text(new_token("canary token", "a1").entry.toml())
    record = {"time": "2026-01-01T00:00:00Z", "operation": "canary operation", "account_id": "a1", "subject": "ada"}
    (folder / "catalog.log").write_text(
        json.dumps({**record, "outcome": "ok", "duration_ms": 1, "correlation_id": "x"})
    )
    return replace(
        base,
        auth=replace(base.auth, tokens=replace(base.auth.tokens, file=folder / "tokens.toml")),
        audit=replace(base.audit, enabled=True, directory=folder),
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    worlds, secrets = Worlds(tmp_path_factory.mktemp("matrix")), MemorySecrets()
    settings = settings_in(tmp_path_factory.mktemp("settings"))
    service = airport_service(
        worlds.access, handles=Handles(Sources(secrets), worlds.warehouse), key=b"k" * 32, settings=settings
    )
    area, staging = MaintenanceArea(worlds.warehouse), StagingArea(worlds.warehouse)
    services = all_services(
        reconciler=Reconciler(secrets, warehouse=worlds.warehouse), staging=staging, maintenance=area
    )
    server = grpc.server(ThreadPoolExecutor(4))
    service.add_to(server)
    Door(worlds.access, Observers(), services=services).add_to(server)
    location = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with AirportClient(location, "lake", token=ADMINISTRATOR) as owner:
        owner.insert("sales.people", pa.table({"id": [1, 2], "name": ["Ada", VALUE], "small": [1, 2]}, SCHEMA))
    with AirportClient(location, "lake@dev", token=ADMINISTRATOR) as dev:
        dev.insert("sales.people", pa.table({"id": [3], "name": [VALUE], "small": [3]}, SCHEMA))
    ids = filled_world(worlds)
    worlds._first = World(copied(worlds.now.stores))
    opened = OpenClients(location)
    clients = Clients(
        lambda visitor: opened.metastore(visitor.token),
        lambda visitor, catalog: opened.airport(visitor.token, catalog),
        lambda: location,
        lambda visitor, catalog, query_id: opened.for_query(visitor.token, catalog, query_id),
    )
    yield Site(worlds, clients, location, ids)
    server.stop(0).wait()
    service.close()


# --- rules ------------------------------------------------------------------------------------------------------------


def explorer(clients: Any = None) -> Explorer:
    ended: Any = set()
    return Explorer(clients, key=lambda: b"k" * 32, ended=ended)


def test_every_page_tab_and_route_has_a_rule() -> None:
    assert PAGE_ROWS.keys() | WITHOUT_DATA == {kind for method, kind in PAGES if method == "GET"}, "add it to PAGE_ROWS"
    assert TAB_ROWS.keys() == TABS.keys(), "add the new tab to TAB_ROWS"
    routes = {(route.path, *sorted(getattr(route, "methods", None) or ())) for route in explorer()._app.routes}  # type: ignore[attr-defined]
    assert routes == {
        ("/static",),
        ("/login", "GET", "HEAD", "POST"),
        ("/login/provider", "GET", "HEAD"),
        (CALLBACK, "GET", "HEAD"),
        ("/logout", "POST"),
        ("/{path:path}", "GET", "HEAD", "POST"),
    }, "a route besides PAGES needs tests of its own"


def forms_in_templates() -> set[tuple[str, str]]:
    """The kinds of pages that forms are sent to, and their actions. Those of tables are computed."""
    texts = [each.read_text() for each in (files("skiway.web") / "templates").iterdir()]
    forms = [form for text in texts for form in re.findall(r'<form[^>]*method="post".*?</form>', text, re.DOTALL)]
    found = set()
    for form in forms:
        kind = re.search(r"path_to\('(\w+)'", form)
        if kind is None:
            assert re.search(r'action="/(login|logout)"', form), form
            continue
        if kind[1] in ("new", "delete"):
            shown: dict[str, Any] = {"new": FORMS, "delete": REMOVALS}
            found |= {(kind[1], name) for name in shown[kind[1]]}
            found |= {("new", f"{name} {act}") for name, each in FORMS.items() for act in each.act if kind[1] == "new"}
            continue
        for action in re.findall(r'name="action" value="([^"]*)"', form) or [""]:
            found |= {(kind[1], each) for each in (TASKS if action.startswith("{{") else [action])}
    return found


def test_every_form_has_a_rule() -> None:
    assert {kind for kind, _ in FORM_ROWS} == {kind for method, kind in PAGES if method == "POST"}
    assert FORM_ROWS.keys() == forms_in_templates(), "add the new form to FORM_ROWS"


def test_every_tool_and_resource_has_a_rule(site: Site) -> None:
    server = mcp_server(site.location, lambda _: "")
    assert TOOL_ROWS.keys() == {each.name for each in asyncio.run(server.list_tools())}
    assert RESOURCE_ROWS.keys() == {str(each.uri_template) for each in asyncio.run(server.list_resource_templates())}
    assert not asyncio.run(server.list_resources())
    assert not asyncio.run(server.list_prompts())


# --- pages ------------------------------------------------------------------------------------------------------------

EVERY_PAGE: Final = [(kind, row) for kind, rows in PAGE_ROWS.items() for row in rows]


def _label(value: Any) -> str:
    if isinstance(value, Row):
        return value.query.get("tab") or "/".join(value.names) or "all"
    return str(value) or "home"


@pytest.mark.parametrize(("kind", "row"), EVERY_PAGE, ids=_label)
def test_page(kind: str, row: Row, site: Site) -> None:
    for caller in [*READERS, RESTRICTED]:
        allowed = is_allowed(row, caller) and not (caller is RESTRICTED and row.is_hidden_by_policies)
        shown = site.page(kind, row, caller)
        assert (site.filled(row.shows) in shown) == allowed, f"{kind} by {caller}: {shown[:2000]}"
        assert "hidden" not in shown or caller.has_role_for(["table.read"]) or "elsewhere" in caller.grants


@pytest.mark.parametrize(("kind", "action"), FORM_ROWS)
def test_form(kind: str, action: str, site: Site) -> None:
    row = FORM_ROWS[kind, action]
    for caller in WRITERS:
        error: SkiwayError | None = None
        allowed = is_allowed(row, caller) or (row.names_nothing and caller.has_role_for([row.permission]))
        with unchanged(site.worlds, allowed=allowed, changes=row.changes):
            try:
                shown = PAGES["POST", kind](site.visit(caller, row.names, form={"action": action, **row.fields}))
                if isinstance(shown, Page) and shown.status == 400:
                    error = NotFound(shown.data["error"])
            except SkiwayError as raised:
                error = raised
            assert (error is None) == allowed, f"{kind} {action} by {caller}: {error!r}"
            assert error is None or isinstance(error, REFUSALS), f"{kind} {action} by {caller}: {error!r}"


def test_progress_is_streamed_to_those_who_may_see_the_job(site: Site) -> None:
    row = by_role("connector.manage", "", "$job")
    for caller in [*READERS, RESTRICTED]:
        try:
            assert isinstance(PAGES["GET", "progress"](site.visit(caller, row.names)), Response)
            error = None
        except REFUSALS as raised:
            error = raised
        assert (error is None) == is_allowed(row, caller), f"{caller}: {error!r}"


def test_forms_need_the_token_of_their_page(site: Site) -> None:
    """A page of another site must not send them."""

    async def sent() -> list[httpx.Response]:
        transport = httpx.ASGITransport(explorer(site.clients))
        async with httpx.AsyncClient(transport=transport, base_url="http://lake") as client:
            paths = ["/".join([kind, *map(site.filled, row.names)]) for (kind, _), row in FORM_ROWS.items()]
            posted = zip(paths, FORM_ROWS, strict=True)
            return [await client.post(f"/{path}", data={"action": action}) for path, (_, action) in posted]

    before = site.worlds.now.state()
    assert {answer.status_code for answer in asyncio.run(sent())} == {403}
    assert site.worlds.now.state() == before


# --- tools ------------------------------------------------------------------------------------------------------------


def checked(run: Callable[[str], Any], row: Row) -> None:
    for caller in [*READERS, RESTRICTED]:
        allowed = is_allowed(row, caller) and not (caller is RESTRICTED and row.is_hidden_by_policies)
        try:
            shown = str(run(caller.name))
        except Exception as error:  # noqa: BLE001 - the SDK wraps errors
            assert not allowed, f"{caller}: {error!r}"  # noqa: PT017
            continue
        assert (row.shows in shown) == allowed, f"{caller}: {shown[:2000]}"
        assert "hidden" not in shown or caller.has_role_for(["table.read"]) or "elsewhere" in caller.grants


@pytest.mark.parametrize("name", TOOL_ROWS)
def test_tool(name: str, site: Site) -> None:
    arguments, row = TOOL_ROWS[name]
    checked(lambda token: asyncio.run(mcp_server(site.location, lambda _: token).call_tool(name, arguments)), row)


@pytest.mark.parametrize("template", RESOURCE_ROWS)
def test_resource(template: str, site: Site) -> None:
    address, row = RESOURCE_ROWS[template]

    def read(token: str) -> str:
        server = mcp_server(site.location, lambda _: token)
        return str([each.content for each in asyncio.run(server.read_resource(address))])  # type: ignore[union-attr]

    checked(read, row)
