"""A first draft of a schema: names and kinds of a table's columns, and nothing that is read from their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_mbde.tables.cells import BEGINS_WITH_DIGIT
from pyro_mbde.tables.schema_files import toml_value

if TYPE_CHECKING:
    import pandas as pd

_HEADER = """\
# A draft: names and types of {count}, read from {source}.
# No smallest or largest value, no level and no mean was read. In a CSV file a column's type follows from its cells: one
# empty cell makes whole numbers real, one odd cell makes numbers text. So take each kind from the codebook too.
# Put what the codebook says in place of each "?", and take the # off what is published. Nothing may come from the
# table itself: the guarantee would be void. Delete columns that are not to be released.
"""
#: What the codebook has to say of a kind, as comments.
_ASKED = {
    "real": (
        'low = "?"    # smallest possible value, from the codebook',
        'high = "?"   # largest possible value',
        "# decimals = 2        # digits after the point that released values have",
        '# scale = "log1p"     # for incomes, costs and the like: models ln(1 + x)',
        "# mean =              # if published: mean and standard deviation of people like these",
        "# sd =",
    ),
    "integer": (
        'low = "?"    # smallest possible value, from the codebook',
        'high = "?"   # largest possible value',
        "# mean =              # if published: mean and standard deviation, or quantiles = {0.1 = , 0.5 = , 0.9 = }",
        "# sd =",
        '# kind = "category"   # instead of the lines above, with levels = [...], if numbers are codes as 1 = married',
    ),
    "category": (
        'levels = ["?"]   # all levels of the codebook, also those that no row has',
        "# shares = {}         # if published: the share of each level",
        '# kind = "ordered"    # instead of the kind above, if the levels have an order: list them from the lowest',
        '# kind = "date"       # instead of kind and levels, with low and high, if these are dates as "2020-01-31"',
        '# kind = "boolean"    # instead of kind and levels, if these are yes and no',
    ),
    "boolean": ("# shares = {true = , false = }   # if published",),
    "date": (
        'low = "?"    # first possible date, as "2020-01-31"',
        'high = "?"   # last possible date',
        '# resolution = "month"   # or "year"; "day" is the default',
    ),
    "datetime": (
        'low = "?"    # first possible time, as "2020-01-31T00:00"',
        'high = "?"   # last possible time',
        '# resolution = "hour"    # or "second", "day"; "minute" is the default',
    ),
}
_OF_ALL = (
    '# outside = "drop"     # leaves out rows with impossible values, such as 999 for unknown; "clip" moves them',
    '# missing = "level"    # keeps missing values as they are; "drop", the default, leaves out their rows',
    "# missing_share =      # if published",
)


def draft_schema(frame: pd.DataFrame, source: str = "the table") -> str:
    """Returns the text of a schema file that has a table's column names and kinds, and questions on the rest.

    Privacy:
        Of the table it reads names and types of columns. In a file of text a type follows from the cells, so that a
        single one can change it: the owner takes kinds from the codebook.

    Args:
        frame: the table.
        source: what to call it.

    Raises:
        ValueError: a name begins with a digit: the first line may be a row of the table, and not a header.

    Example:
        >>> import pandas as pd
        >>> print(draft_schema(pd.DataFrame({"smoker": [True, False]})).partition("[[columns]]")[2])
        <BLANKLINE>
        name = "smoker"
        kind = "boolean"
        # shares = {true = , false = }   # if published
        # outside = "drop"     # leaves out rows with impossible values, such as 999 for unknown; "clip" moves them
        # missing = "level"    # keeps missing values as they are; "drop", the default, leaves out their rows
        # missing_share =      # if published
        <BLANKLINE>
    """
    if numbers := [place for place, name in enumerate(frame.columns, 1) if BEGINS_WITH_DIGIT.match(str(name))]:
        remedy = "The first line of a file must name the columns. Rename it if it does."
        raise ValueError(
            f"columns must have names that do not begin with a digit, but column {numbers[0]} has. {remedy}"
        )
    count = "one column" if frame.shape[1] == 1 else f"{frame.shape[1]:,} columns"
    parts = [_HEADER.format(count=count, source=source)]
    for place, name in enumerate(frame.columns):
        kind = kind_of_dtype(frame.dtypes.iloc[place])
        lines = ["[[columns]]", f"name = {toml_value(str(name))}", f'kind = "{kind}"', *_ASKED[kind], *_OF_ALL]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def kind_of_dtype(dtype: Any) -> str:
    """Returns the kind of column that a type suggests."""
    import pandas as pd

    types = pd.api.types
    if types.is_bool_dtype(dtype):
        return "boolean"
    if types.is_integer_dtype(dtype):
        return "integer"
    if types.is_datetime64_any_dtype(dtype):
        return "datetime"
    if types.is_numeric_dtype(dtype):
        return "real"
    if "date32" in str(dtype) or "date64" in str(dtype) or dtype == np.dtype("datetime64[D]"):
        return "date"
    return "category"
