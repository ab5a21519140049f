"""The fitted density as a Pyro distribution."""

from __future__ import annotations

import math
import os
import secrets
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.distributions.util import broadcast_shape
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import PreparedBase, as_features, prepare, reference_draws, support_of
from pyro_mbde.density.base_draws import TorchSource
from pyro_mbde.density.bounds import Bounds, Certificate, a_priori_guarantee, calibrated_guarantee
from pyro_mbde.density.finite import enumerate_points
from pyro_mbde.density.moments import Moments, TiltedMoments
from pyro_mbde.density.normalizer import LogNormalizer, estimate_log_normalizer
from pyro_mbde.density.parts import FILE_FORMAT, DensityParts
from pyro_mbde.density.rejection import RandomSource, RejectionDraws, proposal_batch, rejection_sample
from pyro_mbde.density.scoring import CHUNK_ROWS, Arithmetic, depends_on_other_rows, score_rows
from pyro_mbde.density.statistics import is_own
from pyro_mbde.density.tilt import Tilt
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.serialization import damaged_file

_broadcast_shape: Any = broadcast_shape  # Pyro leaves it unannotated; torch's own imports sympy
_jit: Any = torch.jit  # torch leaves it unannotated
_Shape = torch.Size | list[int] | tuple[int, ...]


