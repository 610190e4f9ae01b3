"""Configuration as code: the catalogs, connectors, views, policies, quality rules and grants of an account in one YAML file.

`declarations` are the objects that a file can declare; the JSON schema follows from them. `reading` turns a file into
declarations and reports mistakes with their lines, and `forms` writes them. `exporting` reads the same declarations from a
server, and `messages` converts them. `planning` compares both, and `applying` makes the changes. Secrets are read by
`secrets` and sent to the server only.
"""

from skiway.setup.applying import apply
from skiway.setup.declarations import Setup
from skiway.setup.exporting import Actual, export, read_actual, read_rules
from skiway.setup.forms import schema_text, write
from skiway.setup.planning import Change, FieldChange, Plan, make_plan, only
from skiway.setup.reading import InvalidSetup, Loaded, checked, read

__all__ = [
    "Actual",
    "Change",
    "FieldChange",
    "InvalidSetup",
    "Loaded",
    "Plan",
    "Setup",
    "apply",
    "checked",
    "export",
    "make_plan",
    "only",
    "read",
    "read_actual",
    "read_rules",
    "schema_text",
    "write",
]
