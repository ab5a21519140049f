"""Mollified boosted density estimation, Algorithm 1 of the paper."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde._checks import (
    argument_error,
    check_choice,
    check_count,
    check_epsilon,
    check_flag,
    check_number,
    check_seed,
)
from pyro_mbde._torch_state import seeded, single_thread, with_gradients
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import check_finite_epsilon, plan_calibration
from pyro_mbde.calibration.projection import project
from pyro_mbde.density.base import as_features, prepare
from pyro_mbde.density.base_draws import quasi_draws
from pyro_mbde.density.bounds import (
    Bounds,
    Certificate,
    a_priori_guarantee,
    check_skew,
    paper_natural_params,
    spending_natural_params,
    tilt_bounds,
)
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.normalizer import LogNormalizer
from pyro_mbde.density.statistics import BoundedClassifiers
from pyro_mbde.density.tilt import Tilt
from pyro_mbde.mcmc.run import run_mcmc
from pyro_mbde.training.base_check import warn_of_leaks
from pyro_mbde.training.fallback import coming_back
from pyro_mbde.training.opened_table import open_table
from pyro_mbde.training.reweighting import reweight
from pyro_mbde.training.rounds import RoundRecord
from pyro_mbde.training.weak_learner import WeakLearner

#: Draws of the base that theta is fitted again on, and that an intermediate density of a calibrated fit is placed on.
_NUM_REWEIGHTING_DRAWS, _NUM_PLACING_DRAWS = 2**15, 2**13
#: Largest tilt of an intermediate density of a calibrated fit, in nats.
_MAX_TILT = 4.0
#: Steps that a chain on Q_{t-1} makes before its draws are used; the paper does not say how many.
_WARMUP_STEPS = 1000

SAMPLERS = ("rejection", "random_walk", "hmc")
SCHEDULES = {"spend": spending_natural_params, "paper": paper_natural_params}


class _Plan(NamedTuple):
    """Public settings of a fit: theta, the bounds of the tilt, and the certificate that a calibrated fit aims at."""

    natural_params: Tensor
    bounds: Bounds
    certificate: Certificate | None


class MBDE:
    r"""Mollified boosted density estimation: fits an exponential family that is private to sample from.

    In round t a weak learner separates the table's rows from draws of :math:`Q_{t-1}`, and its classifier, bounded by
    log 2, tilts the density:

    .. math::
        Q_t \propto Q_{t-1} \exp(\theta_t c_t), \qquad 4 \log 2 \sum_t \theta_t \le \epsilon .

    Whatever the table was and however training went, :math:`Q_T` is in :math:`\mathcal{M}_\epsilon` (Theorem 4), so a
    draw from it is epsilon-integrally private. (With ``calibrated=True`` theta is larger, the tilt is clipped to a
    public interval, and its log-normaliser certified: :math:`\log q/q_0` is in
    :math:`[-\text{skew}\,\epsilon, (1 - \text{skew})\,\epsilon]` except with probability delta.) The default spends all
    of epsilon and trains a network with Fourier features by AdamW on exact draws; :meth:`paper` is section 5 of the
    paper.

    With ``calibrated=True, num_rows=k`` one draw is a batch of k rows, and epsilon is what the whole batch costs, as
    for :meth:`pyro_mbde.LogRatio.mollify`; the weighted classifiers score each row.

    Privacy:
        Draws of the fitted density carry its guarantee. :attr:`history`, the weights and everything else computed here
        are as sensitive as the table. Epsilon, the number of rounds, the schedule and the base must be chosen without
        looking at it.

    Args:
        base: public base distribution Q0.
        epsilon: privacy parameter of one draw, in nats; in (0, inf], and at most 12 for a batch. From 4 log 2 = 2.77 a
            round on, and for ``inf``, all theta_t are 1 and the guarantee is better than asked.
        num_rounds: number of boosting rounds T, at least 1.
        weak_learner: network and optimiser, see :class:`~pyro_mbde.training.weak_learner.WeakLearner`.
        schedule: ``spend`` (:func:`~pyro_mbde.density.bounds.spending_natural_params`) or ``paper``
            (:func:`~pyro_mbde.density.bounds.paper_natural_params`).
        sharpen: whether the logit z is divided by theta_t before it is bounded. The round then tilts by
            clip(z, +-theta_t log 2), the log-ratio itself wherever the bound allows, where the paper's theta_t clip(z,
            +-log 2) takes only a fraction of it. Privacy is the same: :math:`|c_t| \le \log 2` either way.
        sampler: how Q_{t-1} is drawn from: ``rejection`` (exact), ``random_walk`` or ``hmc`` (Pyro chains).
        calibrated: whether the log-normaliser of the result is brought to 0 and certified there, so that the same
            epsilon buys almost twice the width (:func:`~pyro_mbde.density.bounds.calibrated_guarantee`). The rounds are
            Algorithm 1's, with larger theta; no Q_t that is drawn from is tilted by more than 4 nats.
        delta: of a calibrated fit, the probability that its certificate is wrong; in (0, 1), unused otherwise.
        skew: of a calibrated fit, where the interval of the tilt lies; in (0, 1), 1/2 is the paper's set.
        num_rows: rows of a batch, at least 1, of a calibrated fit; ``None`` for single rows.
        reweighted: whether theta is fitted again to all classifiers at the end, within the same sum of
            :math:`|\theta_t|` (:func:`~pyro_mbde.training.reweighting.reweight`). It is private then.
        num_samples: draws of Q_{t-1} per round, at least 2; also of P, where ``fit`` is given a distribution.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Algorithm 1, Theorems 4 to
        7.

    Example:
        >>> import pyro.distributions as dist
        >>> base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        >>> trainer = MBDE(base, epsilon=1.0, seed=0, progress=False)
        >>> q = trainer.fit(0.3 * torch.randn(500, 2) + 1)
        >>> q
        MollifiedExpFamily(epsilon=1, rounds=3, base=Normal, event_shape=(2,))
        >>> [record.round for record in trainer.history]
        [1, 2, 3]
    """

    def __init__(
        self,
        base: Distribution,
        epsilon: float,
        num_rounds: int = 3,
        *,
        weak_learner: WeakLearner | None = None,
        schedule: str = "spend",
        sharpen: bool = True,
        sampler: str = "rejection",
        calibrated: bool = False,
        delta: float = 1e-9,
        skew: float = 0.3,
        num_rows: int | None = None,
        reweighted: bool = False,
        num_samples: int = 10_000,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        self._prepared = prepare(base)
        self._given_base = base  # whose parameters may lie in the table's own memory
        self.epsilon = check_epsilon(epsilon)
        self.num_rounds = check_count("num_rounds", num_rounds)
        self.weak_learner = WeakLearner() if weak_learner is None else weak_learner
        if not isinstance(self.weak_learner, WeakLearner):
            raise TypeError(argument_error("weak_learner", "be a WeakLearner", weak_learner))
        self.schedule = check_choice("schedule", schedule, tuple(SCHEDULES))
        self.sharpen = check_flag("sharpen", sharpen)
        self.sampler = check_choice("sampler", sampler, SAMPLERS)
        support: Any = self.base.support
        if support.is_discrete and sampler != "rejection":
            raise ValueError(argument_error("sampler", "be rejection for a discrete base", sampler))
        self.calibrated = check_flag("calibrated", calibrated)
        self.reweighted = check_flag("reweighted", reweighted)
        self.delta = check_number("delta", delta, "be in (0, 1)", lambda value: 0 < value < 1)
        self.skew = check_skew(skew)
        self.num_rows = None if num_rows is None else check_count("num_rows", num_rows)
        if num_rows is not None and not calibrated:
            remedy = "Only a calibrated density is one of batches: pass calibrated=True."
            raise ValueError(argument_error("num_rows", "be None unless calibrated=True", num_rows, remedy))
        if calibrated:
            check_finite_epsilon(epsilon)
        if num_rows is not None:
            plan_calibration(self._prepared, epsilon, self.delta, self.skew, num_rows)  # checks them
        self.num_samples = check_count("num_samples", num_samples, minimum=2)
        self.seed = check_seed(seed)
        self.progress = progress
        self.history: list[RoundRecord] = []

    @property
    def base(self) -> Distribution:
        """The public base distribution."""
        return self._prepared.distribution

    @classmethod
    def paper(
        cls,
        base: Distribution,
        epsilon: float,
        num_rounds: int = 3,
        *,
        link: str = "clamp",
        sampler: str = "random_walk",
        seed: int | None = None,
        progress: bool = True,
    ) -> MBDE:
        """Returns the trainer of the paper's section 5.

        From the paper: the network and optimiser of :meth:`~pyro_mbde.WeakLearner.paper`, 10,000 draws each of P and
        of Q_{t-1}, these by random-walk Metropolis, T = 3, and the unscaled schedule. Where it is silent: one chain
        with 1,000 steps of warmup. The guarantee does not depend on these settings.

        Args:
            base: public base distribution; the paper's is the standard normal.
            epsilon: privacy parameter of one draw, in nats.
            num_rounds: number of boosting rounds; the paper's is 3.
            sampler: how Q_{t-1} is drawn from; the paper's is ``random_walk``. ``rejection`` draws exactly what that
                chain tends to.
            link: how the paper's sigmoid is read: ``tanh`` (from the sigmoid itself) or ``clamp`` (from its logit).
            seed: for a reproducible fit.
            progress: whether to show a progress bar.

        References:
            Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Section 5.

        Example:
            >>> import pyro.distributions as dist
            >>> MBDE.paper(dist.Normal(0.0, 1.0), epsilon=1.0).weak_learner.num_steps
            750
        """
        return cls(
            base,
            epsilon,
            num_rounds,
            weak_learner=WeakLearner.paper(link),
            schedule="paper",
            sharpen=False,
            sampler=sampler,
            seed=seed,
            progress=progress,
        )

    def fit(self, data: Any) -> MollifiedExpFamily:
        """Fits the density to a table.

        Privacy:
            Draws of the result carry its guarantee. Warnings and the time taken are only for the table's owner.
            Whether there is a result does not depend on the table's values or its number of rows: rounds that cannot be
            trained leave the density as it is, and a :class:`~pyro_mbde.FitWarning` says so. A
            :class:`~pyro_mbde.PrivacyLeakWarning` tells if the base seems to be made from the table, or the table to be
            scaled by its own moments.

        Args:
            data: as for :meth:`pyro_mbde.DensityRatio.fit`. Of a table that is read in windows, :attr:`history` and
                ``reweighted`` see the window that is in memory. There are no checkpoints, and a fit runs in one
                process: :class:`~pyro_mbde.DensityRatio` has both.

        Returns:
            The fitted density; :attr:`history` holds a record of each round that was trained.
        """
        plan = self._plan()
        num_steps = self.num_rounds * self.weak_learner.num_steps
        bar = tqdm(total=num_steps, desc="MBDE", unit="step", disable=not self.progress)
        with bar, seeded(self.seed), single_thread(), with_gradients():
            table = open_table(data, self._prepared, self.num_samples)
            if table.rows is not None:
                warn_of_leaks(self._given_base, data, table.rows)
            source, positives = table.source, table.source.like
            spread = self._prepared.feature_scale
            history: list[RoundRecord] = []
            classifiers: list[BoundedClassifiers] = []
            density: MollifiedExpFamily | None = None
            for index, theta in enumerate(plan.natural_params.tolist()):
                start = time.perf_counter()
                bar.set_description(f"MBDE round {index + 1}/{self.num_rounds}")
                with coming_back(f"Rounds from {index + 1} on change nothing.") as failure:
                    negatives = as_features(self._draw(density), self.base, positives.dtype)
                    hypothesis = self.weak_learner.fit(source, negatives, spread, on_step=bar.update)
                    if self.sharpen:
                        # Beyond 2^20 a clipped logit is a sign; theta itself may underflow to 0.
                        hypothesis.classifier.scale_logits(1 / max(theta, 2.0**-20))
                    stacked = BoundedClassifiers.stack([*classifiers, hypothesis.classifier])
                    if index + 1 < self.num_rounds:
                        density = self._continue(stacked, plan)
                if failure.happened:
                    break
                classifiers.append(hypothesis.classifier)
                positives = source.held
                c_p, c_q = hypothesis.classifier(positives), hypothesis.classifier(negatives)
                seconds = time.perf_counter() - start
                history.append(RoundRecord.of(index + 1, theta, hypothesis.loss, c_p, c_q, seconds))
            indifferent = self.weak_learner.indifferent(positives, spread)
            classifiers += [indifferent] * (self.num_rounds - len(classifiers))
            with coming_back("The density is the base.") as failure:
                density = self._finish(BoundedClassifiers.stack(classifiers), positives, plan)
            table.warn()
            if failure.happened or density is None:
                statistics = BoundedClassifiers.stack([indifferent] * self.num_rounds)
                density = self._finish(statistics, positives[:0], plan)
        self.history = history
        return density

    def _plan(self) -> _Plan:
        schedule = SCHEDULES[self.schedule]
        if self.calibrated:
            bounds, certificate = plan_calibration(self._prepared, self.epsilon, self.delta, self.skew, self.num_rows)
            # A schedule for epsilon makes |f| at most epsilon/4. Let f reach 2R here, and 2 nats at least, as far as
            # theta_t <= 1 allows, so that it spans the interval wherever that comes to lie: the bounds, not theta, hold
            # a calibrated tilt. Rounds too few for that need no certificate: the a-priori guarantee is the better one.
            natural_params = schedule(8 * max(bounds.width, 1.0), self.num_rounds)
            # A batch's score is the sum over its rows, and spans the interval in any case.
            if self.num_rows is not None:
                return _Plan(natural_params, bounds, certificate)
            if certificate is not None and a_priori_guarantee(tilt_bounds(natural_params)).epsilon > self.epsilon:
                return _Plan(natural_params, bounds, certificate)
        natural_params = schedule(self.epsilon, self.num_rounds)
        return _Plan(natural_params, tilt_bounds(natural_params), None)

    def _continue(self, statistics: BoundedClassifiers, plan: _Plan) -> MollifiedExpFamily:
        """Q_t to draw the next round's negatives from. Its phi only sizes batches, so a rough estimate is enough."""
        natural_params = plan.natural_params[: statistics.num_classifiers]
        if plan.certificate is None and self.num_rows is None:
            return MollifiedExpFamily.normalized(self._prepared, statistics, natural_params, num_draws=2**10)
        # Shifted until phi is 0 and clipped, so that a draw takes no more than e^4 proposals however many rounds there
        # are.
        bounds = Bounds(-_MAX_TILT, _MAX_TILT)
        with torch.no_grad():
            draws = quasi_draws(self.base, _NUM_PLACING_DRAWS)
            scores = Tilt(statistics, natural_params).score(as_features(draws, self.base, statistics.loc.dtype))
        shift = project(scores, torch.zeros_like(scores), bounds)
        return MollifiedExpFamily(
            self._prepared, statistics, natural_params, LogNormalizer(0.0), offset=shift, bounds=bounds
        )

    def _finish(self, statistics: BoundedClassifiers, positives: Tensor, plan: _Plan) -> MollifiedExpFamily:
        """Fits theta again if asked to, then normalises or calibrates."""
        natural_params = plan.natural_params
        if self.reweighted and len(positives):
            draws = quasi_draws(self.base, _NUM_REWEIGHTING_DRAWS)
            with torch.no_grad():
                c_p, c_q = statistics(positives), statistics(as_features(draws, self.base, positives.dtype))
            natural_params = reweight(c_p, c_q, natural_params)
        if plan.certificate is None and self.num_rows is None:
            return MollifiedExpFamily.normalized(self._prepared, statistics, natural_params, bounds=plan.bounds)
        calibrator = Calibrator(self._prepared, statistics, natural_params, progress=self.progress)
        return calibrator.density(plan.bounds, plan.certificate, self.num_rows)

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        return (
            f"MBDE(epsilon={self.epsilon:.6g}, num_rounds={self.num_rounds}, schedule={self.schedule!r}, "
            f"sampler={self.sampler!r}, calibrated={self.calibrated!r}, {self.weak_learner})"
        )

    def _draw(self, density: MollifiedExpFamily | None) -> Tensor:
        """Draws from Q_{t-1}; from Q0 before the first round."""
        shape = torch.Size([self.num_samples])
        if density is None:
            return self.base.sample(shape)
        if self.sampler == "rejection":
            return density.sample(shape)
        chains = run_mcmc(
            density,
            kernel=self.sampler,
            num_samples=self.num_samples,
            warmup_steps=_WARMUP_STEPS,
            num_chains=1,
            progress=False,
        )
        return chains.draws["x"].squeeze(0)
