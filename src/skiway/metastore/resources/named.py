"""The calls for resources: create, get, list, update and delete, the same for all kinds.

Requests and responses are named after the kind: `CreateWebhookRequest` has a `spec`, `CreateWebhookResponse` a `webhook`.
A kind gives the checks of its fields and, if it needs them, further operations of the batches that write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from skiway.errors import InvalidArgument
from skiway.foundation.resources import Resource
from skiway.metastore.records import updates
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import ACCOUNT, PLAIN_KINDS, Kind
from skiway.metastore.records.names import exact_name
from skiway.metastore.records.realm import Realm, by_id_or_name, local_id, resource_id
from skiway.metastore.records.repository import Repository, Stored, listed
from skiway.metastore.records.updates import Claim, inside, once
from skiway.storage import Operation, Pointer

M = TypeVar("M", bound=Message)

Writing = Callable[[Realm, M, Any, M | None], AbstractContextManager[Iterable[Operation]]]
"""Wraps the batch that writes a resource, and adds operations to it; gets the resource, the spec, and the resource before."""


@dataclass(frozen=True, slots=True)
class Calls(Generic[M]):
    """The calls for one kind.

    `normal` gives the fields of a spec the form in which they are stored. `check` raises unless a changed resource is valid;
    it gets the resource, the spec and the paths that the request sets. It also names a resource whose spec has no name.
    `parent` returns what a new resource belongs to. `compared` returns a creation as it is compared with later ones that have
    the same idempotency key. `shown` returns what callers see of a resource, and `status` further fields of the response of a
    get. `deleting` adds operations to the batch of a deletion; `deleted` removes afterwards what belongs to the resource.

    `id_of` reads the id in a request for a change. `writer` and `remover` are the repositories for changes and deletions, if
    they are special. `edit` sets the fields in the paths, `write` stores a change, and `remove` deletes, where this differs. An
    update that loses a race is repeated if `retries`.
    """

    resource: Resource
    kind: Kind[M]
    check: Callable[[Realm, M, Any, Set[str]], None] = lambda *_: None
    writing: Writing[M] = lambda *_: nullcontext(())
    parent: Callable[[Realm, Any], Stored[Any]] = lambda realm, _: realm.by_id(ACCOUNT, realm.account_id)
    shown: Callable[[M], M] = lambda value: value
    status: Callable[[Realm, M], dict[str, Message]] = lambda *_: {}
    deleting: Callable[[Realm, str], Iterable[Operation]] = lambda *_: ()
    deleted: Callable[[Realm, str], None] = lambda *_: None
    normal: Callable[[Realm, Any, Set[str]], None] = lambda *_: None
    compared: Callable[[Any, Any], Message] = lambda _, spec: spec
    id_of: Callable[..., str] = local_id
    writer: Callable[[Realm, Kind[M]], Repository[M]] = lambda realm, kind: realm.all(kind)
    remover: Callable[[Realm, Kind[M]], Repository[M]] = lambda realm, kind: realm.all(kind)
    edit: Callable[[Realm, M, Any, Set[str], Set[str]], None] = lambda _, *fields: updates.copy_fields(*fields)
    write: Callable[[Realm, Stored[M], M], Stored[M]] | None = None
    remove: Callable[[Realm, Any, Pointer, M | None], None] | None = None
    retries: bool = False

    def create(self, realm: Realm, request: Any) -> Any:
        """Create a resource. A request that is repeated with its idempotency key returns the first response."""
        resource = self.resource
        if not request.HasField("spec"):
            raise failure(InvalidArgument, "spec.required", field="spec")
        response = resource.message("Create{}Response")
        fields = {path for path in resource.paths if "." not in path}
        spec = self._prepared(realm, request.spec, fields, named=True)
        compared = self.compared(request, spec)
        claim: Claim[Any] = Claim(realm, f"Create{resource.title}", request.idempotency.key, compared, response)

        def attempt() -> Any:
            parent = self.parent(realm, spec)
            now = realm.now()
            own_id = resource_id(realm, realm.ids(), resource.number)
            created: Any = self.kind.message(resource_id=own_id, created_at=now, updated_at=now)
            self._edit(realm, created, spec, fields, required=frozenset())
            with self.writing(realm, created, spec, None) as operations:
                batch = *inside(parent.pointer), *operations
                return claim.created(self.writer(realm, self.kind), created, batch, shown=self.shown)

        return once(claim, lambda: updates.retrying(attempt))

    def get(self, realm: Realm, request: Any) -> Any:
        """Return the resource with an id, and its stored version."""
        field = f"{self.resource.name}_id"
        own_id = local_id(realm, getattr(request, field), self.resource.number, field=field)
        return self._got(realm, realm.by_id(self.kind, own_id))

    def list_(self, realm: Realm, request: Any) -> Any:
        """List the resources of the account by name."""
        found, page = listed(realm.all(self.kind), self.kind.by_name(realm.account_id, ""), request.page)
        return self.resource.message("List{}sResponse")(**{self.resource.plural: map(self.shown, found), "page": page})

    def update(self, realm: Realm, request: Any) -> Any:
        """Change the fields in the mask. A new secret replaces the stored one."""
        own_id, resource = self.id_in(realm, request), self.resource
        allowed = resource.paths - set(resource.fixed)
        paths = updates.masked_paths(request.update_mask, allowed=allowed, resource=resource.name)
        spec = self._prepared(realm, request.spec, paths)

        def write(current: Stored[M], desired: M) -> Stored[M]:
            if self.write is not None:
                return self.write(realm, current, desired)
            with self.writing(realm, desired, spec, current.value) as operations:
                return self.writer(realm, self.kind).update(current, desired, also=lambda _: operations)

        def edit(desired: M) -> None:
            self._edit(realm, desired, spec, paths, required=resource.required)

        def attempt() -> Stored[M]:
            always = bool(paths & set(resource.secrets))
            return updates.update(realm, self.kind, own_id, request.precondition, edit, write, always=always)

        return self._response("Update{}", updates.retrying(attempt, attempts=updates.ATTEMPTS if self.retries else 1))

    def delete(self, realm: Realm, request: Any) -> Any:
        """Delete a resource, also a damaged one, and what belongs to it."""
        own_id, repository = self.id_in(realm, request), self.remover(realm, self.kind)

        def remove(pointer: Pointer, value: M | None) -> None:
            if self.remove is not None:
                self.remove(realm, request, pointer, value)
            else:
                repository.delete(pointer, value, also=tuple(self.deleting(realm, own_id)))

        key = self.kind.by_id(realm.account_id, own_id)
        meta = updates.delete(repository, key, own_id, request.precondition, remove)
        self.deleted(realm, own_id)
        return self.resource.message("Delete{}Response")(meta=meta)

    def id_in(self, realm: Realm, request: Any) -> str:
        """The id of the resource that a request changes."""
        field = f"{self.resource.name}_id"
        return self.id_of(realm, getattr(request, field), self.resource.number, field=field)

    def _prepared(self, realm: Realm, given: Any, paths: Set[str], *, named: bool = False) -> Any:
        """A copy of a spec as its fields are stored. If `named`, it must have a name."""
        spec = updates.copied(given)
        for secret in set(self.resource.secrets) - paths:
            spec.ClearField(secret)
        if "display_name" in paths and (named or spec.HasField("display_name")):
            exact_name(spec.display_name, resource=self.resource.name)
        self.normal(realm, spec, paths)
        return spec

    def _edit(self, realm: Realm, edited: Any, spec: Any, paths: Set[str], *, required: Set[str]) -> None:
        """Copy the fields in `paths` from the spec, those in `required` only if they are set, and check the result."""
        before = updates.copied(edited)
        self.edit(realm, edited, spec, paths - set(self.resource.secrets), required)
        self.check(realm, edited, spec, paths)
        addresses = (field.name for field in self.resource.fields if field.is_address)
        moved = [name for name in addresses if getattr(before, name) != getattr(edited, name)]
        for secret in self.resource.secrets:
            if moved and secret not in paths:
                wanted = f"give the {secret} again, because the stored one is sent to the previous {moved[0]} only"
                raise invalid_field(secret, f"missing, but {moved[0]} changes", wanted)

    def _got(self, realm: Realm, stored: Stored[M]) -> Any:
        return self._response("Get{}", stored, **self.status(realm, stored.value))

    def _response(self, method: str, stored: Stored[M], **more: Message) -> Any:
        fields = {self.resource.name: self.shown(stored.value), "meta": stored.meta, **more}
        return self.resource.message(f"{method}Response")(**fields)


@dataclass(frozen=True, slots=True)
class NamedCalls(Calls[M]):
    """The calls for one kind of which each resource has a name that is unique in the account."""

    def get(self, realm: Realm, request: Any) -> Any:
        """Return the resource with an id or a name, also a damaged one, and its stored version."""
        return self._got(realm, by_id_or_name(realm, self.kind, request))


MAX_ITEMS: Final = 1000
MAX_TEXT: Final = 10_000


def plain_calls(resource: Resource) -> NamedCalls[Any]:
    """The calls for a kind without code of its own. Its fields are checked as they are described."""

    def check(realm: Realm, value: Any, spec: Any, paths: Set[str]) -> None:  # noqa: ARG001
        for field in resource.fields:
            given = getattr(value, field.name)
            items = given if field.many else [given]
            if field.required and not given:
                raise invalid_field(field.name, "missing", f"give the {field.help[0].lower()}{field.help[1:]}")
            if len(items) > MAX_ITEMS:
                raise invalid_field(field.name, f"a list of {len(items)}", f"give up to {MAX_ITEMS}")
            for item in items:
                if field.choices and item and item not in field.choices:
                    raise invalid_field(field.name, repr(item[:100]), f"choose from {', '.join(field.choices)}")
                if len(str(item)) > MAX_TEXT:
                    raise invalid_field(field.name, f"{len(item)} characters long", f"give up to {MAX_TEXT}")

    return NamedCalls(resource, PLAIN_KINDS[resource.name], check)
