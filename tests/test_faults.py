"""The loops of faults.py: every row is checked, and what fails is named."""

import pytest
from faults import assert_no_faults, for_each


def test_every_row_is_checked_and_the_faults_are_named(tmp_path):
    seen = []

    @for_each("number, text", [(1, "one"), (2, "two"), (3, "three")])
    def rule(tmp_path, number, text):
        seen.append((tmp_path.name, number))
        (tmp_path / "new").mkdir()
        assert number == 2, text
        with pytest.raises(ValueError):
            pass

    with pytest.raises(BaseExceptionGroup) as caught:
        rule(tmp_path=tmp_path)
    assert seen == [("0", 1), ("1", 2), ("2", 3)]
    first, second, third = caught.value.exceptions
    assert "one" in str(first) and "DID NOT RAISE" in str(second) and "three" in str(third)
    assert "3 of 3 rows:\nrow 0: {'number': 1, 'text': 'one'}: AssertionError: one" in str(caught.value)


@for_each("side", [1, 2, (3, 4)])
def test_a_single_name_takes_the_rows_as_they_are(side):
    assert side in (1, 2, (3, 4))


class TestInAClass:
    @for_each(("a", "b"), [(1, 2), (2, 4)])
    def test_methods_and_fixtures(self, tmp_path, a, b):
        assert b == 2 * a and tmp_path.is_dir()


def test_no_rows_and_no_items_are_errors():
    with pytest.raises(AssertionError):
        for_each("side", [])
    with pytest.raises(AssertionError):
        assert_no_faults(str, {})


def test_assert_no_faults_names_each_item():
    with pytest.raises(AssertionError) as caught:
        assert_no_faults(lambda item: item > 1 and f"it is {item}", {"a": 1, "b": 2, "c": 3})
    assert str(caught.value).splitlines()[1:3] == ["b: it is 2", "c: it is 3"]
