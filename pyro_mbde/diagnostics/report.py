"""The report on chains, for a terminal and a notebook."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyro_mbde._checks import counted

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
#: Rows of a table, names in a list, columns of a terminal.
_MAX_ROWS, MAX_NAMED, _WIDTH = 20, 3, 100
#: How numbers are written, by column.
_STYLES = {
    **dict.fromkeys(("mean", "sd", "mcse", "q5", "median", "q95"), "{:.3g}"),
    "rhat": "{:.3f}",
    **dict.fromkeys(("ess_bulk", "ess_tail"), "{:.0f}"),
}


class ParameterSummary(NamedTuple):
    """One scalar parameter over all chains.

    Attributes:
        name: of the site, with the coordinate's index.
        mean: of the draws.
        sd: standard deviation of the draws.
        mcse: Monte Carlo standard error of the mean.
        q5: 5 % quantile.
        median: 50 % quantile.
        q95: 95 % quantile.
        rhat: rank-normalised split R-hat.
        ess_bulk: effective sample size of ranks.
        ess_tail: the smaller effective sample size of the 5 % and 95 % quantiles.
    """

    name: str
    mean: float
    sd: float
    mcse: float
    q5: float
    median: float
    q95: float
    rhat: float
    ess_bulk: float
    ess_tail: float


class Check(NamedTuple):
    """One thing that was checked.

    Attributes:
        name: what.
        detail: the figures in a sentence.
        failures: a reason for each failure; empty where there is none.
        skipped: whether it could not be checked.
    """

    name: str
    detail: str
    failures: tuple[str, ...] = ()
    skipped: bool = False

    @property
    def outcome(self) -> str:
        """``ok``, ``FAILED`` or ``skipped``."""
        return "FAILED" if self.failures else "skipped" if self.skipped else "ok"


class Deviation(NamedTuple):
    """A share of the chains' draws beside that of exact draws.

    Attributes:
        subject: the coordinate, the pair of coordinates, the direction, or the log-density.
        event: which draws are counted.
        share: of the chains' draws.
        expected: of exact draws.
        standard_error: of the difference, from the effective number of draws.
        p_value: two-sided, of this comparison alone.
    """

    subject: str
    event: str
    share: float
    expected: float
    standard_error: float
    p_value: float


@dataclass(frozen=True, repr=False)
class MixingReport:
    """Summary of each parameter, the checks of the chains, and a reason for each failure.

    Prints as a table in a terminal and in a notebook.

    Privacy:
        As sensitive as the table that the density was fitted to: not for release.

    Attributes:
        kernel: name of the kernel.
        num_chains: number of chains.
        num_samples: draws of each chain.
        parameters: one summary a scalar parameter.
        bfmi: E-BFMI of each chain; empty where no energies were kept.
        deviations: the comparisons with exact draws, most improbable first; empty where there was no test.
        checks: what was checked, and the reasons for what failed.
    """

    kernel: str
    num_chains: int
    num_samples: int
    parameters: tuple[ParameterSummary, ...]
    bfmi: tuple[float, ...]
    deviations: tuple[Deviation, ...]
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """A reason for each failure; empty for chains that passed."""
        return tuple(reason for check in self.checks for reason in check.failures)

    @property
    def passed(self) -> bool:
        """Whether nothing failed. What was skipped has not failed."""
        return not self.failures

    @property
    def worst_first(self) -> tuple[ParameterSummary, ...]:
        """The parameters, those with a missing or large R-hat and few effective draws first."""

        def goodness(parameter: ParameterSummary) -> tuple[float, float]:
            excess = parameter.rhat - 1
            return (-math.inf, 0.0) if math.isnan(excess) else (-round(excess, 3), parameter.ess_bulk)

        return tuple(sorted(self.parameters, key=goodness))

    def to_frame(self) -> pd.DataFrame:
        """Returns the summaries of all parameters as a table, one row a parameter."""
        import pandas as pd

        return pd.DataFrame(self.parameters, columns=ParameterSummary._fields).set_index("name")

    @property
    def title(self) -> str:
        """The verdict in a line."""
        return (
            f"{'Passed' if self.passed else 'FAILED'}: {counted(self.num_chains, 'chain')} of "
            f"{counted(self.num_samples, 'draw')}, {self.kernel}"
        )

    def renamed(self, names: Mapping[str, str]) -> MixingReport:
        """Returns the report with other names of coordinates, given by those in the report, such as ``x[0]``."""
        if not names:
            return self
        rename = partial(re.compile("|".join(map(re.escape, names))).sub, lambda found: names[found.group()])
        return replace(
            self,
            parameters=tuple(item._replace(name=rename(item.name)) for item in self.parameters),
            deviations=tuple(item._replace(subject=rename(item.subject)) for item in self.deviations),
            checks=tuple(
                check._replace(detail=rename(check.detail), failures=tuple(map(rename, check.failures)))
                for check in self.checks
            ),
        )

    def _table(self) -> tuple[pd.DataFrame, str]:
        """The parameters to show, as text, and a note on those that are not shown."""
        import pandas as pd

        shown, note = self.parameters, ""
        if len(shown) > _MAX_ROWS:
            shown = self.worst_first[:_MAX_ROWS]
            note = f"The worst {_MAX_ROWS} of {len(self.parameters):,} parameters, by R-hat and effective sample size."
        table = pd.DataFrame(shown, columns=ParameterSummary._fields)
        for name, style in _STYLES.items():
            table[name] = table[name].map(style.format)
        return table.rename(columns={"name": "parameter", "q5": "5%", "median": "50%", "q95": "95%"}), note

    def __str__(self) -> str:
        """The table, the checks and the reasons, for a terminal."""
        table, note = self._table()
        numbers = table.drop(columns="parameter").to_string(index=False).splitlines()
        names = [shorten(name, _WIDTH - max(map(len, numbers)) - 2) for name in ["parameter", *table["parameter"]]]
        width = max(map(len, names))
        lines = [self.title, ""]
        lines += [f"{name:<{width}}  {row}" for name, row in zip(names, numbers, strict=False)]
        lines += [note, ""] if note else [""]
        for check in self.checks:
            lines += _wrap(f"{check.outcome:<8}{check.name}: {check.detail}", 8)
        if self.failures:
            lines += ["", "Why it failed"]
            for reason in self.failures:
                lines += _wrap(f"- {reason}", 2)
        return "\n".join(lines)

    def __repr__(self) -> str:
        """The class and how much it holds."""
        shown = (
            f"{name}=({len(v)} items)" if isinstance(v, tuple) else f"{name}={v!r}" for name, v in vars(self).items()
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        import pandas as pd

        table, note = self._table()
        checks = pd.DataFrame([(check.name, check.outcome, check.detail) for check in self.checks])
        with pd.option_context("display.max_colwidth", None):  # or long texts are cut off
            tables = table.to_html(index=False, border=0), checks.to_html(index=False, header=False, border=0)
        reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in self.failures)
        failed = f"<p><b>Why it failed</b></p><ul>{reasons}</ul>" if reasons else ""
        title = f"<p><b>{html.escape(self.title)}</b></p>"
        return f"<div>{title}{tables[0]}<p>{html.escape(note)}</p>{tables[1]}{failed}</div>"


def shorten(name: str, width: int) -> str:
    """A long name without its middle: its end tells coordinates apart."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _wrap(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False) or [text]


def named(noun: str, items: Iterable[Any]) -> str:
    """As ``chains 0, 1, 2 and 5 more``."""
    names = [str(item) for item in items]
    listed, rest = ", ".join(names[:MAX_NAMED]), len(names) - MAX_NAMED
    return f"{noun}{'' if len(names) == 1 else 's'} {listed}{f' and {rest:,} more' if rest > 0 else ''}"


def first_few(items: Iterable[T], describe: Callable[[T], str], others: str) -> list[str]:
    """Descriptions of the first items, and how many ``others`` there are."""
    items = list(items)
    rest = [f"{len(items) - MAX_NAMED:,} more {others}"] if len(items) > MAX_NAMED else []
    return [*map(describe, items[:MAX_NAMED]), *rest]
