"""What baselines share: imports of optional packages, and the surface of a density that was fitted at once."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch
from pyro.distributions import TorchDistribution, constraints
from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde._checks import argument_error, check_count, check_flag, check_number, check_seed
from pyro_mbde._torch_state import seeded, single_thread, with_gradients
from pyro_mbde.density.base import prepare_base
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.privacy.guarantee import Guarantee

_Shape = torch.Size | list[int] | tuple[int, ...]
_expanded: Any = ExpandedDistribution  # Pyro leaves it unannotated


def require(module: str) -> ModuleType:
    """Imports a module of an optional package.

    Example:
        >>> require("math").sqrt(4.0)
        2.0
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"This baseline needs {package}: install it with `pip install 'pyro_mbde[baselines]'`."
        ) from error


def describe_epsilon(guarantee: GroupGuarantee | Guarantee) -> str:
    """Returns what a ``repr`` says of a guarantee.

    Example:
        >>> describe_epsilon(GroupGuarantee(0.5)), describe_epsilon(GroupGuarantee(torch.inf))
        ('epsilon=0.5', 'not private')
    """
    return f"epsilon={guarantee.epsilon:.6g}" if guarantee.epsilon < torch.inf else "not private"


class FittedDensity(TorchDistribution):
    """A density that a baseline fitted: computed in float64, a part of the points at a time.

    Subclasses say what the log-density of rows is and how to draw them.

    Args:
        support: torch constraint.
        interior: a point of the support with the event shape (), (d,) and the density's dtype, to stand in for values
            outside the support, where neither density nor gradient may be NaN.
        guarantee: of the density, all draws of it together; or, a :class:`~pyro_mbde.Guarantee`, of one draw.
        chunk: points to evaluate at a time, at least 1.
    """

    has_rsample = False
    arg_constraints: dict[str, Any] = {}

    def __init__(
        self, support: Any, interior: Tensor, guarantee: GroupGuarantee | Guarantee, *, chunk: int = 2**15
    ) -> None:
        self._support = support
        self._interior = interior
        self._chunk = chunk
        self.guarantee = guarantee
        # Metrics of a target that reaches past a box need the -inf there that validation would refuse.
        super().__init__(torch.Size(), interior.shape, validate_args=False)

    @constraints.dependent_property
    def support(self) -> Any:
        """Support, a torch constraint."""
        return self._support

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of draws and log-densities."""
        return self._interior.dtype

    @abstractmethod
    def _log_density(self, rows: Tensor) -> Tensor:
        """Log-densities of rows in the support; float64, shapes ``(n, d)`` and ``(n,)``."""

    @abstractmethod
    def _draw(self, num_draws: int) -> Tensor:
        """Draws from torch's global generator, float64 of shape ``(num_draws, d)``."""

    def expand(self, batch_shape: _Shape, _instance: object = None) -> TorchDistribution:
        """Returns a view with a batch shape."""
        expanded: TorchDistribution = _expanded(self, torch.Size(batch_shape))
        return expanded

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the log-density.

        Privacy:
            Covered by :attr:`guarantee`, as the density itself is; not covered where it is of one draw.

        Args:
            value: shape ``(..., *event_shape)``; converted to the density's dtype.

        Returns:
            Tensor of shape ``(...)`` in the density's dtype; -inf outside the support, also of NaN.
        """
        if not isinstance(value, Tensor):
            raise TypeError(argument_error("value", "be a tensor", value))
        num_event_dims = len(self.event_shape)
        if value.shape[value.dim() - num_event_dims :] != self.event_shape or value.dim() < num_event_dims:
            raise ValueError(
                argument_error("value", f"have shape (..., *{tuple(self.event_shape)})", tuple(value.shape))
            )
        value = value.to(self._interior)
        shape = value.shape[: value.dim() - num_event_dims]
        if not value.numel():  # torch's constraints cannot check an empty tensor
            return value.new_zeros(shape)
        rows, interior = value.reshape(-1, max(self.event_shape.numel(), 1)), self._interior.reshape(1, -1)
        inside = (self._support.check(value) & torch.isfinite(rows).all(-1).reshape(shape)).reshape(-1)
        usable = torch.where(inside.unsqueeze(-1), rows, interior).double()
        parts = [self._log_density(part) for part in torch.split(usable, self._chunk)]
        log_density = torch.cat(parts).to(self.dtype)
        return torch.where(inside, log_density, -torch.inf).reshape(shape)

    def sample(self, sample_shape: _Shape = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        """Returns draws from torch's global generator.

        Privacy:
            Covered by :attr:`guarantee`, however many there are; each by itself where it is of one draw.

        Args:
            sample_shape: of the draws.

        Returns:
            Tensor of shape ``sample_shape + event_shape`` in the density's dtype.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        num_draws = torch.Size(sample_shape).numel()
        if not num_draws:  # torch's constraints cannot check an empty tensor
            return self._interior.new_zeros(shape)
        with torch.no_grad():
            return self._draw(num_draws).to(self.dtype).reshape(shape)


