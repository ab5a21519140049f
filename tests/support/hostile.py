"""Networks made to break a guarantee that rests on how floats are summed."""

from __future__ import annotations

import torch

from pyro_mbde import BoundedClassifiers

_HUGE = 2.0**26  # float32 holds only multiples of 4 there


def cancelling(sign: float) -> BoundedClassifiers:
    """One network over the line whose logit depends on the order in which a product is summed.

    Two units of huge opposite weights swallow what is added between them. Of the rest, steps at 0 and 1.5, some
    survive in one order of summation and others in another: in large batches the logit is ``sign`` times a step at 0,
    on which log-normalisers of both signs agree; one row at a time it is a step at 1.5, on which they differ most.
    """
    networks = BoundedClassifiers(1, 1, hidden_sizes=(64,), activation="tanh")
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter.zero_()
        inner, outer = networks.weights
        bias = networks.biases[0]
        for unit, weight in ((0, _HUGE), (48, -_HUGE)):
            bias[0, 0, unit], outer[0, unit, 0] = 30.0, weight
        for units, edge, weight in ((range(1, 8), 0.0, 1.0), (range(8, 15), 1.5, -1.0), (range(50, 57), 1.5, 1.0)):
            for unit in units:
                inner[0, 0, unit], bias[0, 0, unit] = 1e6, -1e6 * edge
                outer[0, unit, 0] = sign * weight
    return networks


def cancel_in_last_layer(networks: BoundedClassifiers) -> None:
    """Makes two units of the last hidden layer alike, with huge opposite weights: what is left of them is rounding."""
    inner, outer = networks.weights[-2], networks.weights[-1]
    with torch.no_grad():
        inner[..., 1], networks.biases[-2][..., 1] = inner[..., 0], networks.biases[-2][..., 0]
        outer[:, 0], outer[:, 1] = 1e9, -1e9