class MollifiedExpFamily(TiltedMoments):
    r"""Exponential family with bounded sufficient statistics over a public base distribution.

    .. math::
        q(x) = q_0(x) \exp\bigl(f(x) - \phi\bigr), \qquad
        f(x) = \lambda\, \mathrm{clip}\bigl(\langle \theta, c(x) \rangle - a,\, lo,\, hi\bigr), \qquad
        \phi = \log \mathbb{E}_{Q_0}[e^f],

    with natural parameter :math:`\theta`, sufficient statistics :math:`c_t \in [-\log 2, \log 2]`, base measure
    :math:`Q_0` and log-normaliser :math:`\phi`. Trainers build it; it behaves as any Pyro distribution: prior,
    likelihood, in plates, with guides. The networks are copied, frozen and in eval mode; gradients flow to ``value``.

    The clip changes nothing where the bounds are those of :math:`\langle \theta, c \rangle`, the offset a is 0 and the
    shrinkage :math:`\lambda` is 1, the defaults. :class:`~pyro_mbde.density.tilt.Tilt` says how f is computed, which
    keeps the bound for every network.

    Privacy:
        Draws (``sample``) carry :attr:`guarantee`. ``log_prob`` values, ``tilt``, ``log_normalizer``,
        ``acceptance_rate``, the weights and the saved file are as sensitive as the table. ``sample`` uses torch's
        global generator, as Pyro expects: to hand rows out, use :func:`pyro_mbde.private_draws`, which takes fresh
        randomness from the operating system.

    Args:
        base: public Q0 with event shape () or (d,) and empty batch shape; never chosen or scaled by looking at the
            table. A uniform base becomes a closed box. For a batch of rows, a
            :class:`~pyro_mbde.density.row_batch.RowBatch`: one draw is a batch, whose tilt is that of the sum of its
            rows' scores.
        statistics: module mapping ``(..., d)`` to ``(..., T)``, with d = 1 for a scalar event.
        natural_params: theta, shape ``(T,)``, finite, and public unless ``bounds`` are given.
        log_normalizer: phi, as :class:`~pyro_mbde.density.normalizer.LogNormalizer` or number, in nats.
        bounds: public interval [lo, hi] of the tilt in nats; defaults to :func:`~pyro_mbde.density.bounds.tilt_bounds`
            of ``natural_params``. Values outside are clamped to it.
        offset: a, in nats; private. Needs ``bounds``.
        shrinkage: lambda, in [0, 1]; private. Below 1 where a certificate failed.
        certificate: what has been proved of phi, for a calibrated guarantee; ``None`` for the a-priori one, which needs
            no proof. Whoever passes one vouches for it.
        certified_on: for what arithmetic it has been proved, as in a file; ``None`` for the arithmetic here. Where that
            is another one, the guarantee is the a-priori one.
        validate_args: whether ``log_prob`` raises for values outside the support; defaults to Pyro's global setting.

    Raises:
        ValueError: a shape does not fit, or a number is not finite.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Equations 4 and 5, Theorem
        4.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyro_mbde.density.bounds import LOG_2
        >>> base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        >>> class Bump(nn.Module):
        ...     def forward(self, value):
        ...         return LOG_2 * (1 - value.square().sum(-1, keepdim=True)).tanh()
        >>> theta = torch.tensor([0.25 / LOG_2], dtype=torch.float64)
        >>> q = MollifiedExpFamily(base, Bump(), theta, log_normalizer=-0.05)
        >>> q
        MollifiedExpFamily(epsilon=1, rounds=1, base=Normal, event_shape=(2,))
        >>> q.sample((5,)).shape
        torch.Size([5, 2])
        >>> q.guarantee
        Guarantee(epsilon=1.0, delta=0.0, log_ratio_range=1.0)
    """

    has_rsample = False
    arg_constraints = {"natural_params": constraints.real_vector}

    def __init__(
        self,
        base: Distribution | PreparedBase,
        statistics: nn.Module,
        natural_params: Tensor,
        log_normalizer: LogNormalizer | float,
        *,
        offset: float = 0.0,
        shrinkage: float = 1.0,
        bounds: Bounds | None = None,
        certificate: Certificate | None = None,
        certified_on: Arithmetic | None = None,
        validate_args: bool | None = None,
    ) -> None:
        prepared = prepare(base)
        self.base = prepared.distribution
        # A point of the support, to stand in for values outside it, where neither density nor gradient may be NaN.
        self._interior = prepared.example
        self._unbounded = _is_unbounded(self.support)
        self._dtype = prepared.dtype
        self._source = TorchSource(prepared)
        self._tilt = Tilt(
            statistics, natural_params, offset, shrinkage, bounds, self._interior.device, prepared.num_rows
        )
        self._row_shape = prepared.row.distribution.event_shape
        self._moments = Moments(self.base, self._tilt, self.dtype)
        self.certificate = certificate
        if not isinstance(log_normalizer, LogNormalizer):
            log_normalizer = LogNormalizer(float(log_normalizer))
        # phi is the log of an average of e^f, so it is in [lo, hi]: an estimate outside would break |log q/q0| <= R.
        self.log_normalizer = replace(log_normalizer, value=self.bounds.clamp(log_normalizer.value))
        self._salt = secrets.token_hex(16)
        super().__init__(torch.Size(), self.base.event_shape, validate_args=validate_args)
        self._tilt.check_output(self._features(self._interior).reshape(-1, self._num_features)[0])
        if not is_own(statistics) and depends_on_other_rows(self._row_score, prepared.row.draws[:CHUNK_ROWS]):
            remedy = "Compute each row by itself: no average, sort or normalisation over a batch."
            raise ValueError(f"statistics must not look across rows, got {type(statistics).__name__}. {remedy}")
        self.certified_on: Arithmetic | None = None
        self.guarantee: Guarantee = a_priori_guarantee(self.bounds)
        if certificate is not None:
            here = self._arithmetic(prepared.draws)
            self.certified_on = certified_on or here
            if not here.difference(self.certified_on):
                if here.values != self.certified_on.values:
                    text = "certified_on must be of this density, got that of other networks or other claims."
                    raise ValueError(text)
                self.guarantee = calibrated_guarantee(self.bounds, certificate)

    @classmethod
    def normalized(
        cls,
        base: Distribution | PreparedBase,
        statistics: nn.Module,
        natural_params: Tensor,
        *,
        bounds: Bounds | None = None,
        num_draws: int = 2**16,
        validate_args: bool | None = None,
    ) -> MollifiedExpFamily:
        """Builds the density and estimates its log-normaliser.

        Args:
            base: as for the constructor.
            statistics: as for the constructor.
            natural_params: as for the constructor.
            bounds: as for the constructor.
            num_draws: draws of the base for :func:`~pyro_mbde.density.normalizer.estimate_log_normalizer`.
            validate_args: as for the constructor.

        Returns:
            The density, with the standard error of its log-normaliser.

        Raises:
            ValueError: a shape does not fit, or a number is out of its range.
        """
        prepared = prepare(base)
        density = cls(prepared, statistics, natural_params, 0.0, bounds=bounds, validate_args=validate_args)
        density.log_normalizer = estimate_log_normalizer(density.tilt, prepared, density.bounds, num_draws=num_draws)
        return density

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
    def epsilon(self) -> float:
        """Integral-privacy parameter of one draw, in nats: :attr:`guarantee` ``.epsilon``."""
        return self.guarantee.epsilon

    def certificate_lapse(self) -> str:
        """Says why the certificate does not hold in this arithmetic; empty where it does.

        A certificate is proved of one function, to the last bit: in one dtype, on one kind of device and processor, by
        one version of PyTorch (:class:`~pyro_mbde.density.scoring.Arithmetic`). Elsewhere :attr:`guarantee` is the
        a-priori one, and :func:`~pyro_mbde.calibration.recertify.recertify` proves a new certificate.

        Privacy:
            Public: nothing that was fitted enters.
        """
        certified_on = self.certified_on
        return "" if certified_on is None else self._arithmetic().difference(certified_on)

    def certificate_mismatch(self) -> str:
        """Says why the certificate is not of the function that draws are accepted by; empty where it is.

        That is :meth:`certificate_lapse`, or networks that were changed in place. For the owner alone.
        """
        certified_on = self.certified_on
        if certified_on is None:
            return ""
        here = self._arithmetic()
        changed = "" if here.values == certified_on.values else "other values of its networks"
        return here.difference(certified_on) or changed

    def confirm_guarantee(self) -> None:
        """Raises if :attr:`guarantee` rests on a certificate of another function than the one draws are accepted by.

        Raises:
            ValueError: it does: the networks were changed in place, or the density was unpickled on another machine.
        """
        mismatch = "" if self.guarantee == a_priori_guarantee(self.bounds) else self.certificate_mismatch()
        if mismatch:
            remedy = "Load it from its file, or prove a new certificate with pyro_mbde.recertify(q)."
            raise ValueError(f"q must be the function that its certificate was proved for, got {mismatch}. {remedy}")

    def _arithmetic(self, draws: Tensor | None = None) -> Arithmetic:
        """Describes the arithmetic here, on the base's reference draws; without them the base is drawn from again."""
        with torch.inference_mode(False):
            draws = (reference_draws(self.base) if draws is None else draws)[:CHUNK_ROWS]
            rows = self._features(draws).reshape(-1, self._num_features)[:CHUNK_ROWS]
            results = score_rows(self._tilt.with_public_weights().score, rows)
            claim = repr((self.bounds, self.certificate, self.log_normalizer))
            return Arithmetic.here(self.dtype, self.device, results, self.accepted_tilt(draws), claim)

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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fitted density in hexadecimal digits: its name in a ledger.

        Of all that :meth:`save` writes but the batch shape, and nothing else: a density that is saved and loaded, moved
        to another device or expanded keeps it. Every other one has another, also if it was fitted in the same way.

        Privacy:
            Says nothing to anyone who does not hold the density: 128 random bits that are made with it enter, so no
            guess can be checked, and two fits never share one. With the density's file, which is private, it identifies
            the density. It belongs in the owner's ledger, not on a card.

        Raises:
            TypeError: the statistics are not of a class of this library, or the base cannot be described.
        """
        return self._parts().fingerprint()

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
            Tensor of shape ``(n,) + batch_shape``, or ``(n, 1, ...)`` without ``expand``.

        Raises:
            NotImplementedError: the base is not finite.
        """
        points = enumerate_points(self.base)
        if points is None:
            raise NotImplementedError(f"{self!r} has no finite support to enumerate.")
        points = points.reshape((-1,) + (1,) * len(self.batch_shape))
        return points.expand((-1, *self.batch_shape)) if expand else points

    def tilt(self, value: Tensor) -> Tensor:
        """Returns f, the log density ratio to the base up to phi.

        Privacy:
            Not for release.

        Args:
            value: shape ``(..., *event_shape)``; any floating dtype, converted to the density's.

        Returns:
            float64 tensor of shape ``(...)`` in [lo, hi], never NaN.
        """
        return self._tilt(self._features(value))

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

    def _row_score(self, rows: Tensor) -> Tensor:
        return self._tilt.score((rows if self._row_shape else rows.unsqueeze(-1)).to(self.dtype))

    @property
    def _num_features(self) -> int:
        return self._row_shape.numel()

    def _features(self, value: Tensor) -> Tensor:
        return as_features(value, self.base, self.dtype)

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
        ones = (1,) * len(self.event_shape)
        if ones:
            finite, missing = finite.flatten(-len(ones)).all(-1), missing.flatten(-len(ones)).any(-1)
        usable = inside & finite
        interior = torch.where(usable.reshape(usable.shape + ones), value, self._interior)
        return torch.where(usable, self._log_density(interior), torch.where(missing, torch.nan, -torch.inf))

    def _surely_inside(self, value: Tensor) -> bool:
        """Whether all values are finite and in the support; False also where torch cannot tell."""
        total = _known(value.sum())  # where it is finite, so is all that it is of
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
        log_ratio = self.tilt(value) - self.log_normalizer.value
        return (self.base.log_prob(value) + log_ratio).to(self.dtype)

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
            The draws carry :attr:`guarantee` if nobody can guess the randomness of ``source``. The number of proposals
            is private.

        Args:
            num_draws: number of draws, at least 0.
            source: where randomness comes from; defaults to torch's global generator.
            acceptance_rate: sizes the batches; ``None`` for the (private) expected one.
            max_proposals: proposals after which to give up, at least 1; ``None`` for the larger of 10^7 and 1000 a
                draw.
            on_accept: called after each batch with the number of draws that it gave.

        Returns:
            Draws of shape ``(num_draws, *event_shape)`` and the number of proposals.

        Raises:
            EnvelopeError: the tilt is above its bound; cannot happen, and is checked.
            RuntimeError: ``max_proposals`` were used up.
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

    def expand(self, batch_shape: _Shape, _instance: Any = None) -> MollifiedExpFamily:
        """Returns the density over a larger batch shape; this one is left as it is.

        Raises:
            ValueError: ``batch_shape`` is not one that this batch shape broadcasts to.
        """
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
        unannotated: Any = self
        new: MollifiedExpFamily = unannotated._get_checked_instance(MollifiedExpFamily, _instance)
        new.__dict__.update(self.__dict__)
        new._batch_shape = batch_shape
        return new

    def to(self, target: str | torch.device | torch.dtype) -> MollifiedExpFamily:
        """Returns the density on another device or in another floating-point type; this one is left as it is.

        Privacy:
            Where the certificate was proved for another device or type, the guarantee of the result is the a-priori
            one, up to twice the epsilon: what was certified is a function in floating point.
            :func:`~pyro_mbde.recertify` proves a new certificate; the way back restores the old one.

        Args:
            target: a device, or ``torch.float32`` or ``torch.float64``.

        Raises:
            TypeError: ``target`` is neither, or the base cannot be described.
        """
        new = self._assemble(self._parts().to(target))
        new._validate_args = self._validate_args
        return new

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the density to a file that ``torch.load`` reads with its safe defaults: a plain dict of tensors.

        Privacy:
            The file is as sensitive as the table. Only its owner may read it. A
            :class:`~pyro_mbde.PrivacyLeakWarning` tells if it goes into a folder that holds a release card.

        Args:
            path: where to; replaced only once all is written.

        Raises:
            TypeError: the statistics are not of a class of this library, or the base cannot be described.
        """
        self._parts().write(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], map_location: str | torch.device = "cpu") -> MollifiedExpFamily:
        """Reads a density that :meth:`save` wrote; runs no code from the file.

        Args:
            path: the file.
            map_location: device to put it on.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged, of another kind, or from a later version of the library.
        """
        parts = DensityParts.read(path)
        try:
            density = cls._assemble(parts if torch.device(map_location).type == "cpu" else parts.to(map_location))
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:  # parts that do not fit one another
            raise damaged_file(path, FILE_FORMAT) from error
        lapse = density.certificate_lapse()
        if lapse:
            warnings.warn(
                f"The certificate of {os.fspath(path)!r} does not hold here: {lapse}. One draw costs the a-priori "
                f"epsilon, {density.epsilon:.6g}. Fit again here, or prove a new certificate with pyro_mbde.recertify.",
                stacklevel=2,
            )
        return density

    def _parts(self) -> DensityParts:
        return DensityParts(
            self.base,
            self.statistics,
            self.natural_params,
            self.log_normalizer,
            self.offset,
            self.shrinkage,
            self.bounds,
            self.certificate,
            self.certified_on,
            self.batch_shape,
            self._salt,
        )

    @classmethod
    def _assemble(cls, parts: DensityParts) -> MollifiedExpFamily:
        density = cls(
            parts.base,
            parts.statistics,
            parts.natural_params,
            parts.log_normalizer,
            offset=parts.offset,
            shrinkage=parts.shrinkage,
            bounds=parts.bounds,
            certificate=parts.certificate,
            certified_on=parts.certified_on,
        )
        density._salt = str(parts.salt)
        return density.expand(parts.batch_shape)

    def __repr__(self) -> str:
        """Shows public facts alone."""
        base: Any = self.base
        while isinstance(base, torch.distributions.Independent):
            base = base.base_dist
        name = type(base).__name__.removeprefix("Closed")
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        return (
            f"MollifiedExpFamily(epsilon={self.epsilon:.6g}, rounds={len(self.natural_params)}, base={name}, "
            f"event_shape={tuple(self.event_shape)}{batch})"
        )


def check_density(q: Any, remedy: str = "Pass the density before it is expanded.") -> None:
    """Raises if ``q`` is not a fitted density, or has a batch shape.

    Args:
        q: what a caller passed as the density.
        remedy: what to do where it has a batch shape.

    Raises:
        TypeError: ``q`` is not a :class:`MollifiedExpFamily`.
        ValueError: it has a batch shape.
    """
    if not isinstance(q, MollifiedExpFamily):
        raise TypeError(argument_error("q", "be a MollifiedExpFamily", q))
    if q.batch_shape:
        raise ValueError(argument_error("q", "have an empty batch shape", tuple(q.batch_shape), remedy))


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
