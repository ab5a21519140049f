"""Laws that a schema states by their name in scipy.stats and their parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_mbde._checks import argument_error, check_number, shown
from pyro_mbde.names import near_miss_hint
from pyro_mbde.tables.date_kinds import units_since_low
from pyro_mbde.tables.facts import DATE_KINDS, Numbers, range_of

if TYPE_CHECKING:
    from pyro_mbde.tables.columns import Column

#: Least mass that a stated law must have in the range of its column.
MIN_MASS = 1e-6
#: What people call parameters that scipy.stats names otherwise.
_OTHER_NAMES = {"mean": "loc", "mu": "loc", "sd": "scale", "std": "scale", "sigma": "scale", "stddev": "scale"}


class StatedLaw:
    """A law of scipy.stats, truncated to a range: the law that each kind of column needs, in the table's units.

    Args:
        law: a frozen distribution of scipy.stats.
        discrete: whether it is one of whole numbers.
        low: the range.
        high: the range.
        whole: whether the column's values are whole numbers; a continuous law then has the mass of [n - 1/2, n + 1/2).
    """

    def __init__(self, law: Any, discrete: bool, low: float, high: float, whole: bool) -> None:
        self._law, self._discrete, self._whole = law, discrete, whole
        self._ends = np.array([low, high + whole])
        self.total = float(self._between(self._ends)[0])

    def densities(self, values: Numbers) -> Numbers:
        """Returns densities, of whole numbers probabilities, up to a factor; some may be infinite or NaN."""
        with np.errstate(all="ignore"):
            return np.asarray(self._law.pmf(values) if self._discrete else self._law.pdf(values))

    def masses(self, edges: Numbers) -> Numbers:
        """Returns the masses of cells between edges; that of the range is 1."""
        return self._between(edges) / self.total

    def quantiles(self, levels: Numbers) -> Numbers:
        """Returns points near those below which a share of the mass is, and the ends of the law's support."""
        below, above = self._sides(self._ends)
        with np.errstate(all="ignore"):
            lower = self._law.ppf(below[0] + levels * (below[1] - below[0]))
            upper = self._law.isf(above[1] + (1 - levels) * (above[0] - above[1]))
            points = np.concatenate([np.where(levels < 0.5, lower, upper), self._law.support()])
        return np.asarray(points[np.isfinite(points)])

    def _between(self, edges: Numbers) -> Numbers:
        below, above = self._sides(edges)
        # From whichever side is small, so that the mass of a tail keeps its digits.
        masses = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
        return np.asarray(masses.clip(min=0))

    def _sides(self, edges: Numbers) -> tuple[Numbers, Numbers]:
        points = edges - (1.0 if self._discrete else 0.5) if self._whole else edges
        with np.errstate(all="ignore"):
            return np.asarray(self._law.cdf(points)), np.asarray(self._law.sf(points))


def read_distribution(column: Column) -> StatedLaw:
    """Returns the law that a column states, in the table's units, of dates in units of their resolution since low.

    Raises:
        TypeError: it is not a table with a name and numbers.
        ValueError: scipy.stats does not have the law or its parameters, or the law is outside the range.
    """
    from scipy import stats  # type: ignore[import-untyped]  # SciPy ships no types

    given = column.distribution
    if not isinstance(given, Mapping):
        remedy = 'For example {name = "gamma", a = 2, scale = 3}.'
        raise TypeError(argument_error("distribution", "be a table", given, remedy))
    name = given.get("name")
    if not isinstance(name, str):
        remedy = 'State the name that scipy.stats has for it, for example name = "gamma".'
        raise TypeError(argument_error("distribution name", "be a string", name, remedy))
    span = range_of(column)
    classes = (stats.rv_continuous, stats.rv_discrete) if span.whole else (stats.rv_continuous,)
    family = getattr(stats, name, None)
    if not isinstance(family, classes):
        names = [other for other in dir(stats) if isinstance(getattr(stats, other), classes)]
        remedy = near_miss_hint(name, names) or "Common ones are norm, lognorm, gamma, beta and expon."
        if isinstance(family, stats.rv_discrete):
            remedy = "It is a law of whole numbers: the column needs the kind integer."
        raise ValueError(argument_error("distribution name", "be that of a law in scipy.stats", name, remedy))
    parameters = _parameters(column, name, family, {key: value for key, value in given.items() if key != "name"})
    law = StatedLaw(family(**parameters), isinstance(family, stats.rv_discrete), span.low, span.high, span.whole)
    if not math.isfinite(law.total):
        needed = family.shapes or "loc and scale"
        remedy = f"See scipy.stats.{name} for what {needed} may be."
        raise ValueError(argument_error("distribution", f"have parameters that {name} allows", dict(given), remedy))
    if law.total < MIN_MASS:
        remedy = "Check the parameters and their units, and the column's low and high."
        wanted = f"at least {MIN_MASS:g} of its mass between low and high; only {shown(law.total)} of it is there"
        raise ValueError(f"distribution must have {wanted}, got distribution={dict(given)!r}. {remedy}")
    return law


def _parameters(column: Column, name: str, family: Any, given: Mapping[str, Any]) -> dict[str, float]:
    shapes = [shape.strip() for shape in family.shapes.split(",")] if family.shapes else []
    known = [*shapes, "loc", *(["scale"] if hasattr(family, "pdf") else [])]
    parameters = {}
    for key, value in given.items():
        if key not in known:
            meant = _OTHER_NAMES.get(key)
            remedy = f"Did you mean {meant!r}?" if meant in known else near_miss_hint(key, known)
            raise ValueError(
                argument_error("distribution", f"have parameters of {name}: {', '.join(known)}", key, remedy)
            )
        if key == "loc" and column.kind in DATE_KINDS:
            parameters[key] = float(units_since_low(column, "distribution loc", value))
        else:
            parameters[key] = check_number(f"distribution {key}", value, "be finite", math.isfinite)
    if missing := [shape for shape in shapes if shape not in parameters]:
        wanted = f"have the parameter {missing[0]}, which {name} needs"
        remedy = f"Add {missing[0]} = ..."
        raise ValueError(argument_error("distribution", wanted, {"name": name, **given}, remedy))
    return parameters
