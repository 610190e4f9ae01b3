"""From whatever names a resource to its id."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.names import Id, Name, segments
from skiway.client.metastore.resources import Namespace, Resource
from skiway.errors import InvalidArgument
from skiway.model import v1

__all__ = ["Ref", "account_id", "catalog_id", "name_ref", "namespace_id", "namespace_of", "table_id", "view_id"]


Ref = Name | v1.ResourceId | Resource[Any] | Message
"""A name, an `Id`, or the resource itself, as the client or the messages have it."""


def account_id(ref: Ref) -> v1.ResourceId:
    """The id of an account. Accounts are found by their ids only, so text is one."""
    given = _given(ref, v1.RK_ACCOUNT)
    if given is None and isinstance(ref, str):
        given = v1.ResourceId(id=ref, kind=v1.RK_ACCOUNT)
    if given is None:
        raise InvalidArgument(f"{ref!r} is no account: give its id, or the account", key="field", field="account_id")
    return given


def catalog_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """The id of a catalog."""
    given = _given(ref, v1.RK_CATALOG)
    if given is not None:
        return given
    request = v1.ResolveCatalogRequest(ref=name_ref(ref, resource="catalog"))
    return calls.ask(request, v1.ResolveCatalogResponse).resource_id


def namespace_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """The id of a namespace."""
    given = _given(ref, v1.RK_NAMESPACE)
    if given is not None:
        return given
    request = v1.ResolveNamespaceRequest(ref=name_ref(ref, resource="namespace"))
    return calls.ask(request, v1.ResolveNamespaceResponse).resource_id


def namespace_of(calls: Calls, ref: Ref) -> v1.Namespace:
    """A namespace, which also tells its catalog."""
    if isinstance(ref, Namespace):
        return ref.message
    if isinstance(ref, v1.Namespace):
        return ref
    request = v1.GetNamespaceRequest(namespace_id=namespace_id(calls, ref))
    return calls.ask(request, v1.GetNamespaceResponse).namespace


def table_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """The id of a table."""
    given = _given(ref, v1.RK_TABLE)
    if given is not None:
        return given
    request = v1.ResolveTableRequest(ref=name_ref(ref, resource="table"))
    return calls.ask(request, v1.ResolveTableResponse).resource_id


def view_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """The id of a view."""
    given = _given(ref, v1.RK_VIEW)
    if given is not None:
        return given
    request = v1.ResolveViewRequest(ref=name_ref(ref, resource="view"))
    return calls.ask(request, v1.ResolveViewResponse).resource_id


_SHAPES = {
    "catalog": (1, 1, "catalog, such as lake"),
    "namespace": (2, None, "catalog.namespace, such as lake.sales"),
    "table": (3, None, "catalog.namespace.table, such as lake.sales.people"),
    "view": (3, None, "catalog.namespace.view, such as lake.sales.totals"),
}


def name_ref(name: object, *, resource: str) -> v1.NameRef:
    """A name in the form of messages, if it has as many segments as one of its kind needs."""
    parts = segments(name, resource=resource)  # type: ignore[arg-type]  # which refuses what is no name
    least, most, shape = _SHAPES[resource]
    if len(parts) < least or (most is not None and len(parts) > most):
        raise InvalidArgument(
            f"{name!r} cannot name a {resource}: write {shape}; an id is written as Id(...)",
            key=f"{resource}.name.missing",
            resource=resource,
            field="name",
        )
    if resource == "catalog":
        return v1.NameRef(catalog=parts[0])
    return v1.NameRef(catalog=parts[0], path=parts[1:-1], name=parts[-1])


def _given(ref: object, kind: v1.ResourceKind.ValueType) -> v1.ResourceId | None:
    """The id that `ref` is or holds; None for a name."""
    if isinstance(ref, Id):
        return v1.ResourceId(id=ref, kind=kind)
    if isinstance(ref, v1.ResourceId):
        return ref
    held = ref.message if isinstance(ref, Resource) else ref
    if isinstance(held, Message) and "resource_id" in held.DESCRIPTOR.fields_by_name:
        found: v1.ResourceId = held.resource_id  # type: ignore[attr-defined]
        return found
    return None
