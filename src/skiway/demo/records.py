"""The winter as rows: what lifts, ticket desks, weather stations and maps have recorded of it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.demo.winter import (
    DAYS,
    FIRST_DAY,
    PRICES,
    PRICES_RAISED,
    RAISED_ON,
    RESORTS,
    Numbers,
    Resort,
    Winter,
    chance,
)

__all__ = ["RIDES", "crews", "lifts", "price_list", "rides", "tickets", "trails", "weather"]

RIDES: Final = pa.schema(
    [
        pa.field("ride_id", pa.int64(), nullable=False),
        pa.field("scanned_at", pa.timestamp("us")),
        pa.field("resort", pa.string()),
        pa.field("lift", pa.string()),
        pa.field("pass_id", pa.int64()),
        pa.field("wait_s", pa.int32()),
    ]
)
"""The gates measure `wait_s` since February only."""

_PRICE: Final = pa.decimal128(9, 2)
_PRODUCTS: Final = tuple(PRICES)
_CHANNELS: Final = ("web", "counter", "app", "partner")
_SLOPES: Final = ("blue", "red", "black")
_BROKEN: Final = "Pre Long"  # the lift whose sensor has no count of those who wait
_DAYS_BEFORE_RAISE: Final = (RAISED_ON - FIRST_DAY).days
_KINDS: Final = ("gondola", "chairlift", "chairlift", "chairlift", "surface lift", "surface lift")


def rides(winter: Winter) -> pa.Table:
    """A row for each time that somebody passed the gate of a lift, in the order of days."""
    luck = chance(1)
    resort, day = _each(winter.visitors)
    count = len(day)
    before_noon = luck.random(count) < 0.55
    minute = np.where(before_noon, luck.normal(640, 50, count), luck.normal(835, 55, count))
    second = np.clip(minute * 60 + luck.uniform(0, 60, count), 8.5 * 3600, 16.5 * 3600)
    order = np.lexsort((second, day))
    resort, day, second = resort[order], day[order], second[order]
    lift = _lifts_taken(resort, luck)
    crowd = winter.visitors[resort, day] / np.array([each.draw for each in RESORTS])[resort]
    wait = np.round(luck.lognormal(3.6, 0.6, count) * crowd).astype(np.int32)
    unknown = (day < _DAYS_BEFORE_RAISE) | (lift == _BROKEN)
    columns = {
        "ride_id": pa.array(np.arange(1, count + 1)),
        "scanned_at": _moments((day * 86_400 + second).astype("int64") * 1_000_000),
        "resort": _resorts(resort),
        "lift": pa.array(lift, pa.string()),
        "pass_id": pa.array(luck.integers(100_000, 118_000, count)),
        "wait_s": pa.array(wait, mask=unknown),
    }
    return pa.table(columns, RIDES)


def _lifts_taken(resort: Numbers, luck: np.random.Generator) -> Numbers:
    """A lift of the resort for each ride; the first ones are taken most."""
    lift = np.empty(len(resort), dtype=object)
    for number, each in enumerate(RESORTS):
        mine = resort == number
        weights = np.linspace(2.2, 0.6, len(each.lifts))
        lift[mine] = luck.choice(np.array(each.lifts, object), mine.sum(), p=weights / weights.sum())
    return lift


def lifts() -> pa.Table:
    """A row for each lift."""
    luck = chance(2)
    rows = [
        {
            "lift": name,
            "resort": resort.name,
            "kind": _KINDS[place],
            "built": int(luck.integers(1968, 2024)),
            "riders_per_hour": int(luck.integers(7, 33)) * 100,
            "top_m": resort.summit_m - place * 240,
        }
        for resort in RESORTS
        for place, name in enumerate(resort.lifts)
    ]
    kinds = {"lift": pa.string(), "resort": pa.string(), "kind": pa.string()}
    return pa.Table.from_pylist(
        rows, pa.schema({**kinds, "built": pa.int32(), "riders_per_hour": pa.int32(), "top_m": pa.int32()})
    )


def tickets(winter: Winter) -> pa.Table:
    """A row for each sale: some tickets of one kind. Nothing is refunded yet."""
    luck = chance(3)
    resort, day = _each(np.ceil(winter.visitors / 6).astype(int))
    count = len(day)
    order = np.argsort(day, kind="stable")
    resort, day = resort[order], day[order]
    product = luck.choice(len(_PRODUCTS), count, p=[0.46, 0.17, 0.08, 0.21, 0.08])
    quantity = np.minimum(luck.geometric(0.45, count), 8)
    raised = (day >= _DAYS_BEFORE_RAISE).astype(int)
    cents = np.array([[int(Decimal(prices[each]) * 100) for each in _PRODUCTS] for prices in (PRICES, PRICES_RAISED)])
    return pa.table(
        {
            "sale_id": pa.array(np.arange(50_001, 50_001 + count)),
            "sold_on": _days(day),
            "resort": _resorts(resort),
            "product": pa.array(np.array(_PRODUCTS, object)[product], pa.string()),
            "channel": pa.array(
                np.array(_CHANNELS, object)[luck.choice(4, count, p=[0.41, 0.28, 0.23, 0.08])], pa.string()
            ),
            "quantity": pa.array(quantity.astype(np.int32)),
            "amount": _money(cents[raised, product] * quantity),
            "refunded": pa.repeat(pa.scalar(False), count),
        }
    )


def price_list(prices: Mapping[str, str]) -> pa.Table:
    """What a ticket costs."""
    amounts = pa.array([Decimal(price) for price in prices.values()], _PRICE)
    return pa.table({"product": pa.array(list(prices), pa.string()), "price": amounts})


def weather(winter: Winter) -> pa.Table:
    """A row for each hour and station; `resort` and `month` are those of the folders it goes to."""
    luck = chance(4)
    rows = pa.concat_tables(
        _readings(winter, number, place, luck)
        for number, resort in enumerate(RESORTS)
        for place in range(len(resort.stations))
    )
    return rows.append_column("month", pc.strftime(rows["measured_at"], "%Y-%m"))


def _readings(winter: Winter, number: int, place: int, luck: np.random.Generator) -> pa.Table:
    """What one station measured. Most snow falls at the first, which is highest; an iced sensor says nothing."""
    hours = np.arange(DAYS * 24)
    day, hour, count = hours // 24, hours % 24, len(hours)
    share = 1 - 0.25 * place
    within_day = luck.dirichlet(np.ones(24) * 0.8, DAYS).reshape(-1)
    millimetres = np.round(winter.fresh_cm[number, day] * within_day * share * 10)
    celsius = winter.cold_c[number, day] + 5 * place + 4 * np.sin((hour - 9) / 24 * 2 * np.pi)
    depth = np.maximum(40 + 60 * share + np.cumsum(millimetres * 0.055 - np.clip(celsius, 0, None) * 0.12), 0)
    wind = winter.wind_kmh[number, day] * luck.uniform(0.3, 1.0, count) * share
    return pa.table(
        {
            "station": pa.repeat(pa.scalar(RESORTS[number].stations[place]), count),
            "measured_at": _moments(hours * 3_600_000_000),
            "snowfall_mm": pa.array(millimetres.astype(np.int32)),
            "snow_depth_cm": pa.array(np.round(depth).astype(np.int32), mask=luck.random(count) < 0.02),
            "temperature_c": pa.array(np.round(celsius + luck.normal(0, 0.7, count), 1)),
            "wind_kmh": pa.array(np.round(wind, 1)),
            "resort": pa.repeat(pa.scalar(RESORTS[number].name), count),
        }
    )


def trails() -> pa.Table:
    """A row for each trail, with its line on the map as WKB."""
    luck = chance(5)
    rows = [
        {
            "trail": name,
            "resort": resort.name,
            "difficulty": _SLOPES[max(0, 2 - place // 5)],
            "length_m": int(luck.integers(8, 62)) * 100,
            "groomed": place % 5 != 1,
            "route": _line(resort, place, luck),
        }
        for resort in RESORTS
        for place, name in enumerate(resort.trails)
    ]
    texts = {"trail": pa.string(), "resort": pa.string(), "difficulty": pa.string()}
    return pa.Table.from_pylist(
        rows, pa.schema({**texts, "length_m": pa.int32(), "groomed": pa.bool_(), "route": pa.binary()})
    )


def crews() -> pa.Table:
    """The plan of who grooms where, in the last week: the table that people of the demo write to."""
    week = range(DAYS - 7, DAYS)
    rows = [(day, resort.name, 2 + resort.draw // 60 + (day % 7 >= 5)) for day in week for resort in RESORTS]
    return pa.table(
        {
            "night_of": _days(np.array([day for day, _, _ in rows])),
            "resort": pa.array([name for _, name, _ in rows], pa.string()),
            "groomers": pa.array([number for _, _, number in rows], pa.int32()),
            "note": pa.nulls(len(rows), pa.string()),
        }
    )


def _line(resort: Resort, place: int, luck: np.random.Generator) -> bytes:
    """A trail as WKB, winding down from near the summit."""
    points = int(luck.integers(9, 24))
    heading = 2 * np.pi * place / len(resort.trails) + luck.normal(0, 0.2)
    steps = heading + np.cumsum(luck.normal(0, 0.35, points - 1))
    x = resort.longitude + np.concatenate([[0], np.cumsum(np.cos(steps) * 0.0021)])
    y = resort.latitude + np.concatenate([[0], np.cumsum(np.sin(steps) * 0.0015)])
    return struct.pack("<BII", 1, 2, points) + np.column_stack([x, y]).round(5).astype("<f8").tobytes()


def _each(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Resort and day of as many rows as there are on each of them."""
    resort, day = (np.repeat(each.ravel(), counts.ravel()) for each in np.indices(counts.shape))
    return resort, day


def _resorts(numbers: Numbers) -> pa.Array:
    return pa.array(np.array([each.name for each in RESORTS], object)[numbers], pa.string())


def _days(numbers: Numbers) -> pa.Array:
    return pa.array(np.datetime64(FIRST_DAY, "D") + numbers.astype("timedelta64[D]"), pa.date32())


def _moments(micros: Numbers) -> pa.Array:
    """Moments that are counted from the first midnight."""
    return pa.array(np.datetime64(FIRST_DAY, "us") + micros.astype("timedelta64[us]"), pa.timestamp("us"))


def _money(cents: Numbers) -> pa.Array:
    whole = pa.array(cents.astype(np.int64)).cast(pa.decimal128(19, 0))
    return pc.multiply(whole, pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))).cast(_PRICE)
