"""Full-size models with random weights, written by `save_weights` and read by transformers and timm: equal logits.

Run with `pytest -m slow tests/test_peers.py` where the extra `bench` is installed; it takes minutes.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.models import build_model
from keras_vit.zoo import VARIANTS

torch, timm, transformers = (
    pytest.importorskip(name, reason=f"{name}, which reads our models here, is not installed")
    for name in ("torch", "timm", "transformers")
)
pytestmark = pytest.mark.slow

# On logits of the order of 1. The hybrid's and BiT's float32 logits in timm are 1e-5 from its float64 ones, the others'
# 2e-6; the other GELU moves them by 4e-4 and more, the other style of the hybrid's ResNet by 3e-4.
TOLERANCE = 1e-4


def read_by_transformers(model, folder, name):
    """The class `name` of transformers with the weights of the folder, each of them used and none missing."""
    keras_vit.save_weights(model, folder / "model", layout="huggingface")
    reader = getattr(transformers, name)
    peer, info = reader.from_pretrained(folder / "model", local_files_only=True, output_loading_info=True)
    assert not any(info.values()), info
    return peer


def read_by_timm(model, folder, name):
    """timm's model `name` with our file in its own layout."""
    keras_vit.save_weights(model, folder / "model.safetensors", layout="timm")
    peer = timm.create_model(name, pretrained=False, num_classes=model.config.classes)
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    peer.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()}, strict=True)
    return peer


def read_by_timm_from_npz(model, folder, name):
    """timm's model `name` with our official file; what its reader forgets stays NaN."""
    keras_vit.save_weights(model, folder / "model.npz", layout="official")
    peer = timm.create_model(name, pretrained=False, num_classes=model.config.classes)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.fill_(float("nan"))
    peer.load_pretrained(str(folder / "model.npz"))
    return peer


@dataclasses.dataclass(frozen=True)
class Case:
    """One of our models and one that must equal it.

    Attributes:
        variant: name in the zoo.
        read: writes our model and reads it with the peer: one of the functions above.
        peer: the peer's name of the model.
        changes: fields of our config that the peer has otherwise.
        image_size: height and width of the images.
    """

    variant: str
    read: Callable
    peer: str
    changes: dict = dataclasses.field(default_factory=dict)
    image_size: tuple = (224, 224)


TIMM_HYBRID = {"gelu": "erf", "stem": keras_vit.ResNetConfig(stage_sizes=(3, 4, 9), style="timm")}
CASES = (
    Case("ViT-B_16", read_by_transformers, "ViTForImageClassification"),
    Case("ViT-B_16", read_by_timm_from_npz, "vit_base_patch16_224", {"gelu": "erf"}),
    Case("DeiT-B_16", read_by_transformers, "DeiTForImageClassificationWithTeacher", {"distilled": True}),
    Case("DeiT-B_16", read_by_timm, "deit_base_distilled_patch16_224", {"distilled": True}),
    Case("Swin-T", read_by_transformers, "SwinForImageClassification"),
    # maps of 64 x 56 to 8 x 7 tokens, which windows of 7 do not divide
    Case("Swin-T", read_by_transformers, "SwinForImageClassification", image_size=(256, 224)),
    Case("Swin-T", read_by_timm, "swin_tiny_patch4_window7_224"),
    Case("R50+ViT-B_16", read_by_timm, "vit_base_r50_s16_224", TIMM_HYBRID),
    Case("R50+ViT-B_16", read_by_timm_from_npz, "vit_base_r50_s16_224", TIMM_HYBRID),
    Case("BiT-R50x1", read_by_timm_from_npz, "resnetv2_50x1_bit", {"std_epsilon": 1e-8}),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.peer}-{case.read.__name__}-{case.image_size[0]}")
def test_peer_has_the_same_logits(case, tmp_path):
    config = VARIANTS[case.variant].config(image_size=case.image_size).replace(**case.changes)
    model = build_model(config)
    randomise(model)
    images = np.random.default_rng(1).uniform(-1, 1, (2, *case.image_size, 3)).astype("float32")
    logits = keras.ops.convert_to_numpy(model(images))
    expected = logits_of(case.read(model, tmp_path, case.peer), images)
    assert np.abs(expected[0] - expected[1]).max() > 0.1, "the logits must depend on the image"
    np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=0)


def randomise(model):
    """Draws every weight, so that none hides behind a zero or a one: products keep their size, biases are small."""
    generator = np.random.default_rng(0)
    for variable in model.weights:
        name, shape = variable.path.rsplit("/")[-1], variable.shape
        mean, deviation = {"gamma": (1, 0.1), "beta": (0, 0.1), "bias": (0, 0.1)}.get(name, (0, 0.5))
        if name == "kernel":
            deviation = np.prod(shape[:-1]) ** -0.5
        variable.assign(generator.normal(mean, deviation, shape).astype("float32"))


def logits_of(peer, images):
    with torch.inference_mode():
        outputs = peer.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    return getattr(outputs, "logits", outputs).numpy()
