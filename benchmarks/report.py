"""Tables of results: Markdown for people, JSON for programs."""

import dataclasses
import importlib.metadata
import platform


@dataclasses.dataclass
class Table:
    """Rows of one measurement; `note` says what was measured and how, in Markdown."""

    title: str
    note: str
    columns: tuple
    rows: list

    def __str__(self):
        cells = [[str(cell) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        lines = [
            "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) + " |"
            for row in cells
        ]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return f"### {self.title}\n\n{self.note}\n\n" + "\n".join(lines) + "\n"


def ratio(values):
    """`1.23 (1.20 to 1.31)` of a median, the least and the largest."""
    median, least, largest = values
    return f"{median:.2f} ({least:.2f} to {largest:.2f})"


def machine():
    """One paragraph about where the numbers come from."""
    names = ("tensorflow", "keras", "keras-hub", "torch", "transformers", "openvino", "onnxruntime", "keras-cv")
    return f"{_processor()}, {_cores()} cores, Python {platform.python_version()}, " + ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in names if is_installed(name)
    )


def is_installed(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _processor():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        fields = dict(line.strip().split("\t: ", 1) for line in lines if "\t: " in line)
    flags = fields.get("flags", "").split()
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{fields.get('model name', platform.processor())} ({', '.join(known)})"


def _cores():
    import os

    return len(os.sched_getaffinity(0))
