"""The log density ratio of a table to the base, learned once and projected at every epsilon."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde._checks import argument_error, check_choice, check_count, check_flag, check_number, check_seed
from pyro_mbde._torch_state import seeded, single_thread, with_gradients
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import check_finite_epsilon, plan_calibration
from pyro_mbde.density.base import PreparedBase, as_features, convert_base, prepare
from pyro_mbde.density.clipped_ratio import RATIO_SCALE, ClippedRatio, mean_logit
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.statistics import BoundedClassifiers
from pyro_mbde.privacy.placement import filled_share_skew
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.training.base_check import warn_of_leaks
from pyro_mbde.training.checkpoint import Checkpoint
from pyro_mbde.training.fallback import coming_back, warn_owner
from pyro_mbde.training.fit_options import CHECKPOINT_STEPS, SPLITS
from pyro_mbde.training.kept_fit import KeptFit, digest_of_base
from pyro_mbde.training.negatives import Negatives
from pyro_mbde.training.opened_table import new_seed, open_table
from pyro_mbde.training.optimisation import Course, check_device
from pyro_mbde.training.row_source import RowSource
from pyro_mbde.training.weak_learner import WeakLearner
from pyro_mbde.training.windows import WINDOW_ROWS, WINDOW_SLICES, derived_seed


class DensityRatio:
    r"""Learns the log density ratio of a table to a public base, once; every epsilon is a projection of it.

    An ensemble of small networks separates the table's rows (label 1) from fresh draws of the base (label 0) by
    logistic regression; its average logit u estimates :math:`\log p/q_0`. It sees Fourier features over a sixteenfold
    range of scales, half of them along single coordinates, so that narrow spikes on a broad hump and thin stripes need
    no tuning.

    Privacy:
        The ratio is *not private*: it has no bound. Only draws of what :meth:`LogRatio.mollify` returns are.

    Args:
        base: public base distribution Q0.
        weak_learner: network and optimiser; defaults to two layers of 32 and 420 steps of 512 + 512 rows.
        ensemble_size: networks trained side by side, at least 1.
        num_samples: rows to draw where ``fit`` is given a distribution.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.
        device: where networks are trained, ``cpu`` or ``cuda``; ``None`` for where the base is. Rows are moved there
            batch by batch. The ratio is brought back to the base's device.
        ranks: the processes that fit together, from :func:`pyro_mbde.ranks.joined_ranks`; each is given the same
            arguments and the same table.
        split: how these share the work. With ``rows`` each trains all networks on batches of its own, and gradients
            are averaged once a step, so that R processes see R times as many rows in a step: divide the steps by R for
            the same number of rows. With ``networks`` each trains some of the networks, without waiting for another.
            ``auto`` takes ``networks`` where the table is held in memory and the ensemble can be shared out evenly,
            and ``rows`` otherwise.
        checkpoint: a file to keep the fit in, so that it can be taken up again; ``None`` to keep nothing. It stays
            after the fit, with the trained networks: call ``trainer.checkpoint.remove()`` once the model is saved.
        checkpoint_steps: steps after which it is written again, at least 1; also at an interrupt of a single process.

    References:
        Sugiyama, Suzuki, Kanamori. Density Ratio Estimation in Machine Learning. 2012. Chapter 4. Husain, Cranko, Nock.
        Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 6 (the limit).

    Example:
        >>> import pyro.distributions as dist
        >>> base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        >>> ratio = DensityRatio(base, seed=0, progress=False).fit(0.3 * torch.randn(500, 2) + 1)
        >>> [ratio.mollify(epsilon) for epsilon in (0.5, 5.0)]  # doctest: +ELLIPSIS
        [MollifiedExpFamily(epsilon=0.5, ...), MollifiedExpFamily(epsilon=5, ...)]
    """

    def __init__(
        self,
        base: Distribution,
        *,
        weak_learner: WeakLearner | None = None,
        ensemble_size: int = 6,
        num_samples: int = 10_000,
        seed: int | None = None,
        progress: bool = True,
        device: str | torch.device | None = None,
        ranks: Ranks = ALONE,
        split: str = "auto",
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_steps: int = CHECKPOINT_STEPS,
    ) -> None:
        self._prepared = prepare(base)
        self._given_base = base  # whose parameters may lie in the table's own memory
        if weak_learner is None:
            weak_learner = WeakLearner(
                hidden_sizes=(32, 32),
                num_frequencies=24,
                frequency_scale=(0.5, 8.0),
                axis_share=0.5,
                num_steps=420,
                batch_size=512,
            )
        if not isinstance(weak_learner, WeakLearner):
            raise TypeError(argument_error("weak_learner", "be a WeakLearner", weak_learner))
        self.weak_learner = weak_learner
        self.ensemble_size = check_count("ensemble_size", ensemble_size)
        self.num_samples = check_count("num_samples", num_samples, minimum=2)
        self.seed = check_seed(seed)
        self.progress = progress
        if not isinstance(ranks, Ranks):
            raise TypeError(argument_error("ranks", "be Ranks, from joined_ranks", ranks))
        self.ranks = ranks
        self.split = check_choice("split", split, SPLITS)
        if split == "networks" and ranks.size > self.ensemble_size:
            remedy = "Pass split='rows', or start fewer processes."
            constraint = f"be at most ensemble_size={self.ensemble_size} to share out networks"
            raise ValueError(argument_error("ranks.size", constraint, ranks.size, remedy))
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        self.checkpoint = checkpoint
        self.checkpoint_steps = check_count("checkpoint_steps", checkpoint_steps)
        self.device = None if device is None else check_device(device)
        self._training_base = self.base
        if self.device is not None and self.device != self._prepared.draws.device:
            self._training_base = convert_base(self.base, device=self.device)

    @property
    def base(self) -> Distribution:
        """The public base distribution."""
        return self._prepared.distribution

    def fit(self, data: Any, resume: bool = False) -> LogRatio:
        """Learns the ratio of a table.

        Privacy:
            The result is as sensitive as the table, as are warnings, the checkpoint and the time taken. Whether there
            is a result does not depend on the table's values or its number of rows: where training fails the ratio is 1
            everywhere, and a :class:`~pyro_mbde.FitWarning` says so. Files that are damaged, that change while they are
            read, or that hold values which their schema refuses do raise. A :class:`~pyro_mbde.PrivacyLeakWarning`
            tells if the base seems to be made from the table, or the table to be scaled by its own moments, where all
            of it is held in memory.

        Args:
            data: tensor or array of shape ``(n, *event_shape)``, DataFrame of numbers, Dataset or DataLoader of rows,
                or a Distribution to draw ``num_samples`` rows from. Also a table in slices, such as
                :meth:`pyro_mbde.Schema.stream` returns, or an iterable of blocks of rows: of these, of Datasets and of
                DataLoaders at most 131,072 rows are held in memory, a window, and others take their place as the fit
                goes on, without replacement.
            resume: whether to go on from the checkpoint, with the same settings and the same table. One process then
                finds what it would have found without the interruption, bit by bit. If there is no checkpoint the fit
                starts from the beginning, with a note, so that one command can be run again and again.

        Raises:
            LostRankError: another process ended.
            OSError: a file of the table cannot be read, or the checkpoint cannot be written.
            ValueError: the checkpoint is damaged, of another version, or of a fit with other settings or another table;
                a file of the table is damaged or was changed, or holds values that its schema refuses.
        """
        if check_flag("resume", resume) and self.checkpoint is None:
            remedy = "Name a file: DensityRatio(base, checkpoint=path)."
            raise ValueError(argument_error("resume", "be False without a checkpoint", resume, remedy))
        if self.checkpoint is not None and self.ranks.is_first:
            self.checkpoint.warn_beside_card()
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # so that its generators are seeded and kept too
        seed = self.seed
        if self.ranks.size > 1:
            seed = self.ranks.broadcast(int(torch.randint(2**62, ())) if seed is None else seed)
        hides = not self.progress or not self.ranks.is_first
        bar = tqdm(total=self.weak_learner.num_steps, desc="density ratio", unit="step", disable=hides)
        with bar, seeded(seed), single_thread(), with_gradients():
            kept = KeptFit(self._settings(), self.ranks, self.checkpoint)
            if resume:
                kept.take_up()
            table = open_table(data, self._prepared, self.num_samples, ranks=self.ranks)
            if table.rows is not None and self.ranks.is_first:
                warn_of_leaks(self._given_base, data, table.rows)
            if self.checkpoint is not None or self.ranks.size > 1:
                kept.check_table(table.source.fingerprint)
            if kept.resumed is not None:
                bar.update(kept.resumed["step"])
            with coming_back("The ratio is 1 everywhere: its densities are the base.") as failure:
                networks = self._train(table.source, kept, bar.update)
            table.warn()
            # In several processes the same networks, and the same draws for what follows.
            with nullcontext() if self.ranks.size == 1 else seeded(derived_seed(seed or 0, self.ranks.size)):
                if failure.happened:
                    spread = self._prepared.feature_scale
                    like = table.source.like
                    networks = self.weak_learner.indifferent(like, spread, num_classifiers=self.ensemble_size)
                return LogRatio(
                    self._prepared,
                    networks,
                    progress=self.progress,
                    ranks=self.ranks,
                    delta_share=kept.begin_calibration(),
                )

    def _train(self, rows: RowSource, kept: KeptFit, on_step: Callable[[], object]) -> BoundedClassifiers:
        """The trained ensemble, on the base's own device."""

        def fresh_negatives(num_draws: int) -> Tensor:
            draws = self._training_base.sample(torch.Size([num_draws]))
            return as_features(draws, self._training_base, rows.like.dtype)

        negatives: Callable[[int], Tensor] = fresh_negatives
        if not rows.is_whole:
            step = 0 if kept.resumed is None else int(kept.resumed["step"])
            negatives = Negatives(fresh_negatives, new_seed(), self.ranks.rank, step)
        course = Course(
            device=self.device,
            ranks=self.ranks,
            by_networks=self._splits_networks(rows),
            keep=None if self.checkpoint is None else kept.keep,
            keep_steps=self.checkpoint_steps,
            resumed=kept.resumed,
        )
        hypothesis = self.weak_learner.fit(
            rows,
            negatives,
            self._prepared.feature_scale,
            num_classifiers=self.ensemble_size,
            on_step=on_step,
            course=course,
        )
        return hypothesis.classifier.to(rows.like.device)

    def _splits_networks(self, rows: RowSource) -> bool:
        """Whether processes share out networks, not rows."""
        size = self.ranks.size
        if self.split == "auto":
            return rows.is_whole and 1 < size <= self.ensemble_size and self.ensemble_size % size == 0
        return size > 1 and self.split == "networks"

    def _settings(self) -> dict[str, str]:
        """What two fits must have in common for one to take up the other; device and number of processes may differ."""
        return {
            "base": digest_of_base(self._prepared),
            "weak_learner (steps and networks)": repr(self.weak_learner),
            "ensemble_size": str(self.ensemble_size),
            "seed": str(self.seed),
            "split": self.split,
            "window": f"{WINDOW_SLICES} slices, {WINDOW_ROWS} rows",
        }

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        return f"DensityRatio(ensemble_size={self.ensemble_size}, {self.weak_learner})"


