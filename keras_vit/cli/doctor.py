"""`keras-vit doctor`: checks an installation. A process of its own imports Keras, which may fail or abort there."""

import importlib.metadata
import json
import operator
import os
import pathlib
import platform
import re
import subprocess
import sys

from ..files import aligned, keras_home
from ..versions import DISTRIBUTION, install_command
from .answers import Answer
from .parser import version

# extra -> what it enables; the other extras of setup.py are for developers and for TPUs
ENABLES = {
    "tensorflow": "TensorFlow, for data, evaluation, training and export",
    "jax": "the backend JAX",
    "analysis": "plots, explain",
    "coco": "COCO's average precision, and masks of polygons",
    "completion": "completion",
    "demo": "demo",
    "export": "export to ONNX, LiteRT and OpenVINO",
    "hosts": "training in several processes on JAX",
    "hub": "weights of hf://org/repo",
    "text": "text towers of CLIP and SigLIP",
    "train": "TensorFlow Datasets, layers of keras-cv, curves, TensorBoard",
}
_SAME = {"keras": ("keras-nightly",), "tensorflow": ("tensorflow-cpu", "tensorflow-tpu")}  # other names of a package
_REQUIREMENT = re.compile(r"""([\w.-]+)(?:\[.*?\])?([^;]*)(?:;.*\bextra == ["']([\w-]+)["'])?""")
_SIGNS = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}
_PROGRAM = """
import json, keras
backend = keras.backend.backend()
devices = keras.distribution.list_devices() if backend in ("tensorflow", "jax") else []
print(json.dumps({"backend": backend, "devices": devices}), flush=True)
import keras_vit
keras_vit.ViT_Ti16(image_size=32)(keras.ops.zeros((1, 32, 32, 3)))
"""


def doctor(args):
    """Describe the installation; the exit code is 1 if the package does not work."""
    packages, problems, remarks = _packages()
    started, failure = _start()
    problems += failure
    partial = {extra for row in packages if row["version"] is None for extra in row["extras"]}
    hub = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    hub = pathlib.Path(os.environ.get("HF_HUB_CACHE") or os.path.join(hub, "hub")).expanduser()
    caches = {"Keras": keras_home() / "models" / "keras_vit", "Hugging Face": hub}
    values = {
        "works": not problems,
        "problems": problems,
        "remarks": remarks,
        "keras_vit": version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **started,
        "packages": packages,
        "extras": [
            {"extra": extra, "enables": enables, "complete": extra not in partial, "install": install_command(extra)}
            for extra, enables in ENABLES.items()
        ],
        "caches": [{"cache": name, "path": str(path), "bytes": _size(path)} for name, path in caches.items()],
    }
    return Answer(values, _text(values), code=int(bool(problems)))


def _packages():
    """Return a row per required and optional package, problems, and remarks."""
    rows, problems, remarks = {}, [], []
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
        remarks.append(f"{DISTRIBUTION} is not installed, so what it requires is unknown: {install_command('')}")
    for name, supported, extra in (_REQUIREMENT.match(text).groups() for text in requirements):
        if extra is not None and extra not in ENABLES:
            continue
        supported = ",".join(sorted(supported.strip().split(","), reverse=True))
        if (name, supported) in rows:  # of another extra, too
            rows[name, supported]["extras"].append(extra)
            continue
        found, extras = _installed(name), [] if extra is None else [extra]
        rows[name, supported] = {"package": name, "version": found, "supported": supported, "extras": extras}
        remedy = f"pip install '{name}{supported}'"
        if found is None and extra is None:
            problems.append(f"{name} is required and is not installed: {remedy}")
        elif found is not None and not _is_supported(found, supported):
            remarks.append(f"{name} {found} is outside the supported range: {remedy}")
    return list(rows.values()), problems, remarks


def _installed(name):
    """Return the installed version of a package, None without one."""
    found = (next(importlib.metadata.distributions(name=each), None) for each in (name, *_SAME.get(name, ())))
    return next((each.version for each in found if each is not None), None)


def _is_supported(found, supported):
    bounds = re.findall(r"([<>=]+)([\d.]+)", supported)
    return all(_SIGNS[sign](_numbers(found), _numbers(bound)) for sign, bound in bounds)


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _start():
    """Return the backend and its devices, and a list with the reason why the package does not work, if any."""
    options = {"cwd": pathlib.Path(__file__).parents[2], "env": {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, errors="replace", **options)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"backend"')]
    started = json.loads(lines[0]) if lines else {"backend": None, "devices": []}
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    failure = f"importing keras_vit and running a model fails with exit code {done.returncode}: {last}"
    return started, [failure] if done.returncode else []


def _size(folder):
    """Return the bytes of the files in a folder, 0 without one; links, as in the hub's cache, count once."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _text(values):
    head = [(name, values[name] or "unknown") for name in ("keras_vit", "python", "platform", "backend")]
    head.append(("devices", ", ".join(values["devices"]) or "unknown"))
    packages = [{**row, "extras": ", ".join(row["extras"])}.values() for row in values["packages"]]
    packages = [[value or "-" for value in row] for row in packages]
    extras = [(row["install"], "for", row["enables"]) for row in values["extras"] if not row["complete"]]
    caches = [(row["cache"], f"{row['bytes'] / 2**20:,.0f} MiB", row["path"]) for row in values["caches"]]
    packages = packages and [("package", "version", "supported", "extras"), *packages]
    parts = [aligned(rows, left=range(4)) for rows in (head, packages, extras, caches) if rows]
    return "\n\n".join([*parts, "\n".join([*values["remarks"], *(values["problems"] or ["keras_vit works."])])])
