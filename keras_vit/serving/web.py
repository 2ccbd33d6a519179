"""The page around an ONNX file that runs it in the visitor's browser, with onnxruntime-web."""

import base64
import hashlib
import http.client
import io
import json
import pathlib
import shutil
import tarfile
import tempfile

from keras_vit.checkpoints.transfer import TooLarge, transfer
from keras_vit.evaluation.outputs import logit_names
from keras_vit.files import keras_home
from keras_vit.models.encoders import find_encoder, is_encoder, score_activations
from keras_vit.serving.signatures import class_scores

ARCHIVE = "https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-1.30.0.tgz"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
# With WebGPU, a browser loads the first three, otherwise the others.
RUNTIME = (
    *("ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm"),
    *("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
)
_PAGE = pathlib.Path(__file__).with_name("page")
_MAX_ARCHIVE, _MAX_FILE = 2**26, 2**25  # bytes


def write_page(model, folder, runtime):
    """Write the page into a folder that has `model.onnx`.

    Args:
        model: the exported classifier or encoder.
        folder: `pathlib.Path`.
        runtime: folder with `RUNTIME`, or with a folder `dist` that has them; None for the downloaded ones.

    Raises:
        FileNotFoundError: if a file is missing in `runtime`.
        ConnectionError: if the archive cannot be downloaded.
        ValueError: if the archive is another one, or the model is larger than 2 GiB.
    """
    if (folder / "model.onnx.data").exists():
        raise ValueError("model must have at most 2 GiB for format='web'; use compute_dtype='float16' or int8")
    source = _downloaded() if runtime is None else _given(pathlib.Path(runtime))
    shutil.copytree(_PAGE, folder, dirs_exist_ok=True)
    (folder / "runtime").mkdir()
    for name in RUNTIME:
        shutil.copyfile(source / name, folder / "runtime" / name)
    (folder / "page.json").write_text(json.dumps(_about(model, folder), ensure_ascii=False), encoding="utf-8")
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    worker = (folder / "worker.js").read_text(encoding="utf-8")
    worker = worker.replace("{{version}}", digest.hexdigest()[:16])
    (folder / "worker.js").write_text(worker, encoding="utf-8")


def _about(model, folder):
    """Return what the page knows about the model."""
    preprocessing, encoder, has_classes = model.preprocessing, find_encoder(model), not is_encoder(model)
    weights = getattr(encoder, "weights_source", None)
    own, usual = score_activations(model) if has_classes else (None, None)
    labels = logit_names(model) if has_classes and model.labels else None
    shown = "Classes of photos" if labels else "Classes by number, as their names are unknown"
    size = (folder / "model.onnx").stat().st_size
    known = preprocessing.to_dict() | {name: getattr(preprocessing, name) for name in ("image_size", "channels")}
    return {
        "name": encoder.config.name if encoder else model.name,
        "text": f"{shown if has_classes else 'Nearest photos'}; weights: {weights or 'unknown'}",
        "output": class_scores(model),
        "activation": None if own else usual,
        "labels": labels,
        "preprocessing": known,
        "bytes": size,
    }


def _given(folder):
    """Return the folder in which the runtime is; the user names it."""
    if not folder.is_dir():
        raise FileNotFoundError(f"runtime must be a folder with the files of onnxruntime-web; {folder} does not exist")
    found = folder / "dist" if (folder / "dist").is_dir() else folder
    missing = [name for name in RUNTIME if not (found / name).is_file()]
    if missing:
        raise FileNotFoundError(f"runtime must have the files of onnxruntime-web; {found} has no {missing[0]}")
    return found


def _downloaded():
    """Return the folder of the runtime in Keras's cache, after its download on the first call."""
    target = keras_home() / "models" / "keras_vit" / pathlib.Path(ARCHIVE).stem
    if target.is_dir():
        return target
    archive = io.BytesIO()
    try:
        transfer(ARCHIVE, archive, _MAX_ARCHIVE)
    except (OSError, http.client.HTTPException, TooLarge) as error:
        raise ConnectionError(f"{ARCHIVE} did not arrive ({error}): download it elsewhere and pass runtime=") from error
    if base64.b64encode(hashlib.sha512(archive.getvalue()).digest()).decode() != SHA512:
        raise ValueError(f"{ARCHIVE} must have the SHA-512 {SHA512}; it has another one (pass runtime= instead)")
    target.parent.mkdir(parents=True, exist_ok=True)
    archive.seek(0)
    with tempfile.TemporaryDirectory(dir=target.parent) as place, tarfile.open(fileobj=archive) as members:
        partial = pathlib.Path(place, "runtime")
        partial.mkdir()
        for name in RUNTIME:
            with members.extractfile(f"package/dist/{name}") as member:
                (partial / name).write_bytes(member.read(_MAX_FILE))
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # another process may have written it in the meantime
                raise
    return target
