r"""Control variates of a certificate: functions g of a point of the unit cube, near :math:`e^f`, whose mean is known.

Private. The base is a push-forward of the unit cube, so a uniform point determines a draw. A certificate bets on
:math:`e^f - g + E\,g`, which has the mean of :math:`e^f` and scatters less. Proof: docs/proofs.md, *Calibration: the
control variate*.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from pyro_mbde._torch_state import seeded, single_thread, with_gradients
from pyro_mbde.calibration.certificate import SampleBounds, expected_draws
from pyro_mbde.density.bounds import Bounds, Certificate
from pyro_mbde.density.rectangles import normal_scores

#: Cells that the unit cube is cut into, at most; and held draws in a cell, at least, on average. With fewer, the
#: averages would follow single draws, and their variance on held draws would say nothing about fresh ones.
_MAX_CELLS, _DRAWS_PER_CELL = 2**14, 8
#: Ridges are fitted where a certificate would take more draws than this: fitting them takes as long as scoring so many.
_WORTH_FITTING = 2**18
#: Number of ridges; steps in which they are fitted, draws in a step, and Adam's largest learning rate.
_NUM_RIDGES, _NUM_STEPS, _BATCH_SIZE, _LEARNING_RATE = 128, 500, 512, 0.02
#: Steps in which the learning rate rises to its largest; it then falls to 0.
_WARMUP_STEPS = 20
#: Points whose ridges are computed at once.
_CHUNK_POINTS = 4096


class Control(ABC):
    """A bounded function of a point of the unit cube, whose mean under uniform points is known.

    Privacy:
        It is fitted to the density's scores, and as sensitive: not for release.

    Args:
        mean: its mean.
        least: a lower bound.
        most: an upper bound.
    """

    def __init__(self, mean: float, least: float, most: float) -> None:
        self.mean, self.least, self.most = mean, least, most

    @abstractmethod
    def __call__(self, points: Tensor) -> Tensor:
        """Returns g, float64 of shape ``(n,)``, at points of shape ``(n, num_dims)``."""


class CellMeans(Control):
    """The average of :math:`e^f` over the held draws in each cell of the cube: for few dimensions.

    Privacy:
        As sensitive as the density.

    Args:
        points: of the held draws, shape ``(n, num_dims)``.
        tilted: :math:`e^f` there, shape ``(n,)``.

    Example:
        >>> points = torch.tensor([0.1, 0.6]).repeat(8).unsqueeze(1)
        >>> CellMeans(points, torch.tensor([0.5, 2.0]).repeat(8))(points[:2])
        tensor([0.5000, 2.0000])
    """

    def __init__(self, points: Tensor, tilted: Tensor) -> None:
        max_cells = min(_MAX_CELLS, max(len(points) // _DRAWS_PER_CELL, 1))
        self._num_cut_dims = min(points.shape[1], max(int(math.log2(max_cells)), 1))
        # 1e-9 is added so that rounding cannot turn a root of 128 into 127.
        self._parts_per_dim = int(max_cells ** (1 / self._num_cut_dims) + 1e-9)
        cells, num_cells = self.cells(points), self.num_cells
        counts = torch.bincount(cells, minlength=num_cells)
        means = torch.bincount(cells, tilted, minlength=num_cells) / counts.clamp(min=1)
        means[counts == 0] = 1.0
        # A cell without draws has the average of the last one with draws before it, in most cases its neighbour. Any
        # other guess would scatter fresh draws in a way that the held ones do not show.
        self._means = means[torch.arange(num_cells).where(counts > 0, 0).cummax(0).values]
        super().__init__(float(self._means.mean()), float(self._means.min()), float(self._means.max()))

    @property
    def num_cells(self) -> int:
        """Number of cells, all equally likely."""
        return int(self._parts_per_dim**self._num_cut_dims)

    def cells(self, points: Tensor) -> Tensor:
        """Returns the number of the cell that each point is in."""
        cut = points[:, : self._num_cut_dims].double()
        indices = (cut * self._parts_per_dim).long().clamp(max=self._parts_per_dim - 1)
        return (indices * self._parts_per_dim ** torch.arange(self._num_cut_dims)).sum(1)

    def __call__(self, points: Tensor) -> Tensor:
        """Returns the average of each point's cell."""
        return self._means[self.cells(points)]


