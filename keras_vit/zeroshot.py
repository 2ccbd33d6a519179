"""zero_shot: a classifier whose head is the text embeddings of its classes, from the text tower of a CLIP or SigLIP."""

import importlib.util
import math
import os
import pathlib
import runpy
from collections.abc import Callable, Sequence

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.checkpoints.hub import PREFIX, cached_address, fetch_repository
from keras_vit.checkpoints.text_towers import read_text_tower
from keras_vit.checkpoints.tokenizers import MAX_BYTES, SETTINGS, TOKENIZER, read_tokenizer
from keras_vit.compat.inference import inference
from keras_vit.config.text import TextConfig
from keras_vit.files import MAX_JSON
from keras_vit.models import VisionTransformer, check_not_quantized, with_head
from keras_vit.models.encoders import check_model, is_projection
from keras_vit.models.text import ends, shortened
from keras_vit.typing import PathLike

_BATCH_SIZE = 64
_BESIDE = {TOKENIZER: MAX_BYTES, **dict.fromkeys(SETTINGS, MAX_JSON)}
_TEMPLATES = pathlib.Path(__file__).with_name("templates.txt")


class TextEncoder:
    """Read the text tower of a CLIP or SigLIP with its tokenizer.

    It needs the extra `text`. The embeddings of CLIP (arXiv 2103.00020) and SigLIP (arXiv 2303.15343) are computed as
    in transformers; texts for SigLIP are changed to lower case first, and those for SigLIP 1 lose their punctuation.

    Args:
        source: a folder with config.json, model.safetensors, tokenizer.json and tokenizer_config.json, as transformers
            writes it, or with OpenCLIP's files in place of the first two; the weights file in such a folder;
            `hf://org/repo`; or the name of a published model, such as `"openai/clip-vit-base-patch32"`.

    Attributes:
        config: `TextConfig` of the tower.
        tower: the Keras model, from a dict of `ids` (texts, context_length) to embeddings that are not normalised. Its
            layers are `token_embedding`, `position_embs`, `block_00` and so on, `encoder_norm`, `pooling` and
            `projection`.
        logit_scale: natural logarithm of the factor of the cosine similarities; None if the file does not have it.
        logit_bias: what SigLIP adds to the logits; None for CLIP.

    Raises:
        ImportError: if tokenizers is not installed.
        FileNotFoundError, ConnectionError, PermissionError: if a file does not exist or cannot be downloaded.
        ValueError: if the files hold no such tower, or are damaged.
    """

    config: TextConfig
    tower: keras.Model
    logit_scale: float | None
    logit_bias: float | None

    def __init__(self, source: PathLike) -> None:
        checks.check_path("text", source)
        foreign = None if os.path.exists(source) else find_foreign(os.fspath(source))
        address = os.fspath(source) if foreign is None else foreign.weights
        path = pathlib.Path(address).expanduser()
        folder = path if os.path.isdir(path) else path.parent
        if not os.path.isfile(folder / TOKENIZER):
            address = cached_address(folder) or address  # an image tower was downloaded without it
        if address.startswith(PREFIX):
            folder = path = fetch_repository(address, beside=_BESIDE)
        self.config, self.tower, self.logit_scale, self.logit_bias, cleaning = read_text_tower(path)
        self._encode = read_tokenizer(folder, self.config.context_length, cleaning)

    def tokenize(self, texts: Sequence[str]) -> np.ndarray:
        """Return token ids of texts, padded and cut: int32 (texts, context_length).

        Args:
            texts: list of strings; they may be empty.

        Raises:
            ValueError: if it is not a list of strings, or the tokenizer has tokens that the tower does not have.
        """
        ids = self._encode(checks.check_sequence("texts", texts, "strings", _check_text))
        if ids.size and not 0 <= ids.min() <= ids.max() < self.config.vocab_size:
            got = f"its {TOKENIZER} gives the id {ids.max()}"
            raise ValueError(f"the text tower has a vocabulary of {self.config.vocab_size} tokens; {got}")
        return ids

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return L2-normalised embeddings of texts: float32 (texts, projection_dim).

        Args:
            texts: list of strings, at least one.

        Raises:
            ValueError: as `tokenize`, or if an embedding is zero or not finite.
        """
        ids, tower = self.tokenize(texts), self.tower
        if not len(ids):
            raise ValueError("texts must have at least one string; got an empty list")
        if self.config.causal and self.config.pooling == "end" and len(ids) > _BATCH_SIZE:
            last = int(np.max(keras.ops.convert_to_numpy(ends(ids, self.config))))
            ids, tower = ids[:, : last + 1], shortened(tower, self.config, last + 1)
        run = inference(tower, compiled=len(ids) > _BATCH_SIZE)
        batches = [run({"ids": ids[start : start + _BATCH_SIZE]}) for start in range(0, len(ids), _BATCH_SIZE)]
        return _unit(np.concatenate(batches)).astype("float32")


def zero_shot(
    model: VisionTransformer,
    class_names: Sequence[str],
    *,
    templates: str | Sequence[str | Callable[[str], str]] | None = None,
    text: PathLike | TextEncoder | npt.ArrayLike | None = None,
    scale: float | None = None,
    bias: float | None = None,
    classifier_activation: str | None = None,
) -> VisionTransformer:
    """Return a copy of an image tower that classifies into named classes.

    The tower gets an L2 normalisation and an ordinary dense head. The kernel of the head is the text embeddings of the
    classes times `scale`, so the logits are those of CLIP (arXiv 2103.00020, section 3.1.4) and SigLIP (arXiv
    2303.15343). The text embedding of a class is the mean of the L2-normalised embeddings of its prompts, normalised
    again. The result is a model like any other: for `predict`, `evaluate`, `fit`, `export`, `quantize` and `save`. The
    text tower is not part of it.

    `predict` gives the softmax of the logits. For the separate probabilities that SigLIP was trained for, set
    `classifier_activation="sigmoid"`.

    Args:
        model: image tower of a CLIP or SigLIP, with its projection if it has one, such as `keras_vit.load(folder)`; or
            a result of this function.
        class_names: names of the classes, one per logit; they become the labels.
        templates: sequence of strings in which `{}` stands for the name of a class, or of functions from the name to
            the prompt; `imagenet` for the 80 templates of CLIP for ImageNet, which are read from the package
            open_clip_torch; None for seven templates of this package.
        text: a `TextEncoder`, or its `source`; or an array of text embeddings (classes, dim) or (classes, prompts,
            dim). None uses the file that the weights of `model` came from.
        scale: factor of the cosine similarities; None uses exp(logit_scale) of the text tower. If `text` is an array,
            you must pass it.
        bias: number that is added to every logit; None uses logit_bias of the text tower, if it has one.
        classifier_activation: activation of the head, such as `"softmax"` or `"sigmoid"`; None gives logits.

    Raises:
        TypeError: if `model` is not a `VisionTransformer`.
        ValueError: if the widths of image and text embeddings differ, an embedding is zero, a template has no `{}`,
            `scale` is missing, `text` is None and the model came from no file, or the model is quantised or does not
            pool its tokens.
        ImportError: if tokenizers, or open_clip_torch for `imagenet`, is not installed.
        FileNotFoundError, ConnectionError, PermissionError: as for `TextEncoder`.
    """
    if not isinstance(check_model(model), VisionTransformer):
        raise TypeError(f"model must be a VisionTransformer; got {type(model).__name__}")
    check_not_quantized(model, "zero_shot (quantize its result)")
    names = checks.check_sequence("class_names", class_names, "strings", checks.check_string)
    if not names:
        raise ValueError("class_names must have at least one name; got an empty sequence")
    source = model.weights_path if text is None else text
    if source is None:
        raise ValueError("text must be a folder or hf://org/repo, as the model has no weights_path; got None")
    source = TextEncoder(source) if isinstance(source, (str, os.PathLike)) else source
    if isinstance(source, TextEncoder):
        prompts = _prompts(names, templates)
        embeddings = source.embed(prompts).reshape(len(names), len(prompts) // len(names), -1)
        scale = math.exp(source.logit_scale) if scale is None and source.logit_scale is not None else scale
        bias = source.logit_bias if bias is None else bias
    else:
        if templates is not None:
            raise ValueError(f"templates must be None if text is an array of embeddings; got {templates!r}")
        embeddings = np.asarray(source, "float64")
        embeddings = embeddings[:, None] if embeddings.ndim == 2 else embeddings
    read = model.get_layer("head").input if model.config.include_top else model.output
    width = model.config.classes if is_projection(model) else read.shape[-1]
    if embeddings.ndim != 3 or embeddings.shape[0] != len(names) or embeddings.shape[2] != width:
        wanted = f"({len(names)}, {width}) or ({len(names)}, prompts, {width})"
        raise ValueError(
            f"text must give embeddings of shape {wanted}, one row per class and as wide as the image embeddings of "
            f"{model.name}; got {np.shape(embeddings)} (a CLIP must be loaded with its projection)"
        )
    if scale is None:
        raise ValueError("scale must be given, as the text embeddings come without a logit_scale; got None")
    kernel = _unit(_unit(embeddings).mean(axis=1)).T * checks.check_positive("scale", scale)
    offset = None
    if bias is not None:
        offset = np.full(len(names), checks.check_number("bias", bias, "finite number", math.isfinite), "float32")
    return with_head(model, kernel.astype("float32"), offset, names, None, classifier_activation, normalize=True)


def _unit(embeddings):
    """Return embeddings (..., dim) with L2 norm 1, as float64."""
    embeddings = np.asarray(embeddings, "float64")
    norms = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    wrong = norms[~(np.isfinite(norms) & (norms > 0))]
    if wrong.size:
        raise ValueError(f"text must give finite embeddings, none of them zero; got one of norm {wrong[0]:g}")
    return embeddings / norms


def _check_text(name, value):
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string; got {value!r}")
    return value


def _prompts(names, templates):
    """Return the prompts of the first class, then those of the second one, and so on."""
    if templates is None:
        templates = _TEMPLATES.read_text(encoding="utf-8").splitlines()
    elif isinstance(templates, str):
        checks.check_choice("templates", templates, ("imagenet",))
        found = importlib.util.find_spec("open_clip")
        if found is None:
            raise ImportError("templates='imagenet' are read from OpenCLIP: pip install open_clip_torch")
        path = pathlib.Path(found.origin).with_name("zero_shot_metadata.py")
        templates = runpy.run_path(str(path))["OPENAI_IMAGENET_TEMPLATES"]  # `import open_clip` would import torch
    templates = checks.check_sequence("templates", templates, "strings or functions", _check_template)
    if not templates:
        raise ValueError("templates must have at least one template; got an empty sequence")
    return [_check_text("a prompt", make(name)) for name in names for make in templates]


def _check_template(name, value):
    """Return a template as a function from the name of a class to the prompt."""
    if isinstance(value, str) and "{}" in value:
        return lambda class_name: value.replace("{}", class_name)
    if isinstance(value, str) or not callable(value):
        raise ValueError(f"{name} must be a string with {{}}, or a function of the name of a class; got {value!r}")
    return value
