r"""The certificate that a log-normaliser is near 0, by betting against the contrary.

Given the tilt, :math:`\phi = \log E_{Q_0} e^f` is one fixed number, of which
fresh draws of the base are evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import check_number
from pyro_mbde.density.bounds import Certificate

#: Part of the tolerance kept back, in nats: networks compute in float32, where the size of a batch moves the last
#: digits of a tilt by some 1e-7, and so phi.
ROUNDING_RESERVE = 1e-5
#: A bet is at most this share of the largest that cannot lose everything.
LARGEST_BET = 0.9
#: How far from 0 a gambler expects the log-normaliser: standard deviation, as a share of the tolerance.
_EXPECTED_ERROR = 1 / 6


class SampleBounds(NamedTuple):
    r"""Bounds of independent unbiased samples Y of :math:`E_{Q_0} e^f`, and a guess at their variance.

    Attributes:
        smallest: lower bound of Y.
        largest: upper bound of Y.
        variance: a guess, on which the proof does not depend.
    """

    smallest: float
    largest: float
    variance: float


def expected_draws(limits: SampleBounds, certificate: Certificate) -> float:
    r"""Returns about how many samples certifying takes; for planning only.

    With bets of gap over variance the log-capital grows by :math:`\eta^2/(2V)` a sample on average; and no bet can
    exceed one over the largest possible loss, so it grows by no more than about :math:`\eta/(Y_{max} - e^\eta)`. It has
    to reach :math:`\log 1/\delta`. Of the tolerance, :data:`ROUNDING_RESERVE` is kept back.
    """
    target, gap = -math.log(certificate.delta), math.expm1(certificate.tolerance - ROUNDING_RESERVE)
    if gap <= 0:
        return math.inf
    by_scatter = 2 * target * limits.variance / gap**2
    by_range = target * max(limits.largest - 1 - gap, 1 - gap - limits.smallest, 0.0) / (LARGEST_BET * gap)
    return max(by_scatter, by_range)


def certify(blocks: Iterable[Tensor], limits: SampleBounds, certificate: Certificate) -> bool:
    r"""Returns whether :math:`|\phi| \le \eta` is proved; says so wrongly with probability at most delta.

    Two gamblers bet on independent samples :math:`Y_i` of mean :math:`e^\phi`, one against :math:`\phi \ge \eta`, one
    against :math:`\phi \le -\eta`. Each starts with 1, and by Ville's inequality reaches :math:`1/\delta` with
    probability at most delta if what they bet against is true. The claim is made once both have reached it, each at any
    time. No variance and no sample size is assumed, delta need not be split, and draws may be added until it succeeds.
    Proof: docs/proofs.md, *The certificate*.

    A bet of about gap over variance lets the capital grow fastest, where the gap is from the end of the interval that
    is bet on to the true mean. Both are taken from the blocks before. The variance is guessed in the first, and the
    mean shrunk towards 1, as if there was a normal prior of deviation eta/6 on it. Were the gap taken to be eta, a
    gambler would overbet where :math:`\phi \ne 0`, and from about :math:`|\phi| = \eta/2` on lose in the long run; so
    what is true beyond can be proved too.

    Args:
        blocks: independent unbiased samples of :math:`E_{Q_0} e^f`, in blocks of shape ``(n,)``, float64, made of
            draws that neither the tilt nor the limits depend on.
        limits: a and b, and the guess at the variance.
        certificate: eta and delta; of eta, :data:`ROUNDING_RESERVE` is kept back for the rounding of f.

    Returns:
        True as soon as it is proved, False if the blocks end first.

    Raises:
        ValueError: a sample is outside its bounds, the tolerance is no more than the reserve, or delta is 0.

    References:
        Waudby-Smith, Ramdas. Estimating means of bounded random variables by betting. JRSS B, 2024. Ville. Étude
        critique de la notion de collectif. 1939. In place of the empirical Bernstein bound of Maurer, Pontil (2009),
        which needs a sample size fixed beforehand, and delta split in two.

    Example:
        >>> certificate = Certificate(tolerance=0.0014, delta=1e-6)
        >>> copies = torch.ones(4096, dtype=torch.float64)  # f = 0 everywhere
        >>> limits = SampleBounds(math.exp(-0.4986), math.exp(0.4986), variance=0.01)
        >>> certify([copies] * 4, limits, certificate)
        True
        >>> certify([copies + 0.01] * 4, limits, certificate)  # phi = log(1.01), well above eta
        False
    """
    constraint = f"be above {ROUNDING_RESERVE}"
    check_number("certificate.tolerance", certificate.tolerance, constraint, lambda value: value > ROUNDING_RESERVE)
    check_number("certificate.delta", certificate.delta, "be above 0", lambda value: value > 0)
    smallest, largest, variance = limits
    tolerance = certificate.tolerance - ROUNDING_RESERVE
    upper, lower = math.exp(tolerance), math.exp(-tolerance)
    slack = 1e-12 * (1 + abs(smallest) + abs(largest))
    target = -math.log(certificate.delta)
    above, below = Wealth(largest - upper), Wealth(lower - smallest)
    count, total, total_square = 0, 0.0, 0.0
    for block in blocks:
        if not len(block):
            continue
        if not bool(((block >= smallest - slack) & (block <= largest + slack)).all()):
            # The error shows neither the bounds nor the samples: they may come from a table.
            raise ValueError("blocks must hold copies between the limits, got others.")
        excess = posterior_excess(total, count, variance, tolerance)
        above.add_path(torch.log1p(above.bet(upper - 1 - excess, variance) * (upper - block)))
        below.add_path(torch.log1p(below.bet(1 + excess - lower, variance) * (block - lower)))
        if min(above.most, below.most) >= target:
            return True
        count += len(block)
        total += float((block - 1).sum())
        total_square += float((block - 1).square().sum())
        # A little more than what was seen, so that blocks without scatter do not bet everything.
        variance = total_square / count - (total / count) ** 2 + (largest - smallest) ** 2 / count
    return False


def posterior_excess(total: float, count: int, variance: float, tolerance: float) -> float:
    """Returns the posterior mean of Y - 1; the prior is worth as many draws as tell the mean to its own deviation."""
    return total / (count + variance / (_EXPECTED_ERROR * tolerance) ** 2) if count else 0.0


class Wealth:
    """Logarithm of the capital of a gambler who started with 1, and the most that it has been.

    Args:
        largest_loss: the most that a bet of 1 can lose.
    """

    def __init__(self, largest_loss: float) -> None:
        self._largest_loss = largest_loss
        self.log_wealth = self.most = 0.0

    def bet(self, gap: float, variance: float) -> float:
        """Returns gap over variance, never so much that all could be lost, and finite where nothing scatters."""
        if gap <= 0:  # what is bet against seems to be true
            return 0.0
        wanted = gap / variance if variance > 0 else math.inf
        return min(wanted, LARGEST_BET / self._largest_loss if self._largest_loss > 0 else math.inf, 1 / gap)

    def add(self, log_gain: float) -> None:
        """Adds the logarithm of what the capital was multiplied by."""
        self.log_wealth += log_gain
        self.most = max(self.most, self.log_wealth)

    def add_path(self, log_gains: Tensor) -> None:
        """Adds several, one after the other; the capital may be counted at any of them."""
        path = self.log_wealth + log_gains.cumsum(0)
        self.most = max(self.most, float(path.max()))
        self.log_wealth = float(path[-1])
