"""What several draws cost together, and what one of several may cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from pyro_mbde._checks import argument_error, check_choice, check_count, check_epsilon, check_number
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.privacy.iid import MOST_DRAWS, iid_epsilon, largest_iid_epsilon
from pyro_mbde.privacy.placement import (
    MAX_DRAWS,
    filled_share_skew,
    is_within_placement,
    largest_placed_epsilon,
    placed_total_variation,
    placement_epsilon,
)
from pyro_mbde.privacy.zcdp import zcdp_epsilon, zcdp_rho

PURE, ZCDP, EXACT, PLACEMENT = "pure composition", "zCDP", "exact curve of i.i.d. draws", "placement"
#: Share of a result that is held back where a function is inverted in floats.
_RESERVE = 1e-12
#: Share by which an epsilon is lowered, as long as the draws cost more than the total.
_STEP = 1e-4
#: Widths of tilts that differ by less than this share are taken to be equally good.
_TIE = 1e-3
#: A planned epsilon is rounded down to six digits: it is typed and read, and wastes less than 1e-5 of itself.
_PLANNED = Context(prec=6, rounding=ROUND_FLOOR)
#: Accounts compare settings rounded up to nine digits: the last digit of a float differs between processors.
_COMPARED = Context(prec=9, rounding=ROUND_CEILING)


@dataclass(frozen=True)
class TotalCost:
    r"""What a release of several draws costs, with no condition attached.

    For any two tables :math:`D, D'` and any set S of releases,
    :math:`\Pr[A(D) \in S] \le e^{\epsilon} \Pr[A(D') \in S] + \delta`.

    Attributes:
        epsilon: in nats.
        delta: in [0, 1).
        rule: how it was added up.
    """

    epsilon: float
    delta: float
    rule: str


def compose(guarantee: Guarantee, num_draws: int, delta: float | None = None) -> TotalCost:
    r"""Returns the least that several draws of one fitted density are known to cost, taken together.

    Given the fitted density the draws are independent. While its certificate G holds, what k draws cost is

    - by **pure composition** :math:`k \epsilon`, the log-ratios of their laws added up;
    - by **zCDP**, at :math:`\rho = \min(\epsilon^2/2, r^2/8)` a draw, :func:`~pyro_mbde.privacy.zcdp.zcdp_epsilon` of
      :math:`k \rho`: a log-ratio in :math:`[-\epsilon, \epsilon]` has :math:`\rho = \epsilon^2/2`, and one that ranges
      over r, wherever that lies, :math:`r^2/8`;
    - by **placement**, :func:`~pyro_mbde.privacy.placement.placement_epsilon`, the worst pair of laws that epsilon and
      total variation allow;
    - **exactly**, :func:`~pyro_mbde.privacy.iid.iid_epsilon`, the worst pair of laws that epsilon and range allow;
      better than placement where the range is at most epsilon, as it is a priori.

    The least is returned, :math:`\epsilon_k` at a delta of :math:`\delta_k`. G, which bounds the log-ratio
    of *any* two certified densities, fails with probability :math:`f \le \delta_G`, once for the density. The total is
    :math:`\epsilon_k` at :math:`\delta_k + \delta_G`. Proof: docs/proofs.md, *Composition under a certificate that may
    fail*.

    This holds for any density that carries a :class:`~pyro_mbde.privacy.guarantee.Guarantee`: draws of a fitted
    density, exact posterior draws, last states of fresh chains. k may be fixed at any time, if the total for
    the largest k that was possible is what is counted.

    Args:
        guarantee: guarantee of one draw.
        num_draws: number k of draws of the same fitted density; at least 1.
        delta: delta of the total, in [0, 1), at least the certificate's; ``None`` for exactly the certificate's, which
            leaves pure composition.

    Returns:
        The total, :math:`\epsilon_k` at ``delta``, and the rule that gave it. Under pure composition the total's delta
        is the certificate's, however large a delta was allowed, and the epsilons are added up as the decimals that
        Python prints for them.

    References:
        Dwork, Roth. The Algorithmic Foundations of Differential Privacy. 2014. Theorem 3.14 (pure). Bun, Steinke.
        Concentrated Differential Privacy. 2016. Proposition 3.3 (epsilon to zCDP). Cesar, Rogers. Bounding,
        Concentrating, and Truncating. 2021. Lemma 3.2 (range to zCDP). Dong, Durfee, Rogers. Optimal Differential
        Privacy Composition for Exponential Mechanisms. 2020 (exact).

    Example:
        >>> compose(Guarantee(epsilon=0.25, log_ratio_range=0.25), num_draws=12)
        TotalCost(epsilon=3.0, delta=0.0, rule='pure composition')
        >>> total = compose(Guarantee(epsilon=0.1, log_ratio_range=0.1), num_draws=1000, delta=1e-6)
        >>> round(total.epsilon, 2), total.rule
        (8.3, 'exact curve of i.i.d. draws')
    """
    if not isinstance(guarantee, Guarantee):
        raise TypeError(argument_error("guarantee", "be a Guarantee", guarantee))
    num_draws = check_count("num_draws", num_draws)
    delta = _check_delta(delta, guarantee.delta)
    totals = [TotalCost(_pure_total([(guarantee, num_draws)]), guarantee.delta, PURE)]
    rest = delta - guarantee.delta
    if rest > 0:
        totals.append(TotalCost(_zcdp_total(num_draws * zcdp_of_draw(guarantee), rest), delta, ZCDP))
        placed = guarantee.log_ratio_range > guarantee.epsilon
        if placed and num_draws <= MAX_DRAWS:
            totals.append(TotalCost(placement_epsilon(guarantee, num_draws, rest), delta, PLACEMENT))
        if num_draws <= MOST_DRAWS and not (placed and guarantee.is_placed):
            totals.append(TotalCost(iid_epsilon(guarantee, num_draws, rest), delta, EXACT))
    return min(totals, key=lambda total: total.epsilon)


def compose_fits(
    releases: Iterable[tuple[Guarantee, int]], delta: float | None = None, rule: str = "pure"
) -> TotalCost:
    r"""Returns what draws of several densities cost together, each fitted to the same table.

    A later fit may depend on earlier draws: what is fitted, at which epsilon and how many rows are drawn. Epsilons add
    up under that, and so does :math:`\rho` of zCDP, as long as one rule and its limit were fixed beforehand; the exact
    curve of :func:`compose` does not. Certificates add to delta alone, each once
    (:class:`~pyro_mbde.Account` has the proof):

    .. math::
        \epsilon = \epsilon_{\text{rule}} , \qquad \delta = \delta_{\text{rule}} + \sum_i \delta_i .

    Args:
        releases: for each fitted density, the guarantee of one draw, and the number of draws.
        delta: delta of the total, in [0, 1), at least that of all certificates; ``None`` for exactly that.
        rule: ``pure``, or ``zcdp``, which needs a delta above that of the certificates. To be fixed before the first
            draw.

    Returns:
        The total; of nothing, 0.

    References:
        Rogers, Roth, Ullman, Vadhan. Privacy Odometers and Filters. 2016 (pure). Feldman, Zrnic. Individual Privacy
        Accounting via a Rényi Filter. 2021. Theorem 3.1 (zCDP).

    Example:
        >>> first, second = Guarantee(0.5, log_ratio_range=0.5), Guarantee(0.1, log_ratio_range=0.1)
        >>> compose_fits([(first, 2), (second, 10)])
        TotalCost(epsilon=2.0, delta=0.0, rule='pure composition')
        >>> round(compose_fits([(first, 2), (second, 100)], 1e-6, "zcdp").epsilon, 2)
        3.02
    """
    check_choice("rule", rule, ("pure", "zcdp"))
    parts = [(guarantee, check_count("num_draws", num_draws)) for guarantee, num_draws in releases]
    certificates = math.fsum(guarantee.delta for guarantee, _ in parts)
    delta = _check_delta(delta, certificates)
    if rule == "pure":
        return TotalCost(_pure_total(parts), certificates, PURE)
    if not delta > certificates:
        raise ValueError(argument_error("delta", f"be above that of the certificates, {certificates:g}", delta))
    rho = math.fsum(num_draws * zcdp_of_draw(guarantee) for guarantee, num_draws in parts)
    return TotalCost(_zcdp_total(rho, delta - certificates), delta, ZCDP)


@functools.lru_cache(maxsize=4096)
def exact_decimal(number: float) -> Fraction:
    """Returns the decimal that Python prints for a number, which is what people add up: ten times 0.1 is 1.

    Args:
        number: finite.
    """
    return Fraction(repr(number))


def sum_of_epsilons(parts: Iterable[tuple[Guarantee, int]]) -> Fraction:
    """Returns what pure composition adds up, as the exact sum of decimals.

    Args:
        parts: for each fitted density, the guarantee of one draw, whose epsilon is finite, and the number of draws.
    """
    return sum((count * exact_decimal(guarantee.epsilon) for guarantee, count in parts), Fraction(0))


def round_up(number: float) -> float:
    """Returns a number rounded up to nine digits, as accounts compare settings of fits by.

    Args:
        number: at least 0.

    Example:
        >>> round_up(0.25918177931828), round_up(1.0)
        (0.25918178, 1.0)
    """
    return float(_COMPARED.create_decimal(repr(number)))


def to_float(number: Fraction) -> float:
    """Returns the nearest float; infinity for a number beyond the largest float.

    Args:
        number: at least 0.
    """
    try:
        return float(number)
    except OverflowError:
        return math.inf


def zcdp_of_draw(guarantee: Guarantee) -> float:
    """Returns rho of one draw under zCDP, without its certificate: min(epsilon^2 / 2, range^2 / 8).

    Args:
        guarantee: of the draw.
    """
    # Products, not powers: these overflow to inf.
    return min(guarantee.epsilon * guarantee.epsilon / 2, guarantee.log_ratio_range * guarantee.log_ratio_range / 8)


@dataclass(frozen=True)
class DrawBudget:
    """What each of several draws may cost within a total, and what kind of density serves them best.

    Attributes:
        epsilon: epsilon of one draw, in nats, to fit with.
        delta: delta of the certificate, to fit with; 0 for the a-priori form.
        form: ``a priori`` or ``calibrated``.
        skew: where to place the interval of the tilt; the total depends on it.
        total: what the draws then cost together, and by which rule.
    """

    epsilon: float
    delta: float
    form: str
    skew: float
    total: TotalCost

    @property
    def account_rule(self) -> str:
        """The rule of the :class:`~pyro_mbde.Account` that adds up as the plan does.

        One of ``pure``, ``zcdp``, ``iid`` and ``placement``. Except under ``pure``, open the account with the plan's
        ``delta`` as its ``certificate_delta``, as no more is needed.
        """
        return {PURE: "pure", ZCDP: "zcdp", EXACT: "iid", PLACEMENT: "placement"}[self.total.rule]


def epsilon_per_draw(
    total_epsilon: float,
    num_draws: int,
    delta: float = 0.0,
    *,
    certificate_delta: float = 1e-9,
    skew: float = 0.3,
    filled_share: float | None = None,
) -> DrawBudget:
    r"""Returns the epsilon that each of several draws may have, with the form that serves best.

    :func:`compose`, inverted. Of the two forms the one with the wider tilt is chosen, since width is what a fit can use
    to come closer to the table: :math:`R = \epsilon/2` a priori, almost :math:`R = \epsilon` calibrated. The
    lower the skew of a calibrated density, the less it costs, as it then lies closer to the base almost everywhere.

    Args:
        total_epsilon: of all draws together, in nats; finite and above 0.
        num_draws: number k of draws, the largest that may be wanted.
        delta: of all draws together, in [0, 1); 0 leaves the a-priori form and pure composition.
        certificate_delta: the part of delta that a certificate may use, in (0, 1).
        skew: where a calibrated density is placed, in (0, 1).
        filled_share: the share of the base's mass that the table is believed to fill, in (0, 1): a public guess, which
            sets the skew by :func:`~pyro_mbde.privacy.placement.filled_share_skew`. Meant for single rows.

    Returns:
        The budget. ``compose`` of what it names is at most the total, and wastes less than 0.1 per cent of it. Its
        epsilon is a decimal of at most six digits. Where another rule allows no wider a tilt, it is pure composition.

    Example:
        >>> few, many = epsilon_per_draw(3.0, 3, 1e-6), epsilon_per_draw(3.0, 1_000, 1e-6)
        >>> few.epsilon, few.form, round(many.epsilon, 3), many.form
        (1.0, 'calibrated', 0.027, 'calibrated')
        >>> round(epsilon_per_draw(3.0, 1_000, 1e-6, filled_share=0.05).epsilon, 3)
        0.063
    """
    total_epsilon = check_epsilon(total_epsilon)
    check_number("total_epsilon", total_epsilon, "be finite", math.isfinite)
    num_draws = check_count("num_draws", num_draws)
    delta = check_number("delta", delta, "be in [0, 1)", lambda value: 0 <= value < 1)
    unit_interval = {"certificate_delta": certificate_delta, "skew": skew, "filled_share": filled_share}
    for name, value in unit_interval.items():
        if value is not None:
            check_number(name, value, "be in (0, 1)", lambda value: 0 < value < 1)

    def skew_at(epsilon: float) -> float:
        return skew if filled_share is None else filled_share_skew(epsilon, filled_share)

    a_priori = _largest_epsilon(total_epsilon, num_draws, delta, 1.0)
    if num_draws <= MOST_DRAWS and delta > 0:
        a_priori = max(a_priori, largest_iid_epsilon(total_epsilon, num_draws, delta, 1.0))
    budget = _budget(total_epsilon, num_draws, delta, a_priori, 0.0, skew_at)
    if delta > 0:
        # No more than a hundredth of delta where that is small: it shifts the total by almost nothing.
        certificate_delta = min(certificate_delta, delta if num_draws == 1 else delta / 100)
        rest = delta - certificate_delta
        calibrated = _largest_epsilon(total_epsilon, num_draws, rest, 2.0)
        if num_draws <= MAX_DRAWS and rest > 0:
            placed = largest_placed_epsilon(total_epsilon, num_draws, rest, skew_at)
            # Pure composition serves as well where it is as wide: it takes no delta, and allows any further fits.
            calibrated = placed if placed > (1 + _TIE) * calibrated else calibrated
        if calibrated > (1 + _TIE) * a_priori / 2:
            return _budget(total_epsilon, num_draws, delta, calibrated, certificate_delta, skew_at)
    return budget


def _budget(
    total_epsilon: float,
    num_draws: int,
    delta: float,
    epsilon: float,
    certificate_delta: float,
    skew_at: Callable[[float], float],
) -> DrawBudget:
    """The budget of draws at an epsilon that is close to the largest; a priori where nothing is certified."""
    epsilon = _round_down(epsilon)
    while True:
        skew = skew_at(epsilon)
        guarantee = _guarantee(epsilon, certificate_delta, skew)
        total = compose(guarantee, num_draws)
        if total.epsilon > total_epsilon:
            total = compose(guarantee, num_draws, delta)
        if total.epsilon <= total_epsilon and _account_bears(guarantee, total, num_draws, total_epsilon):
            form = "calibrated" if certificate_delta else "a priori"
            return DrawBudget(epsilon, certificate_delta, form, skew, total)
        # What a curve rounds up.
        epsilon = max(_round_down(epsilon * (1 - _STEP)), _pure_epsilon(total_epsilon, num_draws))


def _account_bears(guarantee: Guarantee, total: TotalCost, num_draws: int, total_epsilon: float) -> bool:
    """Whether an account by placement, which rounds up what it compares, affords the draws too."""
    if total.rule != PLACEMENT:
        return True
    rounded = Guarantee(guarantee.epsilon, total_variation=round_up(guarantee.total_variation))
    # The split of delta is rounded as well.
    delta = math.nextafter(total.delta - guarantee.delta, 0.0)
    return is_within_placement(rounded, num_draws, total_epsilon, delta)


def _guarantee(epsilon: float, certificate_delta: float, skew: float) -> Guarantee:
    """Of a calibrated density, whose range is just below 2 epsilon, or where nothing is certified, an a-priori one."""
    if not certificate_delta:
        return Guarantee(epsilon, log_ratio_range=epsilon)
    return Guarantee(epsilon, certificate_delta, total_variation=placed_total_variation(epsilon, skew))


def _largest_epsilon(total: float, num_draws: int, delta: float, range_share: float) -> float:
    """The largest epsilon of one draw that pure composition or zCDP allows; rounded down."""
    best = _pure_epsilon(total, num_draws)
    if delta > 0 and best > 0:
        # rho of a draw is (share epsilon)^2 / 8, as the share is at most 2.
        best = max(best, math.sqrt(8 * zcdp_rho(total, delta) / num_draws) / range_share * (1 - _RESERVE))
    return best


def _pure_epsilon(total: float, num_draws: int) -> float:
    """So many times its decimal is at most the total's."""
    return float(_PLANNED.divide(Decimal(repr(total)), num_draws))


def _round_down(number: float) -> float:
    return float(_PLANNED.create_decimal(repr(number)))


def _pure_total(parts: list[tuple[Guarantee, int]]) -> float:
    if any(math.isinf(guarantee.epsilon) for guarantee, _ in parts):
        return math.inf
    return to_float(sum_of_epsilons(parts))


def _zcdp_total(rho: float, delta: float) -> float:
    return zcdp_epsilon(rho, delta) if rho < math.inf else math.inf


def _check_delta(delta: float | None, certificates: float) -> float:
    if delta is None:
        return certificates
    delta = check_number("delta", delta, "be in [0, 1)", lambda value: 0 <= value < 1)
    if delta < certificates:
        remedy = "A certificate that fails has to be paid for: allow more, or fit with a smaller delta."
        raise ValueError(
            argument_error("delta", f"be at least that of the certificates, {certificates:g}", delta, remedy)
        )
    return delta
