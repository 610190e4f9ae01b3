"""The typed client of the metastore: `Metastore`, and the resources that it returns."""

from skiway.client.metastore.calls import Id, Retries, dotted
from skiway.client.metastore.client import Metastore
from skiway.client.metastore.collection import Listing
from skiway.client.metastore.connectors import Connector, Pipeline, PlannedTable
from skiway.client.metastore.events import DeadLetter, Event, Webhook
from skiway.client.metastore.governance import Grant, Policy, Rule, RuleResult
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.resources import Account, Catalog, Meta, Namespace, Table, TableStats, View
from skiway.client.metastore.search import Entry, Incomplete, LakeObject, SearchHit, SearchResult, Summary
from skiway.client.metastore.snapshots import Snapshot
from skiway.client.metastore.transactions import Query, ScanBundle, StagedRows, Transaction

__all__ = [
    "Account",
    "Catalog",
    "Connector",
    "DeadLetter",
    "Entry",
    "Event",
    "Grant",
    "Id",
    "Incomplete",
    "Job",
    "LakeObject",
    "Listing",
    "Meta",
    "Metastore",
    "Namespace",
    "Pipeline",
    "PlannedTable",
    "Policy",
    "Query",
    "Retries",
    "Rule",
    "RuleResult",
    "ScanBundle",
    "SearchHit",
    "SearchResult",
    "Snapshot",
    "StagedRows",
    "Summary",
    "Table",
    "TableStats",
    "Transaction",
    "View",
    "Webhook",
    "dotted",
]
