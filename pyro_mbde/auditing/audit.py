"""Attacks on a training function: a lower bound on the epsilon that it spends."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_number, check_seed
from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.auditing.checks import (
    PendingTest,
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
from pyro_mbde.auditing.hostile_tables import TablePair, hostile_pairs, rows_at_the_peak
from pyro_mbde.auditing.progress import AuditProgress
from pyro_mbde.auditing.report import FAULT, NOTE, AuditReport, Finding, PairResult
from pyro_mbde.auditing.search import log_ratio_of, rounding_of, search, starting_points
from pyro_mbde.density.base import prepare_base
from pyro_mbde.density.rejection import EnvelopeError
from pyro_mbde.privacy.guarantee import Guarantee

#: Probability that all statistical tests of a report together accuse a function that is as it should be.
_FALSE_ALARMS = 1e-4
#: Draws of a second release, rows of each table to search from.
_SECOND_RELEASE, _NUM_ROWS = 64, 256


def audit(
    fit: Callable[[Any], Any],
    epsilon: float,
    *,
    base: Distribution | None = None,
    tables: Mapping[str, tuple[Any, Any]] | None = None,
    num_pairs: int = 6,
    num_draws: int = 20_000,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: bool = True,
) -> AuditReport:
    r"""Attacks a training function: fits pairs of hostile tables and looks for what contradicts the claimed epsilon.

    For the owner of a table before a release, and for developers of trainers. Each pair of tables gives densities
    :math:`q, q'`, fitted once and held fixed, so what is attacked is what a
    :class:`~pyro_mbde.privacy.guarantee.Guarantee` claims of any two fits, whatever randomness they used:

    - *white-box*, where there is a ``log_prob``: the x with the largest

      .. math::
          \left| \log \frac{q(x)}{q'(x)} \right| \le \epsilon ,

      by gradient ascent from base draws, rows and far points, then by local search; on a finite base by enumeration.
      A density that is NaN counts as an infinite ratio. Ratios are float64, from tilt and normaliser where both
      densities are this library's; the slack for rounding is 1e-9 nats then, and some units in the last place of
      ``log_prob`` otherwise.
    - *black-box*, on draws alone: an event chosen on half of them, and on the other half Clopper and Pearson's bounds
      on :math:`\log\,(\Pr[S] - \delta) / \Pr[S']`, either way; :math:`1 - \text{confidence}` is shared out among
      pairs, ways and bounds.
    - *assumptions of the claim*: base, bounds, guarantee and certificate are the same for every table; the guarantee is
      what bounds and certificate imply; the tilt is in its bounds to the last bit; ``log_prob`` integrates to 1; phi is
      where it is certified to be; draws follow ``log_prob``, do not depend on one another, and are made afresh. The
      tests among these are made to accuse a sound function about once in 10,000 audits; beside that, a certificate may
      have failed, with probability delta a density.

    Proved of this library's trainers, in per cent of the claim, over the standard normal of the plane with four hostile
    pairs and 100,000 draws, white-box and black-box:

    ===========================  ===============  =============  =============
    epsilon                      0.1              1              5
    ===========================  ===============  =============  =============
    ``MBDE``                     88 and 17        87 and 46      80 and 52
    ``mollify(delta=0)``         87 and 12        88 and 46      91 and 49
    ``MBDE(calibrated=True)``    99.7 and 27      99.7 and 56    99.4 and 73
    ``mollify``                  99.7 and 24      99.7 and 78    99.4 and 95
    ``MBDE.paper``, exact draws  75 and 10        75 and 46      56 and 44
    ===========================  ===============  =============  =============

    It is evidence, not a proof: a fault contradicts the claim, no fault proves nothing. It does not see seeds that
    can be guessed, running times, how epsilon, skew and base were chosen before ``fit``, and how draws are used.

    Privacy:
        Public if only made-up tables went in. With ``tables`` of an owner's the report is as sensitive as they are.

    Args:
        fit: maps a table to a density: any object on the CPU with ``sample(sample_shape)``, ``log_prob(value)`` or
            both. To attack what is handed out, such as :func:`~pyro_mbde.private_draws`, return an object whose
            ``sample`` calls it. Choices made in ``fit`` are attacked, choices made before are not: let it be all that
            is claimed private.
        epsilon: claimed of one draw, in nats; in (0, inf).
        base: public base to make hostile tables from; ``None`` to attack with ``tables`` alone.
        tables: further pairs of tables by name, attacked first.
        num_pairs: hostile pairs made from the base, the sharpest first, at most 11; the last of them (of two or more)
            puts all rows where the attacks before peaked.
        num_draws: draws of each density, at least 1000.
        confidence: with which all black-box bounds hold together, in (0, 1).
        seed: of tables, search and draws (and of a fit that uses torch's global generator); ``None`` for the global
            generator as it is.
        progress: whether to show a progress bar that names the step under way.

    Returns:
        The report.

    Raises:
        TypeError: an argument is of the wrong kind, or ``fit`` returns what can be neither drawn from nor evaluated.
        ValueError: an argument is out of its range, or there is neither a base nor a pair of tables.

    References:
        Jagielski, Ullman, Oprea. Auditing Differentially Private Machine Learning. 2020. Ding, Wang, Wang, Zhang,
        Kifer. Detecting Violations of Differential Privacy. 2018. Husain, Cranko, Nock. Integral Privacy for Sampling
        from Mollifier Densities. 2018. Definition 2.

    Example:
        >>> from pyro_mbde import MBDE, WeakLearner
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> trainer = MBDE(base, epsilon=1.0, weak_learner=WeakLearner(num_steps=60), progress=False)
        >>> report = audit(trainer.fit, 1.0, base=base, num_pairs=1, num_draws=2000, seed=0, progress=False)
        >>> report.passed, 0.8 < report.proven <= 1
        (True, True)
    """
    if not callable(fit):
        raise TypeError(argument_error("fit", "be a function of a table", fit))
    epsilon = check_number("epsilon", check_epsilon(epsilon), "be finite", math.isfinite)
    num_pairs = check_count("num_pairs", num_pairs, minimum=0)
    num_draws = check_count("num_draws", num_draws, minimum=1000)
    confidence = check_number("confidence", confidence, "be in (0, 1)", lambda value: 0 < value < 1)
    check_seed(seed)
    given = _check_tables(tables)
    prepared = None if base is None else prepare_base(base)
    with seeded(seed), single_thread():
        is_adaptive = prepared is not None and num_pairs >= 2
        made = [] if prepared is None else hostile_pairs(prepared, epsilon, num_pairs - is_adaptive)
        if not given and not made:
            raise ValueError(argument_error("base", "be given, or tables", base))
        total = len(given) + len(made) + is_adaptive
        with AuditProgress(total, show=progress) as steps:
            attack = _Attack(fit, epsilon, num_draws, (1 - confidence) / total, steps)
            for pair in (*given, *made):
                attack.run(pair)
                steps.end_pair()
            if is_adaptive and attack.place is not None:
                assert prepared is not None
                attack.run(rows_at_the_peak(prepared, attack.place))
            steps.end_pair()
        return AuditReport(
            epsilon,
            delta=attack.delta,
            confidence=confidence,
            num_draws=num_draws,
            pairs=tuple(attack.results),
            findings=attack.verdict(),
            seed=seed,
        )


def _check_tables(tables: Any) -> list[TablePair]:
    if tables is None:
        return []
    if not isinstance(tables, Mapping):
        raise TypeError(argument_error("tables", "map names to pairs of tables", type(tables).__name__))
    for pair in tables.values():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(argument_error("tables", "map names to pairs of tables", type(pair).__name__))
    return [TablePair(str(name), *pair) for name, pair in tables.items()]


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A table with the density that was fitted to it, and draws of that."""

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
class _Attack:
    """State of an audit: fitted densities, results and findings.

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
    _findings: list[Finding] = field(default_factory=list)
    _pending: list[PendingTest] = field(default_factory=list)
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
        """All findings, the tests' among them by the level that their number leaves to each; faults first."""
        level = _FALSE_ALARMS / max(len(self._pending), 1)
        by_p_value = sorted(self._pending, key=lambda test: test.p_value)
        for refused in self._refusals:
            if self._fitted:  # whoever sees a refusal knows that the table is not one of those
                self._fault("refused", f"fit refused {refused}, and others not: a refusal tells tables apart", math.inf)
            else:
                self._note(f"fit refused {refused}: nothing was attacked")
        found = [*self._findings, *(test.finding for test in by_p_value if test.p_value < level)]
        return tuple(_condense(found, FAULT)) + tuple(_condense(found, NOTE))

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
            self._note(f"the density of {name} has no sample: no draws were attacked")
            return None
        try:
            draws: Tensor = density.sample(torch.Size([self.num_draws]))
            second: Tensor = density.sample(torch.Size([_SECOND_RELEASE]))
        except EnvelopeError:
            text = f"the density of {name} cannot be drawn from: its tilt is above its bound or NaN"
            self._fault("tilt", text, math.inf)
            return None
        except (ValueError, RuntimeError) as error:
            self._note(f"the density of {name} cannot be drawn from: {type(error).__name__}")
            return None
        self._findings.extend(check_repeated_release(name, second, draws))
        return draws.detach()

    def _check(self, fitted: _Fitted) -> None:
        """Holds one density against its own claims, and against the public facts of the first one."""
        name, density, first = fitted.name, fitted.density, self._fitted[0].density
        base = base_of(density)
        if fitted.guarantee is not None:
            self.delta = max(self.delta, fitted.guarantee.delta)
        self._findings.extend(check_claim(name, density, self.epsilon))
        if density is not first:
            self._findings.extend(check_public_facts(name, density, first))
        if fitted.draws is not None:
            tests, findings = check_draws(name, density, base, fitted.draws)
            self._pending.extend(tests)
            self._findings.extend(findings)
        if not fitted.has_log_prob:
            self._note(f"the density of {name} has no log_prob: it was attacked by its draws alone")
            return
        starts = self._starts(fitted)
        self._findings.extend(check_values(name, density, starts))
        if base is not None:
            self._pending.extend(check_normalizer(name, density, base, starts))

    def _starts(self, *densities: _Fitted) -> Tensor:
        """Where the search for a large log-ratio begins."""
        base = base_of(densities[0].density)
        support = getattr(densities[0].density, "support", None)
        drawn = [fitted.draws[:_NUM_ROWS] for fitted in densities if fitted.draws is not None]
        like = base.sample(torch.Size([1])) if base is not None else drawn[0] if drawn else None
        if like is None and isinstance(densities[0].table, Tensor | np.ndarray):  # of a log_prob alone
            like = torch.as_tensor(densities[0].table)[:1]
        rows = [_rows(fitted.table, like) for fitted in densities]
        usable = [part for part in (*drawn, *rows) if part is not None]
        return starting_points(base, support, usable)

    def _white_box(self, result: PairResult, q: _Fitted, other: _Fitted) -> PairResult:
        self.steps.begin(f"searching for the largest log-ratio, {result.name!r}")
        over_same_base = same_base(q.density, other.density)
        log_ratio = log_ratio_of(q.density, other.density, same_base=over_same_base)
        peak = search(log_ratio, self._starts(q, other), getattr(q.density, "support", None))
        slack = rounding_of(q.density, other.density, peak.place.unsqueeze(0), same_base=over_same_base)
        where = f"on {result.name!r} at x = {describe(peak.place)}"
        if peak.epsilon > self.epsilon + slack:
            text = f"|log q/q'| is {peak.epsilon:.10g}, above the claimed {self.epsilon:.10g}, {where}"
            self._fault("epsilon", text, peak.epsilon)
        spread = peak.highest - peak.lowest
        claims = [
            fitted.guarantee.log_ratio_range
            for fitted in (q, other)
            if fitted.guarantee is not None and fitted.guarantee.log_ratio_range is not None
        ]
        if len(claims) == 2 and spread > max(claims) + 2 * slack:
            text = f"log q/q' ranges over {spread:.10g}, above the claimed {max(claims):.10g}, {where}"
            self._fault("range", text, spread)
        if peak.epsilon > self._largest and math.isfinite(peak.epsilon):
            self._largest, self.place = peak.epsilon, peak.place
        return replace(
            result,
            white_box=peak.epsilon,
            log_ratio_range=spread,
            place=tuple(peak.place.double().flatten().tolist()),
        )

    def _black_box(
        self, result: PairResult, q: _Fitted, other: _Fitted, draws: Tensor, other_draws: Tensor
    ) -> PairResult:
        self.steps.begin(f"telling draws apart, {result.name!r}")
        flat = [part.reshape(self.num_draws, -1) for part in (draws, other_draws)]
        if not all(bool(torch.isfinite(part).all()) for part in flat):
            return result
        tables = [_rows(fitted.table, draws) for fitted in (q, other)]
        rows = [flat[0][:0] if table is None else table.reshape(len(table), flat[0].shape[1]) for table in tables]
        event = epsilon_lower_bound(*flat, *rows, error=self.error, delta=self.delta)
        if event.epsilon > self.epsilon:
            text = f"draws alone prove {event.epsilon:.4g} on {result.name!r}: {event.text}"
            self._fault("black-box", text, event.epsilon)
        return replace(result, black_box=event.epsilon, event=event.text)

    def _fault(self, kind: str, text: str, evidence: float) -> None:
        self._findings.append(Finding(kind, FAULT, text, evidence))

    def _note(self, text: str) -> None:
        self._findings.append(Finding("unchecked", NOTE, text))


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


def _condense(findings: list[Finding], severity: str) -> list[Finding]:
    """The strongest finding of each kind, with how many more there are."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.severity == severity:
            kinds.setdefault(finding.kind, []).append(finding)
    condensed = []
    for found in kinds.values():
        strongest = max(found, key=lambda finding: abs(finding.evidence))
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        condensed.append(replace(strongest, text=strongest.text + more))
    return condensed
