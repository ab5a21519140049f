"""``pyro-mbde diagnose``: chains on a model, checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyro_mbde.cli.console import Console
from pyro_mbde.cli.numbers import Whole
from pyro_mbde.cli.shared import (
    CHECK_FAILED,
    EXAMPLES,
    EXISTING,
    INTERRUPTED,
    OUTPUT,
    check_picture,
    force_option,
    shared_options,
)
from pyro_mbde.mcmc.kernels import KERNELS

if TYPE_CHECKING:
    from pyro_mbde import Chains, MixingReport

#: Kernels by default: the second where walks cannot go.
WALK, INDEPENDENCE = "lockstep_random_walk", "independence"
#: Draws of each chain, doubled from the first number up to the second until the chains are long enough.
MIN_LENGTH, MAX_LENGTH = 2000, 32_000
#: Checks that longer chains may pass, and those that they do not help to pass.
OF_LENGTH = {"R-hat", "ESS"}
NOT_OF_LENGTH = {"draws", "acceptance rate", "divergences", "E-BFMI"}
UNAFFECTED = (
    "Rows from `pyro-mbde release` do not depend on this: they are exact draws of the model, and no chain is run for "
    "them."
)


@click.command(
    "diagnose",
    short_help="Run Markov chains on a model and check them.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde diagnose model.pt
  pyro-mbde diagnose model.pt --kernel nuts --num-chains 4 --num-samples 1000 -o nuts.png
""",
)
@click.argument("model", type=EXISTING)
@click.option(
    "--kernel",
    type=click.Choice(tuple(KERNELS)),
    help=f"How the chains move.  [default: {WALK}; {INDEPENDENCE} where columns hold whole numbers, levels or dates]",
)
@click.option(
    "--num-samples",
    type=Whole(4),
    help=f"Draws of each chain.  [default: {MIN_LENGTH:,}, doubled until R-hat and ESS pass, up to {MAX_LENGTH:,}]",
)
@click.option(
    "--warmup-steps",
    type=Whole(0),
    default=500,
    show_default=True,
    help="Steps before those draws, which adapt the kernel.",
)
@click.option("--num-chains", type=Whole(1), default=16, show_default=True, help="Number of chains.")
@click.option("--seed", type=Whole(0), help="For reproducible chains.")
@click.option(
    "-o",
    "--output",
    type=OUTPUT,
    metavar="PICTURE",
    help="File for the plots: .png, .pdf or .svg.  [default: MODEL.mixing.png]",
)
@force_option
@shared_options
@click.pass_context
def diagnose_command(
    ctx: click.Context,
    console: Console,
    model: Path,
    kernel: str | None,
    num_samples: int | None,
    warmup_steps: int,
    num_chains: int,
    seed: int | None,
    output: Path | None,
    force: bool,
) -> None:
    """Run Markov chains on MODEL and check that they mix and sample the right density.

    This is for users who put the model into their own Pyro model. Released rows do not depend on it: they are
    exact draws, not states of chains.

    Report and picture are for the table's owner alone. Exits with 4 if a check failed. After an interrupt it
    reports on what was drawn so far, and exits with 130.
    """
    output = output or model.with_name(f"{model.stem}.mixing.png")
    check_picture(ctx, output, "--output", force=force)
    from pyro_mbde.diagnostics.parameters import column_names, scalar_parameters
    from pyro_mbde.diagnostics.plot import draw_mixing
    from pyro_mbde.pictures import write_picture
    from pyro_mbde.tables.files import TableModel

    fitted = TableModel.load(model)
    if kernel is None:
        kernel = INDEPENDENCE if getattr(fitted.density.support, "is_discrete", False) else WALK
    options = {"kernel": kernel, "warmup_steps": warmup_steps, "num_chains": num_chains, "seed": seed}
    chains, mixing, interrupted = _run(fitted.density, num_samples, options, progress=console.progress)
    names = {} if fitted.schema is None else column_names(chains, fitted.schema)
    write_picture(draw_mixing(chains, mixing, scalar_parameters(chains), names), output)
    report = mixing.renamed(names)
    document = {
        "passed": report.passed,
        "kernel": report.kernel,
        "num_chains": report.num_chains,
        "num_samples": report.num_samples,
        "failures": report.failures,
        "checks": [{**check._asdict(), "outcome": check.outcome} for check in report.checks],
        "parameters": [parameter._asdict() for parameter in report.parameters],
        "bfmi": report.bfmi,
        "picture": output,
        "released_rows": UNAFFECTED,
    }
    console.answer(document, f"{report}\n\n{UNAFFECTED}\n\n{output}")
    console.note(f"This report and {output} are as sensitive as the table: keep them to yourself.")
    if interrupted:
        ctx.exit(INTERRUPTED)
    if not report.passed:
        ctx.exit(CHECK_FAILED)


def _run(
    density: Any, num_samples: int | None, options: dict[str, Any], *, progress: bool
) -> tuple[Chains, MixingReport, bool]:
    """Runs chains of a given length, or as long as they need; and whether they were interrupted."""
    from pyro_mbde import mixing_report, resume_mcmc, run_mcmc

    wanted = MIN_LENGTH if num_samples is None else num_samples
    chains = run_mcmc(density, num_samples=wanted, progress=progress, **options)
    report = mixing_report(chains)
    while num_samples is None and chains.num_samples == wanted < MAX_LENGTH and _too_short(report):
        wanted *= 2
        chains = resume_mcmc(chains, wanted - chains.num_samples, progress=progress)
        report = mixing_report(chains)
    return chains, report, chains.num_samples < wanted


def _too_short(report: MixingReport) -> bool:
    """Whether longer chains might pass."""
    failed = {check.name for check in report.checks if check.failures}
    return bool(failed & OF_LENGTH) and not failed & NOT_OF_LENGTH
