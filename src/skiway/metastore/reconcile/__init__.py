"""Reconciliation: mirrors the tables of a connector's upstream in the metastore.

`Reconciler` runs passes over a connector; `validate` checks a connector before it is stored.
"""

from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler, capture
from skiway.metastore.reconcile.upstream import validate
