"""What happened at four ski resorts in one winter: snow, wind, visitors. The same at every run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "DAYS",
    "FIRST_DAY",
    "PRICES",
    "PRICES_RAISED",
    "RAISED_ON",
    "RESORTS",
    "Numbers",
    "Resort",
    "Winter",
    "chance",
]

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
    """A resort: where its summit is, how high, how many people it draws, and what there is."""

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
    """Figures by resort and day: centimetres of fresh snow, the strongest wind, the cold, how many people came."""

    fresh_cm: Numbers
    wind_kmh: Numbers
    cold_c: Numbers
    visitors: Numbers

    @classmethod
    def made(cls) -> Winter:
        """The winter as it was."""
        luck = chance(0)
        shape = (len(RESORTS), DAYS)
        # Storms come over all resorts, and each gets its share of them.
        storm = np.clip(luck.gamma(0.35, 1.4, DAYS) + 0.5 * np.roll(luck.gamma(0.3, 1.2, DAYS), 1), 0, 6)
        fresh = np.round(np.clip(storm * 14 * luck.uniform(0.4, 1.3, shape) - 2, 0, 85))
        wind = np.round(16 + storm * 13 * luck.uniform(0.5, 1.4, shape) + luck.gamma(2, 4, shape))
        season = -7 * np.cos((np.arange(DAYS) - 45) / DAYS * 2 * np.pi)
        cold = np.round(-4 + season + luck.normal(0, 2.5, shape), 1)
        return cls(fresh, wind, cold, _visitors(fresh, wind, luck))

    @property
    def worst_day(self) -> tuple[str, date]:
        """Where and when the wind was strongest."""
        resort, day = np.unravel_index(int(np.argmax(self.wind_kmh)), self.wind_kmh.shape)
        return RESORTS[resort].name, FIRST_DAY + timedelta(days=int(day))


def chance(purpose: int) -> np.random.Generator:
    """Numbers for one purpose; taking more of them changes nothing elsewhere."""
    return np.random.default_rng([SEED, purpose])


def _visitors(fresh: Numbers, wind: Numbers, luck: np.random.Generator) -> Numbers:
    """More of them on weekends, holidays and days after snow; few when the wind stops the lifts."""
    days = np.arange(DAYS)
    crowd = np.where((days + FIRST_DAY.weekday()) % 7 >= 5, _WEEKEND, 1.0)
    for first, last, factor in _HOLIDAYS:
        crowd[first : last + 1] *= factor
    snow = 1 + np.clip(np.roll(fresh, 1, axis=1) * 0.5 + fresh, 0, 40) * 0.022
    open_ = np.where(wind > 75, 0.35, 1.0)
    draw = np.array([resort.draw for resort in RESORTS])[:, None]
    return luck.poisson(draw * crowd * snow * open_)
