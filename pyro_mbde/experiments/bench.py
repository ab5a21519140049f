"""Measurements by command: ``pyro-mbde bench NAME``, or ``python -m pyro_mbde.experiments.bench NAME``."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import click
from tqdm import tqdm

from pyro_mbde._torch_state import single_thread
from pyro_mbde.cli import main as command
from pyro_mbde.cli.forward import PrintingGroup
from pyro_mbde.cli.shared import EXAMPLES
from pyro_mbde.experiments.bench_bases import bases
from pyro_mbde.experiments.bench_batches import batches
from pyro_mbde.experiments.bench_certificate import attack, certificate
from pyro_mbde.experiments.bench_chains import chains
from pyro_mbde.experiments.bench_gain import A_PRIORI, gain, reach
from pyro_mbde.experiments.bench_growth import growth
from pyro_mbde.experiments.bench_log_prob import log_prob
from pyro_mbde.experiments.bench_scale import scale
from pyro_mbde.experiments.problems import EPSILONS, ring_tight
from pyro_mbde.training.density_ratio import DensityRatio, LogRatio
from pyro_mbde.training.mbde import MBDE


@click.group(
    cls=PrintingGroup,
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde bench gain
  pyro-mbde bench fit --repeats 5
  pyro-mbde bench batches --problem medical --total 10
""",
)
def main() -> None:
    """Measure the library on the paper's problems."""


repeats_option = click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)


@main.command()
@repeats_option
def fit(repeats: int) -> None:
    """Time of the default fit against the paper's on ring-tight, epsilon 1, one thread each."""
    problem = ring_tight()
    rows = problem.target.sample((10_000,))

    def run(system: str, seed: int) -> None:
        A_PRIORI[system](problem.base, 1.0, seed=seed, progress=False).fit(rows)

    _compare({system: partial(run, system) for system in ("default", "paper")}, repeats)


@main.command()
@repeats_option
@click.option("--skew", type=float, default=0.3, show_default=True)
def mollify(repeats: int, skew: float) -> None:
    """Time of one density ratio at seven epsilons against one paper fit, on ring-tight, one thread each."""
    problem = ring_tight()
    rows = problem.target.sample((10_000,))

    ratios: dict[int, LogRatio] = {}

    def fit_ratio(seed: int) -> None:
        ratios[seed] = DensityRatio(problem.base, seed=seed, progress=False).fit(rows)

    def mollify_ratio(seed: int) -> None:
        for epsilon in EPSILONS:
            ratios[seed].mollify(epsilon, skew=skew)

    def paper(seed: int) -> None:
        MBDE.paper(problem.base, 1.0, seed=seed, progress=False).fit(rows)

    fit_ratio(0)  # the first call pays for lazy imports
    _compare({"fit": fit_ratio, "mollify": mollify_ratio, "paper": paper}, repeats)


def _compare(parts: dict[str, Callable[[int], None]], repeats: int) -> None:
    """Prints the median time of each part, called with a seed, and of the last over the sum of those before it."""
    seconds: dict[str, list[float]] = {part: [] for part in parts}
    with single_thread():
        for seed in tqdm(range(repeats), desc="pairs of fits"):
            for part, run in parts.items():
                start = time.perf_counter()
                run(seed)
                seconds[part].append(time.perf_counter() - start)
    medians = ", ".join(f"{part} {statistics.median(values):.2f} s" for part, values in seconds.items())
    ratio = statistics.median(last / sum(before) for *before, last in zip(*seconds.values(), strict=True))
    click.echo(f"{medians}, ratio {ratio:.1f} (medians of {repeats})")


for measurement in (gain, reach, batches, bases, certificate, attack, chains, log_prob, scale, growth):
    main.add_command(measurement)

if __name__ == "__main__":
    command(["bench", *sys.argv[1:]], prog_name="pyro-mbde")
