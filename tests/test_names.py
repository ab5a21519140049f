"""Names that are equal, that look alike, and that differ."""

from __future__ import annotations

import itertools
import unicodedata

import pandas as pd
import pytest
import torch

from pyro_mbde import Column, Schema
from pyro_mbde.names import check_distinct, find_look_alike, look_alike, look_alike_hint, normal_name, same_names
from pyro_mbde.releases.columns import released_columns

ALIKE = [
    ("clinic-2026", "clinic\u20102026"),  # hyphen
    ("clinic-2026", "clinic\u20112026"),  # non-breaking hyphen
    ("clinic-2026", "clinic\u22122026"),  # minus
    ("clinic-2026", "clinic\u20132026"),  # en dash
    ("clinic-2026", "Clinic-2026"),
    ("clinic-2026", "CLINIC-2O26"),
    ("clinic-2026", "clinic-２０２６"),
    ("clinic-2026", "clinic-٢٠٢٦"),  # the same digits in Arabic
    ("clinic-2026", "сlinic-2026"),  # Cyrillic es
    ("clinic-2026", "clіnіc-2026"),  # Cyrillic i
    ("clinic-2026", "clinic-2026\ufe0f"),
    ("clinic-2026", "cli\u200bnic-2026"),
    ("clinic-2026", "clinic\u00ad-2026"),
    ("caf\u00e9", "cafe\u0301"),
    ("café", "CAFÉ"),
    ("café", "cafе\u0301"),  # Cyrillic ie
    ("straße", "STRASSE"),
    ("ΑΒΕ", "ABE"),  # Greek
    ("ВЕС", "BEC"),  # Cyrillic
    ("ВЕС", "вес"),
    ("Париж", "ПАРИЖ"),
    ("ward-1", "ward-l"),
    ("ward-1", "ward-I"),
    ("I", "i"),
    ("x0", "xO"),
    ("Alter", "Alter\u00a0"),
    ("a b", "a\u2003b"),
    ("a b", " a  b "),
    ("patient's", "patient’s"),
    ("５", "5"),
    ("x\u3164", "x"),
    ("rn", "m"),
    ("modern", "modem"),
    ("vvard", "ward"),
    ("VV", "W"),
    ("ᴀge", "age"),
    ("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz"),
    ("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "ABCDEFGHIJKLMNOPQRSTUVWYZ"),
]
DIFFERENT = [
    ("clinic-2026", "clinic-2027"),
    ("clinic-2026", "clinic_2026"),
    ("clinic-2026", "clinic 2026"),
    ("clinic-2026", "clinic2026"),
    ("x1", "xi"),
    ("x1", "x2"),
    ("resume", "résumé"),
    ("uber", "über"),
    ("age", "ages"),
    ("数", "値"),
    ("рост", "вес"),
    ("", "a"),
    ("RN", "M"),
    ("clay", "day"),
    ("r_n", "m"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_alike(one: str, other: str) -> None:
    assert one != other
    assert look_alike(one, other) and look_alike(other, one) and look_alike(one, one)
    assert find_look_alike(one, ["else", other]) == other
    with pytest.raises(ValueError, match="names must have names that people can tell apart") as caught:
        check_distinct("names", [one, "else", other])
    assert str(caught.value).isascii()


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different(one: str, other: str) -> None:
    assert not look_alike(one, other) and not look_alike(other, one)
    check_distinct("names", [one, other])


def test_ordinary_names_are_told_apart() -> None:
    names = [f"x{number}" for number in range(300)]
    names += ["age", "visits", "cost", "Größe", "größe_cm", "Alter", "taux d'été", "m", "m2", "kg/m2", "t-1", "t-2"]
    check_distinct("columns", names)
    assert all(len({normal_name(one), normal_name(two)}) == 2 for one, two in itertools.combinations(names, 2))


def test_every_shape_is_another_character_of_the_same_kind() -> None:
    from pyro_mbde.names import _SHAPES

    signs = [sign for signs in _SHAPES.values() for sign in signs]
    assert len(signs) == len(set(signs)) and not set(signs) & set(_SHAPES)
    for shape, signs_of_shape in _SHAPES.items():
        for sign in signs_of_shape:
            assert unicodedata.normalize("NFKD", sign) == sign, f"{sign!r} is never seen: it is taken apart before"
            assert look_alike(f"a{sign}", f"a{shape}")


class TestColumns:
    @pytest.mark.parametrize(("one", "other"), [("age", "Age"), ("age", "аge"), ("caf\u00e9", "cafe\u0301")])
    def test_two_of_a_schema(self, one: str, other: str) -> None:
        columns = (Column(one, 0, 1), Column(other, 0, 1))
        with pytest.raises(
            ValueError, match="columns must have names that people can tell apart.*Rename one"
        ) as caught:
            Schema(columns)
        assert ascii(one) in str(caught.value) and ascii(other) in str(caught.value)

    def test_two_of_a_release(self, plane: object) -> None:
        with pytest.raises(ValueError, match="columns must have names that people can tell apart"):
            released_columns(plane, ["age", "Age"])  # type: ignore[arg-type]  # a density

    def test_a_header_in_another_form_of_unicode_is_found(self) -> None:
        schema = Schema((Column("caf\u00e9", 0, 1),))
        rows = schema.to_tensor(pd.DataFrame({"cafe\u0301": [0.5], 3: [1.0]}))
        assert torch.equal(rows, torch.tensor([[0.5]]))

    @pytest.mark.parametrize("header", ["Alter\u00a0", "alter", "Аlter", " Alter"])
    def test_a_header_that_only_looks_the_same_is_named(self, header: str) -> None:
        schema = Schema((Column("Alter", 0, 110),))
        with pytest.raises(ValueError) as caught:
            schema.to_tensor(pd.DataFrame({header: [30.0]}))
        assert f"There is {ascii(header)}, which looks like 'Alter' and differs from it." in str(caught.value)

    def test_what_is_renamed(self) -> None:
        assert same_names(["é"], ["é", "e\u0301"]) == {}  # the very name is there
        assert same_names(["é"], ["e\u0301", "x", 5]) == {"e\u0301": "é"}
        assert same_names(["㎏"], ["kg", "k\uff47"]) == {}  # which of the two
        assert look_alike_hint(["age"], ["weight", 5]) == ""
