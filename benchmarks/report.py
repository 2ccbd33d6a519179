"""Tables of results in Markdown, and a description of the machine."""

import dataclasses
import importlib.metadata
import platform

from benchmarks.contenders import cores


@dataclasses.dataclass
class Table:
    """The results of one measurement; `note` describes in Markdown what was measured and how."""

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
    """Format median, minimum and maximum as `1.23 (1.20 to 1.31)`."""
    median, least, largest = values
    return f"{median:.2f} ({least:.2f} to {largest:.2f})"


def machine():
    """Return the processor, the number of cores, and the versions of Python and the libraries."""
    names = "tensorflow jax keras keras-hub torch timm transformers openvino onnxruntime keras-cv".split()
    return f"{_processor()}, {cores()} cores, Python {platform.python_version()}, " + ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in names if is_installed(name)
    )


def is_installed(name):
    try:
        importlib.metadata.version("keras-vit-models" if name == "keras_vit" else name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _processor():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        fields = dict(line.strip().split("\t: ", 1) for line in lines if "\t: " in line)
    flags = fields.get("flags", "").split()
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{fields.get('model name', platform.processor())} ({', '.join(known)})"
