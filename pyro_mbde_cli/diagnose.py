"""``pyro-mbde diagnose``: chains on a model, checked."""

from __future__ import annotations

from pathlib import Path

import click

from pyro_mbde_cli.shared import (
    CHECK_FAILED,
    EXAMPLES,
    EXISTING,
    INTERRUPTED,
    OUTPUT,
    Console,
    check_output,
    force_option,
    shared_options,
)

KERNELS = ("random_walk", "hmc", "nuts", "lockstep_random_walk", "independence")
PICTURES = (".png", ".pdf", ".svg")


@click.command(
    "diagnose",
    short_help="Run chains on a model and check them.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde diagnose model.pt
  pyro-mbde diagnose model.pt --kernel nuts --num-chains 4 --num-samples 1000 -o nuts.png
""",
)
@click.argument("model", type=EXISTING)
@click.option(
    "--kernel",
    type=click.Choice(KERNELS),
    default="lockstep_random_walk",
    show_default=True,
    help="What moves the chains.",
)
@click.option("--num-samples", type=click.IntRange(4), default=2000, show_default=True, help="Draws of each chain.")
@click.option("--warmup-steps", type=click.IntRange(0), default=500, show_default=True, help="Steps before them.")
@click.option("--num-chains", type=click.IntRange(1), default=16, show_default=True, help="Chains.")
@click.option("--seed", type=click.IntRange(0), help="For reproducible chains.")
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
    kernel: str,
    num_samples: int,
    warmup_steps: int,
    num_chains: int,
    seed: int | None,
    output: Path | None,
    force: bool,
) -> None:
    """Run Markov chains on MODEL and check that they mix and sample the right density.

    Report and plots are for the table's owner alone. Exits with 4 if a check failed, and with 130 after an interrupt,
    with a report on what was drawn.
    """
    output = output or model.with_name(f"{model.stem}.mixing.png")
    if output.suffix not in PICTURES:
        raise click.BadParameter(f"{str(output)!r} must end in {', '.join(PICTURES)}.", param_hint="'--output'")
    check_output(output, force=force)
    import matplotlib

    matplotlib.use("agg")
    from pyro_mbde import MollifiedExpFamily, mixing_report, plot_mixing, run_mcmc
    from pyro_mbde.privacy.leaks import warn_beside_card
    from pyro_mbde.serialization import write_atomically

    density = MollifiedExpFamily.load(model)
    chains = run_mcmc(
        density,
        kernel,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        num_chains=num_chains,
        seed=seed,
        progress=console.progress,
    )
    report = mixing_report(chains)
    figure = plot_mixing(chains)
    warn_beside_card(output, "A picture of chains")
    write_atomically(lambda file: figure.savefig(file, format=output.suffix[1:], dpi=150), output)
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
    }
    console.answer(document, f"{report}\n\n{output}")
    console.note(f"This report and {output} are as sensitive as the table: keep them.")
    if report.num_samples < num_samples:
        ctx.exit(INTERRUPTED)
    if not report.passed:
        ctx.exit(CHECK_FAILED)
