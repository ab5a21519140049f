"""Posteriors of the examples' models by quadrature, and chains beside them with their Monte Carlo standard errors."""

from __future__ import annotations

from typing import NamedTuple

import arviz
import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde import Chains


class ClinicPosterior(NamedTuple):
    """Of the new clinic.

    Attributes:
        bias_density: of the bias, at the grid's biases.
        bias_mean: its mean.
        bias_deviation: its standard deviation.
        score_means: of each patient's score.
    """

    bias_density: Tensor
    bias_mean: float
    bias_deviation: float
    score_means: Tensor


class ClinicQuadrature:
    """Integrals over one score and one bias suffice: given the bias the patients are independent."""

    def __init__(self, top: float, bias_scale: float, reading_scale: float) -> None:
        self.scores = (torch.arange(300, dtype=torch.float64) + 0.5) * (top / 300)
        self.biases = torch.linspace(-32, 32, 193, dtype=torch.float64)
        self.top, self.bias_scale, self.reading_scale = top, bias_scale, reading_scale

    def posterior(self, log_prior: Tensor, readings: Tensor) -> ClinicPosterior:
        """From the log-density of a score at the grid's, up to a constant, and readings ``(n,)``."""
        errors = readings.double()[:, None, None] - self.biases[:, None] - self.scores  # patient, bias, score
        log_joint = log_prior - 0.5 * (errors / self.reading_scale) ** 2
        log_bias = torch.logsumexp(log_joint, -1).sum(0) - 0.5 * (self.biases / self.bias_scale) ** 2
        weights = log_bias.softmax(0)
        mean = float(weights @ self.biases)
        deviation = float((weights @ (self.biases - mean) ** 2).sqrt())
        scores = torch.einsum("b,nbs->ns", weights, log_joint.softmax(-1))
        step = float(self.biases[1] - self.biases[0])
        return ClinicPosterior(weights / step, mean, deviation, scores @ self.scores)

    def of_the_bare_table(self, cohort: Tensor) -> Tensor:
        """The log-density of a histogram of the table with bars of one point, without any privacy."""
        counts = torch.histc(cohort.double(), int(self.top), 0, self.top)
        return (counts / counts.sum()).log()[self.scores.long()]

    def score_errors(
        self, log_priors: dict[str, Tensor], people: Tensor, num_clinics: int, num_patients: int, seed: int
    ) -> dict[str, float]:
        """Root mean square errors of the posterior means of scores, over many clinics of real people."""
        generator = torch.Generator().manual_seed(seed)
        squares: dict[str, list[float]] = {name: [] for name in log_priors}
        for _ in range(num_clinics):
            scores = people[torch.randint(len(people), (num_patients,), generator=generator)]
            bias = self.bias_scale * torch.randn((), generator=generator)
            readings = scores + bias + self.reading_scale * torch.randn(num_patients, generator=generator)
            for name, log_prior in log_priors.items():
                means = self.posterior(log_prior, readings).score_means
                squares[name].append(float(((means - scores) ** 2).mean()))
        return {name: float(np.sqrt(np.mean(values))) for name, values in squares.items()}


class SurveyPosterior(NamedTuple):
    """Of the contaminated survey: the share's density at ``SHARES``, its mean and deviation, each row's probability."""

    density: Tensor
    mean: float
    deviation: float
    row_probs: Tensor


SHARES = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000


def row_probs(shares: Tensor, log_odds: Tensor) -> Tensor:
    """Each row's probability of being misread: shares ``(k, 1)``, log-densities if misread less those if honest."""
    return torch.sigmoid(torch.logit(shares) + log_odds)


def survey_posterior(log_odds: Tensor) -> SurveyPosterior:
    """Integrates over the share, whose prior is Beta(1, 3); log-odds of rows as for ``row_probs``, float64 ``(n,)``."""
    log_likelihood = torch.logaddexp(torch.log1p(-SHARES)[:, None], SHARES.log()[:, None] + log_odds).sum(-1)
    weights = (log_likelihood + dist.Beta(1.0, 3.0).log_prob(SHARES)).softmax(0)
    mean = float(weights @ SHARES)
    deviation = float((weights @ (SHARES - mean) ** 2).sqrt())
    return SurveyPosterior(weights * len(SHARES), mean, deviation, weights @ row_probs(SHARES[:, None], log_odds))


def errors_off(values: Tensor, exact: float) -> tuple[float, float]:
    """By how many Monte Carlo standard errors the mean of chains, ``(chain, draw)``, is off; their effective draws."""
    data = Chains({"x": values}, {}, tuple(range(len(values))), 0, "any").to_arviz()
    return (float(values.mean()) - exact) / float(arviz.mcse(data)["x"]), float(arviz.ess(data)["x"])