class Ridges(Control):
    r"""A sum of clipped ridge functions of the coordinates' normal scores: for many dimensions.

    .. math::
        g(u) = c + \sum_k a_k\, h_k(z), \qquad h_k(z) = \max(-1, \min(1, w_k^\top z + b_k)), \qquad
        z_j = \Phi^{-1}(u_j).

    If u is uniform, :math:`w_k^\top z + b_k` is normal with mean b and deviation :math:`|w|`, so that the mean of each
    ridge has a closed form (:func:`mean_of_clipped`). Ridges bend where the tilt does, and a hundred of them leave a
    third of the variance where cells, or functions of single coordinates, leave most of it.

    Privacy:
        As sensitive as the density.

    Args:
        weights: w, shape ``(num_dims, num_ridges)``.
        biases: b, shape ``(num_ridges,)``.
        heights: a, shape ``(num_ridges,)``.
        constant: c.

    Example:
        >>> ridge = Ridges(torch.ones(1, 1), torch.zeros(1), torch.ones(1), 1.0)
        >>> ridge.mean, ridge.least, ridge.most, ridge(torch.tensor([[0.5]]))
        (1.0, 0.0, 2.0, tensor([1.], dtype=torch.float64))
    """

    def __init__(self, weights: Tensor, biases: Tensor, heights: Tensor, constant: float) -> None:
        self._weights, self._biases, self._heights = weights.double(), biases.double(), heights.double()
        self._constant = constant
        means = mean_of_clipped(self._biases, self._weights.norm(dim=0))
        reach = float(self._heights.abs().sum())
        super().__init__(constant + float(means @ self._heights), constant - reach, constant + reach)

    @classmethod
    def fitted(cls, points: Tensor, tilted: Tensor) -> Ridges:
        r"""Returns ridges fitted to :math:`e^f` at the points of held draws, by least squares.

        The fit is the same for the same draws, and leaves torch's generator alone.

        Args:
            points: shape ``(n, num_dims)``.
            tilted: :math:`e^f` there, shape ``(n,)``.
        """
        normal = normal_scores(points.double()).float()
        location, scale = float(tilted.mean()), float(tilted.std())
        targets = ((tilted - location) / scale).float()
        with seeded(0), single_thread(), with_gradients():
            num_dims = points.shape[1]
            weights = (torch.randn(num_dims, _NUM_RIDGES, dtype=torch.float32) / math.sqrt(num_dims)).requires_grad_()
            biases = torch.randn(_NUM_RIDGES, dtype=torch.float32).requires_grad_()
            heights = torch.zeros(_NUM_RIDGES, dtype=torch.float32, requires_grad=True)
            optimizer = torch.optim.Adam([weights, biases, heights], lr=_LEARNING_RATE)
            for step in range(_NUM_STEPS):
                rate = min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - step / _NUM_STEPS)
                optimizer.param_groups[0]["lr"] = rate * _LEARNING_RATE
                batch = torch.randint(len(normal), (_BATCH_SIZE,))
                ridges = torch.addmm(biases, normal[batch], weights).clamp(-1, 1)
                loss = (ridges @ heights - targets[batch]).square().mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
                optimizer.step()
        return cls(weights.detach(), biases.detach(), scale * heights.detach().double(), location)

    def __call__(self, points: Tensor) -> Tensor:
        """Returns g, in float64, so that rounding does not move its mean."""
        parts = [
            torch.addmm(self._biases, normal_scores(part.double()), self._weights).clamp(-1, 1) @ self._heights
            for part in torch.split(points, _CHUNK_POINTS)
        ]
        return torch.cat(parts) + self._constant


def mean_of_clipped(mean: Tensor, deviation: Tensor) -> Tensor:
    r"""Returns :math:`E \max(-1, \min(1, t))` for normal t, elementwise.

    With :math:`t_+ = \max(t, 0)` the clip is :math:`(t + 1)_+ - (t - 1)_+ - 1`, and for t of mean m and deviation s,
    :math:`E\,t_+ = s\,\varphi(m/s) + m\,\Phi(m/s)`.

    Example:
        >>> zero, half = torch.zeros(1), torch.full((1,), 0.5)
        >>> mean_of_clipped(zero, half), mean_of_clipped(half, zero)
        (tensor([0.]), tensor([0.5000]))
    """

    def positive_part(location: Tensor) -> Tensor:
        ratio = location / deviation.clamp(min=torch.finfo(deviation.dtype).tiny)
        density = (-ratio.square() / 2).exp() / math.sqrt(2 * math.pi)
        chance: Tensor = torch.special.ndtr(ratio)
        return deviation * density + location * chance

    return positive_part(mean + 1) - positive_part(mean - 1) - 1


def best_control(
    tilted: Tensor, points: Tensor | None, bounds: Bounds, certificate: Certificate
) -> tuple[Control | None, SampleBounds]:
    """Returns the control variate with which a certificate takes the fewest draws, and the bounds of what is bet on.

    No control variate, if a certificate takes the fewest draws without one: where only a rare large value could prove
    it wrong, a control variate is worse, because it widens the bounds.

    Privacy:
        As sensitive as the density.

    Args:
        tilted: :math:`e^f` at held draws, shape ``(n,)``.
        points: those that the first of the draws were inverted from, shape ``(m, num_dims)``; None if there are none.
        bounds: of the tilt.
        certificate: what is to be proved.
    """
    smallest, largest = math.exp(bounds.low), math.exp(bounds.high)
    control: Control | None = None
    limits = SampleBounds(smallest, largest, float(tilted.var()))
    fewest = expected_draws(limits, certificate)
    if points is None:
        return control, limits
    tilted = tilted[: len(points)]
    for kind in (CellMeans, Ridges.fitted):
        if kind == Ridges.fitted and not _WORTH_FITTING < fewest < math.inf:
            break
        tried = kind(points, tilted)
        of_tried = SampleBounds(
            smallest - tried.most + tried.mean,
            largest - tried.least + tried.mean,
            float((tilted - tried(points)).var()),
        )
        expected = expected_draws(of_tried, certificate)
        if expected < fewest:  # never, if fitting failed and it is NaN
            control, limits, fewest = tried, of_tried, expected
    return control, limits
