"""Each extra of setup.py is installed with the wheel into an empty environment, and does what it is for.

    pytest -m slow tests/test_extras.py -rP [-k "analysis or hub"]

shows size and time of each; an environment is deleted before the next is made. It needs a package index.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from built import build, setup_arguments

REPOSITORY = pathlib.Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
MODEL = """
import pathlib
import sys

import numpy as np

import keras_vit

assert pathlib.Path(keras_vit.__file__).is_relative_to(sys.prefix), keras_vit.__file__
images = np.random.default_rng(0).integers(0, 256, (4, 40, 48, 3), "uint8")
levels = keras_vit.Preprocessing(size=32)
model = keras_vit.ViT_Ti16(image_size=32, classes=10, preprocessing=levels)
head = model.get_layer("head")  # its zeros would answer the same for every image
head.set_weights([np.random.default_rng(0).normal(size=array.shape) for array in head.get_weights()])
inputs = np.zeros((2, 32, 32, 3), "float32")
"""
FORWARD = "assert model(inputs).shape == (2, 10)\n"
BATCH = """
batch = next(iter(keras_vit.data.eval_pipeline(keras_vit.data.from_arrays(images, range(4)), levels, 4)))
assert model(np.asarray(batch[0])).shape == (4, 10)
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """What an extra is for.

    Attributes:
        program: Python source that follows `MODEL`; none is run where it is empty.
        beside: the extra that brings the backend.
        exactly: versions that are asked for beside it.
        environment: variables of the program.
        files: of the repository that are copied beside the program.
        command: words of a command line of Python, which is run next.
    """

    program: str
    beside: str = ""
    exactly: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    files: tuple = ()
    command: tuple = ()


ON_JAX = {"KERAS_BACKEND": "jax"}
CASES = {
    "tensorflow": Case(
        "((label, score),) = keras_vit.predict(model, images[0], top=1)[0]\n"
        "assert 0 < score <= 1\n"
        "keras_vit.export(model, 'serving')\n"
    ),
    "jax": Case(FORWARD, environment=ON_JAX),
    "tpu": Case("import libtpu\n" + FORWARD + BATCH, environment={**ON_JAX, "JAX_PLATFORMS": "cpu"}),
    "tpu-tf": Case("import libtpu\nimport tensorflow\n" + FORWARD + BATCH, environment={"TPU_SKIP_MDS_QUERY": "1"}),
    "analysis": Case(
        "from keras_vit import analysis\n"
        "filters = analysis.embedding_filters(model)\n"
        "analysis.plots.embedding_filters(filters).savefig('filters.png')\n"
        "assert pathlib.Path('filters.png').stat().st_size > 1000\n",
        beside="jax",
        environment=ON_JAX,
    ),
    "beam": Case(
        "from PIL import Image\nImage.fromarray(images[0]).save('image.png')\nkeras_vit.export(model, 'serving')\n",
        beside="tensorflow",
        files=("examples",),
        command=tuple("examples/beam_pipeline.py --model serving/1 --images *.png --output rows/row".split()),
    ),
    "bench": Case(
        "import keras_hub, openvino, torch, transformers\n"
        "keras_vit.save_weights(keras_vit.ViT_Ti16(image_size=224), 'ti.safetensors', layout='timm')\n"
        "import safetensors.torch\n"
        "values = safetensors.torch.load_file('ti.safetensors')\n"
        "assert values['cls_token'].shape == (1, 1, 192)\n"
        "if torch.version.cuda:  # timm imports torchvision, and the one of the package index is for such a torch\n"
        "    import timm\n"
        "    timm.create_model('vit_tiny_patch16_224', pretrained=False).load_state_dict(values)\n",
        beside="tensorflow",
        exactly=("torch==2.13.0",),  # the wheel without CUDA where one is at hand
        files=("benchmarks",),
        command=("-m", "benchmarks", "--help"),
    ),
    "coco": Case(
        "import json\n"
        "from PIL import Image\n"
        "Image.fromarray(images[0]).save('image.png')\n"
        "entry = {'id': 1, 'file_name': 'image.png', 'height': 40, 'width': 48}\n"
        "shape = {'segmentation': [[2, 3, 12, 3, 12, 8, 2, 8]], 'bbox': [2, 3, 10, 5]}\n"
        "content = {'images': [entry], 'annotations': [{'id': 1, 'image_id': 1, 'category_id': 1, **shape}]}\n"
        "content['categories'] = [{'id': 1, 'name': 'cat'}]\n"
        "pathlib.Path('a.json').write_text(json.dumps(content))\n"
        "assert keras_vit.data.from_coco('.', 'a.json').answer(0).masks.sum() == 50\n"
        "from keras_vit.evaluation import coco_precision as coco\n"
        "truth = keras_vit.data.Answer(labels=[0], boxes=np.array([[0.0, 0.0, 9.0, 9.0]]))\n"
        "rows = coco.truth_rows('boxes', 1, (1,), truth)\n"
        "assert coco.coco_scores('boxes', (1,), [1], rows, [rows[0] | {'score': 0.5}])[0]['AP'] > 0.99\n",
        beside="tensorflow",
    ),
    "completion": Case("", beside="jax", command=("-m", "keras_vit_command", "completion", "bash")),
    "demo": Case(
        "import urllib.request\n"
        "page = keras_vit.demo.launch(browser=False, block=False)\n"
        "assert b'keras_vit' in urllib.request.urlopen(page.local_url).read()\n"
        "page.close()\n",
        beside="tensorflow",
    ),
    "docs": Case(
        "",
        beside="tensorflow",
        files=("docs", "examples", "LICENSE", *(path.name for path in REPOSITORY.glob("*.md"))),
        command=("docs/generate", "build", "--strict"),
    ),
    "export": Case(
        "for name in ('onnx', 'litert', 'openvino'):\n"
        "    keras_vit.export(model, name, format=name)\n"
        "int8 = {'quantization': 'int8', 'calibration': images, 'check': False}  # which wants a trained model\n"
        "keras_vit.export(model, 'int8', format='openvino', **int8)\n",
        beside="tensorflow",
    ),
    "hosts": Case(
        "import jax\n"
        "from keras_vit.training import host_arrays\n"
        "arrays = {'a': jax.numpy.arange(6.0).reshape(2, 3), 'b': np.arange(2)}\n"
        "host_arrays.save(pathlib.Path('arrays'), arrays, {})\n"
        "read = host_arrays.restore(pathlib.Path('arrays'), {'a': ('float32', (2, 3)), 'b': ('int64', (2,))}, arrays)\n"
        "assert all((arrays[name] == read[name]).all() for name in arrays)\n",
        beside="jax,tensorflow",
        environment=ON_JAX,
    ),
    "hub": Case(
        "import huggingface_hub\n"
        "try:\n"
        "    keras_vit.ViT_Ti16(weights='hf://nobody/nothing')\n"
        "except ConnectionError as error:\n"
        "    assert 'hf://nobody/nothing' in str(error), error\n"
        "else:\n"
        "    sys.exit('offline, a repository that is not in the cache must be refused')\n",
        beside="jax",
        environment={**ON_JAX, "HF_HUB_OFFLINE": "1", "HF_HOME": "empty"},
    ),
    "quickstart": Case("", beside="tensorflow", files=("examples",), command=("examples/quickstart.py", "--tiny")),
    "text": Case(
        "from keras_vit import TextEncoder, zero_shot\n"
        "encoder = TextEncoder('tests/golden/zeroshot_clip_hf')\n"
        "tower = keras_vit.load('tests/golden/zeroshot_clip_hf')\n"
        "assert zero_shot(tower, ('cat', 'dog'), text=encoder)(inputs).shape == (2, 2)\n",
        beside="jax",
        environment=ON_JAX,
        files=("tests",),
    ),
    "train": Case(
        "import tensorboard, tensorflow_datasets\n"
        "source = keras_vit.data.from_arrays(images, range(4))\n"
        "names = ('keras_cv.RandomCutout(0.5, 0.5)', 'flip')\n"
        "changed = keras_vit.data.train_pipeline(source, levels, 4, augment=names)\n"
        "assert next(iter(changed))[0].shape == (4, 32, 32, 3)\n",
        beside="tensorflow",
    ),
    "test": Case(
        "",
        beside="tensorflow",
        files=("tests", "examples", "pyproject.toml"),
        command=tuple(
            "-m pytest -q -p no:cacheprovider tests/layers tests/test_golden.py tests/data/test_tfds.py "
            "tests/demo tests/examples tests/docs".split()
        ),
    ),
    "test-docs": Case(
        "",
        beside="tensorflow,test",
        files=("tests", "examples", "pyproject.toml"),
        command=(
            *"-m pytest -p no:cacheprovider -m docs tests/demo/test_page.py tests/examples/test_notebooks.py".split(),
            "-k test_page or file_is_clean or cell_that_fails",
        ),
    ),
}


