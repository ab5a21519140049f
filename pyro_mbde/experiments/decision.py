"""The decision picture: from which group size on ours is better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyro_mbde.experiments.style import ORANGE, PALE, add_caption, quick_note
from pyro_mbde.experiments.sweeps import GROUP_SIZES, NUM_ROWS
from pyro_mbde.experiments.systems import BASELINES, LOOKS
from pyro_mbde.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How ours is drawn for each number of rows.
_LINES = dict(zip(NUM_ROWS, ("-", "--", ":"), strict=True))
#: Two NLL that are nearer than this, in nats, count as equal.
_TIE = 0.01


def plot_decision(table: pd.DataFrame) -> Figure:
    """NLL against the size of the groups protected, a panel for each total budget."""
    totals = _totals(table)
    figure = new_figure(5.2 * len(totals) + 2.6, 5.4)
    axes: Any = figure.subplots(1, len(totals), sharey=True, squeeze=False)
    base = float(table.loc[table["system"] == "base", "nll"].mean())
    problem = str(table["problem"].iloc[0])
    places = {size: place for place, size in enumerate(GROUP_SIZES)}
    worst = base
    for axis, total in zip(axes[0], totals, strict=True):
        for system in BASELINES:
            rows = table[(table["system"] == system) & (table["epsilon"] == total)]
            groups = rows.assign(place=rows["group_size"].map(places)).groupby("place")["nll"]
            look, middle = LOOKS[system], groups.median()
            label = "DPB" if system == "dpb" else look.label
            axis.plot(middle, label=label, **look.line())
            axis.fill_between(middle.index, groups.min(), groups.max(), color=look.color, alpha=0.15, linewidth=0)
        for num_rows, line in _LINES.items():
            ours = _ours(table, total, num_rows)
            axis.axhspan(ours.min(), ours.max(), color=ORANGE, alpha=0.15, linewidth=0)
            axis.axhline(ours.median(), color=ORANGE, linestyle=line, label=f"ours, k = {num_rows} rows")
        axis.axhline(base, color=PALE, linewidth=1, label="public base alone")
        axis.set_xticks(list(places.values()), ["all" if size == 0 else f"{size:,}" for size in places])
        axis.set(xlabel="rows protected together, g", title=f"total budget E = {total:g} nats")
    lowest = float(table["nll"].replace([np.inf, -np.inf], np.nan).min())
    if worst > lowest:  # not where the base's job failed
        axes[0, 0].set_ylim(lowest - 0.1 * (worst - lowest), worst + 0.6 * (worst - lowest))
    axes[0, 0].set_ylabel("NLL, nats (what is above the frame is worse than the base)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    where = "a tenth of the medical table, held out" if problem == "medical" else "the ring, over a uniform base"
    add_caption(
        figure,
        f"{quick_note(table)}On {where}. Everything costs E in total, for groups of g rows. Ours: k rows "
        "drawn together, as one batch, at δ = 1e-9, whatever g; NLL of a batch over k. Baselines: noise for g rows "
        "replaced, δ = 0 (DPB) or 1e-5 (the others, whose guarantees are of rows added or left out: 2g of them). DPGAN "
        "(2,000 steps) and the flow: DP-SGD at E/2g or ρ/4g², whichever takes less noise; MST: ρ/4g² of zCDP. "
        "Baselines hand out as many rows as one likes. Lines: medians of the repeats; bands: all of them. What is not "
        "shown lies above the frame.",
        75 * len(totals) + 35,
    )
    return figure


def crossings(table: pd.DataFrame) -> pd.DataFrame:
    """Returns from which group size on ours is the better choice, for each total budget and number of rows.

    Returns:
        Columns ``total``, ``rows``, ``nll`` of ours, ``baseline_of_one`` and ``its_nll`` of the best baseline that
        protects one row, and ``from_group``: the least size g such that at g and every larger one no baseline's median
        NLL is lower by more than 0.01 nats; ``never`` where a baseline is better even for all rows, ``unknown`` where
        ours or all jobs of some baseline failed; ``base`` where ours is no better than the public base, which is free.
    """
    records = []
    base = float(table.loc[table["system"] == "base", "nll"].mean())
    for total in _totals(table):
        baselines = table[table["system"].isin(BASELINES) & (table["epsilon"] == total)]
        medians = baselines.groupby(["group_size", "system"])["nll"].median().unstack().reindex(columns=list(BASELINES))
        best = medians.min(axis=1, skipna=False)
        alone = medians.loc[min(size for size in medians.index if size)].dropna()
        sizes = [size for size in GROUP_SIZES if size in medians.index]
        for num_rows in NUM_ROWS:
            ours = float(_ours(table, total, num_rows).median())
            first = "never"
            for size in reversed(sizes):
                if math.isnan(best[size]) or math.isnan(ours):
                    first = "unknown"
                    break
                if ours > base - _TIE:
                    first = "base"
                    break
                if best[size] < ours - _TIE:
                    break
                first = "all" if size == 0 else str(size)
            records.append(
                {
                    "total": total,
                    "rows": num_rows,
                    "nll": ours,
                    "baseline_of_one": "none" if alone.empty else str(alone.idxmin()),
                    "its_nll": float(alone.min()),
                    "from_group": first,
                }
            )
    return pd.DataFrame(records)


def _totals(table: pd.DataFrame) -> list[float]:
    return sorted(table.loc[table["system"].isin(BASELINES), "epsilon"].unique())


def _ours(table: pd.DataFrame, total: float, num_rows: int) -> pd.Series[float]:
    """NLL of the repeats of ours, a batch of so many rows for the total."""
    ours = (table["system"] == "projection") & (table["epsilon"] == total) & (table["num_rows"] == num_rows)
    return table.loc[ours, "nll"]
