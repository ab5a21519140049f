"""Cards as entries of the registry of deployments: the form is followed, and nothing private is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cards import pair
from click.testing import CliRunner
from densities import make_batch, make_density

from pyro_mbde import Column, Ledger, MollifiedExpFamily, Schema, release
from pyro_mbde.cli import main
from pyro_mbde.releases.registry import TO_FILL_IN, left_to_fill_in, registry_entry, registry_yaml

SCHEMA = Schema(
    (Column("age", 18, 100, "integer", outside="drop"), Column("g`en", kind="category", levels=["A: x", "#B"])),
    constraints=("age >= 20",),
)
#: Fields of the registry's schema of July 2026, with the values that it allows where it lists them.
FORM: dict[str, set[str] | None] = {
    "url_slug": None,
    "status": {"Converted", "Draft", "Pending", "Changes Required", "Approved"},
    "tier": None,
    "deployment.basic.name": None,
    "deployment.basic.data_curators": None,
    "deployment.basic.intended_use": None,
    "deployment.basic.data_product_type": {"Summary statistics", "Machine learning model", "Dataset", "Synthetic data"},
    "deployment.basic.data_product_region": None,
    "deployment.basic.description": None,
    "deployment.basic.publication_date": None,
    "deployment.basic.data_product_sector": {
        "Technology",
        "Healthcare",
        "Education",
        "Government",
        "Energy",
        "Finance",
    },
    "deployment.dp_variant.variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
    "deployment.dp_variant.data_domain": None,
    "deployment.dp_variant.unprotected_quantities": None,
    "deployment.privacy_loss.privacy_unit": None,
    "deployment.privacy_loss.privacy_unit_details": None,
    "deployment.privacy_loss.privacy_parameters.epsilon": None,
    "deployment.privacy_loss.privacy_parameters.delta": None,
    "deployment.privacy_loss.privacy_parameters_details": None,
    "deployment.deployment_model.model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
    "deployment.deployment_model.model_name_details": None,
    "deployment.deployment_model.actors": None,
    "deployment.deployment_model.release_type": {"One release", "Many releases"},
    "deployment.deployment_model.release_type_details": None,
    "deployment.deployment_model.data_source_type": {"Static", "Dynamic"},
    "deployment.deployment_model.data_source_type_details": None,
    "deployment.deployment_model.access_type": {"Interactive", "Non-interactive"},
    "deployment.deployment_model.access_type_details": None,
    "deployment.accounting.post_processing": None,
    "deployment.accounting.composition": None,
    "deployment.implementation.preprocessing_and_hyperparameter_tuning": None,
    "deployment.implementation.mechanisms": None,
    "deployment.implementation.justification": None,
    "deployment.administrative.sources": None,
    "deployment.administrative.notes": None,
    "deployment.administrative.registry_authors": None,
}


def fields(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {path: node}
    return {
        name: value
        for key, child in node.items()
        for name, value in fields(child, f"{path}.{key}" if path else key).items()
    }


def card_of(q: MollifiedExpFamily, folder: Path, delta: float = 1e-6, **options: Any) -> dict[str, Any]:
    """The card of a release of two draws."""
    with Ledger(folder / "ledger.db") as ledger:
        ledger.open_account("rows", epsilon=10.0, delta=delta, rule="pure")
        release(
            q,
            2,
            account="rows",
            ledger=ledger,
            path=folder / "public" / "rows.csv",
            progress=False,
            **({"columns": SCHEMA} | options),
        )
    card: dict[str, Any] = json.loads((folder / "public" / "rows.card.json").read_text())
    return card


@pytest.fixture
def card(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "public").mkdir()
    return card_of(make_density(SCHEMA.base()), tmp_path, purpose="Teaching: sums", who="A clinic")


def test_every_field_of_the_form_is_there_and_holds_what_it_may(card: dict[str, Any]) -> None:
    entry = registry_entry(card)
    found = fields(entry)
    assert found.keys() == FORM.keys()
    for name, allowed in FORM.items():
        assert found[name] not in ("", [], None), name
        assert allowed is None or found[name] in allowed or TO_FILL_IN in found[name], name
    assert found["tier"] == 3
    assert found["deployment.basic.data_curators"] == ["A clinic"]
    assert found["deployment.basic.intended_use"] == "Teaching: sums"
    assert found["deployment.basic.publication_date"] == card["date"]
    assert found["deployment.privacy_loss.privacy_parameters.epsilon"] == 10.0
    assert found["deployment.privacy_loss.privacy_parameters.delta"] == 1e-6
    assert "age >= 20" in found["deployment.implementation.preprocessing_and_hyperparameter_tuning"]
    assert len(left_to_fill_in(entry)) == 8


def test_a_batch_without_delta_or_names(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    q = make_batch(SCHEMA.base(), 2, 1.0)
    entry = registry_entry(card_of(q, tmp_path, delta=1e-6))
    assert "as one batch, for one price" in entry["deployment"]["basic"]["description"].replace("\n", " ")
    (tmp_path / "second" / "public").mkdir(parents=True)
    pure = registry_entry(card_of(make_density(SCHEMA.base()), tmp_path / "second", delta=0.0))
    assert pure["deployment"]["dp_variant"]["variant_name"] == "Pure DP"
    assert "delta" not in pure["deployment"]["privacy_loss"]["privacy_parameters"]
    assert pure["deployment"]["basic"]["data_curators"][0].startswith(TO_FILL_IN)


def test_two_tables_have_one_entry(tmp_path: Path) -> None:
    entries = []
    for place, q in enumerate(pair()):
        folder = tmp_path / str(place)
        (folder / "public").mkdir(parents=True)
        entries.append(registry_yaml(registry_entry(card_of(q, folder, columns=["a", "b"]))))
    assert entries[0] == entries[1]


def test_yaml_reads_back_as_what_was_written(card: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml")
    entry = registry_entry(card)
    text = registry_yaml(entry)
    assert yaml.safe_load(text) == entry
    assert all(token.style in (None, "|", '"', "'") for token in yaml.scan(text) if hasattr(token, "style"))


def test_rows_from_a_seed_are_not_to_be_registered(card: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="A release from a seed is not to be registered"):
        registry_entry(card | {"test_only": True})


class TestCommand:
    def run(self, *words: Any) -> Any:
        return CliRunner().invoke(main, [str(word) for word in words], prog_name="pyro-mbde")

    def test_an_entry_is_shown(self, card: dict[str, Any], tmp_path: Path) -> None:
        path = tmp_path / "public" / "rows.card.json"
        result = self.run("report", path, "--registry")
        assert result.exit_code == 0
        assert result.stdout == registry_yaml(registry_entry(card)) + "\n"
        assert "8 fields are yours to fill in" in result.stderr
        assert json.loads(self.run("report", path, "--registry", "--json").stdout) == registry_entry(card)

    def test_what_is_no_card_is_refused(self, card: dict[str, Any], tmp_path: Path) -> None:
        model, test, part = tmp_path / "model.pt", tmp_path / "test.card.json", tmp_path / "part.card.json"
        model.write_bytes(b"")
        test.write_text(json.dumps(card | {"test_only": True}))
        part.write_text(json.dumps({key: value for key, value in card.items() if key != "draws"}))
        for path, message in (
            (model, "--registry is for cards"),
            (test, "fresh randomness"),
            (part, "must be a whole card"),
        ):
            result = self.run("report", path, "--registry")
            assert result.exit_code in (1, 2), path
            assert message in result.stderr


def test_the_page_names_every_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "registry.md").read_text()
    missing = [name for name in FORM if f"`{name.removeprefix('deployment.')}`" not in page]
    assert missing == []
