"""Loops over many names, files or rows inside one test: all faults in one message."""

import functools
import inspect

import pytest


def assert_no_faults(rule, items):
    """Fail with a line for each of `items`, which must not be empty, for which `rule` returns or raises a fault.

    Args:
        rule: function of an item that returns text about its fault, or anything false. An assertion that fails counts.
        items: {name in the message: item}.
    """
    assert items
    faults = {}
    for name, item in items.items():
        try:
            faults[name] = rule(item)
        except AssertionError as error:
            faults[name] = str(error)
    text = "\n".join(f"{name}: {fault}" for name, fault in faults.items() if fault)
    assert not text, f"\n{text}"


def for_each(names, rows):
    """Make a test of a rule and its rows: written as `pytest.mark.parametrize`, but one test, which names what fails.

    It suits rules about tables, text and errors, of which a test per row would cost more time than the check.
    `tmp_path` is another folder for each row; what a test changes by other fixtures lasts until the last row.

    Args:
        names: names of the arguments that a row gives: a string with commas, or a sequence.
        rows: values of these arguments, not empty; a single name takes the values as they are.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [dict(zip(names, row if len(names) > 1 else [row], strict=True)) for row in rows]
    assert rows

    def decorate(test):
        parameters = inspect.signature(test).parameters.values()

        @functools.wraps(test)
        def of_all_rows(*args, **fixtures):
            failed, folder = [], fixtures.get("tmp_path")
            for number, row in enumerate(rows):
                if folder is not None:
                    fixtures["tmp_path"] = folder / str(number)
                    fixtures["tmp_path"].mkdir()
                try:
                    test(*args, **fixtures, **row)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                    error.add_note(f"row {number}: {row}")
                    failed.append(error)
            if failed:
                faults = "".join(f"\n{error.__notes__[-1]}: {type(error).__name__}: {error}" for error in failed)
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} rows:{faults}", failed)

        fixtures = [parameter for parameter in parameters if parameter.name not in names]
        of_all_rows.__signature__ = inspect.Signature(fixtures)
        return of_all_rows

    return decorate
