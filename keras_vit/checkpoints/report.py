"""LoadReport: what happened to every array of a file and every variable of a model."""

import dataclasses

_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """Report what `load_weights` did.

    Attributes:
        used: names of the file's arrays that were loaded.
        resized: descriptions, one per resized position table.
        reinitialised: paths of variables that got their initial value instead of the file's.
        unused: names of the file's arrays that the model does not have and does not need.
        missing: paths of variables that the file does not have, a subset of `reinitialised`.
        source: file and layout of the arrays.
        notes: notes about the file, such as another GELU or epsilon.
        assumed: config fields, as `name=value`, that the file does not state and no shape shows.
    """

    used: tuple[str, ...]
    resized: tuple[str, ...]
    reinitialised: tuple[str, ...]
    unused: tuple[str, ...]
    missing: tuple[str, ...]
    source: str = ""
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def __str__(self):
        lines = [f"Loaded {len(self.used)} arrays of {self.source}"]
        for title in ("resized", "reinitialised", "unused", "missing"):
            if getattr(self, title):
                lines.append(f"  {title}: {shorten(getattr(self, title))}")
        lines += [f"  note: {note}" for note in self.notes]
        if self.assumed:
            lines.append(f"  assumed, as the file does not state them: {', '.join(self.assumed)}")
        return "\n".join(lines)


def shorten(names):
    """Join names to one string; a long list is shortened to its first names."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
