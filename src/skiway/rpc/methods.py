"""Methods as they are served: their descriptors from `proto/skiway/v1`, and a rule for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from skiway.metastore import Realm
from skiway.metastore.records.named import NamedCalls
from skiway.requests import Operation

__all__ = ["Act", "Method", "Rule", "Service", "changes", "reads", "service_of"]

Act = Callable[[Realm, Any], Message | Iterator[Message]]
"""A function of the metastore. It takes a message, or an iterator of messages where the client streams, and returns the
same where the server does."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The function behind a method, the permissions of which a caller needs one, and whether it changes anything.

    If `by_object`, the function checks each object that it returns, of whatever kind.
    """

    act: Act
    permissions: tuple[str, ...]
    changes: bool
    by_object: bool = False


def reads(act: Act, *any_of: str, by_object: bool = False) -> Rule:
    """A rule for a method that changes nothing."""
    return Rule(act, any_of, changes=False, by_object=by_object)


def changes(act: Act, *any_of: str) -> Rule:
    """A rule for a method that may change something, and is retried when it lost a race."""
    return Rule(act, any_of, changes=True)


@dataclass(frozen=True, slots=True)
class Method:
    """One method as it is served."""

    name: str
    service: Service
    rule: Rule
    operation: Operation
    request: type[Message]
    streamed: bool
    """Whether the client sends many messages."""
    answers_many: bool = False
    """Whether the server sends many messages."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service. Its calls are audited as `category`. Only where `for_platform` is set may a caller be without account."""

    descriptor: ServiceDescriptor
    category: str
    rules: Mapping[str, Rule]
    for_platform: bool = False

    @property
    def name(self) -> str:
        """Such as `TableService`."""
        return self.descriptor.name

    @property
    def full_name(self) -> str:
        """As in the path of a call, such as `skiway.v1.TableService`."""
        return self.descriptor.full_name

    def methods(self) -> Iterator[Method]:
        """Its methods, in the order of `rules`."""
        for name, rule in self.rules.items():
            described: MethodDescriptor = self.descriptor.methods_by_name[name]
            request = GetMessageClass(described.input_type)
            operation = Operation(
                self.name,
                name,
                self.category,
                rule.permissions,
                needs_account=not self.for_platform,
                counts_as="queries" if self.category == "query" else "calls",
                by_object=rule.by_object,
            )
            yield Method(
                name,
                self,
                rule,
                operation,
                request,
                streamed=described.client_streaming,
                answers_many=described.server_streaming,
            )


def service_of(calls: NamedCalls[Any], *, category: str = "", **more: Rule) -> Service:
    """The service for a kind of resource: the methods that all kinds have, and those that this one has in addition or
    instead.
    """
    resource, permission = calls.resource, calls.resource.permission
    read_permission = resource.read_permission or permission
    return Service(
        resource.service,
        category=category or resource.name,
        rules={
            f"List{resource.plural.title()}": reads(calls.list_, read_permission),
            f"Get{resource.title}": reads(calls.get, read_permission),
            f"Create{resource.title}": changes(calls.create, permission),
            f"Update{resource.title}": changes(calls.update, permission),
            f"Delete{resource.title}": changes(calls.delete, permission),
            **more,
        },
    )
