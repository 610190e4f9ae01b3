"""The data of the demo: one winter of a company with four ski resorts, generated the same way every time.

`Winter` has the figures by resort and day: snow, wind, temperature, visitors. The functions below it turn them into the rows
of the demo's tables: rides, lifts, tickets, prices, weather, trails and crews.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers: TypeAlias = npt.NDArray[Any]

SEED: Final = 20_251_201
FIRST_DAY: Final = date(2025, 12, 1)
DAYS: Final = 133  # to the second Sunday of April
RAISED_ON: Final = date(2026, 2, 1)

PRICES: Final = {
    "day pass": "64.00",
    "half-day pass": "46.00",
    "week pass": "348.00",
    "child day pass": "32.00",
    "night skiing": "24.00",
}
PRICES_RAISED: Final = {
    "day pass": "69.00",
    "half-day pass": "49.50",
    "week pass": "369.00",
    "child day pass": "32.00",
    "night skiing": "27.00",
}

_HOLIDAYS: Final = ((19, 38, 1.9), (75, 90, 1.6), (123, 128, 1.4))  # Christmas, the weeks of February, Easter
_WEEKEND: Final = 1.7


@dataclass(frozen=True, slots=True)
class Resort:
    """A resort: the location and height of its summit, its usual number of visitors, and its facilities."""

    name: str
    longitude: float
    latitude: float
    summit_m: int
    valley_m: int
    draw: int
    lifts: tuple[str, ...]
    stations: tuple[str, ...]
    trails: tuple[str, ...]


RESORTS: Final = (
    Resort(
        "Hochfirn", 7.91, 46.12, 3310, 1620, 230,
        ("Firngrat Gondola", "Gamsspitz", "Alpenrose", "Eisjoch", "Talbahn", "Murmeli"),
        ("Firngrat", "Gamsspitz", "Village"),
        ("Grand Firn", "Gams Chute", "Eagle Line", "Old Ladder", "Glacier Road", "Long Noon", "Larch Alley",
         "Shepherd", "North Gully", "Postman", "Moraine", "Sunny Side", "Home Run", "Nursery"),
    ),
    Resort(
        "Val Serein", 6.74, 45.38, 2870, 1350, 310,
        ("Serein Express", "Combe Noire", "Les Anges", "Belvedere", "Pre Long"),
        ("Belvedere", "Combe Noire", "Village"),
        ("Combe Noire", "Les Anges", "Belle Vue", "Mur des Fous", "Forestiere", "Grande Bosse", "Marmottes",
         "Chamois", "La Directe", "Coquelicot", "Pre Long", "Piste du Lac", "Retour", "Jardin"),
    ),
    Resort(
        "Silberjoch", 10.88, 46.93, 2640, 1410, 180,
        ("Silberbahn", "Joch 8er", "Kar", "Waldlift", "Rodelhang"),
        ("Joch", "Kar", "Village"),
        ("Silberkar", "Jochwand", "Waldweg", "Kanonenrohr", "Steinbock", "Zirbe", "Panorama", "Mittagsrinne",
         "Familienabfahrt", "Schmugglerpfad", "Nordhang", "Talabfahrt", "Sonnenhang", "Uebungshang"),
    ),
    Resort(
        "Col Brumeux", 6.21, 44.97, 2410, 1290, 120,
        ("Brume Gondola", "Le Phare", "Trois Sapins", "Petit Col"),
        ("Le Phare", "Trois Sapins", "Village"),
        ("Le Phare", "Brouillard", "Trois Sapins", "Nez du Loup", "Couloir Sud", "La Blanche", "Les Moutons",
         "Crete", "Bosquet", "Echelle", "Vallon", "Petit Col", "Descente", "Debutants"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Winter:
    """Figures by resort and day: fresh snow in cm, maximum wind, temperature, visitors."""

    fresh_cm: Numbers
    wind_kmh: Numbers
    cold_c: Numbers
    visitors: Numbers

    @classmethod
    def generate(cls) -> Winter:
        """Generate the winter."""
        random = _random(0)
        shape = (len(RESORTS), DAYS)
        # A storm affects all resorts, each to a different degree.
        storm = np.clip(random.gamma(0.35, 1.4, DAYS) + 0.5 * np.roll(random.gamma(0.3, 1.2, DAYS), 1), 0, 6)
        fresh = np.round(np.clip(storm * 14 * random.uniform(0.4, 1.3, shape) - 2, 0, 85))
        wind = np.round(16 + storm * 13 * random.uniform(0.5, 1.4, shape) + random.gamma(2, 4, shape))
        season = -7 * np.cos((np.arange(DAYS) - 45) / DAYS * 2 * np.pi)
        cold = np.round(-4 + season + random.normal(0, 2.5, shape), 1)
        return cls(fresh, wind, cold, _visitors(fresh, wind, random))

    @property
    def worst_day(self) -> tuple[str, date]:
        """The resort and day with the strongest wind."""
        resort, day = np.unravel_index(int(np.argmax(self.wind_kmh)), self.wind_kmh.shape)
        return RESORTS[resort].name, FIRST_DAY + timedelta(days=int(day))


def _random(purpose: int) -> np.random.Generator:
    """A random generator for one purpose, independent of the others."""
    return np.random.default_rng([SEED, purpose])


def _visitors(fresh: Numbers, wind: Numbers, random: np.random.Generator) -> Numbers:
    """More visitors on weekends, holidays and after snowfall; few when wind stops the lifts."""
    days = np.arange(DAYS)
    crowd = np.where((days + FIRST_DAY.weekday()) % 7 >= 5, _WEEKEND, 1.0)
    for first, last, factor in _HOLIDAYS:
        crowd[first : last + 1] *= factor
    snow = 1 + np.clip(np.roll(fresh, 1, axis=1) * 0.5 + fresh, 0, 40) * 0.022
    open_ = np.where(wind > 75, 0.35, 1.0)
    draw = np.array([resort.draw for resort in RESORTS])[:, None]
    return random.poisson(draw * crowd * snow * open_)


# Rows of the tables

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
"""The gates measure `wait_s` from February on."""

_PRICE: Final = pa.decimal128(9, 2)
_PRODUCTS: Final = tuple(PRICES)
_CHANNELS: Final = ("web", "counter", "app", "partner")
_SLOPES: Final = ("blue", "red", "black")
_BROKEN: Final = "Pre Long"  # the lift whose sensor does not measure waiting times
_DAYS_BEFORE_RAISE: Final = (RAISED_ON - FIRST_DAY).days
_KINDS: Final = ("gondola", "chairlift", "chairlift", "chairlift", "surface lift", "surface lift")


def rides(winter: Winter) -> pa.Table:
    """One row per ride, ordered by day."""
    random = _random(1)
    resort, day = _each(winter.visitors)
    count = len(day)
    before_noon = random.random(count) < 0.55
    minute = np.where(before_noon, random.normal(640, 50, count), random.normal(835, 55, count))
    second = np.clip(minute * 60 + random.uniform(0, 60, count), 8.5 * 3600, 16.5 * 3600)
    order = np.lexsort((second, day))
    resort, day, second = resort[order], day[order], second[order]
    lift = _lifts_taken(resort, random)
    crowd = winter.visitors[resort, day] / np.array([each.draw for each in RESORTS])[resort]
    wait = np.round(random.lognormal(3.6, 0.6, count) * crowd).astype(np.int32)
    unknown = (day < _DAYS_BEFORE_RAISE) | (lift == _BROKEN)
    columns = {
        "ride_id": pa.array(np.arange(1, count + 1)),
        "scanned_at": _moments((day * 86_400 + second).astype("int64") * 1_000_000),
        "resort": _resorts(resort),
        "lift": pa.array(lift, pa.string()),
        "pass_id": pa.array(random.integers(100_000, 118_000, count)),
        "wait_s": pa.array(wait, mask=unknown),
    }
    return pa.table(columns, RIDES)


def _lifts_taken(resort: Numbers, random: np.random.Generator) -> Numbers:
    """A random lift of the resort for each ride; the first lifts are the most popular."""
    lift = np.empty(len(resort), dtype=object)
    for number, each in enumerate(RESORTS):
        mine = resort == number
        weights = np.linspace(2.2, 0.6, len(each.lifts))
        lift[mine] = random.choice(np.array(each.lifts, object), mine.sum(), p=weights / weights.sum())
    return lift


def lifts() -> pa.Table:
    """One row per lift."""
    random = _random(2)
    rows = [
        {
            "lift": name,
            "resort": resort.name,
            "kind": _KINDS[place],
            "built": int(random.integers(1968, 2024)),
            "riders_per_hour": int(random.integers(7, 33)) * 100,
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
    """One row per sale: a number of tickets of one kind, none refunded yet."""
    random = _random(3)
    resort, day = _each(np.ceil(winter.visitors / 6).astype(int))
    count = len(day)
    order = np.argsort(day, kind="stable")
    resort, day = resort[order], day[order]
    product = random.choice(len(_PRODUCTS), count, p=[0.46, 0.17, 0.08, 0.21, 0.08])
    quantity = np.minimum(random.geometric(0.45, count), 8)
    raised = (day >= _DAYS_BEFORE_RAISE).astype(int)
    cents = np.array([[int(Decimal(prices[each]) * 100) for each in _PRODUCTS] for prices in (PRICES, PRICES_RAISED)])
    return pa.table(
        {
            "sale_id": pa.array(np.arange(50_001, 50_001 + count)),
            "sold_on": _days(day),
            "resort": _resorts(resort),
            "product": pa.array(np.array(_PRODUCTS, object)[product], pa.string()),
            "channel": pa.array(
                np.array(_CHANNELS, object)[random.choice(4, count, p=[0.41, 0.28, 0.23, 0.08])], pa.string()
            ),
            "quantity": pa.array(quantity.astype(np.int32)),
            "amount": _money(cents[raised, product] * quantity),
            "refunded": pa.repeat(pa.scalar(False), count),
        }
    )


def price_list(prices: Mapping[str, str]) -> pa.Table:
    """The price of each product."""
    amounts = pa.array([Decimal(price) for price in prices.values()], _PRICE)
    return pa.table({"product": pa.array(list(prices), pa.string()), "price": amounts})


def weather(winter: Winter) -> pa.Table:
    """One row per hour and station. `resort` and `month` are the partition columns."""
    random = _random(4)
    rows = pa.concat_tables(
        _readings(winter, number, place, random)
        for number, resort in enumerate(RESORTS)
        for place in range(len(resort.stations))
    )
    return rows.append_column("month", pc.strftime(rows["measured_at"], "%Y-%m"))


def _readings(winter: Winter, number: int, place: int, random: np.random.Generator) -> pa.Table:
    """What one station measured. Most snow falls at the first, which is highest; an iced sensor says nothing."""
    hours = np.arange(DAYS * 24)
    day, hour, count = hours // 24, hours % 24, len(hours)
    share = 1 - 0.25 * place
    within_day = random.dirichlet(np.ones(24) * 0.8, DAYS).reshape(-1)
    millimetres = np.round(winter.fresh_cm[number, day] * within_day * share * 10)
    celsius = winter.cold_c[number, day] + 5 * place + 4 * np.sin((hour - 9) / 24 * 2 * np.pi)
    depth = np.maximum(40 + 60 * share + np.cumsum(millimetres * 0.055 - np.clip(celsius, 0, None) * 0.12), 0)
    wind = winter.wind_kmh[number, day] * random.uniform(0.3, 1.0, count) * share
    return pa.table(
        {
            "station": pa.repeat(pa.scalar(RESORTS[number].stations[place]), count),
            "measured_at": _moments(hours * 3_600_000_000),
            "snowfall_mm": pa.array(millimetres.astype(np.int32)),
            "snow_depth_cm": pa.array(np.round(depth).astype(np.int32), mask=random.random(count) < 0.02),
            "temperature_c": pa.array(np.round(celsius + random.normal(0, 0.7, count), 1)),
            "wind_kmh": pa.array(np.round(wind, 1)),
            "resort": pa.repeat(pa.scalar(RESORTS[number].name), count),
        }
    )


def trails() -> pa.Table:
    """One row per trail, with its route as WKB."""
    random = _random(5)
    rows = [
        {
            "trail": name,
            "resort": resort.name,
            "difficulty": _SLOPES[max(0, 2 - place // 5)],
            "length_m": int(random.integers(8, 62)) * 100,
            "groomed": place % 5 != 1,
            "route": _line(resort, place, random),
        }
        for resort in RESORTS
        for place, name in enumerate(resort.trails)
    ]
    texts = {"trail": pa.string(), "resort": pa.string(), "difficulty": pa.string()}
    return pa.Table.from_pylist(
        rows, pa.schema({**texts, "length_m": pa.int32(), "groomed": pa.bool_(), "route": pa.binary()})
    )


def crews() -> pa.Table:
    """The schedule of groomers in the last week: the table for users to write to."""
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


def _line(resort: Resort, place: int, random: np.random.Generator) -> bytes:
    """The route of a trail as WKB, a line down from the summit."""
    points = int(random.integers(9, 24))
    heading = 2 * np.pi * place / len(resort.trails) + random.normal(0, 0.2)
    steps = heading + np.cumsum(random.normal(0, 0.35, points - 1))
    x = resort.longitude + np.concatenate([[0], np.cumsum(np.cos(steps) * 0.0021)])
    y = resort.latitude + np.concatenate([[0], np.cumsum(np.sin(steps) * 0.0015)])
    return struct.pack("<BII", 1, 2, points) + np.column_stack([x, y]).round(5).astype("<f8").tobytes()


def _each(counts: Numbers) -> tuple[Numbers, Numbers]:
    """The resort and day of each row, given the number of rows by resort and day."""
    resort, day = (np.repeat(each.ravel(), counts.ravel()) for each in np.indices(counts.shape))
    return resort, day


def _resorts(numbers: Numbers) -> pa.Array:
    return pa.array(np.array([each.name for each in RESORTS], object)[numbers], pa.string())


def _days(numbers: Numbers) -> pa.Array:
    return pa.array(np.datetime64(FIRST_DAY, "D") + numbers.astype("timedelta64[D]"), pa.date32())


def _moments(micros: Numbers) -> pa.Array:
    """Timestamps, given in microseconds since midnight of the first day."""
    return pa.array(np.datetime64(FIRST_DAY, "us") + micros.astype("timedelta64[us]"), pa.timestamp("us"))


def _money(cents: Numbers) -> pa.Array:
    units = pa.array(cents.astype(np.int64)).cast(pa.decimal128(19, 0))
    return pc.multiply(units, pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))).cast(_PRICE)
