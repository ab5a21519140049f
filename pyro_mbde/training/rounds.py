"""What each boosting round did."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde.density.bounds import LOG_2
from pyro_mbde.theory import boosting_regime, kl_drop_bound


class RoundRecord(NamedTuple):
    r"""What one boosting round did. All but ``round`` and ``theta`` is as sensitive as the table.

    Attributes:
        round: t, from 1.
        theta: natural parameter of the round, before any second fit.
        loss: logistic loss at the end of training, in nats.
        gamma_p: weak-learning constant E_P[c] / log 2, on the table's rows.
        gamma_q: weak-learning constant E_{Q_{t-1}}[-c] / log 2, on the draws trained on.
        c_max: largest :math:`|c|` seen on either.
        regime: ``high`` where gamma_q is at least 1/3, else ``low``.
        kl_drop_bound: drop in KL(P, Q) that Theorem 5 guarantees for these constants, in nats; of a calibrated fit,
            before any clip.
        seconds: wall time.
    """

    round: int
    theta: float
    loss: float
    gamma_p: float
    gamma_q: float
    c_max: float
    regime: str
    kl_drop_bound: float
    seconds: float

    @classmethod
    def of(cls, round_number: int, theta: float, loss: float, c_p: Tensor, c_q: Tensor, seconds: float) -> RoundRecord:
        """Returns the record of a round, from its classifier at the table's rows and at draws of Q_{t-1}."""
        c_p, c_q = c_p.double(), c_q.double()
        gamma_p, gamma_q = float(c_p.mean()) / LOG_2, -float(c_q.mean()) / LOG_2
        return cls(
            round=round_number,
            theta=theta,
            loss=loss,
            gamma_p=gamma_p,
            gamma_q=gamma_q,
            c_max=float(torch.maximum(c_p.abs().max(), c_q.abs().max())),
            regime=boosting_regime(gamma_q),
            kl_drop_bound=kl_drop_bound(theta, gamma_p, gamma_q),
            seconds=seconds,
        )
