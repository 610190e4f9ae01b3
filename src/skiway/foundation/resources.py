r"""The kinds of resources that an account has by name, and the schema names of its namespaces.

The messages of `proto/skiway/v1` are the model. This module adds what they cannot say: who may manage a kind of resource,
which fields people set, and how these are named, explained and protected. From both, the metastore derives its calls, gRPC
its services, the client its collections, the command line its commands, setup files their sections, and the explorer its
lists.

DuckDB knows a namespace by a schema name. Each namespace path has exactly one:

    ("sales", "eu")     sales.eu
    ("v1.2", "main")    v1\.2.main   a dot in a name has a backslash before it
    ("main",)           main_        DuckDB lists a schema `main`, but cannot look up tables in it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from google.protobuf.message import Message


@dataclass(frozen=True, slots=True)
class Field:
    """A field that people set. `name` is that of the client, and of the spec unless the client converts it."""

    name: str
    help: str
    type: type = str
    """The type, or that of the items of a list. Commands take a dict of texts as `KEY=VALUE`, if this is the metavar."""
    many: bool = False
    """Whether it is a list."""
    required: bool = False
    """Whether a new resource needs it; then it can be changed, but not cleared."""
    argument: bool = False
    """Whether the command line takes it by its position."""
    option: str = ""
    """The option of the command line, if it has another name: `--event`, or `--pause/--resume`."""
    metavar: str = ""
    """What stands for the value in the help of the command line, if it is not the name."""
    choices: tuple[str, ...] = ()
    """The only values, if they are few."""
    is_secret: bool = False
    """Whether it is stored in the secrets store, and is never returned."""
    is_address: bool = False
    """Whether it decides where the secret is sent. A caller who changes it must give the secret again."""
    is_set: bool = False
    """Whether the order of its items means nothing."""


@dataclass(frozen=True, eq=False)
class Resource:
    """A kind of resource. `columns` are those of lists, by the names of the client's record."""

    name: str
    about: str
    permission: str
    fields: tuple[Field, ...] = ()
    columns: tuple[str, ...] = ()
    delete: str = ""
    """What else a deletion changes, in a sentence for people."""
    create: str = ""
    """What people should know before they create one."""
    read_permission: str = ""
    """The permission to read them, if it is another one."""
    fixed: tuple[str, ...] = ()
    """The fields of the spec that only a creation sets."""
    parts: tuple[str, ...] = ()
    """The fields of the spec of which an update can change a part."""
    example: str = ""
    """A full name, if names belong to a hierarchy."""
    is_container: bool = False
    """Whether it contains other resources, which a deletion deletes only on request."""

    @cached_property
    def plural(self) -> str:
        """The name of several."""
        return f"{self.name.removesuffix('y')}ies" if self.name.endswith("y") else f"{self.name}s"

    @cached_property
    def title(self) -> str:
        """The name in names of messages and methods: `Webhook` in `GetWebhookRequest`."""
        return self.name.title()

    @cached_property
    def number(self) -> Any:
        """The kind in ids."""
        from skiway.model import v1

        return v1.ResourceKind.Value(f"RK_{self.name.upper()}")

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """The names of the fields that are secrets."""
        return tuple(field.name for field in self.fields if field.is_secret)

    @cached_property
    def required(self) -> frozenset[str]:
        """The names of the fields that every resource has."""
        return frozenset(("display_name", *(field.name for field in self.fields if field.required)))

    @cached_property
    def service(self) -> Any:
        """The service with the methods for this kind."""
        services = self.spec.DESCRIPTOR.file.services_by_name.values()
        return next(service for service in services if f"Create{self.title}" in service.methods_by_name)

    @cached_property
    def spec(self) -> type[Message]:
        """The message with the fields that can be set."""
        from skiway.model import v1

        found: type[Message] = getattr(
            v1, self.message("Create{}Request").DESCRIPTOR.fields_by_name["spec"].message_type.name
        )
        return found

    def path(self, name: str) -> str:
        """The path of a field of the spec in update masks: a choice between several fields has one path."""
        oneof = self.spec.DESCRIPTOR.fields_by_name[name].containing_oneof
        return name if oneof is None or len(oneof.fields) == 1 else str(oneof.name)

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths that update masks can have."""
        fields = self.spec.DESCRIPTOR.fields_by_name
        parts: Any = {part: fields[part].message_type for part in self.parts}
        inner = (f"{part}.{field.name}" for part, message in parts.items() for field in message.fields)
        return frozenset((*map(self.path, fields), *inner))

    @cache  # noqa: B019 - kinds live as long as the process
    def message(self, name: str) -> type[Any]:
        """The message of a name in which `{}` stands for the kind: `Get{}Request`, or `List{}sRequest` for several."""
        from skiway.model import v1

        several = self.plural.title()
        found: type[Any] = getattr(v1, name.replace("{}s", several).replace("{}", self.title))
        return found


DESCRIPTION: Final = Field("description", "Description for users.")
PROPERTIES: Final = Field("properties", "Property.", type=dict, many=True, option="--property", metavar="KEY=VALUE")

ACCOUNT: Final = Resource(
    "account", "Manage accounts, which own catalogs.", "account.write", read_permission="account.read"
)
PROTECTION: Final = (
    Field("protected", "Only merges of branches change what it contains.", type=bool, option="--protect/--unprotect"),
    Field("mergers", "Who may merge: user:<subject>, role:<name> or group:<name>.", many=True, option="--merger"),
    Field("required_rules", "A quality rule that must pass before a merge, or * for all.", many=True, option="--rule"),
)
"""How changes of a catalog are guarded. Without mergers, everybody who may write the catalog may merge."""

CATALOG: Final = Resource(
    "catalog",
    "Manage catalogs, the top level of names. DuckDB attaches a catalog by its name.",
    "catalog.write",
    fields=PROTECTION,
    columns=("name", "description", "created_at"),
    create="It is empty.",
    read_permission="catalog.read",
    example="lake",
    is_container=True,
)
NAMESPACE: Final = Resource(
    "namespace",
    "Manage namespaces, the hierarchy of names below a catalog. DuckDB calls them schemas.",
    "namespace.write",
    fields=(Field("catalog_id", "The catalog that contains it.", required=True),),
    columns=("name", "description", "created_at"),
    create="Missing parents are created, too.",
    read_permission="namespace.read",
    example="lake.sales or lake.sales.eu",
    is_container=True,
)
IN_NAMESPACE: Final = (
    Field("catalog_id", "The catalog that contains it.", required=True),
    Field("namespace_id", "The namespace that contains it.", required=True),
)
TABLE: Final = Resource(
    "table",
    "Show, describe, create, delete and maintain tables.",
    "table.write",
    fields=(
        *IN_NAMESPACE,
        Field("schema_json", "The schema in Iceberg's JSON form.", required=True),
        Field("upstream.uri", "Where a mirrored table is.", required=True),
    ),
    read_permission="table.read",
    parts=("upstream",),
)
SNAPSHOT: Final = Resource(
    "snapshot", "Show, roll back and delete snapshots of tables.", "table.write", read_permission="table.read"
)
VIEW: Final = Resource(
    "view",
    "Show, create and delete views.",
    "view.write",
    fields=(*IN_NAMESPACE, Field("sql_definitions", "The SQL, by dialect.", many=True, required=True)),
    read_permission="view.read",
)
CONNECTOR: Final = Resource(
    "connector",
    "Mirror tables from other catalogs and folders.",
    "connector.manage",
    fields=(
        Field("kind", "What the source is.", required=True),
        Field("uri", "Where the source is.", required=True),
    ),
    parts=("source", "destination", "policy", "auth"),
)

WEBHOOK: Final = Resource(
    "webhook",
    "Send events of the account to other systems over HTTP.",
    permission="webhook.manage",
    fields=(
        Field("url", "Address, such as https://example.org/hooks.", required=True, argument=True, is_address=True),
        Field("events", "Such as rule.failed, table.* or *.", many=True, required=True, option="--event", is_set=True),
        Field("secret", "Secret that signs requests.", required=True, is_secret=True),
        Field("paused", "Let events wait, or send them.", type=bool, option="--pause/--resume"),
        DESCRIPTION,
    ),
    columns=("name", "url", "events", "paused"),
    delete="Its secret and its dead letters are deleted, too.",
)

POLICY: Final = Resource(
    "policy",
    "Decide which rows of tables and views callers see, and what of their columns.",
    permission="policy.manage",
    fields=(
        Field(
            "to",
            "everyone, user:<subject>, group:<name> or role:<name>.",
            many=True,
            required=True,
            metavar="CALLER",
        ),
        Field(
            "on",
            "A catalog, namespace, table or view; without any, the whole account.",
            many=True,
            metavar="OBJECT",
        ),
        Field(
            "exceptions",
            "A caller, group or role that it does not restrict.",
            many=True,
            option="--except",
            metavar="CALLER",
        ),
        Field(
            "row_filter",
            "The rows that callers see, such as \"region = caller('region')\".",
            option="--filter",
            metavar="SQL",
        ),
        Field("mask", "What callers see instead of the values.", choices=("null", "hash", "partial")),
        Field("mask_sql", "An expression over the row that callers see instead of the values.", metavar="SQL"),
        Field(
            "columns",
            "A column to mask; * stands for any characters.",
            many=True,
            option="--column",
            metavar="NAME",
        ),
        Field("tags", "The columns with this tag, such as pii.", many=True, option="--tag"),
        DESCRIPTION,
    ),
    columns=("name", "on", "subjects", "row_filter", "mask", "columns", "tags"),
    delete="Callers see the original rows and values again.",
    create="It holds from the next statement on, after the server has checked its expression. Row filters and masks are SQL "
    "over the columns of one row; caller('subject'), caller('roles'), caller('groups') and caller('<claim>') are the caller's.",
)

RULE: Final = Resource(
    "rule",
    "Define what must hold for the data of tables, and check it.",
    permission="table.write",
    read_permission="table.read",
    fields=(
        Field("check", "What must hold, by its kind.", type=dict, required=True),
        Field("severity", "A warning does not make check fail.", choices=("error", "warning")),
        Field("estimates_only", "Never read rows, even if statistics do not decide.", type=bool),
        DESCRIPTION,
    ),
    columns=("name", "table", "kind", "severity", "status", "observed"),
    delete="Its results are deleted, too.",
    fixed=("table_id",),
)

PIPELINE: Final = Resource(
    "pipeline",
    "Derive tables from other tables by queries and Python functions in files.",
    permission="connector.manage",
    fields=(Field("files", "Texts by path.", type=dict),),
    columns=("name", "owner", "files", "updated_at"),
    delete="Its tables stay, and are no longer refreshed.",
)

PLAIN: Final[tuple[Resource, ...]] = ()
"""The kinds that need no code of their own, as all doors derive what they offer. CONTRIBUTING.md shows how to add one."""

RESOURCES: Final = (POLICY, RULE, WEBHOOK, PIPELINE, *PLAIN)


_MAIN: Final = re.compile(r"main_*", re.IGNORECASE)
_PART: Final = re.compile(r"(?:[^.\\]|\\[.\\])+")


def schema_name(path: Sequence[str]) -> str:
    r"""The schema name of a namespace, which is unique.

    >>> schema_name(["sales", "v1.2"])
    'sales.v1\\.2'
    """
    name = ".".join(segment.replace("\\", "\\\\").replace(".", "\\.") for segment in path)
    return f"{name}_" if _MAIN.fullmatch(name) else name


def namespace_path(name: str) -> tuple[str, ...]:
    r"""The path of the namespace with the schema name `name`.

    >>> namespace_path("sales.v1\\.2")
    ('sales', 'v1.2')
    """
    plain = name[:-1] if _MAIN.fullmatch(name) and name.endswith("_") else name
    parts = _PART.findall(plain)
    if not parts or ".".join(parts) != plain:
        raise InvalidArgument(
            f"{name!r} is not a schema name: write a.b for namespace b in a, and put a backslash before a dot or backslash "
            "that is part of a name",
            key="schema.name",
        )
    return tuple(re.sub(r"\\(.)", r"\1", part) for part in parts)
