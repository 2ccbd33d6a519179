"""The argument checks: what they return, and messages that name argument, expectation and value."""

import os
import pathlib

import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit import checks

# check, value, what it returns
ACCEPTED = [
    (lambda v: checks.check_choice("form", v, ("a", "b")), "b", "b"),
    (lambda v: checks.check_choice("form", v, {"a": 1}), "a", "a"),
    (lambda v: checks.check_integer("count", v), 1, 1),
    (lambda v: checks.check_integer("count", v), np.int64(3), 3),
    (lambda v: checks.check_integer("count", v, minimum=0), 0, 0),
    (lambda v: checks.check_integer("count", v, minimum=-2), -2, -2),
    (lambda v: checks.check_rate("rate", v), 0, 0.0),
    (lambda v: checks.check_rate("rate", v), 0.999, 0.999),
    (lambda v: checks.check_rate("rate", v), np.float64(0.5), 0.5),
    (lambda v: checks.check_positive("epsilon", v), 1e-12, 1e-12),
    (lambda v: checks.check_positive("epsilon", v), 3, 3.0),
    (lambda v: checks.check_flag("flag", v), False, False),
    (lambda v: checks.check_path("file", v), "a/b", pathlib.Path("a/b")),
    (lambda v: checks.check_path("file", v), pathlib.Path("."), pathlib.Path(".")),
    (lambda v: checks.check_workdir(v), "new/run", pathlib.Path("new/run")),
    (lambda v: checks.check_pair("size", v), 224, (224, 224)),
    (lambda v: checks.check_pair("size", v), [224, 320], (224, 320)),
    (lambda v: checks.check_pair("size", v), (np.int32(2), 3), (2, 3)),
    (lambda v: checks.check_divisible("size", v, "step", (4, 3)), (8, 9), None),
]


@for_each(("check", "value", "expected"), ACCEPTED)
def test_accepted_values_come_back_in_their_plain_type(check, value, expected):
    result = check(value)
    assert result == expected
    assert type(result) is type(expected)
    if isinstance(result, tuple):
        assert [type(side) for side in result] == [int, int]


def _choice(value):
    return checks.check_choice("form", value, ("a", "b"))


def _at_least_two(value):
    return checks.check_integer("count", value, minimum=2)


def _rate(value):
    return checks.check_rate("drop", value)


def _positive(value):
    return checks.check_positive("epsilon", value)


def _flag(value):
    return checks.check_flag("flag", value)


def _pair(value):
    return checks.check_pair("size", value)


def _divisible(value):
    return checks.check_divisible("size", value, "step", (4, 3))


CHOICES = "form must be one of 'a', 'b'; got form="
INTEGER = "count must be an integer of at least 2; got count="
RATE = "drop must be a number in [0, 1); got drop="
POSITIVE = "epsilon must be a finite number above 0; got epsilon="
FLAG = "flag must be True or False; got flag="
PAIR = "size must be one positive integer or a pair (height, width) of them; got size="
DIVISIBLE = "size must be divisible by step; got size="

