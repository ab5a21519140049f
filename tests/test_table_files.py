"""Tables and fitted models in files."""

from __future__ import annotations

import stat
from pathlib import Path

import pandas as pd
import pytest
import torch
from densities import make_density

from pyro_mbde import Column, MollifiedExpFamily, PrivacyLeakWarning, Schema
from pyro_mbde.serialization import read_file, write_file
from pyro_mbde.tables.files import TableModel, read_table

SCHEMA = Schema((Column("age", 0, 110), Column("visits", 0, 9, "integer")))


class TestTables:
    @pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "CSV"])
    def test_read(self, ending: str, tmp_path: Path) -> None:
        frame, path = pd.DataFrame({"age": [1.5, 2.0], "name": ["a", "b"]}), tmp_path / f"table.{ending}"
        if ending == "parquet":
            pytest.importorskip("pyarrow")
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False)
        pd.testing.assert_frame_equal(read_table(path), frame)

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", "EmptyDataError"),
            (b"age,visits\n1,2\n31337,424242,9\n", "ParserError near line 3"),
            (b"age,visits\n31337,424242,9\n31337,2,9\n", "ParserWarning"),
            (b"age\n\xff31337\xfe\n", "UnicodeDecodeError"),
        ],
        ids=["empty", "longer row", "longer rows", "bytes"],
    )
    def test_damaged(self, content: bytes, text: str, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=text) as caught:
            read_table(path)
        assert "31337" not in str(caught.value)
        assert "424242" not in str(caught.value)

    def test_no_table(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="path must end in .csv, .csv.gz, .parquet"):
            read_table(tmp_path / "table.xlsx")
        with pytest.raises(FileNotFoundError):
            read_table(tmp_path / "table.csv")
        pytest.importorskip("pyarrow")
        (tmp_path / "table.parquet").write_bytes(b"PAR1 no such thing")
        with pytest.raises(ValueError, match="path must name a table"):
            read_table(tmp_path / "table.parquet")

    def test_parquet_without_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(path: object) -> None:
            raise ImportError("no engine")

        monkeypatch.setattr(pd, "read_parquet", missing)
        with pytest.raises(ImportError, match=r"pip install 'pyro_mbde\[parquet\]'"):
            read_table(tmp_path / "table.parquet")


class TestModels:
    def test_save_and_load(self, tmp_path: Path) -> None:
        model = TableModel(make_density(SCHEMA.base()), SCHEMA, {"method": "ratio", "epsilon": 1.0})
        path = tmp_path / "model.pt"
        model.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        loaded = TableModel.load(path)
        assert (loaded.schema, loaded.settings) == (SCHEMA, model.settings)
        rows = SCHEMA.base().sample((5,))
        assert torch.equal(loaded.density.log_prob(rows), MollifiedExpFamily.load(path).log_prob(rows))

    def test_a_density_saved_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "density.pt"
        make_density(SCHEMA.base()).save(path)
        loaded = TableModel.load(path)
        assert loaded.schema is None
        assert not loaded.settings

    @pytest.mark.parametrize("damage", [{"schema": 3}, {"settings": 3}])
    def test_damaged(self, damage: dict[str, int], tmp_path: Path) -> None:
        path = tmp_path / "model.pt"
        TableModel(make_density(SCHEMA.base()), SCHEMA).save(path)
        content = read_file(path, "MollifiedExpFamily", (4,))
        write_file(path, "MollifiedExpFamily", 4, content | damage)
        with pytest.raises(ValueError, match="undamaged"):
            TableModel.load(path)


def test_a_model_beside_a_release_card_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "rows.card.json").touch()
    with pytest.warns(PrivacyLeakWarning, match="as sensitive as the table.*holds a release card"):
        TableModel(make_density(SCHEMA.base()), SCHEMA).save(tmp_path / "model.pt")
