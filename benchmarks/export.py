"""Measure exported models in every format on a CPU, and compare with exported models of other libraries."""

import pathlib
import tempfile

from benchmarks.contest import Contender, contest
from benchmarks.report import Table, is_installed, ratio

BATCH = 8
BASE = "OpenVINO, bfloat16"
# name -> (package, form, quantization), job, precision; each combination is written once
OURS = {
    "OpenVINO, float32": (("keras_vit", "openvino", None), "openvino", "float32"),
    BASE: (("keras_vit", "openvino", None), "openvino", "bfloat16"),
    "OpenVINO, int8 by NNCF": (("keras_vit", "openvino", "int8"), "openvino", "int8"),
    "ONNX Runtime, float32": (("keras_vit", "onnx", None), "onnx", "float32"),
    "ONNX Runtime, int8 weights and activations": (("keras_vit", "onnx", "int8"), "onnx", "int8"),
    "SavedModel, float32": (("keras_vit", "saved_model", None), "saved_model", "float32"),
    "SavedModel, bfloat16": (("keras_vit", "saved_model_bfloat16", None), "saved_model", "bfloat16"),
    "LiteRT, float32": (("keras_vit", "litert", None), "litert", "float32"),
    "LiteRT, int8 weights": (("keras_vit", "litert", "int8"), "litert", "int8"),
}
PEERS = ("keras-hub", "transformers (torch)")
_DISTRIBUTIONS = {"keras-hub": "keras-hub", "transformers (torch)": "transformers"}
NOTE = (
    "ViT-B/16, 224 px, batch 8, images per second of the runtime alone. The SavedModel is called with uint8 pixels "
    "through its signature `images_uint8`, which resizes and standardises image by image."
)
NOTE_PEERS = (
    "OpenVINO, batch 8. keras_vit exports its own model, Keras exports the model of keras-hub, and OpenVINO converts "
    "that of transformers. NNCF quantises to int8 with its settings for transformers; keras_vit sets a different "
    "strength of SmoothQuant."
)


def run(options):
    with tempfile.TemporaryDirectory() as place:
        files = _Files(pathlib.Path(place))
        yield _forms(files, options)
        peers = [peer for peer in PEERS if options.peers and is_installed(_DISTRIBUTIONS[peer])]
        if peers:
            for precision in ("float32", "bfloat16", "int8"):
                yield _beside_peers(files, peers, precision, options)


class _Files:
    """Folders of exported models, each written when it is first requested."""

    def __init__(self, place):
        self._place, self._folders = place, {}

    def folder(self, package, form, quantization):
        key = (package, form, quantization)
        if key not in self._folders:
            self._folders[key] = str(self._place / str(len(self._folders)))
            options = dict(zip(("package", "form", "quantization"), key, strict=True))
            writer = Contender(str(key), "exported:write", {"folder": self._folders[key], **options})
            contest([writer], rounds=0, warm_up=0)
        return self._folders[key]


def _forms(files, options):
    contenders = [
        Contender(name, f"exported:{job}", {"folder": files.folder(*key), "precision": precision, "batch": BATCH})
        for name, (key, job, precision) in OURS.items()
    ]
    results = contest(contenders, options.rounds)
    base = results[BASE]
    rows = [
        (
            name,
            f"{BATCH / result.median:.2f}",
            ratio(result.times_faster_than(base)),
            ratio(result.times_faster_than(results["OpenVINO, float32"])),
            f"{result.peak / 2**20:.0f}",
        )
        for name, result in results.items()
    ]
    columns = ("", "images/s", "relative to OpenVINO bfloat16", "relative to OpenVINO float32", "peak MiB")
    return Table("Exported models", NOTE, columns, rows)


def _beside_peers(files, peers, precision, options):
    quantization = "int8" if precision == "int8" else None
    contenders = [
        Contender(
            name,
            "exported:openvino",
            {
                "folder": files.folder(name, "openvino", quantization),
                "precision": precision,
                "batch": BATCH,
                "is_channels_first": name.startswith("transformers"),
            },
        )
        for name in ("keras_vit", *peers)
    ]
    results = contest(contenders, options.rounds)
    ours = results["keras_vit"]
    rows = [
        (name, f"{BATCH / result.median:.2f}", "" if result is ours else ratio(ours.times_faster_than(result)))
        for name, result in results.items()
    ]
    columns = ("", "images/s", "keras_vit is faster by")
    return Table(f"Exported to OpenVINO, {precision}", NOTE_PEERS, columns, rows)
