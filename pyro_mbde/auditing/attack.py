"""The attack itself: pairs of tables are fitted, the densities checked, searched, and told apart by their draws."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.auditing.checks import (
    base_of,
    check_claim,
    check_normalizer,
    check_public_facts,
    check_values,
    describe,
    same_base,
)
from pyro_mbde.auditing.draws import check_draws, check_repeated_release
from pyro_mbde.auditing.events import epsilon_lower_bound
from pyro_mbde.auditing.hostile_tables import TablePair
from pyro_mbde.auditing.progress import AuditProgress
from pyro_mbde.auditing.report import FAULT, Evidence, Finding, PairResult, PendingTest, fault, note
from pyro_mbde.auditing.search import ROUNDING, log_ratio_of, rows_of_a_draw, search, starting_points
from pyro_mbde.density.rejection import EnvelopeError
from pyro_mbde.privacy.guarantee import Guarantee

#: Probability that all statistical tests of a report together accuse a function without a fault.
_FALSE_ALARMS = 1e-4
#: Draws of a second and third release, rows of each table to search from.
_NUM_SECOND_DRAWS, _NUM_ROWS = 64, 256


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A table with the density that was fitted to it, and its draws."""

    name: str
    table: Any
    density: Any
    draws: Tensor | None

    @property
    def has_log_prob(self) -> bool:
        return hasattr(self.density, "log_prob")

    @property
    def guarantee(self) -> Guarantee | None:
        guarantee = getattr(self.density, "guarantee", None)
        return guarantee if isinstance(guarantee, Guarantee) else None


