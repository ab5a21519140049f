"""``pyro-mbde fit``, and the options of the trainers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyro_mbde.cli.console import Console
from pyro_mbde.cli.numbers import NUMBER, Whole
from pyro_mbde.cli.shared import (
    EXAMPLES,
    EXISTING,
    OUTPUT,
    SKEW,
    batch_remarks,
    check_output,
    check_schema_given,
    filled_share_option,
    find_base,
    find_schema,
    force_option,
    public_rows_options,
    schema_option,
    shared_options,
    skew_option,
)
from pyro_mbde.cli.table import TABLE_FORMAT, table_options

if TYPE_CHECKING:
    from torch.distributions import Distribution

    from pyro_mbde import MBDE, DensityRatio, MollifiedExpFamily

    Trainer = TypeVar("Trainer", MBDE, DensityRatio)

RATIO, BOOSTING, PAPER = METHODS = ("ratio", "mbde", "mbde-paper")
DELTA, ROUNDS = 1e-9, 3


@dataclass(frozen=True)
class Recipe:
    """How a density is fitted. Public, all of it.

    Attributes:
        method: ``ratio``, ``mbde`` or ``mbde-paper``.
        epsilon: of one draw, in nats: of a row, or of a whole batch.
        delta: of the certificate, 0 for the a-priori guarantee; None for ``mbde-paper``.
        skew: where the interval of the tilt lies; None for ``mbde-paper``, or where ``filled_share`` sets it.
        rounds: of boosting; None for ``ratio``.
        steps: gradient steps of a network, None for the method's own.
        rows: of a batch; None for single rows.
        filled_share: share of the base that the table is believed to fill; None if nothing is.
    """

    method: str
    epsilon: float
    delta: float | None
    skew: float | None
    rounds: int | None
    steps: int | None
    rows: int | None = None
    filled_share: float | None = None

    @classmethod
    def from_options(cls, **options: Any) -> Recipe:
        """Fills in what was not given, and refuses what the method has no use for."""
        recipe = cls(**options)
        if recipe.method == RATIO and recipe.rounds is not None:
            raise click.UsageError("--rounds is for the methods mbde and mbde-paper.")
        if recipe.method == PAPER and not (recipe.delta is None and recipe.skew is None):
            raise click.UsageError("--delta and --skew are for the methods ratio and mbde: the paper's has neither.")
        if recipe.method == PAPER and not (recipe.rows is None and recipe.filled_share is None):
            raise click.UsageError("--rows and --filled-share are for the methods ratio and mbde.")
        if recipe.filled_share is not None and recipe.skew is not None:
            raise click.UsageError("--filled-share sets the skew: leave out --skew, or leave out --filled-share.")
        if recipe.method == BOOSTING and recipe.rows is not None and recipe.delta == 0:
            raise click.UsageError("--rows needs a certificate with the method mbde: leave out --delta 0.")
        defaults: dict[str, Any] = {} if recipe.method == PAPER else {"delta": DELTA}
        defaults |= {} if recipe.method == PAPER or recipe.filled_share is not None else {"skew": SKEW}
        defaults |= {} if recipe.method == RATIO else {"rounds": ROUNDS}
        return replace(recipe, **{name: value for name, value in defaults.items() if getattr(recipe, name) is None})

    @property
    def placed_skew(self) -> float:
        """Where the interval lies: the skew, or what the filled share makes of it; 1/2 for the paper's method."""
        if self.filled_share is not None:
            from pyro_mbde._checks import check_number
            from pyro_mbde.calibration.plan import check_finite_epsilon
            from pyro_mbde.privacy.placement import filled_share_skew

            check_number("filled_share", self.filled_share, "be in (0, 1)", lambda share: 0 < share < 1)
            return filled_share_skew(check_finite_epsilon(self.epsilon), self.filled_share)
        return 0.5 if self.skew is None else self.skew

    def trainer(
        self, base: Distribution, *, seed: int | None = None, progress: bool = False
    ) -> Callable[[Any], MollifiedExpFamily]:
        """Returns the function that fits a table; arguments are checked here.

        Args:
            base: the public base.
            seed: for a reproducible fit.
            progress: whether to show a progress bar.
        """
        from pyro_mbde import MBDE, DensityRatio
        from pyro_mbde._checks import check_epsilon
        from pyro_mbde.calibration.plan import plan_calibration

        check_epsilon(self.epsilon)
        if self.method == PAPER:
            # Chains walk among real numbers alone; rejection draws exactly what they approximate.
            sampler = "rejection" if getattr(base.support, "is_discrete", False) else "random_walk"
            boosting = MBDE.paper(
                base, self.epsilon, self.rounds or ROUNDS, sampler=sampler, seed=seed, progress=progress
            )
            return self._with_steps(boosting).fit
        delta, skew = self.delta, self.placed_skew
        assert delta is not None
        if self.method == RATIO:
            ratio = self._with_steps(DensityRatio(base, seed=seed, progress=progress))
            plan_calibration(ratio.base, self.epsilon, delta, skew, self.rows)  # checks them before any table is read
            return lambda table: ratio.fit(table).mollify(self.epsilon, delta, skew, num_rows=self.rows)
        calibration: dict[str, Any] = {}
        if delta != 0:
            calibration = {"calibrated": True, "delta": delta, "num_rows": self.rows}
        boosting = MBDE(
            base, self.epsilon, self.rounds or ROUNDS, skew=skew, seed=seed, progress=progress, **calibration
        )
        return self._with_steps(boosting).fit

    def _with_steps(self, trainer: Trainer) -> Trainer:
        if self.steps is not None:
            trainer.weak_learner = replace(trainer.weak_learner, num_steps=self.steps)
        return trainer


