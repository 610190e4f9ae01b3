"""The pages of the explorer: functions that return what a page shows, as plain data.

home         the home page: what is here, what changed, what is broken, what is used most
overview     catalogs, search, and the health of the lake
tables       a table: columns, files, statistics, health and maintenance; other tabs are in the modules
             rows, snapshots, lineage, and sharing (who can see it, and how other tools open it)
views        a view, with some of these tabs
activity     who changed what, and the history of queries
operations   connectors, pipelines, jobs, queries, webhooks; accounts, tokens, access, the audit log, settings
editor       SQL that runs on the server
tree         what is in a catalog or namespace, for the tree on the left side
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from starlette.responses import Response

from skiway.foundation.resources import PLAIN
from skiway.web.forms import showing
from skiway.web.pages import activity, editor, home, operations, overview, tables, tree, views
from skiway.web.visits import Page, Redirect, Visit

__all__ = ["PAGES", "Show"]

Show: TypeAlias = Callable[[Visit], Page | Redirect | Response]

PAGES: Final[Mapping[tuple[str, str], Show]] = {
    ("GET", ""): home.home,
    ("GET", "search"): overview.search,
    ("GET", "tree"): tree.tree,
    ("GET", "catalogs"): overview.catalog,
    ("GET", "tables"): tables.table,
    ("POST", "tables"): tables.maintain,
    ("GET", "views"): views.view,
    ("GET", "connectors"): operations.connectors,
    ("POST", "connectors"): operations.change_connector,
    ("GET", "pipelines"): operations.pipelines,
    ("POST", "pipelines"): operations.run_pipeline,
    ("GET", "jobs"): operations.jobs,
    ("POST", "jobs"): operations.cancel_job,
    ("GET", "progress"): operations.progress,
    ("GET", "queries"): operations.queries,
    ("POST", "queries"): operations.end_query,
    ("GET", "events"): activity.events,
    ("GET", "webhooks"): operations.webhooks,
    ("POST", "webhooks"): operations.change_webhook,
    ("GET", "settings"): operations.settings,
    ("GET", "health"): overview.health,
    ("GET", "accounts"): operations.accounts,
    ("GET", "tokens"): operations.tokens,
    ("GET", "audit"): operations.audit,
    ("GET", "access"): operations.access,
    ("GET", "policies"): operations.policies,
    **{("GET", resource.plural): partial(operations.plain, resource=resource) for resource in PLAIN},
    ("GET", "sql"): editor.editor,
    ("GET", "results"): editor.download,
    ("GET", "new"): showing.form,
    ("POST", "new"): showing.send_form,
    ("GET", "delete"): showing.ask_to_delete,
    ("POST", "delete"): showing.delete,
    ("GET", "run"): editor.run,
    ("GET", "history"): activity.history,
    ("GET", "complete"): editor.complete,
}
"""The page of each kind, which is the first part of the path. Pages with the method POST change something."""
