"""The pages of the explorer: functions that return what a page shows, as plain data.

home         what the lake contains, and what changed
browsing     catalogs, namespaces, and search
tables       tables: columns, rows, snapshots, files, access, snippets
upkeep       the health of a table, and its maintenance
views        views and their dialects
operations   connectors, jobs, queries, events
pipelines    pipelines, their tables and runs
webhooks     where events are sent, and what was given up
access       accounts, tokens, grants, policies, the audit log
health       what fails, waits, is damaged, or lacks statistics
editor       SQL that runs on the server
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from starlette.responses import Response

from skiway.foundation.resources import PLAIN
from skiway.web.pages import (
    editor,
    operations,
    overview,
    tables,
)
from skiway.web.pages import (
    operations as access,
)
from skiway.web.pages import (
    operations as pipelines,
)
from skiway.web.pages import (
    operations as webhooks,
)
from skiway.web.pages import (
    tables as upkeep,
)
from skiway.web.visits import Page, Redirect, Visit

__all__ = ["PAGES", "Show"]

Show: TypeAlias = Callable[[Visit], Page | Redirect | Response]

PAGES: Final[Mapping[tuple[str, str], Show]] = {
    ("GET", ""): overview.home,
    ("GET", "search"): overview.search,
    ("GET", "catalogs"): overview.catalog,
    ("GET", "tables"): tables.table,
    ("POST", "tables"): upkeep.maintain,
    ("GET", "views"): overview.view,
    ("GET", "connectors"): operations.connectors,
    ("POST", "connectors"): operations.change_connector,
    ("GET", "pipelines"): pipelines.pipelines,
    ("POST", "pipelines"): pipelines.run_pipeline,
    ("GET", "jobs"): operations.jobs,
    ("POST", "jobs"): operations.cancel_job,
    ("GET", "queries"): operations.queries,
    ("POST", "queries"): operations.end_query,
    ("GET", "events"): operations.events,
    ("GET", "webhooks"): webhooks.webhooks,
    ("POST", "webhooks"): webhooks.change_webhook,
    ("GET", "settings"): operations.settings,
    ("GET", "health"): overview.health,
    ("GET", "accounts"): access.accounts,
    ("GET", "tokens"): access.tokens,
    ("GET", "audit"): access.audit,
    ("GET", "access"): access.access,
    ("GET", "policies"): access.policies,
    **{("GET", resource.plural): partial(operations.plain, resource=resource) for resource in PLAIN},
    ("GET", "sql"): editor.editor,
    ("GET", "results"): editor.download,
}
"""The page of each kind, which is the first part of the path. Pages with the method POST change something."""
