"""A card as text for a terminal, section by section as on its page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyro_mbde._checks import counted
from pyro_mbde.releases.card_words import column_end, column_values, percent, round_up, short_number

#: Signs of a line, and of the words in a table at least.
_WIDTH, _LEAST_WORDS = 100, 24


def card_text(card: Mapping[str, Any]) -> str:
    """Returns a card as text.

    Privacy:
        For release, as the card is.

    Args:
        card: as :func:`~pyro_mbde.releases.card.make_card` returns it, or as an earlier release did.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, IndexError: a part is missing or of another kind.
    """
    return "\n".join("".join(sign if sign.isprintable() else "\ufffd" for sign in line) for line in _lines(card))


def _lines(card: Mapping[str, Any]) -> Iterator[str]:
    cost, account, density = (card[key] for key in ("cost_of_this_release", "account", "density"))
    batches = card.get("batches")
    one, of_one = card[f"guarantee_of_one_{'row' if batches is None else 'batch'}"], _of_one(batches)
    spent = account["spent"]
    if card["test_only"]:
        yield from _wrap("TEST ONLY. These rows come from a fixed seed: nothing below holds. Do not hand them out.")
        yield ""
    yield card["title"]
    yield ", ".join(str(part) for part in (card["date"], card["who"], f"account {account['name']}") if part)
    if card["purpose"]:
        yield from _wrap(card["purpose"])
    yield ""
    yield f"{of_one} ε = {round_up(one['epsilon'])}, this release ε = {round_up(cost['epsilon'])}, " + (
        f"spent ε = {round_up(spent['epsilon'])} of {short_number(account['epsilon'])}"
    )
    if batches is not None:
        yield from _heading("One batch, one price")
        yield from _wrap(batches["text"])
    if "likeness" in card:
        yield from _heading("What the rows are like")
        yield from _wrap(card["likeness"]["text"])
    yield from _heading("What it means")
    for paragraph in card["meaning"]:
        yield from _wrap(paragraph)
    examples = card["examples"]
    yield ""
    yield from _wrap(
        f"Suppose an insurer would turn you down with probability {percent(examples[0]['chance'])} if the table were "
        f"another. With this table, the probability is then"
    )
    yield from _table(
        ["seen", "ε", "at least", "at most"],
        [[of["what"], round_up(of["epsilon"]), percent(of["at_least"]), percent(of["at_most"])] for of in examples],
    )
    yield from _heading("What is protected")
    yield from _wrap(card["protects"])
    yield from _heading("What is not promised")
    for limit in card["does_not_promise"]:
        yield from _wrap(limit, "- ")
    yield from _heading("Columns")
    yield from _table(
        ["name", "from", "to", "values"],
        [[of["name"], column_end(of, "low"), column_end(of, "high"), column_values(of)] for of in card["columns"]],
    )
    tolerance = density["tolerance"]
    tolerance = "" if tolerance is None else f", normaliser within {round_up(tolerance)} of 0"
    yield from _heading("The figures")
    yield from _facts(
        {
            of_one.capitalize(): f"{_cost(one)}, log-ratios range over {round_up(one['log_ratio_range'])} nats",
            "This release, alone": f"{_cost(cost)} ({cost['rule']})",
            "Account": f"{account['name']}: ε = {short_number(account['epsilon'])}, "
            f"δ = {short_number(account['delta'])}, rule {account['rule']}",
            "Spent, with this release": f"{_cost(spent)} ({spent['rule']})",
            "Left": f"ε = {short_number(account['epsilon_left'])}",
            "Public base": density["base_text"],
            "What the base knew": density.get("base_knowledge", ""),
            "Units of the base": density.get("base_units", ""),
            "Tilt": f"in [{short_number(density['tilt_low'])}, {short_number(density['tilt_high'])}] nats, "
            f"skew {short_number(density['skew'])}, {density['form']}{tolerance}",
            "Draws": card["draws"]["method"],
            "Randomness": card["draws"]["randomness"],
            "Made with": f"{card['software']['name']} {card['software']['version']}",
        }
    )
    yield from _heading("References")
    for reference in card["references"]:
        yield from _wrap(reference, "- ")


def _of_one(batches: Mapping[str, Any] | None) -> str:
    """What a draw is."""
    return "one row" if batches is None else f"one batch of {counted(batches['rows_of_each'], 'row')}"


def _cost(of: Mapping[str, Any]) -> str:
    return f"ε = {round_up(of['epsilon'])}, δ = {round_up(of['delta'])}"


def _heading(text: str) -> list[str]:
    return ["", text, "-" * len(text)]


def _wrap(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(
        str(text), _WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns side by side: numbers aligned right, the first column and words aligned left; long words are wrapped."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(header))]
    if header[-1] == "values":
        widths[-1] = max(_WIDTH - sum(widths[:-1]) - 2 * (len(widths) - 1), _LEAST_WORDS)
        lines = [
            [*(line[:-1] if not place else [""] * len(line[:-1])), part]
            for line in lines
            for place, part in enumerate(textwrap.wrap(line[-1], widths[-1], break_on_hyphens=False) or [""])
        ]
    for line in lines:
        cells = [
            cell.ljust(width) if place == 0 or header[place] == "values" else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, facts))
    for name, value in facts.items():
        if value:
            yield from _wrap(value, f"{name:<{width}}  ")