@dataclass(eq=False)
class Attack:
    """State of an audit.

    Attributes:
        fit: the attacked function.
        epsilon: that is claimed of it.
        num_draws: of each density.
        error: probability that the black-box bounds of one pair are wrong.
        steps: what to report progress to.
        results: one a pair.
        delta: the largest that a density claims.
        place: where the largest finite log-ratio was found.
    """

    fit: Callable[[Any], Any]
    epsilon: float
    num_draws: int
    error: float
    steps: AuditProgress
    results: list[PairResult] = field(default_factory=list)
    delta: float = 0.0
    place: Tensor | None = None
    _largest: float = 0.0
    _fitted: list[_Fitted] = field(default_factory=list)
    _evidence: list[Evidence] = field(default_factory=list)
    _refusals: list[str] = field(default_factory=list)

    def run(self, pair: TablePair) -> None:
        """Fits a pair of tables and attacks the densities."""
        q = self._fit_table(f"{pair.name!r}, first table", pair.table)
        other = self._fit_table(f"{pair.name!r}, second table", pair.other)
        result = PairResult(pair.name)
        if q is not None and other is not None:
            if q.has_log_prob and other.has_log_prob:
                result = self._white_box(result, q, other)
            if q.draws is not None and other.draws is not None:
                result = self._black_box(result, q, other, q.draws, other.draws)
        self.results.append(result)

    def verdict(self) -> tuple[Finding, ...]:
        """All findings, faults first. The level of each test is its share of the probability of a false alarm."""
        tests = [item for item in self._evidence if isinstance(item, PendingTest)]
        found = [item for item in self._evidence if isinstance(item, Finding)]
        for refused in self._refusals:
            if self._fitted:  # anyone who sees a refusal knows that the table is not one of those
                text = f"fit refused {refused}, and others not: a refusal tells tables apart"
                found.append(fault("refused", text, math.inf))
            else:
                found.append(note(f"fit refused {refused}: nothing was attacked"))
        tests.sort(key=lambda test: test.p_value)
        found += [test.finding for test in tests if test.p_value < _FALSE_ALARMS / len(tests)]
        return tuple(_condense(sorted(found, key=lambda finding: finding.severity != FAULT)))

    def _fit_table(self, name: str, table: Any) -> _Fitted | None:
        for fitted in self._fitted:
            if fitted.table is table:
                return fitted
        self.steps.begin(f"fitting {name}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that a table is odd is the point
                density = self.fit(table)
        except (ValueError, RuntimeError) as error:
            # Not its text: a message may depend on an owner's table.
            self._refusals.append(f"the table of {name} with a {type(error).__name__}")
            return None
        if not hasattr(density, "log_prob") and not hasattr(density, "sample"):
            raise TypeError(argument_error("fit", "return an object with sample or log_prob", type(density).__name__))
        self.steps.begin(f"checking {name}")
        fitted = _Fitted(name, table, density, self._draw(name, density))
        self._fitted.append(fitted)
        self._check(fitted)
        return fitted

    def _draw(self, name: str, density: Any) -> Tensor | None:
        if not hasattr(density, "sample"):
            self._evidence.append(note(f"the density of {name} has no sample: no draws were attacked"))
            return None
        try:
            draws: Tensor = density.sample(torch.Size([self.num_draws]))
            second, third = (density.sample(torch.Size([_NUM_SECOND_DRAWS])) for _ in range(2))
        except EnvelopeError:
            text = f"the density of {name} cannot be drawn from: its tilt is above its bound or NaN"
            self._evidence.append(fault("tilt", text, math.inf))
            return None
        except (ValueError, RuntimeError) as error:
            self._evidence.append(note(f"the density of {name} cannot be drawn from: {type(error).__name__}"))
            return None
        self._evidence += check_repeated_release(name, second, draws)
        self._evidence += check_repeated_release(name, second, third)  # of one size: batches may follow the size
        return draws.detach()

    def _check(self, fitted: _Fitted) -> None:
        """Checks one density against its own claims, and against the public facts of the first one."""
        name, density, first = fitted.name, fitted.density, self._fitted[0].density
        base = base_of(density)
        if fitted.guarantee is not None:
            self.delta = max(self.delta, fitted.guarantee.delta)
        self._evidence += check_claim(name, density, self.epsilon)
        if density is not first:
            self._evidence += check_public_facts(name, density, first)
        if fitted.draws is not None:
            self._evidence += check_draws(name, density, base, fitted.draws)
        if not fitted.has_log_prob:
            text = f"the density of {name} has no log_prob: it was attacked by its draws alone"
            self._evidence.append(note(text))
            return
        starts = self._starts(fitted)
        self._evidence += check_values(name, density, starts)
        if base is not None:
            self._evidence += check_normalizer(name, density, base, starts)

    def _starts(self, *fitted: _Fitted) -> Tensor:
        """Where the search for a large log-ratio begins."""
        density, table = fitted[0].density, fitted[0].table
        base = base_of(density)
        drawn = [one.draws[:_NUM_ROWS] for one in fitted if one.draws is not None]
        like = base.sample(torch.Size([1])) if base is not None else drawn[0] if drawn else None
        if like is None and isinstance(table, Tensor | np.ndarray):  # of a log_prob alone
            like = torch.as_tensor(table)[:1]
        num_rows = rows_of_a_draw(density)
        if num_rows is None or like is None:
            rows = [_rows(one.table, like) for one in fitted]
        else:
            rows = [_batches(_rows(one.table, like[:, 0]), num_rows) for one in fitted]
        usable = [part for part in (*drawn, *rows) if part is not None]
        return starting_points(base, getattr(density, "support", None), usable)

    def _white_box(self, result: PairResult, q: _Fitted, other: _Fitted) -> PairResult:
        self.steps.begin(f"searching for the largest log-ratio, {result.name!r}")
        over_same_base = same_base(q.density, other.density)
        log_ratio = log_ratio_of(q.density, other.density, same_base=over_same_base)
        peak = search(log_ratio, self._starts(q, other), getattr(q.density, "support", None))
        where = f"on {result.name!r} at x = {describe(peak.place)}"
        if peak.epsilon > self.epsilon + ROUNDING:
            text = f"|log q/q'| is {peak.epsilon:.10g}, above the claimed {self.epsilon:.10g}, {where}"
            self._evidence.append(fault("epsilon", text, peak.epsilon))
        spread = peak.highest - peak.lowest
        ranges = [one.guarantee.log_ratio_range for one in (q, other) if one.guarantee is not None]
        claims = [claim for claim in ranges if claim is not None]
        if len(claims) == 2 and spread > max(claims) + 2 * ROUNDING:
            text = f"log q/q' ranges over {spread:.10g}, above the claimed {max(claims):.10g}, {where}"
            self._evidence.append(fault("range", text, spread))
        if peak.epsilon > self._largest and math.isfinite(peak.epsilon):
            self._largest, self.place = peak.epsilon, peak.place
        place = tuple(peak.place.double().flatten().tolist())
        return replace(result, white_box=peak.epsilon, log_ratio_range=spread, place=place)

    def _black_box(
        self, result: PairResult, q: _Fitted, other: _Fitted, draws: Tensor, other_draws: Tensor
    ) -> PairResult:
        self.steps.begin(f"telling draws apart, {result.name!r}")
        flat = [part.reshape(self.num_draws, -1) for part in (draws, other_draws)]
        if not all(bool(torch.isfinite(part).all()) for part in flat):
            return result
        num_rows = rows_of_a_draw(q.density)
        tables = [_rows(fitted.table, draws if num_rows is None else draws[:, 0]) for fitted in (q, other)]
        width = flat[0].shape[1] // (num_rows or 1)
        rows = [flat[0][:0, :width] if table is None else table.reshape(len(table), width) for table in tables]
        event = epsilon_lower_bound(*flat, *rows, error=self.error, delta=self.delta, num_rows=num_rows or 1)
        if event.epsilon > self.epsilon:
            text = f"draws alone prove {event.epsilon:.4g} on {result.name!r}: {event.text}"
            self._evidence.append(fault("black-box", text, event.epsilon))
        if not event.text:
            return replace(result, black_box=event.epsilon)
        return replace(result, black_box=event.epsilon, event=event.text, estimate=event.estimate, upper=event.upper)


def _rows(table: Any, like: Tensor | None) -> Tensor | None:
    """Some distinct rows of a table as values of the density, where it is a tensor or an array of such."""
    if like is None or not isinstance(table, Tensor | np.ndarray):
        return None
    rows = torch.as_tensor(table).detach()
    if rows.dim() == like.dim() + 1 and rows.shape[1:] == (1,):
        rows = rows.squeeze(1)
    if rows.shape[1:] != like.shape[1:]:
        return None
    distinct = torch.unique(rows, dim=0)
    chosen: Tensor = distinct[torch.randperm(len(distinct))[:_NUM_ROWS]].to(like)
    return chosen


def _batches(rows: Tensor | None, num_rows: int) -> Tensor | None:
    """Batches of a table's rows: copies of one row, where scores add up most, and rows at random."""
    if rows is None or not len(rows):
        return rows
    copies = rows.unsqueeze(1).expand(-1, num_rows, *rows.shape[1:])
    return torch.cat([copies, rows[torch.randint(len(rows), (len(rows), num_rows))]])


def _condense(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The strongest finding of each severity and kind, with how many more there are."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.severity, finding.kind), []).append(finding)
    for found in kinds.values():
        strongest = max(found, key=lambda finding: abs(finding.evidence))
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield replace(strongest, text=strongest.text + more)
