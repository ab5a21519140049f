"""A tilted base as a distribution of Pyro: density, exact draws, shapes. What is guaranteed of it is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from pyro.distributions import constraints
from pyro.distributions.util import broadcast_shape
from torch import Tensor, nn

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import PreparedBase, as_features, support_of
from pyro_mbde.density.base_draws import TorchSource
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.finite import enumerate_points
from pyro_mbde.density.moments import Moments, TiltedMoments
from pyro_mbde.density.normalizer import LogNormalizer
from pyro_mbde.density.rejection import RandomSource, RejectionDraws, proposal_batch, rejection_sample
from pyro_mbde.density.scoring import score_rows
from pyro_mbde.density.tilt import Tilt

_broadcast_shape: Any = broadcast_shape  # Pyro leaves it unannotated; torch's own imports sympy
_jit: Any = torch.jit  # torch leaves it unannotated
_Shape = torch.Size | list[int] | tuple[int, ...]


class TiltedBase(TiltedMoments):
    r"""The density :math:`q_0 e^{f - \phi}` of a base, a tilt and its log-normaliser, without a guarantee."""

    has_rsample = False
    _has_smooth_gradient = False  # see with_smooth_gradient
    _followed: Callable[[Any, Tensor], Tensor] | None = None  # see smoothed
    arg_constraints = {"natural_params": constraints.real_vector}

    def __init__(
        self, prepared: PreparedBase, tilt: Tilt, log_normalizer: LogNormalizer, validate_args: bool | None
    ) -> None:
        self.base = prepared.distribution
        # A point of the support, to stand in for values outside it, where neither density nor gradient may be NaN.
        self._interior = prepared.example
        self._unbounded = _is_unbounded(self.support)
        self._dtype = prepared.dtype
        self._source = TorchSource(prepared)
        self._tilt = tilt
        self._moments = Moments(self.base, self._tilt, self.dtype)
        # phi is the log of an average of e^f, so it is in [lo, hi]: an estimate outside would break |log q/q0| <= R.
        self.log_normalizer = replace(log_normalizer, value=self.bounds.clamp(log_normalizer.value))
        super().__init__(torch.Size(), self.base.event_shape, validate_args=validate_args)
        self._row_base = prepared.row.distribution
        self._row_shape = self._row_base.event_shape
        self._tilt.check_output(self._row_features(self._interior)[0])

    @property
    def statistics(self) -> nn.Module:
        """Sufficient statistics c, a frozen copy of the module given. Private."""
        return self._tilt.statistics

    @property
    def natural_params(self) -> Tensor:
        """Natural parameters theta, float64 of shape ``(T,)``. Private where they were fitted again to the table."""
        return self._tilt.natural_params

    @property
    def offset(self) -> float:
        """The constant a that is taken off before the tilt is clipped, in nats. Private."""
        return self._tilt.offset

    @property
    def shrinkage(self) -> float:
        """What the clipped tilt is multiplied by, in [0, 1]. Private."""
        return self._tilt.shrinkage

    @property
    def bounds(self) -> Bounds:
        """Public interval [lo, hi] of the tilt, in nats."""
        return self._tilt.bounds

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of log-densities, and of draws where the base is continuous."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device of draws and log-densities."""
        return self._interior.device

    @property
    def acceptance_rate(self) -> float:
        """Expected acceptance rate of exact draws, exp(phi - hi), in [exp(-R), 1]. Private."""
        return math.exp(self.log_normalizer.value - self.bounds.high)

    @constraints.dependent_property
    def support(self) -> Any:
        """Support of the base, a torch constraint; a closed box where the base is uniform."""
        return support_of(self.base)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]  # a property here, a class attribute in torch
        """Whether the base is finite and its points can be listed."""
        return enumerate_points(self.base) is not None

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Returns all values of a finite base.

        Args:
            expand: whether to repeat them over the batch shape.

        Returns:
            Tensor of shape ``(n,) + batch_shape + event_shape``, or ``(n, 1, ...)`` without ``expand``.

        Raises:
            NotImplementedError: the base is not finite.
        """
        points = enumerate_points(self.base)
        if points is None:
            raise NotImplementedError(f"{self!r} has no finite support to enumerate.")
        points = points.reshape((-1,) + (1,) * len(self.batch_shape) + self.event_shape)
        return points.expand((-1, *self.batch_shape, *self.event_shape)) if expand else points

    def tilt(self, value: Tensor) -> Tensor:
        """Returns f, the log density ratio to the base up to phi.

        Privacy:
            Not for release.

        Args:
            value: shape ``(..., *event_shape)``; any floating dtype, converted to the density's.

        Returns:
            float64 tensor of shape ``(...)`` in [lo, hi], never NaN.
        """
        return self._tilt(self.features(value))

    def accepted_tilt(self, value: Tensor) -> Tensor:
        """Returns f as draws are accepted by it: one function, to the last bit, of a row or batch, whatever is beside.

        What is certified is this function (:func:`~pyro_mbde.density.scoring.score_rows`); :meth:`tilt` may differ in
        the last digits, and has gradients.

        Privacy:
            Not for release.

        Args:
            value: shape ``(n, *event_shape)``.

        Returns:
            float64 tensor of shape ``(n,)`` in [lo, hi], never NaN.
        """
        rows = value.reshape(-1, *self._row_shape)
        scores = score_rows(self._row_score, rows)
        return self._tilt.of_scores(scores.reshape(value.shape[: value.dim() - len(self._row_shape)]))

    def row_scores(self, rows: Tensor) -> Tensor:
        """Returns <theta, c> of rows, what the tilt clips: of a batch, the sum over its rows.

        Privacy:
            Not for release.

        Args:
            rows: shape ``(n,)`` or ``(n, d)``.

        Returns:
            float64 tensor of shape ``(n,)``, never NaN.
        """
        return score_rows(self._row_score, rows)

    def _row_score(self, rows: Tensor) -> Tensor:
        return self._tilt.score(as_features(rows, self._row_base, self.dtype))

    def features(self, value: Tensor) -> Tensor:
        """Returns what the networks see of values: shape ``(..., d)``, of a batch ``(..., k, d)``."""
        return as_features(value, self.base, self.dtype)

    def _row_features(self, value: Tensor) -> Tensor:
        """Features of all rows of values, shape ``(n, num_features)``."""
        features = self.features(value)
        return features.reshape(-1, features.shape[-1])

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the normalised log-density.

        Privacy:
            Not for release.

        Args:
            value: shape ``(..., *event_shape)``, broadcastable to the batch shape; any floating dtype, converted to the
                density's.

        Returns:
            Tensor of the broadcast batch shape, in the density's dtype. Where validation is off, -inf outside the
            support, and NaN for a value that is NaN.

        Raises:
            ValueError: validation is on and a value is NaN or outside the support.
        """
        if not isinstance(value, Tensor):
            raise TypeError(argument_error("value", "be a tensor", value))
        if value.is_floating_point() and value.dtype != self.dtype:
            value = value.to(self.dtype)
        batch_dims = value.dim() - len(self.event_shape)
        if value.shape[batch_dims:] != self.event_shape:
            raise ValueError(
                argument_error("value", f"have shape (..., *{tuple(self.event_shape)})", tuple(value.shape))
            )
        batch_shape = value.shape[:batch_dims]
        if self.batch_shape:
            batch_shape = _broadcast_shape(batch_shape, self.batch_shape)
        if not value.numel():  # torch's constraints cannot check an empty tensor
            return value.new_zeros(batch_shape, dtype=self.dtype)
        log_density = (self._log_density if self._surely_inside(value) else self._masked_log_density)(value)
        return log_density.expand(batch_shape) if self.batch_shape else log_density

    def _masked_log_density(self, value: Tensor) -> Tensor:
        """Returns the log-density of values of which some may be outside the support, infinite or NaN."""
        inside, finite = self.support.check(value), torch.isfinite(value)
        if self._validate_args:
            self._check_values(value, inside)
        missing = value.isnan()
        event_dims = len(self.event_shape)
        if event_dims:
            finite, missing = finite.flatten(-event_dims).all(-1), missing.flatten(-event_dims).any(-1)
        usable = inside & finite
        interior = torch.where(usable.reshape(usable.shape + (1,) * event_dims), value, self._interior)
        return torch.where(usable, self._log_density(interior), torch.where(missing, torch.nan, -torch.inf))

    def _surely_inside(self, value: Tensor) -> bool:
        """Whether all values are finite and in the support; False also where torch cannot tell."""
        total = _known(value.detach().sum())  # where it is finite, so is all that it is of
        finite = total is not None and math.isfinite(total)
        return finite and (self._unbounded or bool(_known(self.support.check(value).all())))

    def _check_values(self, value: Tensor, inside: Tensor) -> None:
        if _known(inside.all()) == 0:  # where it is not known, -inf will have to do
            raise ValueError(
                f"value must be in the support {self.support}, got a value of shape {tuple(value.shape)} with entries "
                f"outside it or NaN. Build the density with validate_args=False to get -inf there, and NaN for NaN."
            )

    def _log_density(self, value: Tensor) -> Tensor:
        """Returns the log-density of finite values in the support; added up in float64, as the tilt is."""
        if self._followed is not None:
            return self._followed(self, value).to(self.dtype)
        log_base = self.base.log_prob(value)
        tilt = self.tilt(value.detach() if self._has_smooth_gradient else value)
        return (log_base + (tilt - self.log_normalizer.value)).to(self.dtype)

    def with_smooth_gradient(self) -> Self:
        """Returns the same density with its base's gradient, for Pyro's own ``NUTS``.

        A tilt is bounded but steep, and a sampler that follows its gradient needs tiny steps. A leapfrog step along any
        other gradient is as reversible, so that chains which are accepted by the right energies still sample exactly
        this density. ``log_prob`` is unchanged; only its derivative leaves the tilt out. Pyro adapts the step size to
        the exact energy, whose error no step size removes, so lower ``target_accept_prob``: 0.6 at epsilon 1, 0.3 at
        5. ``HMC`` may then end with a step size near 0: give it one, with ``adapt_step_size=False``.
        :func:`~pyro_mbde.run_mcmc` needs none of this.

        Warning:
            Not for variational inference, optimisation or anything else that needs the density's own gradient.

        Returns:
            A density that shares its parts with this one. ``save`` writes the density with its own gradient.

        References:
            Neal. MCMC using Hamiltonian dynamics. 2011. Section 5.5 (approximate energies in trajectories).

        Example:
            >>> from pyro_mbde import MBDE
            >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
            >>> q = MBDE(base, epsilon=1.0, progress=False).fit(torch.linspace(0, 1, 500))
            >>> x = torch.tensor(0.5, requires_grad=True)
            >>> (slope,) = torch.autograd.grad(q.with_smooth_gradient().log_prob(x), x)
            >>> float(slope)
            -0.5
        """
        new = self.expand(self.batch_shape)
        new._has_smooth_gradient = True
        return new

    def smoothed(self, log_density: Callable[[Any, Tensor], Tensor]) -> Self:
        """Returns a density with another log_prob, a function of the density and a value, normalised or not.

        For Hamiltonian kernels to follow; not to draw from.
        """
        new = self.expand(self.batch_shape)
        new._followed = log_density
        return new

    def sample(self, sample_shape: _Shape = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        """Returns exact draws by rejection, from torch's global generator.

        Args:
            sample_shape: shape of independent draws.

        Returns:
            Tensor of shape ``sample_shape + batch_shape + event_shape``.

        Raises:
            RuntimeError: more proposals were needed than :func:`~pyro_mbde.density.rejection.rejection_sample` allows.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        num_draws = shape[: len(shape) - len(self.event_shape)].numel()
        return self.rejection_draws(num_draws).values.reshape(shape)

    def rejection_draws(
        self,
        num_draws: int,
        *,
        source: RandomSource | None = None,
        acceptance_rate: float | None = None,
        max_proposals: float | None = None,
        on_accept: Callable[[int], object] = lambda count: None,
    ) -> RejectionDraws:
        """Returns exact draws with the number of proposals they took.

        Privacy:
            The draws carry the density's guarantee if nobody can guess the randomness of ``source``. The number of
            proposals is private.

        Args:
            num_draws: number of draws, at least 0.
            source: where randomness comes from; defaults to torch's global generator.
            acceptance_rate: sizes the batches; ``None`` for the (private) expected one.
            max_proposals: as for :func:`~pyro_mbde.density.rejection.rejection_sample`, which this calls.
            on_accept: called after each batch with the number of draws that it gave.

        Returns:
            Draws of shape ``(num_draws, *event_shape)`` and the number of proposals.
        """
        return rejection_sample(
            self._source if source is None else source,
            self.accepted_tilt,
            self.bounds,
            num_draws,
            acceptance_rate=self.acceptance_rate if acceptance_rate is None else acceptance_rate,
            max_batch=proposal_batch(self.event_shape),
            max_proposals=max_proposals,
            on_accept=on_accept,
        )

    def expand(self, batch_shape: _Shape, _instance: Any = None) -> Self:
        """Returns the density over a larger batch shape; this one is left as it is."""
        batch_shape = torch.Size(batch_shape)
        try:
            if min(batch_shape, default=0) < 0:
                raise ValueError
            fits = _broadcast_shape(self.batch_shape, batch_shape) == batch_shape
        except ValueError:
            fits = False
        if not fits:
            remedy = f"The batch shape is {tuple(self.batch_shape)}."
            raise ValueError(
                argument_error("batch_shape", "be one that the batch shape broadcasts to", tuple(batch_shape), remedy)
            )
        new = self.__new__(type(self)) if _instance is None else _instance
        new.__dict__.update(self.__dict__)
        new._batch_shape = batch_shape
        return new


def _known(number: Tensor) -> float | None:
    """A tensor's one value; None in torch.vmap, where it has many, and while torch traces, which would keep it."""
    if torch.compiler.is_compiling() or _jit.is_tracing():
        return None
    try:
        return number.item()
    except RuntimeError:
        return None


def _is_unbounded(support: Any) -> bool:
    """Whether a support is all real numbers or vectors."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return type(support) is type(constraints.real)
