"""Measurements by command: ``pyro-mbde bench NAME``, or ``python -m pyro_mbde.experiments.bench NAME``."""

from __future__ import annotations

import statistics
import sys
import time

import click
from tqdm import tqdm

from pyro_mbde._torch_state import single_thread
from pyro_mbde.cli import main as command
from pyro_mbde.cli.forward import PrintingGroup
from pyro_mbde.cli.shared import EXAMPLES
from pyro_mbde.experiments.bench_certificate import attack, certificate
from pyro_mbde.experiments.bench_chains import chains
from pyro_mbde.experiments.bench_gain import A_PRIORI, gain, reach
from pyro_mbde.experiments.problems import EPSILONS, ring_tight
from pyro_mbde.training.density_ratio import DensityRatio
from pyro_mbde.training.mbde import MBDE


@click.group(
    cls=PrintingGroup,
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde bench gain
  pyro-mbde bench fit --repeats 5
""",
)
def main() -> None:
    """Measure the library on the paper's problems."""


@main.command()
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
def fit(repeats: int) -> None:
    """Time of the default fit against the paper's on ring-tight, epsilon 1, one thread each."""
    problem = ring_tight()
    rows = problem.target.sample((10_000,))
    seconds: dict[str, list[float]] = {system: [] for system in A_PRIORI}
    with single_thread():
        for seed in tqdm(range(repeats), desc="pairs of fits"):
            for system, trainer in A_PRIORI.items():
                start = time.perf_counter()
                trainer(problem.base, 1.0, seed=seed, progress=False).fit(rows)
                seconds[system].append(time.perf_counter() - start)
    default, paper = (statistics.median(seconds[system]) for system in ("default", "paper"))
    ratios = [b / a for a, b in zip(seconds["default"], seconds["paper"], strict=True)]
    click.echo(
        f"default {default:.2f} s, paper {paper:.2f} s, ratio {statistics.median(ratios):.1f} (medians of {repeats})"
    )


@main.command()
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--skew", type=float, default=0.3, show_default=True)
def mollify(repeats: int, skew: float) -> None:
    """Time of one density ratio at seven epsilons against one paper fit, on ring-tight, one thread each."""
    problem = ring_tight()
    rows = problem.target.sample((10_000,))
    seconds: dict[str, list[float]] = {"fit": [], "mollify": [], "paper": []}
    with single_thread():
        DensityRatio(problem.base, progress=False).fit(rows)  # the first call pays for lazy imports
        for seed in tqdm(range(repeats), desc="pairs of fits"):
            start = time.perf_counter()
            ratio = DensityRatio(problem.base, seed=seed, progress=False).fit(rows)
            fitted = time.perf_counter()
            for epsilon in EPSILONS:
                ratio.mollify(epsilon, skew=skew)
            mollified = time.perf_counter()
            MBDE.paper(problem.base, 1.0, seed=seed, progress=False).fit(rows)
            for name, value in zip(
                seconds, (fitted - start, mollified - fitted, time.perf_counter() - mollified), strict=True
            ):
                seconds[name].append(value)
    ratios = [c / (a + b) for a, b, c in zip(*seconds.values(), strict=True)]
    medians = ", ".join(f"{name} {statistics.median(values):.2f} s" for name, values in seconds.items())
    click.echo(f"{medians}, ratio {statistics.median(ratios):.1f} (medians of {repeats})")


for measurement in (gain, reach, certificate, attack, chains):
    main.add_command(measurement)

if __name__ == "__main__":
    command(["bench", *sys.argv[1:]], prog_name="pyro-mbde")