# check, value, the whole message
REFUSED = [
    (_choice, "c", CHOICES + "'c'"),
    (_choice, None, CHOICES + "None"),
    (_choice, 1, CHOICES + "1"),
    (_choice, ["a"], CHOICES + "['a']"),
    (_at_least_two, 1, INTEGER + "1"),
    (_at_least_two, 2.0, INTEGER + "2.0"),
    (_at_least_two, True, INTEGER + "True"),
    (_at_least_two, "2", INTEGER + "'2'"),
    (_at_least_two, None, INTEGER + "None"),
    (_at_least_two, float("nan"), INTEGER + "nan"),
    (_rate, 1.0, RATE + "1.0"),
    (_rate, -0.1, RATE + "-0.1"),
    (_rate, float("nan"), RATE + "nan"),
    (_rate, "0.1", RATE + "'0.1'"),
    (_rate, True, RATE + "True"),
    (_rate, None, RATE + "None"),
    (_positive, 0, POSITIVE + "0"),
    (_positive, -1e-6, POSITIVE + "-1e-06"),
    (_positive, float("inf"), POSITIVE + "inf"),
    (_positive, float("nan"), POSITIVE + "nan"),
    (_positive, "1", POSITIVE + "'1'"),
    (_positive, True, POSITIVE + "True"),
    (_flag, 1, FLAG + "1"),
    (_flag, "True", FLAG + "'True'"),
    (_flag, None, FLAG + "None"),
    (_pair, (1, 2, 3), PAIR + "(1, 2, 3)"),
    (_pair, (1,), PAIR + "(1,)"),
    (_pair, (), PAIR + "()"),
    (_pair, 0, PAIR + "0"),
    (_pair, (224, -1), PAIR + "(224, -1)"),
    (_pair, (224, 22.5), PAIR + "(224, 22.5)"),
    (_pair, "224", PAIR + "'224'"),
    (_pair, None, PAIR + "None"),
    (_divisible, (8, 10), DIVISIBLE + "(8, 10), step=(4, 3) (did you mean (8, 9)?)"),
    (_divisible, (11, 11), DIVISIBLE + "(11, 11), step=(4, 3) (did you mean (12, 12)?)"),
    (_divisible, (1, 1), DIVISIBLE + "(1, 1), step=(4, 3) (did you mean (4, 3)?)"),
]


@for_each(
    ("value", "meant"),
    [
        ("learning_rat", " (did you mean 'learning_rate'?)"),
        ("LR", " (did you mean 'learning_rate'?)"),
        ("wd", " (did you mean 'weight_decay'?)"),
        ("e", ""),
        ("", ""),
        (3, ""),
        (None, ""),
    ],
)
def test_suggestions(value, meant):
    assert checks.suggestion(value, ("learning_rate", "weight_decay", "epochs", 3)) == meant


def test_long_lists_are_short_where_there_is_a_suggestion():
    names = [f"layer_{n:02}" for n in range(20)]
    with pytest.raises(
        ValueError, match=r"name must be one of 'layer_00', 'layer_01', 'layer_02', ... \(20 in all\); got"
    ):
        checks.check_choice("name", "layer_3", names)
    with pytest.raises(ValueError, match=r"one of 'layer_00', .*'layer_11', .*'layer_19'; got name='x'$"):
        checks.check_choice("name", "x", names)


def test_several_suggestions():
    assert checks.suggestion("bat", ("cat", "rat", "dog"), most=3, cutoff=0.6) == " (did you mean 'rat' or 'cat'?)"


@for_each(("check", "value", "message"), REFUSED)
def test_refused_values_are_named_with_what_was_expected(check, value, message):
    with pytest.raises(ValueError) as caught:
        check(value)
    assert str(caught.value) == message


def test_paths_that_are_empty_or_none_are_refused():
    with pytest.raises(ValueError, match=r"^file must be a path that is not empty \('.' is the .*; got file=''$"):
        checks.check_path("file", "")
    with pytest.raises(TypeError, match="^file must be a path; got NoneType$"):
        checks.check_path("file", None)
    with pytest.raises(ValueError, match=f"^workdir must be a folder, or not exist yet; {__file__} is a file$"):
        checks.check_workdir(__file__)


def test_what_a_run_writes_must_not_be_something_else(tmp_path):
    (tmp_path / "steps.csv").mkdir()
    (tmp_path / "logs").touch()
    with pytest.raises(ValueError, match="logs must be the folder of a run, or not exist yet; it is something"):
        keras_vit.train("quickstart", None, tmp_path)
    (tmp_path / "logs").unlink()
    with pytest.raises(ValueError, match="steps.csv must be the file of a run, or not exist yet; it is something"):
        keras_vit.train("quickstart", None, tmp_path)
    (tmp_path / "steps.csv").rmdir()
    os.mkfifo(tmp_path / "steps.csv")
    with pytest.raises(ValueError, match="steps.csv must be the file of a run"):
        keras_vit.train("quickstart", None, tmp_path)
    (tmp_path / "checkpoints").touch()
    with pytest.raises(ValueError, match="checkpoints must be the folder of a run"):
        keras_vit.training.Resume(tmp_path)
