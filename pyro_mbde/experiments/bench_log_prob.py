"""What a log-density and its gradient cost, against the products that its networks cannot do without."""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import pyro.distributions as dist
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.density.bounds import Bounds, spending_natural_params
from pyro_mbde.density.clipped_ratio import RATIO_SCALE, ClippedRatio
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.flow_copula import zuko
from pyro_mbde.density.kinds_of_statistics import aligned
from pyro_mbde.density.statistics import ACTIVATIONS, BoundedClassifiers
from pyro_mbde.experiments.scale_runs import module, run
from pyro_mbde.experiments.style import BLUE, GREEN, INK, ORANGE, PURPLE, add_caption
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.private_files import write_atomically
from pyro_mbde.training.density_ratio import DensityRatio
from pyro_mbde.training.mbde import MBDE
from pyro_mbde.training.weak_learner import WeakLearner

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
#: Rows at a time, and how often each way is measured.
_REPEATS = {1: 200, 100: 100, 10_000: 10}
_QUICK_REPEATS = {1: 5, 100: 5, 10_000: 1}
#: Calls of one row that are timed together: in a chain each follows upon the last, and finds its weights in the cache.
_CALLS_OF_ONE = 10
_DIMENSIONS = (2, 10)
_MANY = 10_000
_NUM_ROUNDS = 10
#: Ways whose memory is measured.
_OF_MEMORY = ("networks", "log_prob", "networks gradient", "gradient")
_LOOKS = {
    "log_prob": (BLUE, "o", "-"),
    "gradient": (ORANGE, "s", "-"),
    "products and base": (INK, "", "--"),
    "flow": (GREEN, "^", "-"),
    "flow gradient": (PURPLE, "v", "-"),
}


def mbde_density(dims: int) -> MollifiedExpFamily:
    """Ten rounds in the networks of :class:`~pyro_mbde.MBDE`, untrained: what they take does not depend on weights."""
    base = _base(dims)
    networks = _networks(MBDE(base, 1.0).weak_learner, _NUM_ROUNDS, dims)
    return MollifiedExpFamily(base, networks, spending_natural_params(1.0, _NUM_ROUNDS), 0.01)


def ratio_density(dims: int) -> MollifiedExpFamily:
    """The networks of :class:`~pyro_mbde.DensityRatio`, untrained, clipped to the bounds of a calibrated density."""
    base = _base(dims)
    trainer = DensityRatio(base)
    ratio = aligned(ClippedRatio(_networks(trainer.weak_learner, trainer.ensemble_size, dims)))
    theta = torch.tensor([RATIO_SCALE])
    return MollifiedExpFamily(base, ratio, theta, 0.01, offset=0.1, bounds=Bounds(-0.3, 0.7))


CASES: dict[str, Callable[[int], MollifiedExpFamily]] = {
    "MBDE, T = 10": mbde_density,
    "ratio, 6 networks": ratio_density,
}


def _base(dims: int) -> Any:
    normal: Any = dist.Normal(torch.zeros(dims), torch.ones(dims))  # Pyro leaves to_event unannotated
    return normal.to_event(1)


def _networks(learner: WeakLearner, num_networks: int, dims: int) -> BoundedClassifiers:
    with seeded(0):
        return BoundedClassifiers(
            num_networks,
            dims,
            hidden_sizes=learner.hidden_sizes,
            activation=learner.activation,
            link=learner.link,
            num_frequencies=learner.num_frequencies,
            frequency_scale=learner.frequency_scale,
            axis_share=learner.axis_share,
        )


