"""Loops over many names or files inside one test: all faults in one message."""


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
