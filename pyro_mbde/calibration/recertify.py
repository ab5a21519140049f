"""A new proof of a density's certificate, where the old one does not hold."""

from __future__ import annotations

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import single_thread, with_gradients
from pyro_mbde.calibration.certificate import ROUNDING_RESERVE
from pyro_mbde.calibration.placement import Calibrator, certain_shrinkage
from pyro_mbde.calibration.plan import SMALLEST_DELTA
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.kinds_of_statistics import aligned


def recertify(q: MollifiedExpFamily, *, progress: bool = True) -> MollifiedExpFamily:
    r"""Returns a density with a new proof of its certificate, for the function that draws are accepted by here.

    For a density that was converted to another dtype or device, or loaded under a different PyTorch version
    or processor. Offset, bounds, tolerance and delta stay the same; the proof takes fresh draws of the base.

    Privacy:
        The result is another density for a ledger, with its own delta: rows drawn before rest on the old
        certificate, rows drawn after on the new one. Whether a proof is found depends on the table, so only its
        owner may see an error. Each further try adds another delta.

    Args:
        q: a density with a certificate.
        progress: whether to show a progress bar when it takes more than a second.

    Raises:
        ValueError: q was never certified, or no proof was found.

    Example:
        >>> import torch
        >>> from pyro_mbde import DensityRatio
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = DensityRatio(base, seed=0, progress=False).fit(torch.linspace(1, 2, 500)).mollify(1.0)
        >>> wide = q.to(torch.float64)
        >>> wide.guarantee.delta, recertify(wide).guarantee == q.guarantee
        (0.0, True)
    """
    if not isinstance(q, MollifiedExpFamily):
        raise TypeError(argument_error("q", "be a MollifiedExpFamily", q))
    certificate = q.certificate
    if certificate is None:
        raise ValueError(
            argument_error("q", "have a certificate", q, "An a-priori guarantee needs none and holds anywhere.")
        )
    provable = certificate.tolerance > ROUNDING_RESERVE and certificate.delta >= SMALLEST_DELTA
    if not provable and PreparedBase.of(q.base).finite is None:
        remedy = f"It needs a tolerance above {ROUNDING_RESERVE:g} and a delta of at least {SMALLEST_DELTA:g}."
        raise ValueError(argument_error("q", "have a certificate that draws can prove", certificate, remedy))
    with single_thread(), with_gradients():
        statistics = aligned(q.statistics)
        base = PreparedBase.of(q.base)
        calibrator = Calibrator(base.row, statistics, q.natural_params, progress=progress)
        certain = q.shrinkage <= certain_shrinkage(q.bounds)
        if not certain and not (
            q.shrinkage == 1 and calibrator.certify_at(q.offset, q.bounds, certificate, base.num_rows)
        ):
            raise ValueError(
                f"No proof was found that |phi| is at most {certificate.tolerance:g} on this machine. Fit the density "
                f"again, or use it at its a-priori epsilon. Show this message only to the table's owner."
            )
        return MollifiedExpFamily(
            q.base,
            statistics,
            q.natural_params,
            q.log_normalizer,
            offset=q.offset,
            shrinkage=q.shrinkage,
            bounds=q.bounds,
            certificate=certificate,
            validate_args=q._validate_args,
        ).expand(q.batch_shape)
