"""Dependence between the columns of a public base, learned from public rows by a normalising flow."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_count, check_number
from pyro_mbde._torch_state import seeded, single_thread, with_gradients
from pyro_mbde.density.copula import Copula
from pyro_mbde.density.rectangles import (
    HIGHEST,
    LOWEST,
    POINT_SHARE,
    lattice_points,
    normal_probabilities,
    normal_scores,
    truncated_normal,
)
from pyro_mbde.serialization import register_distribution

#: Splines move normal scores up to here; further out the flow is the identity.
_BOUND = 6.0
#: Least slope of a spline: no density is 0.
_SLOPE = 1e-3
#: Points that the probability of a cell is averaged over, a prime number.
_NUM_POINTS = 61
#: Numbers in one array, at most: rows are taken in parts.
_MAX_NUMBERS = 2**22
#: Share of the public rows that choose among the steps of training, and steps between two looks at them.
_HELD_OUT, _STEPS_BETWEEN = 0.2, 25
#: Points in the cell of each of those rows.
_HELD_OUT_DRAWS = 4
#: Public rows that a flow needs.
MIN_ROWS = 10


@register_distribution
class FlowCopula(Copula):
    r"""The law of :math:`\Phi(z)`, where a flow carries z to a standard normal: on the unit cube.

    One autoregressive transformation: a monotone spline of each coordinate, whose knots a network computes from the
    coordinates before it. Coordinates are about as uniform as the public rows say. Everything is computed in float64,
    from weights rounded to float32, so that copies in another dtype are the same distribution. Needs zuko:
    ``pip install 'pyro_mbde[flows]'``.

    The probability of a cell takes coordinates in turn, each given those before it: exactly that of an interval, or the
    density of a point, and then points in that interval. It is exact where nothing comes after the first interval;
    otherwise an average, whose logarithm is off by about 0.03 for ten strongly dependent intervals, and far less for a
    few.

    Privacy:
        The weights must come from public rows. :func:`fit_flow_copula` makes them.

    Args:
        weights: of the network, layer by layer: a matrix and a bias for each.
        num_dims: d, at least 2.
        hidden_sizes: widths of the hidden layers, at least one.
        num_bins: of a spline, at least 2.
        validate_args: as for any distribution.

    Raises:
        ImportError: zuko is not installed.
        ValueError: the weights do not fit the sizes, or are not finite.

    References:
        Durkan, Bekasov, Murray, Papamakarios. Neural Spline Flows. 2019. Section 3.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        num_dims: int,
        hidden_sizes: Sequence[int],
        num_bins: int,
        validate_args: bool | None = None,
    ) -> None:
        self.num_dims = check_count("num_dims", num_dims, minimum=2)
        self.hidden_sizes = [check_count("hidden_sizes", size) for size in hidden_sizes]
        self.num_bins = check_count("num_bins", num_bins, minimum=2)
        with seeded(0):  # layers draw weights when they are made, here not from the caller's generator
            network = _network(self.num_dims, self.hidden_sizes, self.num_bins)
        shapes = [tuple(parameter.shape) for parameter in network.parameters()]
        found = [tuple(weight.shape) for weight in weights]
        if shapes != found:
            raise ValueError(argument_error("weights", f"have the shapes {shapes}", found))
        if not all(bool(torch.isfinite(weight).all()) for weight in weights):
            raise ValueError(argument_error("weights", "be finite", "NaN or infinity"))
        self.weights = [weight.detach().float().to(weight.dtype) for weight in weights]
        with torch.no_grad():
            for parameter, weight in zip(network.parameters(), self.weights, strict=True):
                parameter.copy_(weight)
        self._network = network.to(self.weights[0].device).requires_grad_(False)
        super().__init__(torch.Size(), torch.Size([self.num_dims]), validate_args=validate_args)

    @property
    def numbers(self) -> Tensor:
        """The weights of the first layer."""
        return self.weights[0]

    def from_uniforms(self, uniforms: Tensor) -> Tensor:
        """Carries independent uniform numbers to the copula: in the order of columns, each given those before it."""
        latent = normal_scores(uniforms.double()).reshape(-1, self.num_dims)
        parts = [torch.zeros_like(latent[:0])]
        for part in torch.split(latent, self._rows_at_once(1)):
            scores = torch.zeros_like(part)
            for column in range(self.num_dims):
                value = _spline(self._network, scores, column).inv(part[:, column])
                scores = torch.cat([scores[:, :column], value.unsqueeze(1), scores[:, column + 1 :]], 1)
            parts.append(normal_probabilities(scores))
        return torch.cat(parts).reshape(uniforms.shape)

    def to_uniforms(self, value: Tensor) -> Tensor:
        """Returns what :meth:`from_uniforms` carries to ``value``, both of shape ``(..., d)``; float64."""
        scores = normal_scores(value.double()).reshape(-1, self.num_dims)
        parts = [_splines(self._network, part)(part) for part in torch.split(scores, self._rows_at_once(1))]
        return normal_probabilities(torch.cat([scores[:0], *parts])).reshape(value.shape)

    def _log_density(self, scores: Tensor) -> Tensor:
        if scores.numel() <= _MAX_NUMBERS:
            return _log_density(self._network, scores)
        parts = torch.split(scores.reshape(-1, self.num_dims), self._rows_at_once(1))
        return torch.cat([_log_density(self._network, part) for part in parts]).reshape(scores.shape[:-1])

    def _log_cells(self, low: Tensor, high: Tensor) -> Tensor:
        size = self._rows_at_once(_NUM_POINTS)
        parts = zip(torch.split(low, size), torch.split(high, size), strict=True)
        return torch.cat([self._log_part(*part) for part in parts])

    def _log_part(self, low: Tensor, high: Tensor) -> Tensor:
        width = (high - low).detach()
        is_point = width <= POINT_SHARE * torch.minimum(low, 1 - high).detach()
        is_point = is_point | (high <= LOWEST) | (low >= HIGHEST)  # beside a face, where scores do not tell them apart
        points = normal_scores((low + high) / 2)
        log_width = torch.where(is_point & (width > 0), width, 1.0).log().sum(1)
        fractions = lattice_points(self.num_dims, _NUM_POINTS).to(low)
        # Rows, then draws within their cells: one draw until the first interval.
        scores, total = torch.zeros_like(low).unsqueeze(1), log_width.unsqueeze(1)
        for column in range(self.num_dims):
            spline = _spline(self._network, scores, column)
            point = is_point[:, column : column + 1]
            value = points[:, column : column + 1].expand(scores.shape[:2])
            log_prob = torch.zeros_like(total)
            if bool(point.any()):
                latent, log_jacobian = spline.call_and_ladj(value)
                log_prob = log_jacobian + (value.square() - latent.square()) / 2
            if not bool(point.all()):
                # In rows with a point, the whole line: its probability has a gradient, though it is not used.
                below = torch.where(point, 0.0, low.detach()[:, column : column + 1])
                above = torch.where(point, 1.0, high.detach()[:, column : column + 1])
                lower = torch.where(below == 0, -torch.inf, spline(normal_scores(below)))
                upper = torch.where(above == 1, torch.inf, spline(normal_scores(above)))
                log_interval, quantiles = truncated_normal(lower, upper, fractions[:, column])
                log_prob = torch.where(point, log_prob, log_interval)
                value = torch.where(point, value, spline.inv(quantiles))
                scores = scores.expand(-1, value.shape[1], -1)
            total = total + log_prob
            scores = torch.cat([scores[..., :column], value.unsqueeze(2), scores[..., column + 1 :]], 2)
        return total.logsumexp(1) - math.log(total.shape[1])

    def _rows_at_once(self, num_draws: int) -> int:
        """Rows whose arrays hold as many numbers as they may, with so many draws for each."""
        return max(1, _MAX_NUMBERS // (num_draws * max(self.num_dims, 8 * self.num_bins, *self.hidden_sizes)))

    def __repr__(self) -> str:
        """Shows the sizes."""
        return f"FlowCopula(num_dims={self.num_dims}, hidden_sizes={self.hidden_sizes}, num_bins={self.num_bins})"


def fit_flow_copula(
    low: Tensor,
    high: Tensor,
    *,
    seed: int = 0,
    num_steps: int = 600,
    batch_size: int = 256,
    learning_rate: float = 0.005,
    hidden_sizes: Sequence[int] = (32,),
    num_bins: int = 8,
) -> FlowCopula:
    """Fits a flow to the cells of public rows, by maximum likelihood.

    Each step draws a point in every cell. A fifth of the rows choose among the steps: the weights under which their
    mean log-density, less two standard errors, is largest. At the first step it is 0, by independence: this is what few
    rows give, or rows that show no dependence.

    Privacy:
        The rows must be public: what comes back is a part of the base, and shows what was learned from them.

    Args:
        low: lower edges of the rows' cells in [0, 1], shape ``(n, d)``, with n at least :data:`MIN_ROWS` and d at
            least 2.
        high: upper edges, of the same shape; equal to ``low`` where a coordinate is a point.
        seed: the same rows and the same seed give the same flow. It may be public.
        num_steps: gradient steps, at least 1.
        batch_size: rows of a step, at least 1.
        learning_rate: of Adam, above 0, at the start; it falls to 0 along a cosine.
        hidden_sizes: widths of the network's hidden layers.
        num_bins: of a spline.

    Raises:
        ImportError: zuko is not installed.
        ValueError: the rows are too few, or not cells of the unit cube.

    Example:
        >>> rows = torch.rand(200, 1, dtype=torch.float64).expand(200, 2)
        >>> copula = fit_flow_copula(rows, rows, num_steps=50)
        >>> copula
        FlowCopula(num_dims=2, hidden_sizes=[32], num_bins=8)
        >>> copula.log_prob(torch.tensor([[0.5, 0.5], [0.1, 0.9]])).diff().item() < 0
        True
    """
    low, high = low.detach().double(), high.detach().double()
    if low.dim() != 2 or low.shape != high.shape:
        raise ValueError(argument_error("low", "have shape (n, d), as high", tuple(low.shape)))
    if len(low) < MIN_ROWS or low.shape[1] < 2:
        shape = f"{len(low)} of {low.shape[1]}"
        text = f"A flow needs at least {MIN_ROWS} public rows of 2 columns, got {shape}. Learn a copula instead."
        raise ValueError(text)
    if not bool(((low >= 0) & (low <= high) & (high <= 1)).all()):
        raise ValueError(argument_error("low", "be at most high, both in [0, 1]", low.tolist()[:3]))
    check_count("num_steps", num_steps)
    check_count("batch_size", batch_size)
    check_number("learning_rate", learning_rate, "be above 0", lambda rate: 0 < rate < math.inf)
    with seeded(seed), single_thread(), with_gradients():
        network = _network(low.shape[1], hidden_sizes, num_bins)
        parameters = list(network.parameters())
        for parameter in parameters[-2:]:
            nn.init.zeros_(parameter)  # splines start as the identity
        order = torch.randperm(len(low), device=low.device)
        num_held_out = max(1, int(_HELD_OUT * len(low)))
        held_out = _scores_in_cells(low, high, order[:num_held_out].repeat(_HELD_OUT_DRAWS))
        training = order[num_held_out:]
        optimizer = torch.optim.Adam(parameters, lr=learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
        best = -math.inf
        best_weights: list[Tensor] = []
        for step in range(num_steps + 1):
            if step % _STEPS_BETWEEN == 0 or step == num_steps:
                with torch.no_grad():
                    gains = _log_density(network, held_out).reshape(_HELD_OUT_DRAWS, -1).mean(0)
                found = float(gains.mean() - 2 * gains.std(correction=0) / len(gains) ** 0.5)
                if found > best:
                    best, best_weights = found, [parameter.detach().clone() for parameter in parameters]
            if step == num_steps:
                break
            rows = training[torch.randint(len(training), (min(batch_size, len(training)),))]
            optimizer.zero_grad()
            loss = -_log_density(network, _scores_in_cells(low, high, rows)).mean()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return FlowCopula(best_weights, low.shape[1], list(hidden_sizes), num_bins)


def _scores_in_cells(low: Tensor, high: Tensor, rows: Tensor) -> Tensor:
    """Normal scores of a uniform point in the cell of each of the rows."""
    return normal_scores(low[rows] + (high - low)[rows] * torch.rand_like(low[rows]))


def _network(num_dims: int, hidden_sizes: Sequence[int], num_bins: int) -> nn.Module:
    """A network from scores to the knots of splines, those of each coordinate from the coordinates before it."""
    earlier = torch.ones(num_dims, num_dims).tril(-1).bool().repeat_interleave(3 * num_bins - 1, 0)
    network: nn.Module = zuko("zuko.nn").MaskedMLP(earlier, hidden_features=hidden_sizes, activation=nn.Tanh)
    return network.double()


def _spline(network: Any, scores: Tensor, column: int) -> Any:
    """The transformation of one coordinate, given the scores of those before it; others are not looked at."""
    *hidden_layers, last = network
    hidden = scores
    for layer in hidden_layers:
        hidden = layer(hidden)
    size = last.weight.shape[0] // scores.shape[-1]
    rows = slice(column * size, (column + 1) * size)
    return _rational_quadratic(nn.functional.linear(hidden, (last.mask * last.weight)[rows], last.bias[rows]))


def _splines(network: Any, scores: Tensor) -> Any:
    """The transformations of all coordinates of scores (..., d)."""
    return _rational_quadratic(network(scores).unflatten(-1, (scores.shape[-1], -1)))


def _log_density(network: Any, scores: Tensor) -> Tensor:
    """The log-density of the flow with respect to independent normals, at scores of shape (..., d)."""
    latent, log_jacobian = _splines(network, scores).call_and_ladj(scores)
    log_density: Tensor = (log_jacobian + (scores.square() - latent.square()) / 2).sum(-1)
    return log_density


def _rational_quadratic(knots: Tensor) -> Any:
    """Splines from their widths, heights and slopes, in the last dimension."""
    num_bins = (knots.shape[-1] + 1) // 3
    parts = torch.split(knots, [num_bins, num_bins, num_bins - 1], -1)
    return zuko("zuko.transforms").MonotonicRQSTransform(*parts, bound=_BOUND, slope=_SLOPE)


def zuko(module: str, extra: str = "flows") -> Any:
    """Imports a module of zuko, and puts back torch's validation of all distributions, which zuko turns off.

    Args:
        module: its full name.
        extra: of pyro_mbde, that brings zuko: for the error where it is missing.
    """
    before = Distribution._validate_args, Distribution.arg_constraints
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"A flow needs zuko: install it with `pip install 'pyro_mbde[{extra}]'`.") from error
    finally:
        Distribution._validate_args, Distribution.arg_constraints = before  # type: ignore[method-assign]
