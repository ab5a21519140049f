"""Sufficient statistics: classifiers bounded by log 2, all rounds evaluated in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_mbde._checks import argument_error, check_choice, check_count, check_number
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import LocationScale
from pyro_mbde.density.scoring import ALIGNED_SIZE

LINKS = ("clamp", "tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "softplus": nn.functional.softplus,
}


def log_2_below(dtype: torch.dtype) -> float:
    """Returns the largest number of ``dtype`` that is at most log 2.

    Rounding log 2 to float32 gives 0.69314718246, which is above it: a classifier clipped there would break the bound.

    Example:
        >>> log_2_below(torch.float32) < math.log(2) < log_2_below(torch.float32) + 6e-8
        True
    """
    nearest = torch.tensor(math.log(2), dtype=dtype)
    if float(nearest) > math.log(2):
        nearest = torch.nextafter(nearest, torch.zeros_like(nearest))
    return float(nearest)


#: By the types that networks compute in, since finding one takes a fifth of the time of a row.
_LOG_2_BELOW = {dtype: log_2_below(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


def check_scales(name: str, value: Any) -> tuple[float, float]:
    """Returns ``value`` as a pair of floats, or raises if it is not a pair of positive numbers in rising order."""
    if not isinstance(value, Sequence):
        raise TypeError(argument_error(name, "be a pair of numbers, smallest and largest", value))
    if len(value) != 2:
        raise ValueError(argument_error(name, "hold two numbers, smallest and largest", value))
    low = check_number(name, value[0], "be finite and above 0", lambda scale: 0 < scale < math.inf)
    high = check_number(name, value[1], "be finite and rise", lambda scale: low <= scale < math.inf)
    return low, high


def bound_logits(logits: Tensor, link: str) -> Tensor:
    r"""Maps logits z to statistics c with :math:`|c| \le \log 2`, in the dtype of the logits.

    ``clamp``
        :math:`c = \max(-\log 2, \min(\log 2, z))`. A classifier trained with the logistic loss estimates the log
        density ratio by its logit, so c is that ratio wherever it is inside the bound.
    ``tanh``
        :math:`c = \log 2 \cdot \tanh(z/2) = \log 2 \cdot (2 \sigma(z) - 1)`, from the sigmoid: smooth.

    Infinite logits map to the nearer bound and NaN to 0.

    Args:
        logits: any shape.
        link: ``clamp`` or ``tanh``.

    Returns:
        Tensor of the same shape and dtype, in [-log 2, log 2], never NaN.

    Example:
        >>> bound_logits(torch.tensor([0.5, torch.inf, torch.nan]), "clamp")
        tensor([0.5000, 0.6931, 0.0000])
    """
    bound = _LOG_2_BELOW[logits.dtype]
    logits = torch.nan_to_num(logits, nan=0.0)
    # tanh is at most 1 and multiplication rounds monotonically, so that link needs the clamp for no input; it costs
    # nothing.
    statistic = logits if link == "clamp" else bound * torch.tanh(logits / 2)
    return statistic.clamp(-bound, bound)


class BoundedClassifiers(nn.Module):
    r"""T classifiers of one architecture, evaluated together; the sufficient statistics of the exponential family.

    Each is a multilayer perceptron with a linear logit, followed by a link that bounds it by log 2
    (:func:`bound_logits`). Their weights are stacked, so that one batched product per layer serves all of them. The
    paper's network is ``hidden_sizes=(25, 25, 25), activation="tanh"``.

    Inputs are standardised by ``spread``, a public location and scale. With ``num_frequencies > 0`` the network also
    sees :math:`\sin(\omega_j^\top x), \cos(\omega_j^\top x)` with fixed random frequencies, which lets a small network
    resolve structure much finer than the spread (random Fourier features). Each is
    :math:`\omega_j = \sigma_j g_j` with g standard normal and :math:`\sigma_j` log-uniform over ``frequency_scale``, so
    that structure of every size in that range meets matching frequencies. A share of them runs along single
    coordinates, where :math:`g_j` has one entry of deviation :math:`\sqrt d`: stripes across one column of many.

    Privacy:
        Trained weights and what they output are as sensitive as the table. The bound makes draws private, not these.

    Args:
        num_classifiers: T, at least 1.
        in_features: d, at least 1.
        hidden_sizes: widths of the hidden layers; at least one.
        activation: ``tanh``, ``relu``, ``silu``, ``gelu`` or ``softplus``.
        link: ``clamp`` or ``tanh``.
        num_frequencies: number of Fourier frequencies, each giving a sine and a cosine.
        frequency_scale: smallest and largest standard deviation of the frequencies, in radians per unit of the spread;
            above 0.
        axis_share: share of the frequencies that run along one coordinate each; in [0, 1].
        spread: location and scale of the inputs, each of shape ``(d,)``; defaults to 0 and 1.

    Shape:
        Input ``(..., d)``, output ``(..., T)`` in [-log 2, log 2].

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Section 5 (architecture).
        Tancik et al. Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains. 2020.

    Example:
        >>> BoundedClassifiers(num_classifiers=3, in_features=2)(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    loc: Tensor
    scale: Tensor
    frequencies: Tensor

    def __init__(
        self,
        num_classifiers: int,
        in_features: int,
        *,
        hidden_sizes: Sequence[int] = (25, 25, 25),
        activation: str = "tanh",
        link: str = "clamp",
        num_frequencies: int = 0,
        frequency_scale: tuple[float, float] = (1.0, 1.0),
        axis_share: float = 0.0,
        spread: LocationScale | None = None,
    ) -> None:
        super().__init__()
        self.num_classifiers = check_count("num_classifiers", num_classifiers)
        self.in_features = check_count("in_features", in_features)
        self.hidden_sizes = tuple(check_count("hidden_sizes", size) for size in hidden_sizes)
        if not self.hidden_sizes:
            raise ValueError(argument_error("hidden_sizes", "name at least one layer", tuple(hidden_sizes)))
        self.activation = check_choice("activation", activation, tuple(ACTIVATIONS))
        self.link = check_choice("link", link, LINKS)
        self.num_frequencies = check_count("num_frequencies", num_frequencies, minimum=0)
        self.frequency_scale = check_scales("frequency_scale", frequency_scale)
        self.axis_share = check_number("axis_share", axis_share, "be in [0, 1]", lambda value: 0 <= value <= 1)
        spread = LocationScale(torch.zeros(in_features), torch.ones(in_features)) if spread is None else spread
        self.register_buffer("loc", spread.loc.to(torch.get_default_dtype()))
        self.register_buffer("scale", spread.scale.to(torch.get_default_dtype()))
        if self.loc.shape != (in_features,) or self.scale.shape != (in_features,):
            shapes = tuple(spread.loc.shape), tuple(spread.scale.shape)
            raise ValueError(argument_error("spread", f"hold two tensors of shape ({in_features},)", shapes))
        if not bool(torch.isfinite(self.loc).all() and torch.isfinite(self.scale).all() and (self.scale > 0).all()):
            raise ValueError(argument_error("spread", "be finite, with scales above 0", spread))
        # One set of frequencies per classifier, shape (T, d, num_frequencies).
        self.register_buffer("frequencies", self._draw_frequencies())
        sizes = [in_features + 2 * num_frequencies, *self.hidden_sizes, 1]
        # torch.nn.Linear's initialisation: uniform on +-1/sqrt(fan_in), for weights and biases.
        self.weights = nn.ParameterList(
            [
                _uniform((num_classifiers, fan_in, fan_out), fan_in)
                for fan_in, fan_out in zip(sizes, sizes[1:], strict=False)
            ]
        )
        self.biases = nn.ParameterList(
            [_uniform((num_classifiers, 1, fan_out), fan_in) for fan_in, fan_out in zip(sizes, sizes[1:], strict=False)]
        )

    def _draw_frequencies(self) -> Tensor:
        shape = (self.num_classifiers, self.in_features, self.num_frequencies)
        directions = torch.randn(shape)
        num_along_axes = round(self.axis_share * self.num_frequencies)
        if num_along_axes and self.in_features > 1:
            # Each coordinate in turn from a random one on, with the length that the others have on average.
            first = torch.randint(self.in_features, (self.num_classifiers, 1))
            axes = (first + torch.arange(num_along_axes)) % self.in_features
            along = nn.functional.one_hot(axes, self.in_features).movedim(-1, 1) * math.sqrt(self.in_features)
            directions = torch.cat([directions[..., :num_along_axes] * along, directions[..., num_along_axes:]], -1)
        low, high = self.frequency_scale
        scales = low * (high / low) ** torch.rand(self.num_classifiers, 1, self.num_frequencies)
        return scales * directions

    def config(self) -> dict[str, Any]:
        """Returns the constructor's arguments (but the spread, which is in the state) as a plain dict."""
        return {
            "num_classifiers": self.num_classifiers,
            "in_features": self.in_features,
            "hidden_sizes": list(self.hidden_sizes),
            "activation": self.activation,
            "link": self.link,
            "num_frequencies": self.num_frequencies,
            "frequency_scale": list(self.frequency_scale),
            "axis_share": self.axis_share,
        }

    def logits(self, value: Tensor) -> Tensor:
        """Returns the unbounded logits, shape ``(..., T)``; estimates of log-ratios, for training only."""
        batch_shape = value.shape[:-1]
        # (T, n, d): every classifier reads the same rows.
        hidden = ((value - self.loc) / self.scale).reshape(1, -1, self.in_features)
        hidden = hidden.expand(self.num_classifiers, -1, -1)
        if self.num_frequencies:
            phases = hidden @ self.frequencies
            hidden = torch.cat([hidden, phases.sin(), phases.cos()], -1)
        activation = ACTIVATIONS[self.activation]
        # Not the lists themselves: they look each entry up by its number as text.
        *inner, last = zip(self.weights.parameters(), self.biases.parameters(), strict=True)
        for weight, bias in inner:
            hidden = activation(torch.baddbmm(bias, hidden, weight))
        weight, bias = last
        logits = torch.baddbmm(bias, hidden, weight)
        return logits.squeeze(-1).movedim(0, -1).reshape(*batch_shape, self.num_classifiers)

    def scale_logits(self, factor: float) -> None:
        """Multiplies the logits by ``factor``, in place; the statistics keep their bound."""
        with torch.no_grad():
            self.weights[-1].mul_(factor)
            self.biases[-1].mul_(factor)

    def forward(self, value: Tensor) -> Tensor:
        """Returns the statistics c, shape ``(..., T)``, in [-log 2, log 2], never NaN."""
        return bound_logits(self.logits(value), self.link)

    def aligned(self) -> BoundedClassifiers:
        """Returns the same function in layers of aligned sizes.

        These are multiples of :data:`~pyro_mbde.density.scoring.ALIGNED_SIZE`. Units and frequencies that are added
        have weights of 0. In such layers the order in which a row is summed does not depend on its place among others.
        """
        added = [-size % ALIGNED_SIZE for size in self.hidden_sizes]
        more_frequencies = -self.num_frequencies % ALIGNED_SIZE
        if not any([*added, more_frequencies]):
            return self
        state = dict(self.state_dict())
        pad = nn.functional.pad
        state["frequencies"] = pad(state["frequencies"], (0, more_frequencies))
        # Rows of the first layer: the coordinates, sines, cosines.
        parts = state["weights.0"].split([self.in_features, self.num_frequencies, self.num_frequencies], 1)
        state["weights.0"] = torch.cat([parts[0], *(pad(part, (0, 0, 0, more_frequencies)) for part in parts[1:])], 1)
        for layer, more in enumerate(added):
            state[f"weights.{layer}"] = pad(state[f"weights.{layer}"], (0, more))
            state[f"biases.{layer}"] = pad(state[f"biases.{layer}"], (0, more))
            state[f"weights.{layer + 1}"] = pad(state[f"weights.{layer + 1}"], (0, 0, 0, more))
        config = {
            **self.config(),
            "hidden_sizes": [size + more for size, more in zip(self.hidden_sizes, added, strict=True)],
            "num_frequencies": self.num_frequencies + more_frequencies,
        }
        return type(self).from_state(config, state).train(self.training)

    @classmethod
    def stack(cls, classifiers: Sequence[BoundedClassifiers]) -> BoundedClassifiers:
        """Returns classifiers of one architecture as a single module, in their order.

        Args:
            classifiers: at least one, all with the same spread.
        """
        if not classifiers:
            raise ValueError(argument_error("classifiers", "hold at least one", classifiers))
        first = classifiers[0]
        configs = [{**module.config(), "num_classifiers": None} for module in classifiers]
        same_spread = all(
            torch.equal(module.loc, first.loc) and torch.equal(module.scale, first.scale) for module in classifiers
        )
        if configs.count(configs[0]) != len(configs) or not same_spread:
            raise ValueError(
                argument_error("classifiers", "share one architecture and spread to be stacked", list(classifiers))
            )
        config = {**first.config(), "num_classifiers": sum(module.num_classifiers for module in classifiers)}
        states = [module.state_dict() for module in classifiers]
        shared = {"loc": first.loc, "scale": first.scale}
        state = {name: torch.cat([state[name] for state in states]) for name in states[0] if name not in shared}
        return cls.from_state(config, {**state, **shared}).train(first.training)

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, Tensor]) -> BoundedClassifiers:
        """Returns the classifiers that ``config()`` and ``state_dict()`` describe, in the dtype of the state."""
        with seeded(0):  # the weights drawn by the constructor are replaced: keep the caller's generator
            module = cls(**config).to(state["loc"])
        module.load_state_dict(state)
        return module

    def extra_repr(self) -> str:
        """Shows the architecture, not the weights."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items())


def _uniform(shape: tuple[int, ...], fan_in: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in)))
