"""Full-size models with random weights, exchanged with transformers and timm in both directions: equal outputs.

Run with `pytest -m slow tests/test_peers.py` where the extra `bench` is installed, with a CPU build of torch: others
import triton, which crashes after TensorFlow. It takes five minutes.
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
# The differences of `PUBLISHED` are below 6e-6; another epsilon (1e-5) moves the logits of EVA-02 by 5e-5.
READ_TOLERANCE = 2e-5


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
    classes = model.config.classes if model.config.include_top else 0
    peer = timm.create_model(name, pretrained=False, num_classes=classes, img_size=model.config.image_size)
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
    Case("DINOv2-B_14", read_by_timm, "vit_base_patch14_dinov2"),
    Case("SigLIP-B_16", read_by_transformers, "SiglipVisionModel"),
    Case("CLIP-B_32", read_by_transformers, "CLIPVisionModelWithProjection"),
    Case("BEiT-B_16", read_by_transformers, "BeitForImageClassification"),
    Case("EVA02-S_14", read_by_timm, "eva02_small_patch14_336", image_size=(336, 336)),
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


@dataclasses.dataclass(frozen=True)
class Published:
    """A model of a peer whose file we read.

    Attributes:
        variant: name in the zoo that `load` must find.
        peer: class of transformers, or timm's name.
        config: transformers' class of the config; None for timm.
        arguments: arguments of the config, where they differ from its defaults, or of `timm.create_model`.
        output: what to compare: an attribute of the peer's outputs; for timm, all tokens (`tokens`) or the logits.
        load: arguments of `load`.
        unused: names of arrays that we do not have.
    """

    variant: str
    peer: str
    config: str | None = None
    arguments: dict = dataclasses.field(default_factory=dict)
    output: str = "logits"
    load: dict = dataclasses.field(default_factory=dict)
    unused: tuple = ()


BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SMALL_GATED = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
SMALL_GATED |= {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 4}
BEIT = {"use_relative_position_bias": True, "use_mean_pooling": True, "num_labels": 1000}
TOKENS = {"pooling": "token_unpooled"}
MASK = ("embeddings.mask_token",)
PUBLISHED = (
    Published(
        "DINOv2-B_14",
        "Dinov2Model",
        "Dinov2Config",
        {**BASE, "patch_size": 14, "image_size": 518},
        "last_hidden_state",
        {**TOKENS, "image_size": 224, "resize": "huggingface"},
        MASK,
    ),
    Published(
        "DINOv2-B_14",
        "vit_base_patch14_dinov2",
        arguments={"dynamic_img_size": True},
        output="tokens",
        load={**TOKENS, "image_size": 224, "resize": "timm"},
    ),
    Published("DINOv3-Splus_16", "DINOv3ViTModel", "DINOv3ViTConfig", SMALL_GATED, "last_hidden_state", TOKENS, MASK),
    Published("SigLIP-B_16", "SiglipVisionModel", "SiglipVisionConfig", {}, "pooler_output"),
    Published(
        "CLIP-L_14",
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {**LARGE, "patch_size": 14, "projection_dim": 768},
        "image_embeds",
    ),
    Published("EVA02-S_14", "eva02_small_patch14_336"),
    Published("BEiT-B_16", "beit_base_patch16_224"),
    Published("BEiT-B_16", "BeitForImageClassification", "BeitConfig", {**BASE, **BEIT}),
    Published("PE-core-B_16", "vit_pe_core_base_patch16_224"),
)


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case.peer)
def test_file_of_a_peer_has_the_same_outputs(case, tmp_path):
    peer = randomised_peer(case)
    source, weights = write_peer(case, peer, tmp_path)
    model = keras_vit.load(source, **case.load)
    assert model.config.name == case.variant
    images = np.random.default_rng(1).uniform(-1, 1, (2, *model.config.image_size, 3)).astype("float32")
    outputs, expected = keras.ops.convert_to_numpy(model(images)), outputs_of(case, peer, images)
    assert np.abs(expected[0] - expected[1]).max() > 0.1, "the outputs must depend on the image"
    np.testing.assert_allclose(outputs, expected, atol=READ_TOLERANCE, rtol=0)
    if "image_size" in case.load:  # its table was resized
        model = keras_vit.load(source)
    layout = "timm" if case.config is None else "huggingface"
    written = tmp_path / "written.safetensors"
    keras_vit.save_weights(model, written, layout=layout)
    ours, theirs = (safetensors.numpy.load_file(file) for file in (written, weights))
    assert set(theirs) - set(ours) == set(case.unused) and set(ours) <= set(theirs)
    different = [name for name, array in ours.items() if array.tobytes() != theirs[name].tobytes()]
    assert different == []
    assert [name for name, array in ours.items() if array.shape != theirs[name].shape] == []


def randomised_peer(case):
    """The peer's model with every parameter drawn, as in `randomise`."""
    if case.config is None:
        peer = timm.create_model(case.peer, pretrained=False, **case.arguments)
    else:
        peer = getattr(transformers, case.peer)(getattr(transformers, case.config)(**case.arguments))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            mean, deviation = 0.0, 0.1
            if parameter.ndim > 1 and not ("position" in name or "pos_embed" in name):
                deviation = parameter[0].numel() ** -0.5
            elif parameter.ndim == 1 and not ("bias" in name or "embedding" in name):
                mean = 1.0
            parameter.copy_(mean + deviation * torch.randn(parameter.shape, generator=generator))
    return peer.eval()


def write_peer(case, peer, folder):
    """Writes the peer's model as it does; returns what `load` reads and the file of the weights."""
    if case.config is not None:
        peer.save_pretrained(folder / "peer")
        return folder / "peer", folder / "peer" / "model.safetensors"
    file = folder / "peer.safetensors"
    safetensors.numpy.save_file({name: array.numpy() for name, array in peer.state_dict().items()}, file)
    return file, file


def outputs_of(case, peer, images):
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    with torch.inference_mode():
        if case.config is None:
            return (peer.forward_features if case.output == "tokens" else peer)(pixels).numpy()
        return peer(pixels)[case.output].numpy()


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
    """The peer's logits, or its embeddings if it has no head."""
    with torch.inference_mode():
        outputs = peer.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    if isinstance(outputs, torch.Tensor):
        return outputs.numpy()
    return next(outputs[name] for name in ("logits", "image_embeds", "pooler_output") if name in outputs).numpy()
