"""A learned log density ratio as the one statistic of a density."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from pyro_mbde._checks import argument_error, check_number
from pyro_mbde.density.statistics import BoundedClassifiers, bound_logits

#: Natural parameter of a density that is projected from a learned log-ratio, which may reach this times log 2.
RATIO_SCALE = 1024.0


class ClippedRatio(nn.Module):
    r"""The one statistic of a density that is projected from a learned log density ratio.

    .. math::
        c(x) = \mathrm{clip}\Bigl(\frac{u(x) - s}{\theta},\, -\log 2,\, \log 2\Bigr), \qquad
        u(x) = \frac{1}{T} \sum_t z_t(x),

    with the average logit u of an ensemble, a shift s and the natural parameter :math:`\theta`, so that
    :math:`\theta c = \mathrm{clip}(u - s, \pm \theta \log 2)`. Computed in float64 from the networks' output. The
    defaults leave u as it is wherever :math:`|u| \le 1024 \log 2 = 709`, to the last bit: 1024 is a power of 2.

    Privacy:
        As sensitive as the table. The bound makes draws private, not this.

    Args:
        networks: the ensemble, of which the logits are used.
        shift: s, in nats; finite. (It differs from 0 only in files of earlier versions.)
        theta: above 0 and finite.

    Shape:
        Input ``(..., d)``, output ``(..., 1)``, float64 in [-log 2, log 2], never NaN.

    Example:
        >>> import torch
        >>> ClippedRatio(BoundedClassifiers(4, 2))(torch.zeros(5, 2)).shape
        torch.Size([5, 1])
    """

    def __init__(self, networks: BoundedClassifiers, shift: float = 0.0, theta: float = RATIO_SCALE) -> None:
        super().__init__()
        if not isinstance(networks, BoundedClassifiers):
            raise TypeError(argument_error("networks", "be BoundedClassifiers", type(networks).__name__))
        self.networks: BoundedClassifiers = networks
        # Numbers, not buffers: they stay in double precision whatever the networks compute in.
        self.shift = check_number("shift", shift, "be finite", math.isfinite)
        self.theta = check_number("theta", theta, "be finite and above 0", lambda value: 0 < value < math.inf)

    def forward(self, value: Tensor) -> Tensor:
        """Returns the statistic c, shape ``(..., 1)``."""
        return bound_logits((mean_logit(self.networks, value).unsqueeze(-1) - self.shift) / self.theta, "clamp")

    def aligned(self) -> ClippedRatio:
        """Returns the same function on networks as of :meth:`BoundedClassifiers.aligned`."""
        return type(self)(self.networks.aligned(), self.shift, self.theta).train(self.training)

    def config(self) -> dict[str, Any]:
        """Returns the constructor's arguments (but the networks' weights) as a plain dict."""
        return {"networks": self.networks.config(), "shift": self.shift, "theta": self.theta}

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, Tensor]) -> ClippedRatio:
        """Returns the statistic that ``config()`` and ``state_dict()`` describe."""
        inner = {name.removeprefix("networks."): tensor for name, tensor in state.items()}
        return cls(BoundedClassifiers.from_state(config["networks"], inner), config["shift"], config["theta"])


def mean_logit(networks: BoundedClassifiers, value: Tensor) -> Tensor:
    """Returns the ensemble's log density ratio, float64 of shape ``(...)``: the average of its logits."""
    return networks.logits(value).double().mean(-1)
