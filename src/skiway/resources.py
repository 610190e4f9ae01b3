"""The kinds of resources that an account has by name. The messages of `proto/skiway/v1` are the model; what they cannot
say is here: who may manage a kind of resource, which fields people set, and how these are named, explained and protected.

From both, the metastore derives its calls, gRPC its services, the client its collections, the command line its commands,
setup files their sections, and the explorer its lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if (
    TYPE_CHECKING
):  # the help of the command line needs no messages, whose import takes longer than everything else in it
    from google.protobuf.message import Message

__all__ = ["WEBHOOK", "Field", "Resource"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that people set. `name` is that of the spec."""

    name: str
    help: str
    type: type = str
    """The type, or that of the items of a list."""
    many: bool = False
    """Whether it is a list."""
    required: bool = False
    """Whether a new resource needs it; then it can be changed, but not cleared."""
    argument: bool = False
    """Whether the command line takes it by its position."""
    option: str = ""
    """The option of the command line, if it has another name: `--event`, or `--pause/--resume`."""
    is_secret: bool = False
    """Whether it is stored in the secrets store, and is never returned."""
    is_address: bool = False
    """Whether it decides where the secret is sent. Whoever changes it has to give the secret again."""
    is_set: bool = False
    """Whether the order of its items means nothing."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of resource. `columns` are those of lists, by the names of the client's record."""

    name: str
    about: str
    permission: str
    fields: tuple[Field, ...]
    columns: tuple[str, ...]
    delete: str
    """What a deletion also deletes, in words for people."""

    @property
    def plural(self) -> str:
        """The name of several."""
        return f"{self.name.removesuffix('y')}ies" if self.name.endswith("y") else f"{self.name}s"

    @property
    def title(self) -> str:
        """The name in names of messages and methods: `Webhook` in `GetWebhookRequest`."""
        return self.name.title()

    @property
    def number(self) -> Any:
        """The kind in ids."""
        from skiway.model import v1

        return v1.ResourceKind.Value(f"RK_{self.name.upper()}")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the fields that are secrets."""
        return tuple(field.name for field in self.fields if field.is_secret)

    @property
    def required(self) -> frozenset[str]:
        """The names of the fields that every resource has."""
        return frozenset(("display_name", *(field.name for field in self.fields if field.required)))

    @property
    def service(self) -> Any:
        """The service with the methods for this kind."""
        found: Any = self.spec.DESCRIPTOR.file.services_by_name[f"{self.title}Service"]
        return found

    @property
    def spec(self) -> type[Message]:
        """The message with the fields that can be set."""
        return self.message("{}Spec")

    def message(self, name: str) -> type[Any]:
        """The message of a name in which `{}` stands for the kind: `Get{}Request`, or `List{}sRequest` for several."""
        from skiway.model import v1

        several = self.plural.title()
        found: type[Any] = getattr(v1, name.replace("{}s", several).replace("{}", self.title))
        return found


DESCRIPTION: Final = Field("description", "Description for users.")

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
    delete="its secret and its dead letters",
)