class LogRatio:
    """A learned log density ratio to the base, from :meth:`DensityRatio.fit`.

    Privacy:
        Not private: its values, its networks and this object must not be handed out. Only draws of the densities that
        :meth:`mollify` returns may be.

    Args:
        base: the public base distribution.
        networks: the trained ensemble; its average logit is the ratio.
        progress: whether to show a progress bar where :meth:`mollify` takes more than a second.
        ranks: processes that work together (:func:`~pyro_mbde.joined_ranks`): all of them hold the same networks, call
            :meth:`mollify` with the same arguments, and get the same density.
        delta_share: share of delta that certificates may use, in (0, 1]; less than 1 where those of an earlier process
            may have been cut off.
    """

    def __init__(
        self,
        base: Distribution | PreparedBase,
        networks: BoundedClassifiers,
        *,
        progress: bool = True,
        ranks: Ranks = ALONE,
        delta_share: float = 1.0,
    ) -> None:
        self._prepared = prepare(base)
        # A frozen copy: cached scores depend on it.
        self._networks = copy.deepcopy(networks).requires_grad_(False).eval()
        natural_params = torch.tensor([RATIO_SCALE], dtype=torch.float64)
        self._calibrator = Calibrator(
            self._prepared,
            ClippedRatio(self._networks),
            natural_params,
            progress=progress and ranks.is_first,
            delta_share=delta_share,
            ranks=ranks,
        )
        left_out = self._calibrator.left_out
        if left_out and ranks.is_first:
            differing = "; ".join(f"process {rank}: {difference}" for rank, difference in left_out.items())
            warn_owner(f"Processes whose arithmetic differs from the first one's make no draws for it ({differing}).")

    @property
    def base(self) -> Distribution:
        """The public base distribution."""
        return self._prepared.distribution

    def log_ratio(self, value: Tensor) -> Tensor:
        """Returns the estimate of log p/q0, unbounded, in nats. Not private.

        Args:
            value: shape ``(..., *event_shape)``.

        Returns:
            float64 tensor of shape ``(...)``.
        """
        return mean_logit(self._networks, as_features(value, self.base, self._prepared.dtype))

    def mollify(
        self,
        epsilon: float,
        delta: float = 1e-9,
        skew: float = 0.3,
        *,
        filled_share: float | None = None,
        num_rows: int | None = None,
    ) -> MollifiedExpFamily:
        r"""Returns the density nearest to the table's that an integral-privacy guarantee allows.

        The KL projection of the learned density on the set :math:`\{lo \le \log q/q_0 \le hi\}`
        (:func:`~pyro_mbde.calibration.projection.project`): the tilt is :math:`\mathrm{clip}(u - s, lo, hi)`, with s
        such that its log-normaliser is 0. That is certified on fresh draws of the base
        (:func:`~pyro_mbde.calibration.certificate.certify`), so that the guarantee is :math:`R + 2\eta = \epsilon` in
        place of 2R. Should the certificate fail, the tilt is shrunk until it needs none
        (:meth:`~pyro_mbde.calibration.placement.Calibrator.calibrate`); no public number tells the two apart.

        With ``delta=0`` the guarantee is the a-priori one, 2R = epsilon, which holds without exception, and the shift
        is the one that gains most; skew has no effect then. On a finite base the log-normaliser is summed, so
        calibration takes no delta, and the guarantee has ``delta=0`` in any case.

        With ``num_rows=k`` one draw is a batch of k rows, and epsilon is what the whole batch costs. The density is the
        projection of k independent rows of the table's density on the set over :math:`Q_0^k`: its tilt is
        :math:`\mathrm{clip}(\sum_i u(x_i) - s, lo, hi)`. Rows of a batch depend on one another; once epsilon comes near
        k times the divergence of the table from the base they are almost draws of the table's density.

        Privacy:
            Draws of the result carry its guarantee. Epsilon, delta and skew must be chosen without looking at the table
            or at the result. Densities at several epsilons add up if draws of all of them are handed out, and so do
            their deltas.

        Args:
            epsilon: privacy parameter of one draw, in nats; in (0, 700), and at most 12 for a batch.
            delta: probability that the certificate is wrong, in [0, 1).
            skew: where the interval lies, in (0, 1): 1/2 is the paper's set, a lower skew allows gains up to
                (1 - skew) epsilon.
            filled_share: share of the base's mass that the table is believed to fill, in (0, 1): a public guess, which
                sets the skew by :func:`~pyro_mbde.privacy.placement.filled_share_skew`. Meant for single rows: with a
                batch it closes far less of the distance at large epsilon, and a skew of 0.3 was best in measurements
                (docs/experiments.md, *Where to place a batch*).
            num_rows: rows of a batch, at least 1; ``None`` for single rows.

        Example:
            >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
            >>> ratio = DensityRatio(base, seed=0, progress=False).fit(torch.linspace(1, 2, 500))
            >>> ratio.mollify(1.0, delta=0).guarantee
            Guarantee(epsilon=1.0, delta=0.0, log_ratio_range=1.0)
            >>> guarantee = ratio.mollify(1.0).guarantee
            >>> round(guarantee.epsilon, 6), guarantee.delta, guarantee.log_ratio_range > 1.9
            (1.0, 1e-09, True)
            >>> batch = ratio.mollify(3.0, num_rows=5)
            >>> batch.sample((2,)).shape, batch.epsilon
            (torch.Size([2, 5]), 3.0)
        """
        if filled_share is not None:
            skew = filled_share_skew(
                check_finite_epsilon(epsilon),
                check_number("filled_share", filled_share, "be in (0, 1)", lambda share: 0 < share < 1),
            )
        if num_rows is not None:
            num_rows = check_count("num_rows", num_rows)
        bounds, certificate = plan_calibration(self._prepared, epsilon, delta, skew, num_rows)
        with single_thread(), with_gradients():
            return self._calibrator.density(bounds, certificate, num_rows)

    def __repr__(self) -> str:
        """Shows that it is not private."""
        return f"LogRatio(not private, event_shape={tuple(self.base.event_shape)})"
