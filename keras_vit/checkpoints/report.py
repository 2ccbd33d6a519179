"""LoadReport: what became of every array of a file and every variable of a model."""

import dataclasses

_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What `load_weights` did.

    Attributes:
        used: names of the arrays of the file that were loaded.
        resized: texts, one per position table that was resized.
        reinitialised: paths of variables that took their initial value instead of the file's.
        unused: names of arrays of the file that the model has no place for and may do without.
        missing: paths of variables that the file does not have, a subset of `reinitialised`.
        source: where the arrays came from.
        notes: texts about the file, such as another GELU or epsilon.
        assumed: fields of the model's config, as `name=value`, that the file does not state and no shape shows.
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
    """Joins names to one text, the first few of a long list."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
