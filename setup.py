"""Metadata, dependencies and extras; the settings of the tools are in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
PACKAGE = (HERE / "keras_vit" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"$', PACKAGE, re.MULTILINE)[1]

# Lower bounds are versions that the tests passed with. The comment on the line of an upper bound gives its reason. The
# bounds of Keras and TensorFlow are also in keras_vit/versions.py, which checks them at import; RELEASING.md describes
# how to raise them.
REQUIRED = [
    "h5py>=3.11",
    "keras>=3.12,<3.17",  # keras_vit/compat uses private names; 3.16 was tested as keras-nightly
    "numpy>=1.26",
    "pillow>=10.4",
    "safetensors>=0.4.5",
]

# The backend is an extra: a hard dependency on tensorflow would overwrite the wheel of a TPU machine.
BACKENDS = {
    "tensorflow": ["tensorflow>=2.20,<2.22"],  # 2.21 is the newest that the tests passed with
    # Enough for models and checkpoints; data, evaluation, training and export also need the extra tensorflow.
    "jax": ["jax>=0.6.2"],
    # Use one of the next two on a TPU; they need different versions of libtpu. The training steps compile with libtpu
    # (tests/tpu), but have not run on a TPU yet. tensorflow-cpu reads the data.
    "tpu": [
        "jax[tpu]>=0.10.2",
        "tensorflow-cpu>=2.21,<2.22",  # as tensorflow
    ],
    "tpu-tf": [
        "tensorflow-tpu>=2.20,<2.22",  # as tensorflow
        "libtpu<=0.0.31",  # `import tensorflow` aborts with 0.0.32 and later
    ],
}

# Packages that write and check the export formats other than SavedModel.
EXPORT = [
    "ai-edge-litert>=2.3",
    "nncf>=3.4",
    "onnx>=1.20",
    "onnxruntime>=1.31",
    "openvino>=2026.4",
]

# Checkpoints of a run in several processes on JAX
HOSTS = ["orbax-checkpoint>=0.12.8"]

# The tokenizers of text towers, for zero_shot
TEXT = ["tokenizers>=0.21.4"]

# For `python docs/generate`. It also needs tensorflow, because the tables of models and recipes are read from the
# package.
DOCS = [
    "latex2mathml>=3.81",
    "mkdocstrings[python]>=1.0.8",
    "nbconvert>=7.17",
    "pyyaml>=6.0.2",
    "ruff>=0.17",  # formats the signatures in the reference
    "zensical>=0.0.73",  # the successor of Material for MkDocs
]

TOOLS = {
    "analysis": ["matplotlib>=3.9"],  # keras_vit.analysis.plots
    # examples/beam_pipeline.py
    "beam": [
        "apache-beam>=2.77",
        "google-crc32c>=1.9",  # Beam needs it to read TFRecord files
        "pyarrow>=25.0.1",
        "setuptools>=65.5,<82",  # tensorflow_hub imports pkg_resources, which setuptools 82 removed
        "tensorflow-hub>=0.16.1",  # Beam's TensorFlow handler imports it; it installs the tf-keras for this TensorFlow
    ],
    # `python -m benchmarks`; in tests/test_peers.py, timm, torch and transformers also read the package's files
    "bench": ["keras-hub>=0.32", "openvino>=2026.4", "timm>=1.0.31", "torch>=2.13", "transformers>=5.23"],
    "coco": ["pycocotools>=2.0.11"],  # COCO's average precision, and from_coco for masks
    "completion": ["shtab>=1.13"],  # keras-vit completion
    "demo": ["gradio>=6.31", "scikit-learn>=1.5.2"],  # keras-vit demo
    "docs": DOCS,
    "export": EXPORT,
    "hosts": HOSTS,
    "hub": ["huggingface_hub>=1.2"],  # weights="hf://org/repo"; the first version whose transfers can be limited
    "text": TEXT,
    "quickstart": ["scikit-learn>=1.5.2"],  # contains the images of digits
    # from_tfds, and augmentations named keras_cv.*; both are imported when they are first used
    "train": ["keras-cv>=0.9", "matplotlib>=3.9", "tensorboard>=2.19", "tensorflow-datasets>=4.9.10"],
    "test": [
        *EXPORT,
        *HOSTS,
        *TEXT,
        "build>=1.6",
        "huggingface_hub>=1.2",
        "jax>=0.6.2",
        "keras-cv>=0.9",
        "matplotlib>=3.9",
        "ml-dtypes>=0.5.4",
        "mypy>=2.4.1",
        "pycocotools>=2.0.11",
        "pytest>=8.3.5",
        "pytest-xdist>=3.6.1",
        "pyyaml>=6.0.2",
        "ruff>=0.17",
        "scikit-learn>=1.5.2",
        "scipy>=1.14.1",
        "setuptools>=77.0.3",
        "shtab>=1.13",
        "tensorflow-datasets>=4.9.10",
        "tensorflow-serving-api>=2.20,<2.22",  # as tensorflow, which it installs
    ],
    # `pytest -m docs`, which also needs the extra test
    "test-docs": [
        *DOCS,
        "gradio>=6.31",
        "ipykernel>=7.4",  # runs the notebooks of examples/
        "jupyter-server>=2.21",  # runs the notebooks in the tests
        "nbclient>=0.11",
        "nbformat>=5.11.1",
        "scikit-image>=0.26",  # contains the photos of examples/your_photos.ipynb
        "selenium>=4.51",  # drives the demo page in Debian's chromium
        "websocket-client>=1.9",  # sends cells to the kernels of jupyter-server
    ],
}

setup(
    name="keras-vit-models",  # on PyPI, the name keras-vit belongs to another project
    version=VERSION,
    description="Vision Transformers for Keras and TensorFlow: official weights, training, serving",
    author="The keras_vit authors",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["vision transformer", "ViT", "DeiT", "Swin", "BiT", "Keras", "TensorFlow", "JAX", "image classification"],
    python_requires=">=3.11",
    # With this line, an editable install adds this folder to sys.path. The default is an import hook that is tried
    # last: in the folder that contains a clone named keras_vit, `import keras_vit` would import the clone's folder.
    package_dir={"": "."},
    packages=find_packages(include=["keras_vit", "keras_vit.*"]),
    py_modules=["keras_vit_command"],
    package_data={"": ["py.typed", "*.pyi", "*.tsv", "*.toml", "*.txt", "*.css", "page/*", "scenes/*.png"]},
    install_requires=REQUIRED,
    extras_require={**BACKENDS, **TOOLS},
    entry_points={"console_scripts": ["keras-vit = keras_vit_command:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",  # later versions are allowed; the tests passed with these
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
)
