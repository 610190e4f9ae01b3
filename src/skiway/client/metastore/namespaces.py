"""Namespaces: where tables and views are, in a hierarchy below a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from skiway.client.metastore.collection import KEEP, Area, Keep, Listing, Turn, filled, masked, precondition
from skiway.client.metastore.names import Id, Name, segments
from skiway.client.metastore.references import Ref, catalog_id, name_ref, namespace_id
from skiway.client.metastore.resources import Meta, Namespace, Place, Places, Resource
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Namespaces"]


class Namespaces(Area):
    """`lake.namespaces`: named by catalog and path, such as `lake.sales.eu`."""

    def __call__(
        self, parent: Ref, *, recursive: bool = False, prefix: str = "", page_size: int | None = None
    ) -> Listing[Namespace]:
        """The namespaces right below a catalog or namespace, or all below it, by path. An `Id` is that of a catalog.

        `prefix` is compared with the names below the parent, joined by dots.
        """
        path = _segments(parent)

        def open_() -> Turn[Namespace]:
            request = v1.ListNamespacesRequest(path=path[1:], recursive=recursive, name_prefix=prefix)
            if path or isinstance(parent, Id):
                request.catalog_id.CopyFrom(catalog_id(self._calls, path[:1] or parent))
            else:
                _set_parent(request, namespace_id(self._calls, parent))
            return self._turn(request)

        return Listing(open_, page_size)

    def get(self, namespace: Ref) -> Namespace:
        """The namespace; `NotFound` if there is none."""
        request = v1.GetNamespaceRequest(namespace_id=namespace_id(self._calls, namespace))
        answer = self._calls.ask(request, v1.GetNamespaceResponse)
        return self._namespace(answer.namespace, answer.meta)

    def find(self, namespace: Ref) -> Namespace | None:
        """The namespace, or None."""
        try:
            return self.get(namespace)
        except NotFound:
            return None

    def create(
        self,
        name: Name,
        *,
        description: str | None = None,
        policy_ref: str | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Namespace:
        """A new namespace, and with it those of its parents that do not exist yet."""
        ref = name_ref(name, resource="namespace")
        spec = filled(
            v1.NamespaceSpec,
            catalog_id=catalog_id(self._calls, (ref.catalog,)),
            path=ref.path,
            display_name=ref.name,
            description=description,
            policy_ref=policy_ref,
            properties=properties,
        )
        request = v1.CreateNamespaceRequest(spec=spec, idempotency=self._calls.key(idempotency_key))
        answer = self._calls.ask(request, v1.CreateNamespaceResponse)
        return self._namespace(answer.namespace, answer.meta)

    def update(
        self,
        namespace: Ref,
        *,
        name: str | Keep = KEEP,
        path: Name | Keep = KEEP,
        description: str | Keep | None = KEEP,
        policy_ref: str | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Namespace:
        """The namespace after what is given was changed; None clears.

        `name` is the plain new name; `path` is a whole new name such as `lake.archive.eu`, and moves it there.
        """
        spec, mask = masked(
            v1.NamespaceSpec,
            display_name=name,
            description=description,
            policy_ref=policy_ref,
            properties=properties,
            **self._moved(path),
        )
        request = v1.UpdateNamespaceRequest(
            namespace_id=namespace_id(self._calls, namespace),
            spec=spec,
            update_mask=mask,
            precondition=precondition(if_version, if_etag),
        )
        answer = self._calls.ask(request, v1.UpdateNamespaceResponse)
        return self._namespace(answer.namespace, answer.meta)

    def delete(
        self, namespace: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a namespace, with all it holds if `cascade`; how it was stored last."""
        request = v1.DeleteNamespaceRequest(
            namespace_id=namespace_id(self._calls, namespace),
            require_empty=not cascade,
            precondition=precondition(if_version, if_etag),
        )
        return Meta.of(self._calls.ask(request, v1.DeleteNamespaceResponse).meta)

    def _moved(self, path: Name | Keep) -> dict[str, Any]:
        if isinstance(path, Keep):
            return {}
        ref = name_ref(path, resource="namespace")
        return {"catalog_id": catalog_id(self._calls, (ref.catalog,)), "path": [*ref.path, ref.name]}

    def _namespace(self, message: v1.Namespace, meta: v1.MutationMeta) -> Namespace:
        return Namespace(message, self._calls, meta, _place=Place(self._calls, message.catalog_id))

    def _turn(self, request: v1.ListNamespacesRequest) -> Turn[Namespace]:
        places = Places(self._calls)

        def turn(page: v1.PageRequest) -> tuple[Sequence[Namespace], v1.PageResponse]:
            request.page.CopyFrom(page)
            answer = self._calls.ask(request, v1.ListNamespacesResponse)
            found = [Namespace(each, self._calls, _place=places.of(each.catalog_id)) for each in answer.namespaces]
            return found, answer.page

        return turn


def _segments(parent: Ref) -> tuple[str, ...]:
    """The name of a catalog or namespace, if that is what it is."""
    if isinstance(parent, Id | Message | Resource):
        return ()
    return segments(parent, resource="catalog or namespace")


def _set_parent(request: v1.ListNamespacesRequest, parent: v1.ResourceId) -> None:
    if parent.kind == v1.RK_CATALOG:
        request.catalog_id.CopyFrom(parent)
    else:
        request.namespace_id.CopyFrom(parent)
