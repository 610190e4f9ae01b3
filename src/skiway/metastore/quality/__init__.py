"""Quality rules of tables, and their results.

The calls of `QualityService` are exported here. `rules` stores rules, `facts` collects what is known about a table, `verdicts`
decides, `results` stores what was decided, and `checks` does all of that.
"""

from skiway.metastore.quality.checks import after_profile, check, check_rows
from skiway.metastore.quality.checks import get as get_check
from skiway.metastore.quality.results import list_ as list_results
from skiway.metastore.quality.rules import create, delete, get, list_, scan, update

__all__ = [
    "after_profile",
    "check",
    "check_rows",
    "create",
    "delete",
    "get",
    "get_check",
    "list_",
    "list_results",
    "scan",
    "update",
]