RECIPE_OPTIONS = tuple(field.name for field in fields(Recipe))


def recipe_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a trainer to a command, which gets them as ``recipe``."""

    @click.option(
        "--epsilon",
        type=NUMBER,
        help="Privacy parameter, in nats: of one row, or with --rows of a whole batch.",
    )
    @click.option(
        "--rows", type=Whole(1), help="Rows of a batch, drawn together for one price.  [default: single rows]"
    )
    @click.option(
        "--delta",
        type=NUMBER,
        help=f"Probability that the certificate is wrong; 0 for the a-priori guarantee.  [default: {DELTA:g}]",
    )
    @skew_option
    @filled_share_option
    @click.option(
        "--method",
        type=click.Choice(METHODS),
        default=RATIO,
        show_default=True,
        help="One fitted density ratio; boosting; or boosting with the settings of the paper.",
    )
    @click.option("--rounds", type=Whole(1), help=f"Rounds of boosting.  [default: {ROUNDS}]")
    @click.option("--steps", type=Whole(1), help="Gradient steps of a network.  [default: the method's own]")
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in RECIPE_OPTIONS}
        if given["epsilon"] is None and not options.get("check"):
            raise click.UsageError("Missing option '--epsilon'.")
        recipe = None if given["epsilon"] is None else Recipe.from_options(**given)
        return function(*args, recipe=recipe, **options)

    return run


@click.command(
    "fit",
    short_help="Fit a density to a table.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde fit patients.csv --schema schema.toml --epsilon 3 --rows 10 -o model.pt
  pyro-mbde fit patients.csv --schema schema.toml --epsilon 0.5 --filled-share 0.2 -o single-rows.pt
  pyro-mbde fit patients.csv --sep ";" --decimal , --encoding latin-1 --config pyro-mbde.toml
  pyro-mbde fit patients.csv --schema schema.toml --epsilon 1 --method mbde --delta 0 -o model.pt

\b
A schema says what is public about the columns, from their codebook, not from the table:
  [[columns]]
  name = "visits"
  low = 0
  high = 99
  kind = "integer"   # or "real", the default
  scale = "log1p"    # models ln(1 + visits); or "linear", the default
  outside = "clip"   # the default: moves it to the nearest allowed value; or "drop" the row, or "refuse" the table
  missing = "drop"   # the default: leaves out the row; "level" keeps it; or a number that replaces it, or "refuse"

\b
  [[columns]]
  name = "ward"
  kind = "category"  # or "ordered", "boolean", "date", "datetime": see docs/schema.md
  levels = ["Medicine", "Surgery", "Other"]
""",
)
@click.argument("table", type=EXISTING)
@schema_option
@public_rows_options
@recipe_options
@click.option("-o", "--output", type=OUTPUT, metavar="MODEL", help="File for the model. Private.")
@click.option(
    "--check",
    is_flag=True,
    help="Only compare TABLE with --schema: nothing is fitted or spent. Other options have no effect, except those of "
    "a CSV file.",
)
@table_options
@click.option("--seed", type=Whole(0), help="For a reproducible fit.")
@force_option
@shared_options
@click.pass_context
def fit_command(
    ctx: click.Context,
    console: Console,
    table: Path,
    schema: Path | None,
    public_rows: Path | None,
    dependence: str,
    recipe: Recipe | None,
    output: Path | None,
    check: bool,
    csv_format: dict[str, str],
    seed: int | None,
    force: bool,
) -> None:
    """Fit a density to TABLE, a CSV file with a header or a Parquet file.

    The model is as sensitive as the table, and so are errors, warnings and the time taken: keep them private. Only rows
    from `pyro-mbde release` may be handed out. Messages about the table are shown even with --quiet.

    With --rows K a draw is a batch of K rows, and epsilon is what the whole batch costs. One batch of all the rows that
    are wanted comes closer to the table than single rows of the same total.

    A model that exists is replaced only with --force. Choosing epsilon, rows, delta, skew, method or schema because
    of what is said about the table, or because of a result, voids the guarantee. A model costs nothing until rows are
    drawn from it; still, do not keep fitting until one looks right: a certificate covers one fit, not the best of
    several.
    """
    check_schema_given(ctx, schema)
    if check:
        _check_table(ctx, console, table, schema, csv_format)
        return
    if output is None:
        raise click.UsageError("Missing option '--output'.", ctx)
    assert recipe is not None  # else its options would have said so
    check_output(ctx, output, force=force)
    columns, base = find_base(ctx, console, schema, public_rows, dependence, csv_format)
    from pyro_mbde._checks import counted
    from pyro_mbde.privacy.advice import advise
    from pyro_mbde.tables.files import TableModel, read_table

    train = recipe.trainer(base, seed=seed, progress=console.progress)
    rows = columns.to_tensor(read_table(table, **csv_format))
    model = TableModel(train(rows), columns, {**asdict(recipe), TABLE_FORMAT: csv_format})
    if output.exists():
        _compare(console, output, model)
    model.save(output)
    guarantee = model.density.guarantee
    calibrated = model.density.certificate is not None  # a requested certificate may not be possible
    if recipe.rows is None:
        remarks = advise(row=recipe.epsilon, skew=recipe.placed_skew, calibrated=calibrated)
    else:
        looks = batch_remarks(recipe.rows, recipe.epsilon, skew=recipe.placed_skew, calibrated=calibrated)
        remarks = [*advise(batch=recipe.epsilon), *looks]
    document = {
        "model": output,
        "recipe": asdict(recipe),
        "guarantee": asdict(guarantee),
        "columns": columns.to_dict()["columns"],
        "advice": console.notes(remarks),
    }
    certificate = f", delta {guarantee.delta:g} once" if guarantee.delta else ""
    draw = "draw" if recipe.rows is None else f"batch of {counted(recipe.rows, 'row')}"
    console.answer(document, f"{output}: one {draw} costs epsilon {guarantee.epsilon:.6g}{certificate}", settled=True)
    console.note(f"{output} is as sensitive as the table: keep it. Hand out rows from `pyro-mbde release` alone.")