def test_every_extra_has_a_case():
    assert sorted(CASES) == sorted(setup_arguments()["extras_require"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    asked = [*PIP, "download", "-q", "--no-deps", "--dest", tmp_path_factory.mktemp("index"), "safetensors"]
    if subprocess.run(asked, env=_environment(), capture_output=True).returncode:
        pytest.skip("needs a package index")
    return build(tmp_path_factory.mktemp("built"), "wheel")


@pytest.fixture
def environment(tmp_path):
    """A function that makes an environment with these requirements and returns its Python; deleted in the end."""
    folder = tmp_path / "environment"

    def make(requirements):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        command = [*PIP, "--python", folder, "install", "-q", "--no-compile", *requirements]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return folder

    yield make
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_without_a_backend_the_import_says_what_to_install(wheel, environment, tmp_path):
    folder = environment([wheel])
    for backend in ("tensorflow", "jax", "torch"):
        done = _run(folder, "-c", "import keras_vit", cwd=tmp_path, KERAS_BACKEND=backend)
        last = done.stderr.splitlines()[-1]
        assert f"{backend} is not installed" in last and "pip install tensorflow, or pip install jax" in last
    assert _run(folder, "-m", "keras_vit_command", "--help", cwd=tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("extra", CASES)
def test_extra_does_what_it_is_for(wheel, environment, tmp_path, extra):
    case = CASES[extra]
    started = time.monotonic()
    wanted = ",".join(filter(None, (case.beside, extra)))
    folder = environment([f"{wheel}[{wanted}]", *case.exactly])
    installed = time.monotonic()
    for name in case.files:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "program.py").write_text(MODEL + case.program)
    for command in filter(None, (("program.py",) if case.program else (), case.command)):
        done = _run(folder, *command, cwd=tmp_path, **case.environment)
        assert done.returncode == 0, done.stdout + done.stderr
    megabytes = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    times = f"{installed - started:4.0f} s to install, {time.monotonic() - installed:4.0f} s to run"
    print(f"{wanted:<24} {megabytes:6.0f} MiB, {times}")


def _run(folder, *words, cwd, **variables):
    """A command of the environment's Python, which sees no other packages."""
    command = [folder / "bin" / "python", *words]
    return subprocess.run(command, cwd=cwd, env=_environment(**variables), capture_output=True, text=True)


def _environment(**variables):
    """The variables of this process without those that tell Python and Keras what to do."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KERAS", "TF_"))}
    return {**kept, "PYTHONNOUSERSITE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
