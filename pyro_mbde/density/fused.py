r"""Frozen networks in as few operations as they take, for log-densities and their gradients.

The same function as :meth:`Tilt.score <pyro_mbde.density.tilt.Tilt.score>` up to rounding. What certificates and draws
rest on is never computed here (:mod:`pyro_mbde.density.scoring`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from pyro_mbde._torch_state import with_gradients
from pyro_mbde.density.bounds import LOG_2
from pyro_mbde.density.clipped_ratio import ClippedRatio
from pyro_mbde.density.kinds_of_statistics import is_own
from pyro_mbde.density.statistics import ACTIVATIONS, BoundedClassifiers, bound_logits, log_2_below

#: Rows evaluated at a time by each thread: intermediate activations stay in the processor's cache.
CHUNK_ROWS = 512
#: Scales that weights may be divided by in place of rows, and locations, in units of them, that biases may hold: within
#: them that changes the last digits of a float32 only.
_MIN_SCALE, _MAX_SCALE, _MAX_LOCATION = 2.0**-20, 2.0**20, 8.0

_jit: Any = torch.jit  # torch leaves these unannotated
_aten: Any = torch.ops.aten
_threshold_backward, _hardtanh_backward = _aten.threshold_backward.default, _aten.hardtanh_backward.default
_tanh_backward, _silu_backward = _aten.tanh_backward.default, _aten.silu_backward.default
_gelu_backward, _softplus_backward = _aten.gelu_backward.default, _aten.softplus_backward.default
#: Gradients of :data:`~pyro_mbde.density.statistics.ACTIVATIONS`, from that of the output, the input and the output.
_DERIVATIVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "tanh": lambda slope, _, output: cast("Tensor", _tanh_backward(slope, output)),
    "relu": lambda slope, _, output: cast("Tensor", _threshold_backward(slope, output, 0)),
    "silu": lambda slope, hidden, _: cast("Tensor", _silu_backward(slope, hidden)),
    "gelu": lambda slope, hidden, _: cast("Tensor", _gelu_backward(slope, hidden)),
    "softplus": lambda slope, hidden, _: cast("Tensor", _softplus_backward(slope, hidden, 1, 20)),
}


_version_of, _address_of = operator.attrgetter("_version"), Tensor.data_ptr


class _Layer(NamedTuple):
    """A hidden layer of T networks.

    Attributes:
        weight: shape ``(T, in, out)``.
        bias: shape ``(T, 1, out)``.
    """

    weight: Tensor
    bias: Tensor


def is_eager(rows: Tensor) -> bool:
    """Returns whether rows are an ordinary tensor: not traced, under torch.func, in forward mode or in autocast.

    Where torch has no such interface, False: the networks themselves are always right.
    """
    try:
        return (
            not torch.compiler.is_compiling()
            and type(rows) is Tensor
            and not torch._C._are_functorch_transforms_active()
            and not torch._C._len_torch_dispatch_stack()
            and forward_ad._current_level < 0
            and not _jit.is_tracing()
            and not torch.is_autocast_enabled("cpu")
        )
    except (AttributeError, TypeError):
        return False


def is_only_mapped() -> bool:
    """Returns whether the caller is under ``torch.vmap`` alone, with gradients off; False where torch cannot tell."""
    try:
        functorch: Any = torch._C._functorch
        return (
            torch._C._are_functorch_transforms_active()
            and not torch.is_grad_enabled()
            and forward_ad._current_level < 0
            and not torch.compiler.is_compiling()
            and all(level.key() == functorch.TransformType.Vmap for level in functorch.get_interpreter_stack())
        )
    except (AttributeError, TypeError):
        return False


class Clip(NamedTuple):
    """What is made of a score: less the offset, clamped to [low, high], times the shrinkage."""

    offset: float
    low: float
    high: float
    shrinkage: float

    def __call__(self, scores: Tensor) -> Tensor:
        """Returns the tilt, of the shape and type of the scores."""
        tilt = (scores - self.offset).clamp(self.low, self.high)
        return tilt if self.shrinkage == 1 else self.shrinkage * tilt


class FusedScore:
    r"""The score <theta, c> of rows by statistics of this library, with its gradient.

    With T networks, F frequencies each, hidden layers of H units and d features:

    * One product of the rows with a matrix of :math:`d \times T(2F + H)` gives all phases, for sines
      :math:`\omega^\top x` and for cosines :math:`\omega^\top x + \pi/2`, and what the first layers make of the
      coordinates. It holds the scaling of the inputs.
    * Rows are taken in chunks, through all layers, so that memory does not grow with them.
    * A gradient is computed with the score, while the chunk is at hand: a row's score depends on that row alone, so
      only a ``(n, d)`` tensor is kept for the backward pass. Second derivatives go through the statistics themselves.

    Args:
        statistics: frozen, of a class of this library.
        natural_params: theta, float64 of shape ``(T,)``.
        plain_score: maps rows to scores in operations that torch differentiates twice.
    """

    def __init__(self, statistics: nn.Module, natural_params: Tensor, plain_score: Callable[[Tensor], Tensor]) -> None:
        ratio = statistics if isinstance(statistics, ClippedRatio) else None
        networks = _networks_of(statistics)
        self._statistics, self._networks, self._natural_params = statistics, networks, natural_params
        self.plain_score = plain_score
        self._state = _state_of(statistics, natural_params)
        self._sources = _tensors_of(networks)  # kept alive, so that no other tensor takes their identity
        self.dtype, self._device = networks.loc.dtype, networks.loc.device
        self._activation = ACTIVATIONS[networks.activation]
        self._derivative = _DERIVATIVES[networks.activation]
        with with_gradients(), torch.no_grad():  # tensors that can be used in every mode
            self._fuse_first_layer()
            first, *inner, last = zip(networks.weights, networks.biases, strict=True)
            self._inner = [_Layer(weight.detach().clone(), bias.detach().clone()) for weight, bias in inner]
            self._fuse_last_layer(ratio, *(tensor.detach() for tensor in last))
            self._thetas = natural_params.to(self.dtype).unsqueeze(-1)
            self._may_overflow = not math.isfinite(LOG_2 * float(natural_params.abs().sum()))

    @classmethod
    def of(cls, statistics: nn.Module, natural_params: Tensor, plain_score: Callable[[Tensor], Tensor]) -> Self | None:
        """Returns the score of statistics; None of a user's module, one with hooks, or one on a GPU."""
        if not is_own(statistics) or _has_hooks(statistics) or _has_hooks(_networks_of(statistics)):
            return None
        tensors = [*statistics.parameters(), *statistics.buffers()]
        usable = all(
            tensor.dtype in (torch.float32, torch.float64)
            and tensor.dtype == tensors[0].dtype
            and tensor.device.type == "cpu"
            and not tensor.is_inference()  # these do not tell that they were changed
            for tensor in tensors
        )
        return cls(statistics, natural_params, plain_score) if usable else None

    def _fuse_first_layer(self) -> None:
        networks = self._networks
        dims, num_frequencies = networks.in_features, networks.num_frequencies
        weight, bias, frequencies = networks.weights[0].detach(), networks.biases[0].detach(), networks.frequencies
        self._shape = networks.num_classifiers, 2 * num_frequencies, weight.shape[-1]
        shifts = frequencies.new_zeros(len(frequencies), 1, 2 * num_frequencies)
        shifts[..., num_frequencies:] = math.pi / 2
        first = torch.cat(
            [_side_by_side(torch.cat([frequencies, frequencies], -1)), _side_by_side(weight[:, :dims])], 1
        )
        first_bias = torch.cat([_side_by_side(shifts), _side_by_side(bias)], 1)[0]
        self._loc, self._scale = _unless_all(networks.loc, 0.0), _unless_all(networks.scale, 1.0)
        if self._scale is not None and bool(((self._scale >= _MIN_SCALE) & (self._scale <= _MAX_SCALE)).all()):
            first, self._scale = (first.double() / self._scale.double().unsqueeze(-1)).to(first), None
        if self._loc is not None and bool((self._loc.abs() <= _MAX_LOCATION * networks.scale).all()):
            shifted = (first_bias.double() - self._loc.double() @ first.double()).to(first)
            if self._scale is None and bool(shifted.isfinite().all()):
                first_bias, self._loc = shifted, None
        self._first, self._first_bias = first, first_bias
        self._of_waves = weight[:, dims:].contiguous()
        # The derivative of (sin, cos) is (cos, -sin): the waves themselves, for weights of (-cos, sin).
        of_sines, of_cosines = self._of_waves[:, :num_frequencies], self._of_waves[:, num_frequencies:]
        self._of_slopes = torch.cat([-of_cosines, of_sines], 1).mT.contiguous()

    def _fuse_last_layer(self, ratio: ClippedRatio | None, weight: Tensor, bias: Tensor) -> None:
        num_networks, width, _ = weight.shape
        terms = 1 if ratio is None else num_networks  # of a ratio, the average of the logits is all that is used
        self._last = (weight.mT / terms).contiguous()
        # Shared out among the units, which are added up.
        self._last_bias = (bias / (width * terms)).contiguous()
        self._ratio = ratio
        if ratio is None:
            self._link, self._bound = self._networks.link, log_2_below(self.dtype)
        else:  # theta clip((u - s)/theta') = clip((u - s) theta/theta'), between -+ theta log 2
            theta = float(self._natural_params)
            self._factor = theta / ratio.theta
            self._bound, self._is_plain = abs(theta) * LOG_2, ratio.shift == 0 and self._factor == 1

    def is_of(self, statistics: nn.Module, natural_params: Tensor) -> bool:
        """Returns whether this is the score of these as they are now: the same ones, unchanged and without hooks.

        A number that is written past torch, through ``.data`` or NumPy, is not noticed.
        """
        return (
            self._statistics is statistics
            and not _has_hooks(statistics)
            and (self._ratio is None or not _has_hooks(self._networks))
            and _state_of(statistics, natural_params) == self._state
        )

    def takes(self, rows: Tensor) -> bool:
        """Whether rows are of the networks' type, on their device."""
        return rows.dtype == self.dtype and rows.device == self._device

    def __call__(self, rows: Tensor, clip: Clip | None = None) -> Tensor:
        """Returns the score, float64 of shape ``(...)``, never NaN, for rows of shape ``(..., d)``; clipped if asked.

        Args:
            rows: that this :meth:`takes`.
            clip: what to make of the scores.
        """
        if rows.requires_grad and torch.is_grad_enabled():
            return cast("Tensor", _with_gradient(rows, self, clip))
        return _clipped(self.evaluate(rows, with_gradient=False)[0], clip)

    def evaluate(self, rows: Tensor, *, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Returns the scores of rows, and their gradients if they are asked for, of the shape of the rows."""
        flat = rows if rows.dim() == 2 else rows.reshape(-1, rows.shape[-1])
        chunks = torch.split(flat, CHUNK_ROWS * torch.get_num_threads())
        if len(chunks) == 1:
            scores, gradient = self._evaluate(flat, with_gradient)
        else:
            parts = [self._evaluate(chunk, with_gradient) for chunk in chunks]
            scores = torch.cat([score for score, _ in parts])
            gradient = torch.cat([cast("Tensor", slope) for _, slope in parts]) if with_gradient else None
        if rows.dim() == 2:
            return scores, gradient
        return scores.reshape(rows.shape[:-1]), None if gradient is None else gradient.reshape(rows.shape)

    def _evaluate(self, rows: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        num_rows, (num_networks, num_waves, width) = len(rows), self._shape
        if self._loc is not None:
            rows = rows - self._loc
        if self._scale is not None:
            rows = rows / self._scale
        first = torch.addmm(self._first_bias, rows, self._first)
        stride, split = first.shape[1], num_networks * num_waves
        hidden = of_rows = first.as_strided((num_networks, num_rows, width), (width, stride, 1), split)
        waves = first.as_strided((num_networks, num_rows, num_waves), (num_waves, stride, 1))
        if num_waves:
            hidden = torch.baddbmm(of_rows, waves.sin_(), self._of_waves)
        passed = []
        for layer in self._inner:
            output = self._activation(hidden)
            passed.append((hidden, output))
            hidden = torch.baddbmm(layer.bias, output, layer.weight)
        output = self._activation(hidden)
        # Not a batched product with one column, which takes four times as long.
        score, slope = self._bounded(torch.addcmul(self._last_bias, output, self._last), with_gradient)
        if slope is None:
            return score, None
        slope = self._derivative(slope * self._last, hidden, output)
        for layer, (hidden, output) in zip(reversed(self._inner), reversed(passed), strict=True):
            slope = self._derivative(torch.bmm(slope, layer.weight.mT), hidden, output)
        if num_waves:
            waves.mul_(torch.bmm(slope, self._of_slopes))
        of_rows.copy_(slope)
        gradient = torch.mm(self._first, first.t()).t()  # the other order takes at least twice as long
        return score, gradient if self._scale is None else gradient / self._scale

    def _bounded(self, units: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Returns the score, and its gradients by the logits, for the terms that logits are the sums of."""
        slopes = None
        if self._ratio is None:
            logits = units.sum(-1)
            statistics = bound_logits(logits, self._link)
            score = torch.mv(statistics.double().t(), self._natural_params)
            if self._may_overflow:
                score = torch.nan_to_num(score, nan=0.0)
            if with_gradient and self._link == "clamp":
                slopes = logits.abs().le_(self._bound).mul_(self._thetas)
            elif with_gradient:  # of b tanh(z / 2)
                slopes = self._thetas * (self._bound**2 - statistics.square()) / (2 * self._bound)
            return score, None if slopes is None else slopes.unsqueeze(-1)
        ratios = units.sum((0, 2)).double()
        if not self._is_plain:
            ratios = (ratios - self._ratio.shift) * self._factor
        if with_gradient:
            slopes = ratios.abs().le_(self._bound).mul_(self._factor).to(units.dtype).unsqueeze(-1)
        return torch.nan_to_num(ratios, nan=0.0).clamp(-self._bound, self._bound), slopes


class _ScoreWithGradient(torch.autograd.Function):
    """The score of rows, clipped or not, whose gradient is computed with it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, fused: FusedScore, clip: Clip | None) -> Tensor:
        scores, ctx.gradient = fused.evaluate(rows, with_gradient=True)
        ctx.save_for_backward(rows)
        ctx.clip, ctx.plain_score = clip, fused.plain_score
        ctx.scores = None if clip is None else scores  # the result itself would keep its graph alive
        return _clipped(scores, clip)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        clip = ctx.clip
        if torch.is_grad_enabled():  # the gradient is to be differentiated
            (rows,) = ctx.saved_tensors
            scores = _clipped(ctx.plain_score(rows), clip)
            (gradient,) = torch.autograd.grad(scores, rows, slopes.to(scores.dtype), create_graph=True)
            return gradient, None, None
        if clip is not None:
            scores = ctx.scores.to(slopes.dtype)
            slopes = _hardtanh_backward(slopes, scores, clip.low + clip.offset, clip.high + clip.offset)
            slopes = slopes if clip.shrinkage == 1 else clip.shrinkage * slopes
        return slopes.to(ctx.gradient.dtype).unsqueeze(-1) * ctx.gradient, None, None


_with_gradient: Any = _ScoreWithGradient.apply


def _clipped(scores: Tensor, clip: Clip | None) -> Tensor:
    return scores if clip is None else clip(scores)


def _tensors_of(networks: BoundedClassifiers) -> list[Any]:
    """The tensors of networks, looked up where torch keeps them: a walk through modules takes as long as a row."""
    buffers, weights, biases = networks._buffers, networks.weights._parameters, networks.biases._parameters
    return [*buffers.values(), *weights.values(), *biases.values()]


def _state_of(statistics: nn.Module, natural_params: Tensor) -> tuple[Any, ...]:
    """What changes where a number of the score is written, or one of its tensors is given other memory or replaced."""
    tensors = [*_tensors_of(_networks_of(statistics)), natural_params]
    numbers = (statistics.shift, statistics.theta) if isinstance(statistics, ClippedRatio) else ()
    return (*map(id, tensors), *map(_version_of, tensors), *map(_address_of, tensors), *numbers)


def _side_by_side(tensor: Tensor) -> Tensor:
    """Returns (T, in, out) as (in, T * out): the networks' columns for the same rows."""
    return tensor.transpose(0, 1).reshape(tensor.shape[1], -1)


def _networks_of(statistics: nn.Module) -> BoundedClassifiers:
    return cast("BoundedClassifiers", statistics.networks if isinstance(statistics, ClippedRatio) else statistics)


def _has_hooks(module: nn.Module) -> bool:
    """Whether calling a module does more than its class says."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks) or (
        "forward" in module.__dict__
    )


def _unless_all(tensor: Tensor, number: float) -> Tensor | None:
    return None if bool((tensor == number).all()) else tensor.clone()
