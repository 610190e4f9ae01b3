"""Methods as they are served: what the descriptors of `proto/skiway/v1` say of them, and the rule for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from skiway.metastore import Realm

__all__ = ["Act", "Method", "Rule", "Service", "changes", "reads"]

Act = Callable[[Realm, Any], Message | Iterator[Message]]
"""A function of the metastore. What it is given is a message, or, where the client streams, an iterator of them; so is
what it answers where the server does."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a method does: the function, any one of these permissions to call it, and whether it changes anything."""

    act: Act
    permissions: tuple[str, ...]
    changes: bool


def reads(act: Act, *any_of: str) -> Rule:
    """A method that changes nothing."""
    return Rule(act, any_of, changes=False)


def changes(act: Act, *any_of: str) -> Rule:
    """A method that may change something, and is tried again when it lost a race."""
    return Rule(act, any_of, changes=True)


@dataclass(frozen=True, slots=True)
class Method:
    """One method as it is served."""

    name: str
    service: Service
    rule: Rule
    request: type[Message]
    streamed: bool
    """Does the client send many messages?"""
    answers_many: bool = False
    """Does the server?"""

    @property
    def operation(self) -> str:
        """What logs, metrics and audit call it, such as `TableService/GetTable`."""
        return f"{self.service.name}/{self.name}"


@dataclass(frozen=True, slots=True)
class Service:
    """One service. Its calls are audited as `category`; only where `for_platform` may a caller be without an account."""

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
        """Its methods, in the order of the table."""
        for name, rule in self.rules.items():
            described: MethodDescriptor = self.descriptor.methods_by_name[name]
            request = GetMessageClass(described.input_type)
            yield Method(
                name,
                self,
                rule,
                request,
                streamed=described.client_streaming,
                answers_many=described.server_streaming,
            )
