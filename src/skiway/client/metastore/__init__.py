"""The typed client of the metastore: `Metastore`, and the resources that it returns."""

from skiway.client.metastore.calls import Retries
from skiway.client.metastore.client import Metastore
from skiway.client.metastore.collection import KEEP, Listing
from skiway.client.metastore.connectors import Connector
from skiway.client.metastore.directory import Entry
from skiway.client.metastore.events import Event
from skiway.client.metastore.grants import Grant
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.names import Id, dotted
from skiway.client.metastore.pipelines import Pipeline, PlannedTable
from skiway.client.metastore.policies import Policy
from skiway.client.metastore.queries import Query, ScanBundle
from skiway.client.metastore.resources import Account, Catalog, Meta, Namespace, Table, TableStats, View
from skiway.client.metastore.rules import Rule, RuleResult
from skiway.client.metastore.search import Incomplete, LakeObject, SearchHit, SearchResult, Summary
from skiway.client.metastore.snapshots import Snapshot
from skiway.client.metastore.transactions import StagedRows, Transaction
from skiway.client.metastore.webhooks import DeadLetter, Webhook

__all__ = [
    "KEEP",
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
