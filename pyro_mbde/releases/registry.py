"""A card as an entry of a public registry of deployments: what the card states, and what only its owner can add."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from pyro_mbde.releases.card_words import column_end, column_values, percent, round_up, short_number

#: Begins what only the owner can write.
TO_FILL_IN = "TO FILL IN"
#: Characters of a line of a long text; share of an account's epsilon that pays for nothing more.
_WIDTH, _NOTHING_LEFT = 100, 0.01

_RULES = {
    "pure": "Pure composition: epsilons of all releases add up.",
    "zcdp": "Zero-concentrated composition: the rho of all releases adds up and is converted to epsilon at delta.",
    "placement": "The worst pair of laws that epsilon and total variation allow, composed over all releases.",
    "iid": "The exact curve of independent draws of one density.",
}
_UNIT = "Any group of rows, of any size, up to the whole table"
_ADJACENT = (
    "Any two tables that fit the public schema are adjacent, whatever their numbers of rows. This is integral privacy: "
    "the inequality of differential privacy for more pairs of tables. It covers all rows of a person, and all persons."
)
_TRUST = "One curator holds the table, the model and the ledger of releases, and is trusted with them."
_ACTORS = (
    "The curator sees everything. Readers see rows and their card; nothing is assumed of them, and they may share what "
    "they have. An auditor may see the ledger, in which there are no rows."
)
_CHARGED = "Certificates of densities count once each. Every release is charged to a ledger before a row is drawn."
_FLOATS = (
    "No noise is added to a private number: rows are proposals of the public base, returned unchanged, so the set of "
    "floats that can come out does not depend on the table."
)


def registry_entry(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a card as an entry of the OpenDP deployments registry, in the form of its schema of July 2026.

    The parameters are the account's limits, which cover all releases together. What the card does not hold is a text
    that begins with, or contains, :data:`TO_FILL_IN`: the curator where no name is on the card, region, sector, plans
    for later releases, how settings were chosen and why, addresses, authors.

    Privacy:
        For release: computed from the card alone.

    Args:
        card: as :func:`~pyro_mbde.releases.card.make_card` returns it, or read from a ``.card.json``.

    Returns:
        Dicts, lists, numbers and texts.

    Raises:
        ValueError: the card is of rows from a seed, which have no guarantee to register.
        KeyError, TypeError, AttributeError: it is not a whole card.

    References:
        OpenDP. deployments-registry-data, schemas/deployments-schema.yaml. 2026. Dwork, Kohli, Mulligan. Differential
        Privacy in Practice: Expose your Epsilons! 2019.
    """
    if card["test_only"]:
        raise ValueError(
            "card must be of rows drawn with fresh randomness. A release from a seed is not to be registered."
        )
    account, density, draws = card["account"], card["density"], card["draws"]
    is_first = account["spent"]["epsilon"] == card["cost_of_this_release"]["epsilon"]
    one_release = is_first and account["epsilon_left"] <= _NOTHING_LEFT * account["epsilon"]
    privacy_parameters = {"epsilon": account["epsilon"]} | ({"delta": account["delta"]} if account["delta"] > 0 else {})
    deployment = {
        "basic": {
            "name": card["title"],
            "data_curators": [card["who"] or _ask("who publishes the rows")],
            "intended_use": card["purpose"] or _ask("what the rows are for"),
            "data_product_type": "Synthetic data",
            "data_product_region": _ask("region that the rows describe, or whose laws apply"),
            "description": _paragraphs(_description(card), card.get("batches", {}).get("text", "")),
            "publication_date": card["date"],
            "data_product_sector": _ask("Technology, Healthcare, Education, Government, Energy or Finance"),
        },
        "dp_variant": {
            "variant_name": "Approximate DP" if account["delta"] > 0 else "Pure DP",
            "data_domain": _paragraphs(*_domain(card)),
            "unprotected_quantities": _paragraphs(
                "The columns, the settings, the number of rows and the public base: fixed without the table.",
                f"Base: {_code(density['base_text'])}.",
                density.get("base_knowledge", ""),
            ),
        },
        "privacy_loss": {
            "privacy_unit": _UNIT,
            "privacy_unit_details": _paragraphs(_ADJACENT, card["protects"]),
            "privacy_parameters": privacy_parameters,
            "privacy_parameters_details": _paragraphs(*_prices(card)),
        },
        "deployment_model": {
            "model_name": "Central",
            "model_name_details": _TRUST,
            "actors": _paragraphs(_ACTORS),
            "release_type": "One release" if one_release else "Many releases",
            "release_type_details": _paragraphs(
                f"The account can still pay for an epsilon of {short_number(account['epsilon_left'])}.",
                _ask("plans for further releases from the same table or the same people"),
            ),
            "data_source_type": "Static",
            "data_source_type_details": "The rows come from a density that was fitted to one table.",
            "access_type": "Non-interactive",
            "access_type_details": "A file of rows, with a card that states the guarantee.",
        },
        "accounting": {
            "post_processing": _paragraphs(
                "Rows are brought into the units of the table and rounded as the columns say.",
                density.get("base_units", ""),
            ),
            "composition": _paragraphs(f"{_RULES.get(account['rule'], account['rule'])} {_CHARGED}"),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": _paragraphs(
                *_policies(density.get("schema")),
                _ask("how epsilon, delta, skew, base and number of rows were chosen, and where that was written down"),
            ),
            "mechanisms": _paragraphs(
                _mechanism(density), f"Draws: {draws['method']}. Randomness: {draws['randomness']}.", _FLOATS
            ),
            "justification": _ask("why this epsilon, decided beforehand; what a reader of the rows may conclude"),
        },
        "administrative": {
            "sources": _paragraphs(
                *card["references"], _ask("addresses of the rows, the card, the schema and the source of pyro_mbde")
            ),
            "notes": _paragraphs(
                card.get("likeness", {}).get("text", ""),
                "Not promised:",
                *(f"- {limit}" for limit in card["does_not_promise"]),
                f"Made with {card['software']['name']} {card['software']['version']}.",
            ),
            "registry_authors": [_ask("who writes this entry")],
        },
    }
    slug = _ask("organisation, title and year, in small letters with hyphens")
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def left_to_fill_in(entry: Mapping[str, Any]) -> list[str]:
    """Returns the fields of an entry that its owner has to write, as ``deployment.basic.data_product_region``."""
    return [path for path, value in _leaves(entry) if isinstance(value, str) and TO_FILL_IN in value]


