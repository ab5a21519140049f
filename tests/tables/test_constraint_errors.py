"""The language of constraints: errors, and hostile texts."""

from __future__ import annotations

import random
import re
import string

import pytest
import torch
from constraint_facts import (
    ALL,
    TRUE,
    Facts,
    row,
)

from pyro_mbde.density.predicates import evaluate
from pyro_mbde.tables.constraint_text import MAX_LENGTH
from pyro_mbde.tables.constraints import compile_condition, compile_constraint

#: What is wrong: the text, the piece that is marked, what must hold, and what to do.
WRONG: list[tuple[str, str, str, str]] = [
    ("", "", "end with a condition", "Something is missing here."),
    ("age", "age", "have a condition here", "Compare it with something."),
    ("age >", "", "end with a condition", "Something is missing here."),
    ("maried_years > 3", "maried_years", "name columns", "Did you mean 'married_years'?"),
    ("aeg > 3", "aeg", "name columns", "Did you mean 'age'?"),
    ("`Age` > 3", "`Age`", "name columns", "Did you mean 'age'?"),
    ("\u0430ge > 3", "\u0430ge", "name columns", r"There is 'age', which looks like '\u0430ge' and differs from it."),
    ("weight + 1 > 3", "weight", "name columns", "The columns are 'age', 'married_years', "),
    ("weight is missing", "weight", "name columns", "'discharged' and 9 more."),
    ("sex = f", "f", "name a level of 'sex'", "Did you mean 'F'?"),
    ("sex = male", "male", "name a level of 'sex'", "Its levels are 'F', 'M'."),
    ("pregnant = maybe", "maybe", "name a level of 'pregnant'", "Its levels are 'no', 'yes'."),
    ("region = 4", "4", "name a level of 'region'", "Its levels are '1', '2', '10'."),
    ("icd = 1.0", "1.0", "name a level of 'icd'", "Its levels are '01', '1', 'A 2'."),
    ("sex = missing", "missing", "name a level of 'sex'", "Write sex is missing."),
    ("sex < M", "sex < M", "compare what has an order", "The levels of 'sex' have no order. Use =, != or in {...}"),
    ("sex in [F, M]", "sex in [F", "compare what has an order", "give it the kind ordered."),
    ("sex = F or M", "M", "have a condition here", "It is a level of 'sex': write sex = M, or list levels after in."),
    ("sex = 3", "3", "name a level of 'sex'", "Its levels are 'F', 'M'."),
    ("age = sex", "age = sex", "compare like with like, not 'age' (a number) with 'sex' (levels)", "A column's kind"),
    ("stage = age + 1", "stage = age + 1", "compare like with like", "A column's kind is stated in the schema."),
    ("sex = stage", "sex = stage", "compare like with like", "if they have the same levels, in the same order."),
    ("age > '18'", "age > '18'", "compare like with like", "Write numbers without quotes."),
    ("'age' > 18", "'age' > 18", "compare like with like", "A name in quotes is a text: write it without quotes"),
    ("age + '3' > 18", "'3'", "calculate with numbers here", "Write the number without quotes."),
    ("'a' = 'b'", "'a' = 'b'", "compare something with a column", "A name in quotes is a text"),
    ("1 < 2", "1 < 2", "compare something with a column", "Both sides are fixed values."),
    ("admitted > 5", "admitted > 5", "compare like with like", "Write a date as 2020-01-31; the difference of two"),
    ("admitted > 2020", "admitted > 2020", "compare like with like", "Write a date as 2020-01-31"),
    ("admitted + discharged > 5", "admitted + discharged", "add days to a date", "The difference of two dates is in"),
    ("5 - admitted > 5", "5 - admitted", "subtract days from a date", "Write the date first."),
    ("-admitted > 5", "admitted", "calculate with numbers here", "Dates can be subtracted from one another"),
    ("2 * admitted > 5", "admitted", "calculate with numbers here", "Dates can be subtracted from one another"),
    ("admitted > 2020-02-30", "2020-02-30", "have dates of the calendar", "Day is out of range for month"),
    ("admitted > '2020-02'", "'2020-02'", "have a date here", "Write it as 2020-01-31, or with a time"),
    ("admitted > 'soon'", "'soon'", "have a date here", "Write it as 2020-01-31, or with a time"),
    ("admitted > 2020-01-31 12:00", ":", "hold names, numbers and signs", "Put a date with a time in quotes"),
    ("age_group = 18-29", "18-29", "have such a level in quotes", "Write '18-29'."),
    ("age_group = not known", "not known", "have such a level in quotes", "Write 'not known'."),
    ("sex = not known", "not known", "have a column or a value here", "Levels of several words go in 'quotes'."),
    ("age_group = 30 +", "", "end with a condition", "Something is missing here."),
    ("sex + 1 > 3", "sex", "calculate with numbers and dates alone", "'sex' has levels."),
    ("age in [80, 60]", "80, 60", "have the lower end of a range first", "Swap the ends."),
    ("stage in [III, II]", "III, II", "have the lower end of a range first", "Swap the ends."),
    ("age in [60]", "[60]", "have two ends in a range", "For a set of values write braces: {A, B}."),
    ("age in [1, 2, 3]", "[1, 2, 3]", "have two ends in a range", "For a set of values write braces: {A, B}."),
    ("age in (60, 80)", "(", "have a range or a set after in", "Write in [low, high] or in {A, B}."),
    ("age in {rent}", "rent", "have values in a set", "Compare columns by =, and join comparisons by or."),
    ("age in {}", "}", "have a column or a value here", ""),
    ("age = [1, 2]", "[", "have a column or a value here", "Lists only follow in, as in: age in [60, 80]."),
    ("rent is missing", "rent", "ask for missing values only where", 'Give the column \'rent\' missing = "level"'),
    ("age + 1 is missing", "age + 1", "ask of a column whether it is missing", "Name one column before is."),
    ("age is 3", "3", "have missing or not missing after is", "Write = to compare."),
    ("age not 3", "3", "have in after not here", "Write not in"),
    ("age =< 3", "=<", "hold signs of the language", "Write <=."),
    ("age => 3", "=>", "hold signs of the language", "Write >=."),
    ("age <> 3", "<>", "hold signs of the language", "Write !=."),
    ("age > 3 & rent > 3", "&", "hold names, numbers and signs", "Write and."),
    ("age > 3 || rent > 3", "|", "hold names, numbers and signs", "Write or."),
    ("!pregnant", "!", "hold names, numbers and signs", "Write not"),
    ("age ** 2 > 3", "*", "have a column or a value here", "There are no powers: multiply."),
    ("sex = ‘F’", "‘", "hold names, numbers and signs", "Write straight quotation marks: 'text'."),
    ("sex = 'F", "'", "hold names, numbers and signs", "A quotation mark is not closed."),
    ("`age > 3", "`", "hold names, numbers and signs", "A backtick is not closed."),
    ("(age > 3", "(", "close ( by )", "Something is missing."),
    ("age in [3, 4", "[", "close [ by ]", "Something is missing."),
    ("age > 3)", ")", "end or go on after a condition", "Join conditions by and, or, where."),
    ("age > 1,000", ",", "end or go on after a condition", "Write numbers without commas between thousands"),
    ("income (EUR) > 3", "(", "end or go on after a condition", "Columns of several words go in `backticks`"),
    ("age > 3 rent > 3", "rent", "end or go on after a condition", "conditions are joined by and, or."),
    ("2nd > 3", "2n", "have names that start with a letter", "Columns with other names go in `backticks`"),
    ("if > 3", "if", "have a column or a value here", "if is a word of the language"),
    ("age > 1 where rent > 1 where rent > 2", "where", "have one where", "Join conditions by and"),
    ("age > 1e999", "1e999", "have numbers that a float holds", ""),
    ("age > 1e200 * 1e200", "1e200 * 1e200", "have numbers that a float holds", ""),
    ("age / (1 - 1) > 3", "age / (1 - 1", "not divide by zero", ""),
    ("(age > 3) + 1 > 3", "age > 3", "have a column or a value here", "A condition is not a value."),
    ("not age", "age", "have a condition here", "Compare it with something."),
    ("__import__('os').system('ls')", ".", "hold names, numbers and signs", "Columns with other names"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "piece", "constraint", "remedy"), WRONG, ids=[one[0] or "empty" for one in WRONG])