def ways(density: MollifiedExpFamily, value: Tensor, flow: Any = None) -> dict[str, Callable[[], object]]:
    """What is measured, at values of shape ``(d,)`` or ``(n, d)``.

    ``products`` is, with weights of the same sizes, the product that gives the phases, their sines and cosines, and for
    each layer one batched product with its bias (``torch.baddbmm``) and the activation. Not counted: scaling of inputs,
    the bound of the statistics, their sum, the clip. ``networks`` is a call of the density's statistics.
    """
    with_gradient = value.clone().requires_grad_()
    classifiers = cast("BoundedClassifiers", getattr(density.statistics, "networks", density.statistics))
    products = _products(classifiers)

    def gradient(function: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def run() -> object:
            result = function(with_gradient)
            return torch.autograd.grad(result.sum() if result.dim() else result, with_gradient)

        return run

    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "log_prob": density.log_prob,
        "networks": density.statistics,
        "base": density.base.log_prob,
    }
    if flow is not None:
        functions["flow"] = flow.log_prob
    made: dict[str, Callable[[], object]] = {"products": partial(products, value)}
    for name, function in functions.items():
        made[name] = partial(function, value)
        made["gradient" if name == "log_prob" else f"{name} gradient"] = gradient(function)
    return made


def _products(networks: BoundedClassifiers) -> Callable[[Tensor], Tensor]:
    activation = ACTIVATIONS[networks.activation]
    *inner, (last_weight, last_bias) = zip(list(networks.weights), list(networks.biases), strict=True)
    frequencies, num_networks, dims = networks.frequencies, networks.num_classifiers, networks.in_features

    def products(value: Tensor) -> Tensor:
        hidden = value.reshape(-1, dims).expand(num_networks, -1, -1)
        phases = hidden @ frequencies
        hidden = torch.cat([hidden, phases.sin(), phases.cos()], -1)
        for weight, bias in inner:
            hidden = activation(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(last_bias, hidden, last_weight)

    return products


def measure_times(name: str, dims: int, repeats: dict[int, int]) -> Iterator[Record]:
    """Yields median microseconds of every way, all in turn at each repeat, for each number of rows.

    Processor time of the thread, so that other programs matter less.

    Args:
        name: of :data:`CASES`.
        dims: of the base.
        repeats: by numbers of rows.
    """
    density, flow = CASES[name](dims), _flow(dims)
    for num_rows, number in repeats.items():
        with seeded(1):
            value = torch.randn(num_rows, dims)
        measured = ways(density, value[0] if num_rows == 1 else value, flow)
        seconds: dict[str, list[float]] = {way: [] for way in measured}
        for repeat in range(-2, number):  # the first two to warm up
            for way, function in measured.items():
                calls = _CALLS_OF_ONE if num_rows == 1 else 1
                start = time.thread_time()
                for _ in range(calls):
                    function()
                if repeat >= 0:
                    seconds[way].append((time.thread_time() - start) / calls)
        times = {way: 1e6 * statistics.median(values) for way, values in seconds.items()}
        yield {"case": name, "dims": dims, "rows": num_rows, "microseconds": times, "ratios": ratios(times)}


def ratios(times: Record) -> dict[str, float]:
    """The ratios that the library is held to: to networks and base, to products and base, of gradient and value."""
    value = times["log_prob"]
    of_flow = {"flow to value": times["flow"] / value} if "flow" in times else {}
    return {
        "to networks and base": value / (times["networks"] + times["base"]),
        "to products and base": value / (times["products"] + times["base"]),
        "gradient to value": times["gradient"] / value,
        "base gradient to base": times["base gradient"] / times["base"],
        **of_flow,
    }


def _flow(dims: int) -> Any:
    """A neural spline flow of zuko with its default sizes, untrained and frozen; None where zuko is not installed."""
    with suppress(ImportError), seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its distribution has no constraints
        return zuko("zuko.flows").NSF(dims).requires_grad_(False)()
    return None


def measure_memory(name: str, dims: int) -> Record:
    """Returns the rise of peak memory at 10,000 rows for each way, measured in a fresh process."""
    peaks = {}
    for way in _OF_MEMORY:
        peaks[way] = run(module("pyro_mbde.experiments.bench_log_prob", name, dims, way)).answer["bytes"]
    return {"case": name, "dims": dims, "rows": _MANY, "peak_bytes": peaks}


def _peak_of(name: str, dims: int, way: str) -> int:
    import resource  # not on Windows

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    density = CASES[name](dims)
    ways(density, torch.zeros(dims))[way]()
    function = ways(density, torch.randn(_MANY, dims))[way]
    before = peak()
    function()
    return peak() - before


def line_of(record: Record) -> str:
    """A record as a line of the table."""
    start = f"{record['case']:<18}{record['dims']:>4}{record['rows']:>8,}"
    if "peak_bytes" in record:
        return f"{start}  " + ", ".join(f"{way} {peak / 2**20:.0f} MiB" for way, peak in record["peak_bytes"].items())
    times, of = record["microseconds"], record["ratios"]
    columns = ("log_prob", "gradient", "networks", "products", "base", "flow")
    cells = "".join(f"{times[name]:>10,.0f}" if name in times else f"{'-':>10}" for name in columns)
    return f"{start}{cells}" + "".join(f"{of[name]:>7.2f}" for name in list(of)[:3])


def plot(records: list[Record]) -> Figure:
    """Microseconds by rows, a panel for each density."""
    timed = [record for record in records if "microseconds" in record]
    cases = list(dict.fromkeys((record["case"], record["dims"]) for record in timed))
    figure = new_figure(3.2 * len(cases), 3.9)
    axes: Any = figure.subplots(1, len(cases), squeeze=False, sharey=True)
    for axis, case in zip(axes[0], cases, strict=True):
        part = [record for record in timed if (record["case"], record["dims"]) == case]
        rows = [record["rows"] for record in part]
        for name, (color, marker, linestyle) in _LOOKS.items():
            times = [_time_of(record["microseconds"], name) for record in part]
            if None not in times:
                look = {"color": color, "marker": marker, "linestyle": linestyle, "markersize": 5}
                axis.plot(rows, times, label=name, **look)
        axis.set(xscale="log", yscale="log", xlabel="rows", title=f"{case[0]}, d = {case[1]}")
    axes[0, 0].set_ylabel("microseconds of one thread, median")
    axes[0, 0].legend(frameon=False, fontsize="small")
    add_caption(
        figure,
        "Processor time, one thread, all ways in turn. Gradient: the value and its gradient. Products: matrix products "
        "and activations of the networks alone. Flow: zuko's NSF with its default sizes.",
        140,
    )
    return figure


def _time_of(times: Record, name: str) -> float | None:
    return times["products"] + times["base"] if name == "products and base" else times.get(name)


@click.command("log_prob", cls=PrintingCommand)
@click.option("--records", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for every number.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="PNG, PDF or SVG to draw.")
@click.option("--quick", is_flag=True, help="Few repeats and no memory, to check that everything runs.")
def log_prob(records: Path | None, picture: Path | None, quick: bool) -> None:
    """Microseconds of a log-density: value, gradient, its networks, their products alone, the base, a flow.

    GRADIENT is the value and its gradient. The last columns are the value over networks and base, the value over
    products and base, and gradient over value. Then memory: by how much 10,000 rows raise a process's peak.
    """
    measured: list[Record] = []
    with single_thread(), tqdm(total=len(CASES) * len(_DIMENSIONS), desc="densities") as bar:
        columns = ("log_prob", "gradient", "networks", "products", "base", "flow")
        header = "".join(f"{name:>10}" for name in columns) + "".join(f"{name:>7}" for name in ("/net", "/prod", "g/v"))
        bar.write(f"{'density':<18}{'d':>4}{'rows':>8}{header}")
        for name in CASES:
            for dims in _DIMENSIONS:
                for record in measure_times(name, dims, _QUICK_REPEATS if quick else _REPEATS):
                    bar.write(line_of(record))
                    measured.append(record)
                if not quick:
                    measured.append(measure_memory(name, dims))
                    bar.write(line_of(measured[-1]))
                bar.update()
        if "flow" not in measured[0]["microseconds"]:
            bar.write("No flow: zuko is not installed (pip install 'pyro_mbde[flows]').")
    if records is not None:
        write_atomically(lambda file: file.write(json.dumps(measured, indent=1).encode()), records)
        click.echo(str(records))
    if picture is not None:
        write_picture(plot(measured), picture)
        click.echo(str(picture))


if __name__ == "__main__":
    print(json.dumps({"bytes": _peak_of(sys.argv[1], int(sys.argv[2]), sys.argv[3])}))