def _check_table(
    ctx: click.Context, console: Console, table: Path, schema: Path | None, csv_format: dict[str, str]
) -> None:
    """Compares a table with its schema; what is found is for the owner alone."""
    from pyro_mbde._checks import counted
    from pyro_mbde.tables.files import read_table

    columns = find_schema(ctx, schema)
    assert columns is not None  # as was checked
    frame = read_table(table, **csv_format)
    num_kept = len(columns.to_tensor(frame))
    names = counted(len(columns.columns), "column")
    left_out = [str(name) for name in frame.columns if str(name) not in columns.names]
    document = {"rows": len(frame), "rows_kept": num_kept, "columns": list(columns.names), "left_out": left_out}
    text = f"{table} fits the schema: {names}, {num_kept:,} of {counted(len(frame), 'row')} can be used."
    if left_out:
        text += f"\nNot in the schema, and left out: {', '.join(left_out)}."
    console.answer(document, text)
    console.note("Nothing was fitted or spent. What is said here depends on the table: keep it to yourself.")


def _compare(console: Console, path: Path, model: Any) -> None:
    """Warns where a model is replaced by one of another recipe."""
    from pyro_mbde.tables.files import TableModel

    try:
        old = TableModel.load(path)
    except (OSError, ValueError):
        return
    changed = [
        f"{name} {old.settings.get(name)} by {value}"
        for name, value in model.settings.items()
        if name != TABLE_FORMAT and old.settings.get(name) != value
    ]
    if old.schema != model.schema:
        changed.append("its columns by others")
    if changed:
        remedy = "What is chosen by looking at a result has no guarantee. Rows of the old model stay charged."
        console.warn(f"{path} is replaced, {', '.join(changed)}. {remedy}")
