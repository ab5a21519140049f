"""Testers of another auditor, on draws alone: hockey-stick, histogram, Rényi and maximum-mean-discrepancy testers.

Kong, Muñoz Medina, Ribero, Syed. DP-Auditorium: a Large Scale Library for Auditing Differential Privacy. 2023.
Written from the forms given there, with bounds of this file: all held-out draws are counted, and thresholds are the
sharp ones for |log q/q'| <= epsilon. Each takes draws of two densities, shape (n, d), and returns whether they
contradict (epsilon, delta), in either direction, wrongly with probability at most ``error``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pyro_mbde._torch_state import with_gradients

Tester = Callable[[Tensor, Tensor, float, float, float], bool]
#: Cells of a histogram, and draws of each density that set the width of a kernel and are not counted.
_NUM_CELLS, _NUM_FOR_SCALE = 32, 200


def _halves(first: Tensor, other: Tensor) -> list[Tensor]:
    """First halves, to learn from, and second ones, to count on; standardised by the first ones."""
    parts = [*torch.tensor_split(first.double(), 2), *torch.tensor_split(other.double(), 2)]
    pooled = torch.cat([parts[0], parts[2]])
    standard = [(part - pooled.mean(0)) / pooled.std(0).clamp(min=1e-9) for part in parts]
    return [part.clamp(-10, 10).float() for part in standard]


def _hoeffding(num_terms: int, error: float, span: float = 1.0) -> float:
    return span * math.sqrt(math.log(1 / error) / (2 * num_terms))


def _delta_proved(counted: Tensor, other_counted: Tensor, epsilon: float, error: float) -> float:
    """Lower bound on Pr[S] - e^eps Pr'[S] from whether draws are in S: a sum of independent bounded terms."""
    spread = math.sqrt(1 / len(counted) + math.exp(2 * epsilon) / len(other_counted))
    estimate = float(counted.double().mean()) - math.exp(epsilon) * float(other_counted.double().mean())
    return estimate - spread * math.sqrt(math.log(1 / error) / 2)


def _network(width: int, num_inputs: int, activation: type[nn.Module]) -> nn.Sequential:
    layers = [nn.Linear(num_inputs, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 1)]
    return nn.Sequential(*layers)


def _train(network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], first: Tensor, other: Tensor) -> None:
    """A few passes of Adam over pairs of batches."""
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    with with_gradients():
        for _ in range(4):
            order = torch.randperm(min(len(first), len(other)))
            for index in torch.split(order, 500):
                optimiser.zero_grad()
                loss(first[index], other[index]).backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
                optimiser.step()


def hockey_stick(first: Tensor, other: Tensor, epsilon: float, delta: float, error: float) -> bool:
    """A classifier of draws, the other's weighing e^epsilon, is right too often: E_gamma(q, q') exceeds delta."""
    for one, two in ((first, other), (other, first)):
        learn, count, other_learn, other_count = _halves(one, two)
        network = _network(12, learn.shape[1], nn.ReLU)

        def loss(ours: Tensor, theirs: Tensor, network: nn.Module = network) -> Tensor:
            return (
                nn.functional.softplus(-network(ours)).mean()
                + math.exp(epsilon) * nn.functional.softplus(network(theirs)).mean()
            )

        _train(network, loss, learn, other_learn)
        event = [network(part).detach().squeeze(-1) > 0 for part in (count, other_count)]
        if _delta_proved(event[0], event[1], epsilon, error / 2) > delta:
            return True
    return False


def histogram(first: Tensor, other: Tensor, epsilon: float, delta: float, error: float) -> bool:
    """Cells along the line through both means: those that one density fills e^epsilon times as much as the other."""
    for one, two in ((first, other), (other, first)):
        learn, count, other_learn, other_count = _halves(one, two)
        direction = learn.mean(0) - other_learn.mean(0)
        places = [part @ direction for part in (learn, other_learn, count, other_count)]
        edges = torch.cat(places[:2]).quantile(torch.linspace(0, 1, _NUM_CELLS + 1)[1:-1])
        cells = [torch.bucketize(part, edges) for part in places]
        shares = [torch.bincount(part, minlength=_NUM_CELLS) / len(part) for part in cells[:2]]
        chosen = shares[0] > math.exp(epsilon) * shares[1]
        if _delta_proved(chosen[cells[2]], chosen[cells[3]], epsilon, error / 2) > delta:
            return True
    return False