def test_errors_show_the_place_and_the_remedy(text: str, piece: str, constraint: str, remedy: str) -> None:
    with pytest.raises(ValueError) as caught:
        compile_constraint(text, ALL)
    message, line, marks = str(caught.value).split("\n")
    assert message.startswith(f"constraint must {constraint}")
    assert f", got constraint={text!r}." in message
    assert remedy in message
    assert line == f"    {text}"
    start = marks.index("^") - 4
    assert text[start : start + marks.count("^")] == piece
    with pytest.raises(ValueError, match="condition must .*, got condition="):
        compile_condition(text, ALL)


def test_a_long_text_is_shown_in_part() -> None:
    text = " and ".join(["age > 3"] * 30 + ["größe > wide"] + ["age > 3"] * 30)
    with pytest.raises(ValueError, match=r"\.\.\.'\. There is no column 'wide'") as caught:
        compile_constraint(text, ALL)
    _, line, marks = str(caught.value).split("\n")
    assert len(line) <= 104
    assert line[marks.index("^") : marks.rindex("^") + 1] == "wide"


def test_marks_stand_below_wide_signs() -> None:
    with pytest.raises(ValueError) as caught:
        compile_constraint("`年齢` > 3 and x > 3", [Facts("年齢", "integer", 0, 110)])
    marks = str(caught.value).split("\n")[2]
    assert marks.index("^") == 4 + 2 + 4 + len(" > 3 and ")


