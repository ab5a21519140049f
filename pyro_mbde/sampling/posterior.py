"""Posteriors of models in which a fitted density is the prior: the cost of a draw, and exact draws from some."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_count, check_seed
from pyro_mbde._torch_state import seeded, with_gradients
from pyro_mbde.density.base import prepare, reference_draws
from pyro_mbde.density.distribution import MollifiedExpFamily, check_density
from pyro_mbde.privacy.guarantee import Guarantee

#: How far log-densities may be from what they should be, relative to their size: the error of a float32 sum of a few
#: thousand terms.
_LOG_DENSITY_TOLERANCE = 1e-4
_EXPANDED = "Each row of a batch is a separate latent: pass the density before it is expanded."


def posterior_guarantee(q: MollifiedExpFamily, num_latents: int = 1) -> Guarantee:
    r"""Returns the guarantee of an exact draw from a posterior in which a fitted density is the prior.

    In any model with n latents :math:`z_1, \dots, z_n` with prior q, whose other priors, likelihood and observations
    are public and whose posterior under the base prior is proper, the log-ratio of the posteriors of any two tables is
    at most :math:`2nR`, with R the width of the tilt, and ranges over at most :math:`2nR`. The bound is tight. Proof:
    docs/proofs.md, *Posterior draws*.

    **A calibrated guarantee does not carry over:** its certificate is about an average over the base, and the
    posterior's normaliser is an average over the base posterior. So for a calibrated q the result is almost twice
    ``q.epsilon`` for each latent; for an a-priori one it is ``q.epsilon``.

    Where the model chooses between q and a public density for a latent, by an indicator with a public prior, the latent
    counts as one with prior q. A plate that is scaled by c counts c times.

    Privacy:
        Covers *exact* draws only: not the states of HMC or NUTS chains, their averages or their diagnostics. It
        protects the table that q was fitted to, not sensitive observations, which must not be rows of that table or
        chosen by looking at it.

    Args:
        q: the fitted density, with empty batch shape.
        num_latents: number n of latents with prior q in the whole model, at least 1: each row of a plate counts.

    Returns:
        ``Guarantee(epsilon=2 n R, delta=0, log_ratio_range=2 n R)`` of one draw of all latents together.
        :func:`~pyro_mbde.privacy.accounting.compose` adds up several draws of one posterior.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. The lemma on mollifiers,
        here for the set around the base posterior.

    Example:
        >>> from pyro_mbde import DensityRatio
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> ratio = DensityRatio(base, seed=0, progress=False).fit(torch.linspace(0, 1, 500))
        >>> posterior_guarantee(ratio.mollify(1.0, delta=0.0), num_latents=3)
        Guarantee(epsilon=3.0, delta=0.0, log_ratio_range=3.0)
    """
    check_density(q, _EXPANDED)
    total = 2 * check_count("num_latents", num_latents) * q.bounds.width
    return Guarantee(epsilon=total, delta=0.0, log_ratio_range=total)


def exact_posterior(
    q: MollifiedExpFamily,
    base_posterior: Distribution,
    *,
    log_likelihood: Callable[[Tensor], Tensor] | None = None,
    num_draws: int = 2**16,
    seed: int | None = None,
    validate_args: bool | None = None,
) -> MollifiedExpFamily:
    r"""Returns the posterior of one latent with a fitted prior, where the posterior under the base prior is known.

    .. math::
        q(z \mid y) \propto q_0(z)\, L(y \mid z)\, e^{f(z)} \propto q_0(z \mid y)\, e^{f(z)} :

    the same exponential family, the same tilt, over the base posterior :math:`q_0(z \mid y)` in place of :math:`q_0`.
    Where the base is conjugate to the likelihood, the base posterior is a distribution with a name (normal with normal,
    gamma with Poisson, beta with binomial, Dirichlet with multinomial). The posterior is a :class:`MollifiedExpFamily`:
    it has a density, can be used in models, and has exact draws, which may be handed out if
    :func:`~pyro_mbde.private_draws` makes them.

    Privacy:
        As for any density: draws carry its :attr:`~MollifiedExpFamily.guarantee`, the a-priori one of width R, which is
        :func:`posterior_guarantee` of q. Its values, its normaliser and its file are as sensitive as the table. The
        base posterior must be public, and so must the observations.

    Args:
        q: the fitted density, prior of one latent; empty batch shape.
        base_posterior: posterior of the latent under ``q.base``; empty batch shape, q's event shape, and its draws
            in q's support. Networks are converted to its dtype and device.
        log_likelihood: :math:`\log L(y \mid z)`, mapping latents of shape ``(n, *event_shape)`` to ``(n,)``. Where it
            is given, the base posterior is checked to be the base times it, up to a constant.
        num_draws: draws of ``base_posterior`` for :func:`~pyro_mbde.density.normalizer.estimate_log_normalizer`.
        seed: for reproducible estimates; ``None`` takes torch's global generator.
        validate_args: as for :class:`MollifiedExpFamily`.

    Returns:
        The posterior, with the standard error of its log-normaliser and no certificate.

    Raises:
        ValueError: a shape or support does not fit, or ``base_posterior`` cannot be a base or is not the base times the
            likelihood.

    References:
        Diaconis, Ylvisaker. Conjugate priors for exponential families. Annals of Statistics, 1979.

    Example:
        >>> from pyro_mbde import DensityRatio, private_draws
        >>> base = torch.distributions.Gamma(torch.tensor(2.0), torch.tensor(0.5))  # visits a year
        >>> ratio = DensityRatio(base, seed=0, progress=False).fit(base.sample((500,)).clamp(max=4.0))
        >>> prior = ratio.mollify(1.0, delta=0.0)
        >>> counts = torch.tensor([3.0, 5.0])  # of a new patient, in two years
        >>> gamma = torch.distributions.Gamma(2.0 + counts.sum(), torch.tensor(0.5 + 2))
        >>> posterior = exact_posterior(prior, gamma)
        >>> posterior
        MollifiedExpFamily(epsilon=1, rounds=1, base=Gamma, event_shape=())
        >>> private_draws(posterior, 1).shape
        torch.Size([1])
    """
    check_density(q, _EXPANDED)
    prepared = prepare(base_posterior)
    base, draws = prepared.distribution, prepared.draws
    if base.event_shape != q.event_shape:
        constraint = f"have the event shape of q, {tuple(q.event_shape)}"
        raise ValueError(argument_error("base_posterior", constraint, tuple(base.event_shape)))
    support: Any = q.support
    unannotated: Any = base
    if support.is_discrete != unannotated.support.is_discrete or not bool(support.check(draws.to(q.device)).all()):
        remedy = "The support of a posterior lies within that of its prior."
        raise ValueError(
            argument_error("base_posterior", f"have draws in the support of q, {support}", base_posterior, remedy)
        )
    if log_likelihood is not None:
        _check_likelihood(q, base, draws, log_likelihood)
    with with_gradients(), seeded(check_seed(seed)):  # the density can be differentiated wherever it was made
        return MollifiedExpFamily.normalized(
            prepared,
            copy.deepcopy(q.statistics).to(device=draws.device, dtype=prepared.dtype),
            q.natural_params,
            offset=q.offset,
            shrinkage=q.shrinkage,
            bounds=q.bounds,
            num_draws=num_draws,
            validate_args=validate_args,
        )


def _check_likelihood(
    q: MollifiedExpFamily, base: Distribution, draws: Tensor, log_likelihood: Callable[[Tensor], Tensor]
) -> None:
    """Raises if log q0 + log L - log (base posterior) is not the same number wherever prior or posterior have mass."""
    if not callable(log_likelihood):
        raise TypeError(argument_error("log_likelihood", "be a function of the latent", log_likelihood))
    prior_draws = reference_draws(q.base).to(draws)
    draws = torch.cat([draws, prior_draws])
    likelihoods = torch.as_tensor(log_likelihood(draws))
    if likelihoods.shape != draws.shape[:1]:
        constraint = f"map latents of shape {tuple(draws.shape)} to {tuple(draws.shape[:1])}"
        raise ValueError(argument_error("log_likelihood", constraint, tuple(likelihoods.shape)))
    prior = draws.to(q.device, q.dtype) if draws.is_floating_point() else draws.to(q.device)
    terms = [log_prob.double().cpu() for log_prob in (q.base.log_prob(prior), likelihoods, base.log_prob(draws))]
    # Both sides may have density 0, where the likelihood is 0.
    nowhere = torch.isneginf(terms[0] + terms[1]) & torch.isneginf(terms[2])
    terms = [term[~nowhere] for term in terms]
    log_evidence = terms[0] + terms[1] - terms[2]
    sizes = torch.stack(terms).nan_to_num(0.0, 0.0, 0.0).abs().max(0).values
    tolerance = _LOG_DENSITY_TOLERANCE * (1 + sizes)
    middle = log_evidence[: len(log_evidence) // 2].median()
    wrong = ~((log_evidence - middle).abs() <= tolerance)  # NaN, which counts as wrong, if a likelihood is NaN
    if bool(wrong.any()):
        spread = float(log_evidence[wrong].sub(middle).abs().max())
        remedy = "log q0 + log_likelihood - log base_posterior must be a constant; it varies by that many nats."
        raise ValueError(argument_error("base_posterior", "be the base times the likelihood", round(spread, 6), remedy))