def renyi(first: Tensor, other: Tensor, epsilon: float, delta: float, error: float, order: float = 2.0) -> bool:
    """Rényi's divergence by its variational form exceeds that of the worst pair with |log q/q'| <= epsilon.

    For any g, D >= a/(a - 1) log E_q e^{(a - 1) g} - log E_q' e^{a g}; g is bounded, so Hoeffding bounds both means.
    The worst pair has two points, with log-ratios epsilon and -epsilon. The delta of a certificate adds to ``error``.
    """
    bound = 1.5 * epsilon
    ratio = math.sinh(order * epsilon) - math.sinh((order - 1) * epsilon)
    largest = math.log(ratio / math.sinh(epsilon)) / (order - 1)
    for one, two in ((first, other), (other, first)):
        learn, count, other_learn, other_count = _halves(one, two)
        network = _network(32, learn.shape[1], nn.Tanh)

        def scores(values: Tensor, network: nn.Module = network) -> Tensor:
            outputs: Tensor = network(values)
            return bound * outputs.squeeze(-1).tanh()

        def loss(ours: Tensor, theirs: Tensor, scores: Callable[[Tensor], Tensor] = scores) -> Tensor:
            upper = ((order - 1) * scores(ours)).exp().mean().log() * order / (order - 1)
            return -upper + (order * scores(theirs)).exp().mean().log()

        _train(network, loss, learn, other_learn)
        means = []
        for values, factor, sign in ((count, order - 1, -1), (other_count, order, 1)):
            powers = (factor * scores(values).detach().double()).exp()
            span = 2 * math.sinh(factor * bound)
            means.append(float(powers.mean()) + sign * _hoeffding(len(powers), error / 4, span))
        if means[0] > 0 and order / (order - 1) * math.log(means[0]) - math.log(means[1]) > largest:
            return True
    return False


def mean_discrepancy(first: Tensor, other: Tensor, epsilon: float, delta: float, error: float) -> bool:
    """A kernel's squared mean discrepancy exceeds 2 TV^2: with 0 <= k <= 1, |P - Q|_k^2 = TV^2 |A - B|_k^2 <= 2 TV^2.

    TV <= tanh(epsilon/2), plus delta. The estimate is a mean over independent quadruples of terms in [-2, 2], with the
    better of Hoeffding's bound and that of Maurer and Pontil (2009, Theorem 4).
    """
    learned = torch.cat([first[:_NUM_FOR_SCALE], other[:_NUM_FOR_SCALE]]).double()
    parts = [part[_NUM_FOR_SCALE:].double() / learned.std(0).clamp(min=1e-9) for part in (first, other)]
    parts = [half for part in parts for half in torch.tensor_split(part, 2)]
    scale = 2 * torch.pdist(learned / learned.std(0).clamp(min=1e-9)).median() ** 2

    def kernel(one: Tensor, two: Tensor) -> Tensor:
        return (-(one - two).square().sum(1) / scale).exp()

    a, b, c, d = (part[: min(map(len, parts))] for part in parts)
    terms = kernel(a, b) + kernel(c, d) - kernel(a, d) - kernel(b, c)
    log, num_terms = math.log(4 / error), len(terms)
    bernstein = math.sqrt(2 * float(terms.var()) * log / num_terms) + 7 * 4 * log / (3 * (num_terms - 1))
    lower = float(terms.mean()) - min(_hoeffding(num_terms, error / 2, 4.0), bernstein)
    return lower > 2 * (math.tanh(epsilon / 2) + delta) ** 2


TESTERS: dict[str, Tester] = {
    "hockey-stick": hockey_stick,
    "histogram": histogram,
    "Rényi, order 2": renyi,
    "mean discrepancy": mean_discrepancy,
}
