"""Ids of schemas, partition specs and sort orders: the table gives them, whatever a client proposes.

A client numbers what it adds by what it has seen. Two clients, or one with an old view, propose the same number for
different things, or add again what is there. Here each addition gets the next free number, or the number of the equal
one that the table has already, and "the last one added" is said by its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

__all__ = ["numbered"]

_LAST = -1


def numbered(base: TableMetadata | None, updates: Sequence[TableUpdate]) -> tuple[TableUpdate, ...]:
    """The updates as they are to be applied to `base`, or to nothing."""
    numbers = _Numbers(base)
    return tuple(each for update in updates for each in numbers.of(update))


class _Numbers:
    def __init__(self, base: TableMetadata | None) -> None:
        self._schemas: dict[int, Any] = {} if base is None else {each.schema_id: each for each in base.schemas}
        self._specs: dict[int, Any] = {} if base is None else {each.spec_id: each for each in base.partition_specs}
        self._orders: dict[int, Any] = {} if base is None else {each.order_id: each for each in base.sort_orders}
        self._properties = set() if base is None else set(base.properties)
        self._last: dict[str, int] = {}

    def of(self, update: Any) -> Iterator[Any]:
        """What takes the place of `update`: one update, or none."""
        match update.action:
            case "add-schema":
                yield from self._schema(update)
            case "add-spec":
                yield from self._spec(update)
            case "add-sort-order":
                yield from self._order(update)
            case "set-current-schema" if update.schema_id == _LAST and "schema" in self._last:
                yield update.model_copy(update={"schema_id": self._last["schema"]})
            case "set-default-spec" if update.spec_id == _LAST and "spec" in self._last:
                yield update.model_copy(update={"spec_id": self._last["spec"]})
            case "set-default-sort-order" if update.sort_order_id == _LAST and "order" in self._last:
                yield update.model_copy(update={"sort_order_id": self._last["order"]})
            case "upgrade-format-version" if update.format_version == 3:
                return  # PyIceberg refuses it, so it is done before
            case "set-properties":
                self._properties |= update.updates.keys()
                yield update
            case "remove-properties":
                # Those that are not there are removed already.
                yield update.model_copy(
                    update={"removals": [key for key in update.removals if key in self._properties]}
                )
                self._properties -= set(update.removals)
            case _:
                yield update

    def _schema(self, update: Any) -> Iterator[Any]:
        schema = update.schema_
        same = (number for number, known in self._schemas.items() if known == schema)
        number = self._last["schema"] = next(same, max(self._schemas, default=_LAST) + 1)
        if number not in self._schemas:
            self._schemas[number] = schema.model_copy(update={"schema_id": number})
            yield update.model_copy(update={"schema_": self._schemas[number]})

    def _spec(self, update: Any) -> Iterator[Any]:
        spec = update.spec
        same = (number for number, known in self._specs.items() if known.fields == spec.fields)
        number = self._last["spec"] = next(same, max(self._specs, default=_LAST) + 1)
        if number not in self._specs:
            self._specs[number] = spec.model_copy(update={"spec_id": number})
            yield update.model_copy(update={"spec": self._specs[number]})

    def _order(self, update: Any) -> Iterator[Any]:
        order = update.sort_order
        same = (number for number, known in self._orders.items() if known.fields == order.fields)
        # 0 is the order of those that are not sorted.
        unused = max([0, *self._orders]) + 1 if order.fields else 0
        number = self._last["order"] = next(same, unused)
        if number not in self._orders:
            self._orders[number] = order.model_copy(update={"order_id": number})
            yield update.model_copy(update={"sort_order": self._orders[number]})