def test_a_text_is_a_string() -> None:
    with pytest.raises(TypeError, match="constraint must be a string, got constraint=3"):
        compile_constraint(3, ALL)  # type: ignore[arg-type]


def test_length_and_nesting_are_limited() -> None:
    long = " or ".join(["age > 3"] * 180)
    compile_constraint(long, ALL)
    with pytest.raises(ValueError, match="constraint must have at most 2,000 characters, .*several constraints"):
        compile_constraint(f"{long}{' ' * (MAX_LENGTH + 1 - len(long))}", ALL)
    compile_constraint("(" * 90 + "age > 3" + ")" * 90, ALL)
    compile_constraint(" + ".join(["age"] * 300) + " > 3", ALL)
    deep = ["(" * 900 + "age > 3" + ")" * 900, "not " * 400 + "age > 3", "-" * 1500 + "age > 3"]
    deep += ["age" + " / age" * 200 + " > 3", "age" + " - (age" * 150 + ")" * 150 + " > 3"]
    for text in deep:
        with pytest.raises(ValueError, match="nested in at most 100 levels, .*State it as several constraints"):
            compile_constraint(text, ALL)
    for text in (f"{nested(24)} > 3", "age > 3 where (" * 45 + "age > 3" + ")" * 45):  # the deepest lists
        evaluate(compile_constraint(text, ALL), row(age=3))


def nested(levels: int) -> str:
    """A text whose lists are several levels deep for each of its parentheses."""
    return "age" if levels == 0 else f"-(3 - ({nested(levels - 1)}) * 2)"


def test_any_text_compiles_or_is_refused() -> None:
    """By a ValueError of the one form; what compiles can be evaluated, and is not too deep."""
    words = [*(column.name for column in ALL), "F", "II", "and", "or", "not", "in", "is", "missing", "where", "if", "<"]
    words += "<= = != ( ) [ ] { } , + - * / 3 2020-01-01 'x' ` '".split()
    rng, compiled = random.Random(1), 0
    values = torch.cat([row(), row(age=3, sex="F", stage="II", admitted="2020-01-01")])
    for trial in range(4000):
        if trial % 4:
            pieces = rng.choice(TRUE)[0].split(" ")
            for _ in range(rng.randrange(1, 3)):
                pieces[rng.randrange(len(pieces))] = rng.choice(words)
            text = " ".join(pieces)
        else:
            text = "".join(rng.choices(string.printable + "äß‘年\u0301", k=rng.randrange(1, 30)))
        try:
            predicate = compile_constraint(text, ALL)
        except ValueError as error:
            assert re.match(r"constraint must .*, got constraint=", str(error)), text
            continue
        compiled += 1
        assert evaluate(predicate, values).shape == (2,)
    assert compiled > 100
