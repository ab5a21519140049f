"""Names of accounts and columns: which are the same, and which only look the same."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

#: What looks like a letter or a sign, letter case apart. The pairs of Latin, Greek and Cyrillic letters and of signs
#: are those of Unicode's confusables.txt (Unicode Technical Standard 39); with kappas beside k, and small capitals.
#: Each group is a letter or sign, and then what looks like it.
_SHAPES: dict[str, str] = {
    signs[0]: signs[1:]
    for signs in """
    '’‘‛ʼʻʹ′‵ꞌ *∗ -‐‒–—―−⁃˗ /∕⁄ :∶ ~∼
    2Ƨ 3ƷȜЗӠ 5Ƽ 6б 8Ȣȣ
    AΑА BΒВ CС EΕЕ FϜ GԌ HΗН JͿЈ KΚК MΜϺМ NΝ OΟО PΡР RƦ SЅ TΤТ VѴ WԜ XΧХ YΥУҮ ZΖ
    aɑαаᴀ bƄЬʙ cсᴄ dԁᴅ eеҽᴇ fẝꜰ gɡƍᶃɢ hһʜ iıɩɪιіӏ jϳјᴊ kκкĸᴋ l1I|ƖǀΙІӀʟ mᴍ nɴ o0οσоᴏᴑ pρрᴘᴩ qԛꞯ rгᴦʀ
    sƽѕꜱ tᴛ uʋυᴜ vνѵᴠ wɯѡԝᴡ xх× yɣʏγуүᶌỿ zᴢ
    ΓГ ΛЛ ΠП πп ΦФ φф
    """.split()
}
_SHAPE_OF = str.maketrans({sign: shape for shape, signs in _SHAPES.items() for sign in signs})
#: Twice the characters that match over the characters of both names, at least: 0.8 allows one in five to be wrong.
_SIMILAR = 0.8
#: Pairs of letters that look like one; not cl and d, as clay and day may be columns of one table.
_PAIRS = {"rn": "m", "vv": "w", "VV": "W"}
#: Letters and marks that are drawn as nothing, besides the format characters.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for first, last in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF)) for code in range(first, last + 1)
}


def normal_name(name: str) -> str:
    r"""Returns a name in Unicode's form NFKC: an é of one character and of two become one, full-width letters plain.

    Example:
        >>> normal_name("cafe\u0301") == "caf\xe9", normal_name("２０２６")
        (True, '2026')
    """
    return unicodedata.normalize("NFKC", name)


def look_alike(one: str, other: str) -> bool:
    r"""Whether two names look alike: they differ only in letter case, look-alike characters or invisible characters.

    Compared are single characters, small capitals among them, and ``rn`` with ``m`` and ``vv`` with ``w``.

    Example:
        >>> look_alike("clinic-2026", "Clinic\u20102026"), look_alike("ward-1", "ward-2")
        (True, False)
    """
    return any(first == second for first, second in zip(_looks(one), _looks(other), strict=True))


def find_look_alike(name: str, others: Iterable[str]) -> str | None:
    """Returns the first of other names that looks like a name, or None."""
    return next((other for other in others if look_alike(name, other)), None)


def is_similar(name: str, others: Iterable[str]) -> bool:
    """Returns whether one of other names is a name, or differs from it by no more than a typing error would make it.

    Letter case and blanks at the ends make no difference. Four in five of the characters of both must match, in order.

    Example:
        >>> is_similar("visits", ["Alice", " Vists"]), is_similar("age", ["Alice", "Agnes"])
        (True, False)
    """
    name, *folded = (normal_name(one).strip().casefold() for one in (name, *others))
    return bool(difflib.get_close_matches(name, folded, n=1, cutoff=_SIMILAR))


def check_distinct(subject: str, names: Sequence[str]) -> None:
    """Raises where people cannot tell two names apart; the error shows their characters.

    Args:
        subject: what the error calls the names.
        names: all of them.
    """
    seen: dict[tuple[int, str], str] = {}
    for name in names:
        for looks in enumerate(_looks(name)):
            other = seen.setdefault(looks, name)
            if other is not name:
                constraint = "have names that people can tell apart"
                found = f"{ascii(other)} and {ascii(name)}"
                raise ValueError(f"{subject} must {constraint}, got {found}. Rename one of them.")


def same_names(wanted: Sequence[str], there: Iterable[object]) -> dict[object, str]:
    """Returns which labels are wanted names in another form of Unicode, by label."""
    labels = list(there)
    found: dict[object, str] = {}
    for name in wanted:
        same = [label for label in labels if isinstance(label, str) and normal_name(label) == normal_name(name)]
        if name not in labels and len(same) == 1:
            found[same[0]] = name
    return found


def look_alike_hint(missing: Iterable[str], there: Iterable[object]) -> str:
    """Returns what to say of names that are missing where others look like them; nothing where none does."""
    labels = [label for label in there if isinstance(label, str)]
    pairs = [(name, find_look_alike(name, labels)) for name in missing]
    return "".join(
        f" There is {ascii(other)}, which looks like {ascii(name)} and differs from it."
        for name, other in pairs
        if other is not None
    )


def near_miss_hint(missing: str, there: Iterable[str]) -> str:
    """Returns which name was meant by one that is missing, where one is close; nothing where none is.

    Close is one that differs by few letters, or by the order of the letters alone.

    Example:
        >>> near_miss_hint("patient-2026", ["survey", "patients-2026"]), near_miss_hint("other", ["survey"])
        ("Did you mean 'patients-2026'?", '')
    """
    folded, wanted = {normal_name(name).casefold(): name for name in there}, normal_name(missing).casefold()
    swapped = [name for name in folded if len(wanted) > 2 and sorted(name) == sorted(wanted)]
    close = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.75) or swapped
    return f"Did you mean {folded[close[0]]!r}?" if close else ""


def _looks(name: str) -> tuple[str, str]:
    """What a name looks like if letter case does not matter, and if 1, l and a capital I are the same."""
    parts = unicodedata.normalize("NFKD", name)
    seen = (sign for sign in parts if sign.isspace() or (unicodedata.category(sign) != "Cf" and sign not in _BLANK))
    plain = " ".join("".join(_digit(sign) for sign in seen).split())
    return _joined(plain).casefold().translate(_SHAPE_OF), _joined(plain.translate(_SHAPE_OF)).casefold()


def _joined(name: str) -> str:
    """A name with one letter for each pair of letters that looks like it."""
    for pair, letter in _PAIRS.items():
        name = name.replace(pair, letter)
    return name


def _digit(sign: str) -> str:
    """The digit of any script as 0 to 9."""
    return str(unicodedata.decimal(sign)) if unicodedata.category(sign) == "Nd" else sign
