"""The fitted density as a Pyro distribution."""

from __future__ import annotations

import os
import secrets
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import PreparedBase, prepare, reference_draws
from pyro_mbde.density.bounds import Bounds, Certificate, a_priori_guarantee, calibrated_guarantee
from pyro_mbde.density.kinds_of_statistics import is_own
from pyro_mbde.density.normalizer import LogNormalizer, estimate_log_normalizer
from pyro_mbde.density.parts import FILE_FORMAT, DensityParts
from pyro_mbde.density.scoring import CHUNK_ROWS, Arithmetic, depends_on_other_rows, score_rows
from pyro_mbde.density.tilt import Tilt
from pyro_mbde.density.tilted import TiltedBase
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.serialization import damaged_file


class MollifiedExpFamily(TiltedBase):
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
            no proof. The caller vouches for it.
        certified_on: for what arithmetic it has been proved, as in a file; ``None`` for the arithmetic here. Where that
            is another one, the guarantee is the a-priori one.
        validate_args: whether ``log_prob`` raises for values outside the support; defaults to Pyro's global setting.

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
        tilt = Tilt(statistics, natural_params, offset, shrinkage, bounds, prepared.example.device, prepared.num_rows)
        if not isinstance(log_normalizer, LogNormalizer):
            log_normalizer = LogNormalizer(float(log_normalizer))
        super().__init__(prepared, tilt, log_normalizer, validate_args)
        self.certificate = certificate
        self._salt = secrets.token_hex(16)
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
        offset: float = 0.0,
        shrinkage: float = 1.0,
        bounds: Bounds | None = None,
        num_draws: int = 2**16,
        validate_args: bool | None = None,
    ) -> MollifiedExpFamily:
        """Builds the density and estimates its log-normaliser, with its standard error.

        Arguments are the constructor's, and ``num_draws``, the number of draws of the base for
        :func:`~pyro_mbde.density.normalizer.estimate_log_normalizer`.
        """
        prepared = prepare(base)
        arguments: dict[str, Any] = {"offset": offset, "shrinkage": shrinkage, "bounds": bounds}
        density = cls(prepared, statistics, natural_params, 0.0, **arguments, validate_args=validate_args)
        density.log_normalizer = estimate_log_normalizer(density.tilt, prepared, density.bounds, num_draws=num_draws)
        return density

    @property
    def epsilon(self) -> float:
        """Integral-privacy parameter of one draw, in nats: :attr:`guarantee` ``.epsilon``."""
        return self.guarantee.epsilon

    def certificate_lapse(self) -> str:
        """Says why the certificate does not hold in this arithmetic; empty where it does.

        A certificate is proved of one function, to the last bit: in one dtype, on one kind of device and processor, by
        one version of PyTorch (:class:`~pyro_mbde.density.scoring.Arithmetic`). Elsewhere :attr:`guarantee` is the
        a-priori one, and :func:`~pyro_mbde.recertify` proves a new certificate.

        Privacy:
            Public: nothing that was fitted enters.
        """
        certified_on = self.certified_on
        return "" if certified_on is None else self._arithmetic().difference(certified_on)

    def certificate_mismatch(self) -> str:
        """Says why the certificate is not of the function that draws are accepted by; empty where it is.

        That is :meth:`certificate_lapse`, or networks that were changed in place. Only the owner may see it.
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
            rows = self._row_features(draws)[:CHUNK_ROWS]
            results = score_rows(self._tilt.with_public_weights().score, rows)
            claim = repr((self.bounds, self.certificate, self.log_normalizer))
            values = self.accepted_tilt(draws)
            if len(self.event_shape) > len(self._row_shape):
                # Nearly all batches of the base lie at the lower bound, whatever the networks are: scores tell more.
                values = torch.cat([values, score_rows(self._tilt.score, rows)])
                claim += f" {self.offset!r} {self.shrinkage!r}"
            return Arithmetic.here(self.dtype, self.device, results, values, claim)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fitted density in hexadecimal digits: its name in a ledger.

        It covers all that :meth:`save` writes except the batch shape: a density that is saved and loaded, moved to
        another device or expanded keeps it. Any other density has another one, also if it was fitted in the same way.

        Privacy:
            Without the density it reveals nothing: 128 random bits of the fit enter, so no guess can be checked, and
            two fits never share one. Together with the density's private file it identifies the density, so it belongs
            in the owner's ledger, not on a card.

        Raises:
            TypeError: as for :meth:`save`.
        """
        return self._parts().fingerprint()

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
        new._has_smooth_gradient = self._has_smooth_gradient
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
        named = {name: getattr(self, name) for name in DensityParts._fields if name != "salt"}
        return DensityParts(**named, salt=self._salt)

    @classmethod
    def _assemble(cls, parts: DensityParts) -> MollifiedExpFamily:
        arguments = parts._asdict()
        batch_shape, salt = arguments.pop("batch_shape"), str(arguments.pop("salt"))
        density = cls(**arguments)
        density._salt = salt
        return density.expand(batch_shape)

    def __repr__(self) -> str:
        """Shows only public facts."""
        prepared = PreparedBase.of(self.base)
        base: Any = prepared.row.distribution
        while isinstance(base, torch.distributions.Independent):
            base = base.base_dist
        name = type(base).__name__.removeprefix("Closed")
        rows = "" if prepared.num_rows is None else f", num_rows={prepared.num_rows}"
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        return (
            f"MollifiedExpFamily(epsilon={self.epsilon:.6g}, rounds={len(self.natural_params)}, base={name}, "
            f"event_shape={tuple(self.event_shape)}{rows}{batch})"
        )


def check_density(q: Any, remedy: str = "Pass the density before it is expanded.") -> None:
    """Raises if ``q`` is not a fitted density, or has a batch shape."""
    if not isinstance(q, MollifiedExpFamily):
        raise TypeError(argument_error("q", "be a MollifiedExpFamily", q))
    if q.batch_shape:
        raise ValueError(argument_error("q", "have an empty batch shape", tuple(q.batch_shape), remedy))
