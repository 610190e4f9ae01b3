"""The pages of the explorer: functions that return what a page shows, as plain data.

home         the home page: what is here, what changed, what is broken, what is used most
overview     catalogs, search, and the health of the lake
branches     branches of the lake, and what they have changed
objects      tables and views, by their tabs
activity     who changed what, and the history of queries
jobs         connectors, pipelines, and the jobs that they start
operations   queries, webhooks, accounts, tokens, access, the audit log, settings
editor       SQL that runs on the server
tree         what is in a catalog or namespace, for the tree on the left side
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from starlette.responses import Response

from skiway.foundation.resources import PLAIN
from skiway.web.forms import showing
from skiway.web.pages import activity, branches, editor, home, jobs, operations, overview, tree
from skiway.web.pages.objects import tables, views
from skiway.web.visits import Page, Redirect, Visit

__all__ = ["PAGES", "Show"]

Show: TypeAlias = Callable[[Visit], Page | Redirect | Response]

PAGES: Final[Mapping[tuple[str, str], Show]] = {
    ("GET", ""): home.home,
    ("GET", "search"): overview.search,
    ("GET", "tree"): tree.tree,
    ("GET", "catalogs"): overview.catalog,
    ("GET", "branches"): branches.branches,
    ("GET", "tables"): tables.table,
    ("POST", "tables"): tables.maintain,
    ("GET", "views"): views.view,
    ("GET", "connectors"): jobs.connectors,
    ("POST", "connectors"): jobs.change_connector,
    ("GET", "pipelines"): jobs.pipelines,
    ("POST", "pipelines"): jobs.run_pipeline,
    ("GET", "jobs"): jobs.jobs,
    ("POST", "jobs"): jobs.cancel_job,
    ("GET", "progress"): jobs.progress,
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