Density = TypeVar("Density", bound=FittedDensity)


class Trainer(ABC, Generic[Density]):
    """Fits a density to a table. Subclasses say how the table becomes rows, and how they are fitted.

    Args:
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.
    """

    def __init__(self, *, seed: int | None, progress: bool) -> None:
        self.seed = check_seed(seed)
        self.progress = check_flag("progress", progress)

    def fit(self, data: Any) -> Density:
        """Fits the density to a table.

        Args:
            data: tensor or array of shape ``(n, *event_shape)``, DataFrame of numbers, Dataset or DataLoader of rows,
                or a Distribution to draw rows from: ``num_samples``, where the trainer has that argument, else 10,000.

        Returns:
            The density, with its ``guarantee``.

        Raises:
            ImportError: a package that the baseline needs is not installed.
            TypeError: ``data`` is of the wrong kind.
            ValueError: ``data`` has the wrong shape, fewer than two rows, or values that are NaN or infinite; or its
                density cannot be computed at these settings, as the message says.
        """
        shown = self._bar()
        bar = tqdm(disable=not (self.progress and shown), **shown)
        with bar, seeded(self.seed), single_thread(), with_gradients():
            rows = self._rows(data)
            if len(rows) < 2:
                raise ValueError("data must have at least 2 rows of finite numbers, got fewer.")
            return self._fit(rows, bar.update)

    def _bar(self) -> dict[str, Any]:
        """Options of the progress bar; none for no bar."""
        return {}

    @abstractmethod
    def _rows(self, data: Any) -> Tensor:
        """The table as a tensor."""

    @abstractmethod
    def _fit(self, rows: Tensor, on_step: Callable[[], object]) -> Density:
        """The density of at least two rows; ``on_step`` moves the bar."""


def continuous_base(base: Distribution) -> Distribution:
    """Returns the base as the densities here use it, or raises if it is of counts."""
    prepared = prepare_base(base)
    support: Any = prepared.support
    if support.is_discrete:
        raise ValueError(argument_error("base", "be continuous", base))
    return prepared


def check_positive(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not a finite number above 0."""
    return check_number(name, value, "be finite and above 0", lambda number: 0 < number < math.inf)


def check_scale(name: str, value: Any, remedy: str = "") -> float:
    """Returns ``value`` as a float, or raises if it is not a number from 1e-30 to 1e30, which float32 holds."""
    return check_number(name, value, "be from 1e-30 to 1e30", lambda number: 1e-30 <= number <= 1e30, remedy=remedy)


def check_bandwidth(value: Any, remedy: str) -> float:
    """Returns a relative bandwidth as a float, or raises if it is not a number from 1e-8 to 1e8.

    Below, kernels are narrower than float64 tells points apart. Above, draws leave what float32 holds.
    """
    return check_number("bandwidth", value, "be from 1e-8 to 1e8", lambda number: 1e-8 <= number <= 1e8, remedy=remedy)


def check_sizes(name: str, sizes: Any) -> tuple[int, ...]:
    """Returns the widths of hidden layers as a tuple, or raises if they are not whole numbers of at least 1."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        raise TypeError(argument_error(name, "be a sequence of whole numbers", sizes))
    if not sizes:
        raise ValueError(argument_error(name, "name at least one layer", sizes))
    return tuple(check_count(name, size) for size in sizes)


def added_or_left_out(group_size: int | None, num_rows: int) -> int:
    """Returns by how many rows added or left out the tables that are to be protected differ.

    Exchanging all n rows for others is leaving out n and adding n: 2n steps.

    Example:
        >>> added_or_left_out(3, 1000), added_or_left_out(None, 1000)
        (3, 2000)
    """
    return 2 * num_rows if group_size is None else group_size


def group_guarantee(epsilon: float, delta: float, group_size: int | None) -> GroupGuarantee:
    """Returns the guarantee of a mechanism whose noise is made for :func:`added_or_left_out` rows."""
    return GroupGuarantee(epsilon, delta, group_size, replaced=group_size is None)