def registry_yaml(entry: Mapping[str, Any]) -> str:
    """Returns an entry as YAML in the style that the registry asks for: no folded texts.

    Example:
        >>> print(registry_yaml({"tier": 3, "deployment": {"name": "rows", "delta": 1e-06, "curators": ["A: B"]}}))
        tier: 3
        deployment:
          name: "rows"
          delta: 1.0e-06
          curators:
            - "A: B"
    """
    return "\n".join(_yaml(entry, ""))


def _yaml(node: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml(value, f"{indent}  ")
        elif isinstance(value, list):
            yield f"{indent}{key}:"
            yield from (f"{indent}  - {_scalar(item)}" for item in value)
        elif isinstance(value, str) and (len(value) > _WIDTH or "\n" in value):
            yield f"{indent}{key}: |-"
            yield from (f"{indent}  {line}".rstrip() for line in value.split("\n"))
        else:
            yield f"{indent}{key}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = repr(value)  # a number of YAML 1.1 with an exponent has a point
    return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for value in node:
            yield from _leaves(value, path)
    else:
        yield path, node


def _ask(what: str) -> str:
    return f"{TO_FILL_IN}: {what}"


def _paragraphs(*parts: str) -> str:
    """Texts as paragraphs of wrapped lines; what no YAML can hold is replaced."""
    wrapped = []
    for part in filter(None, parts):
        clean = "".join(sign if sign.isprintable() else "\ufffd" for sign in part)
        hanging = "  " if clean.startswith("- ") else ""
        wrapped.append(
            textwrap.fill(clean, _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
        )
    text = ""
    for before, part in pairwise(["", *wrapped]):  # items of a list are not set apart
        text += ("\n" if before.startswith("- ") and part.startswith("- ") else "\n\n" if before else "") + part
    return text


def _code(name: str) -> str:
    """A name as Markdown shows it letter by letter."""
    return f"`{name.replace('`', '')}`"


def _description(card: Mapping[str, Any]) -> str:
    names = ", ".join(_code(column["name"]) for column in card["columns"])
    return f"Made-up rows ({card['num_rows']:,}) of a table with the columns {names}."


def _domain(card: Mapping[str, Any]) -> Iterator[str]:
    for column in card["columns"]:
        ends = (
            "" if column.get("levels") is not None else f", {column_end(column, 'low')} to {column_end(column, 'high')}"
        )
        yield f"- {_code(column['name'])}: {column_values(column)}{ends}"


def _prices(card: Mapping[str, Any]) -> Iterator[str]:
    cost, spent, batches = card["cost_of_this_release"], card["account"]["spent"], card.get("batches")
    one = card[f"guarantee_of_one_{'row' if batches is None else 'batch'}"]
    yield "Epsilon (in nats) and delta are the limits of the account, which cover all releases together."
    yield f"This release alone: epsilon {round_up(cost['epsilon'])}, delta {round_up(cost['delta'])} ({cost['rule']})."
    what = "row" if batches is None else "batch"
    yield f"One {what}: epsilon {round_up(one['epsilon'])}, delta {round_up(one['delta'])}."
    yield f"Spent with this release: epsilon {round_up(spent['epsilon'])}, delta {round_up(spent['delta'])}."
    for example in card["examples"]:
        yield (
            f"{example['what']}: a decision with a chance of {percent(example['chance'])} under another table has one "
            f"from {percent(example['at_least'])} to {percent(example['at_most'])} with this one."
        )


def _policies(schema: Any) -> Iterator[str]:
    """What was done to values that a column cannot hold: by rules of the schema, or without one by the fit."""
    if not isinstance(schema, Mapping):
        yield (
            "Rows with values that are NaN or infinite, or with fractions where the base has whole numbers, "
            "were left out."
        )
        return
    yield "Values that a column cannot hold, by rules of the public schema:"
    for name, default in (("outside", "clip"), ("missing", "drop")):
        ways: dict[str, list[str]] = {}
        for column in schema.get("columns", []):
            ways.setdefault(str(column.get(name) or default), []).append(_code(str(column["name"])))
        yield from (f"- {name}, {way}: {', '.join(columns)}." for way, columns in ways.items())
    kept = [*(schema.get("constraints") or []), *filter(None, [schema.get("condition")])]
    if kept:
        yield f"Rows that do not satisfy {', '.join(map(_code, kept))} were left out."


def _mechanism(density: Mapping[str, Any]) -> str:
    low, high = (short_number(density[f"tilt_{end}"]) for end in ("low", "high"))
    text = (
        f"A learned log density ratio to the public base, clipped to [{low}, {high}] nats ({density['form']}, skew "
        f"{short_number(density['skew'])}"
    )
    if density["tolerance"] is not None:
        text += (
            f"; normaliser proved within {round_up(density['tolerance'])} of 0 by betting on fresh draws of the base"
        )
    return f"{text}). Implemented by pyro_mbde."
