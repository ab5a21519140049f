"""The weak learner: one logistic fit between rows of P and draws of Q."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_choice, check_count, check_number
from pyro_mbde.density.base import LocationScale
from pyro_mbde.density.statistics import ACTIVATIONS, LINKS, BoundedClassifiers, check_scales
from pyro_mbde.training.optimisation import Course, Optimisation
from pyro_mbde.training.row_source import HeldRows, RowSource

OPTIMIZERS = ("adamw", "nesterov", "sgd")


class WeakHypothesis(NamedTuple):
    """A trained classifier.

    Attributes:
        classifier: the bounded classifier, or several stacked.
        loss: logistic loss averaged over the last tenth of the steps, in nats. Private.
    """

    classifier: BoundedClassifiers
    loss: float


@dataclass(frozen=True)
class WeakLearner:
    r"""Logistic regression with a small network, between rows of P (label 1) and draws of Q (label 0).

    Minimises the cross-entropy :math:`E_P[\log(1 + e^{-z})] + E_Q[\log(1 + e^{z})]` over the logit z, whose minimiser
    is the log density ratio :math:`\log p/q`; the classifier is z through a link bounded by log 2.

    Args:
        hidden_sizes: widths of the hidden layers.
        activation: ``tanh``, ``relu``, ``silu``, ``gelu`` or ``softplus``.
        link: ``clamp`` or ``tanh``, see :func:`~pyro_mbde.density.statistics.bound_logits`.
        num_frequencies: Fourier frequencies beside the inputs; 0 for none.
        frequency_scale: their smallest and largest standard deviation, in radians per unit of the base's spread.
        axis_share: share of them that runs along one coordinate each, in [0, 1].
        standardize: whether inputs are standardised by the base's (public) spread.
        optimizer: ``adamw`` (with a one-cycle rate), ``nesterov`` or ``sgd`` (with a constant one).
        learning_rate: (largest) learning rate, above 0.
        momentum: momentum of ``nesterov`` and ``sgd``, in [0, 1).
        weight_decay: of ``adamw``, at least 0.
        num_steps: gradient steps, at least 1; with ``batch_size=None`` these are epochs.
        batch_size: rows of P and of Q in a step, drawn with replacement; ``None`` for all of both.

    References:
        Sugiyama, Suzuki, Kanamori. Density Ratio Estimation in Machine Learning. 2012. Chapter 4 (logistic regression).

    Example:
        >>> WeakLearner(hidden_sizes=(25, 25), link="tanh").num_steps
        200
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "silu"
    link: str = "clamp"
    num_frequencies: int = 32
    frequency_scale: tuple[float, float] = (1.5, 1.5)
    axis_share: float = 0.0
    standardize: bool = True
    optimizer: str = "adamw"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.01
    num_steps: int = 200
    batch_size: int | None = 1024

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if not isinstance(self.hidden_sizes, Sequence):
            raise TypeError(argument_error("hidden_sizes", "be a sequence of whole numbers", self.hidden_sizes))
        if not self.hidden_sizes:
            raise ValueError(argument_error("hidden_sizes", "name at least one layer", self.hidden_sizes))
        for size in self.hidden_sizes:
            check_count("hidden_sizes", size)
        check_count("num_frequencies", self.num_frequencies, minimum=0)
        check_scales("frequency_scale", self.frequency_scale)
        check_number("axis_share", self.axis_share, "be in [0, 1]", lambda value: 0 <= value <= 1)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("link", self.link, LINKS)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_number("learning_rate", self.learning_rate, "be finite and above 0", lambda value: 0 < value < math.inf)
        check_number("momentum", self.momentum, "be in [0, 1)", lambda value: 0 <= value < 1)
        check_number("weight_decay", self.weight_decay, "be at least 0", lambda value: value >= 0)
        check_count("num_steps", self.num_steps)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, remedy="Pass None for all rows.")

    @classmethod
    def paper(cls, link: str = "clamp") -> WeakLearner:
        """Returns the network and optimiser of the paper's section 5.

        Three dense tanh layers of 25 units, cross-entropy, Nesterov's accelerated gradient with learning rate 0.01 for
        750 epochs. Where the paper is silent: momentum 0.9, full batches, PyTorch's initialisation.

        Args:
            link: the paper's sigmoid reads as ``tanh`` (from the sigmoid itself) or ``clamp`` (from its logit).

        References:
            Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Section 5.

        Example:
            >>> WeakLearner.paper().hidden_sizes
            (25, 25, 25)
        """
        return cls(
            hidden_sizes=(25, 25, 25),
            activation="tanh",
            link=link,
            num_frequencies=0,
            standardize=False,
            optimizer="nesterov",
            learning_rate=0.01,
            momentum=0.9,
            num_steps=750,
            batch_size=None,
        )

    def fit(
        self,
        positives: Tensor | RowSource,
        negatives: Tensor | Callable[[int], Tensor],
        spread: LocationScale,
        *,
        num_classifiers: int = 1,
        on_step: Callable[[], object] = lambda: None,
        course: Course | None = None,
    ) -> WeakHypothesis:
        """Trains one classifier, or several side by side on the same batches from different starts.

        Args:
            positives: rows of P, shape ``(n, d)``, or what gives batches of them. With ``batch_size=None`` a batch is
                all that is held in memory: of a table read in windows, the first window.
            negatives: draws of Q, shape ``(m, d)``; or what returns the number of fresh ones that it is asked for.
            spread: the base's location and scale.
            num_classifiers: how many to train.
            on_step: called after every step.
            course: device, processes and what is kept on the way; by default one process that keeps nothing.

        Returns:
            The classifiers and their average loss. Private, both.

        Raises:
            ValueError: there are no rows, or training diverged.
        """
        source = positives if isinstance(positives, RowSource) else HeldRows(positives)
        untrained = self._untrained(num_classifiers, source.like, spread)
        optimisation = Optimisation(untrained, self._optimizer, self.num_steps, self.batch_size, course or Course())
        classifier, loss = optimisation.train(source, negatives, on_step)
        return WeakHypothesis(classifier.requires_grad_(False).eval(), loss)

    def indifferent(self, like: Tensor, spread: LocationScale, *, num_classifiers: int = 1) -> BoundedClassifiers:
        """Returns classifiers of the same architecture that answer 0 everywhere, for a fit that failed.

        Args:
            like: rows of shape ``(n, d)``, for their width, dtype and device.
            spread: the base's location and scale.
            num_classifiers: how many.
        """
        classifier = self._untrained(num_classifiers, like, spread)
        classifier.scale_logits(0.0)
        return classifier.requires_grad_(False).eval()

    def _untrained(self, num_classifiers: int, like: Tensor, spread: LocationScale) -> BoundedClassifiers:
        classifier = BoundedClassifiers(
            num_classifiers,
            like.shape[-1],
            hidden_sizes=self.hidden_sizes,
            activation=self.activation,
            link=self.link,
            num_frequencies=self.num_frequencies,
            frequency_scale=self.frequency_scale,
            axis_share=self.axis_share,
        ).to(like)
        if self.standardize:  # in the rows' dtype, which the classifier was not made in: float32 may be too coarse
            classifier.loc.copy_(spread.loc)
            classifier.scale.copy_(spread.scale)
        return classifier

    def _optimizer(
        self, classifier: BoundedClassifiers
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
        parameters = list(classifier.parameters())
        if self.optimizer == "adamw":
            adamw = torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)
            one_cycle = torch.optim.lr_scheduler.OneCycleLR(
                adamw, max_lr=self.learning_rate, total_steps=self.num_steps
            )
            return adamw, one_cycle
        nesterov = self.optimizer == "nesterov"
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum, nesterov=nesterov), None
