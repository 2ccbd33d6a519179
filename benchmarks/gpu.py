"""Compare training and inference on one GPU, in bfloat16: keras_vit on JAX, and timm's model with torch.compile.

It needs `pip install -e '.[bench]' 'jax[cuda13]'`, and does not use TensorFlow. The inputs are already on the device.
The targets on an H200 are at least 60 % MFU in training of ViT-L/16, and 1.15 times the speed of timm in both.
`--sizes 24` measures only the models with 24 layers; `--dry-run` runs all of this in small on a CPU.
"""

import dataclasses
import math
import shutil
import sys
import typing

from benchmarks.contest import Contender, contest
from benchmarks.report import Table, is_installed, ratio


class Model(typing.NamedTuple):
    """A model in timm, and the batches that should fit into 80 GB."""

    timm: str
    layers: int
    inference: int
    training: int


MODELS = {
    "ViT-B_16": Model("vit_base_patch16_224", 12, 512, 256),
    "ViT-L_16": Model("vit_large_patch16_224", 24, 256, 128),
    "SigLIP-So400m_14": Model("vit_so400m_patch14_siglip_224", 27, 256, 128),
    "DINOv2-g_14": Model("vit_giant_patch14_dinov2", 40, 128, 64),
}
OURS, TIMM = "keras_vit", "timm, torch.compile"
# With products from Triton, XLA leaves biases and GELU to further kernels.
CUBLAS = {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"}
# row -> environment variables and the arguments of `_model`, which passes those that it does not have to the config
_BOTH = {
    OURS: ({}, {}),
    "cuBLAS": (CUBLAS, {}),
    "cuBLAS, one product for qkv": (CUBLAS, {"one_product": True}),
}
_TRAINING = {
    "cuBLAS, remat block": (CUBLAS, {"remat": "block"}),
    "cuBLAS, scan over blocks": (CUBLAS, {"scan_layers": True}),
}
FORMS = {"inference": _BOTH, "training": _BOTH | _TRAINING}
PASSES = {"inference": 1, "training": 3}  # the backward pass counts as two forward passes


@dataclasses.dataclass(frozen=True)
class Scale:
    """The size of a run.

    Attributes:
        device: name of the device in torch and of its platform in JAX.
        side: of the square matrices whose product is the limit.
        image_size: height and width in pixels.
        steps: number of steps per call; they are queued on the device, and waited for once.
        seconds: approximate length of each measured run.
        layers, batch: used instead of those of `MODELS`, unless None.
    """

    device: str
    side: int
    image_size: int
    steps: int
    seconds: float
    layers: int | None = None
    batch: int | None = None

    @property
    def jax(self):
        """Environment variables. Keras also needs the CPU; without preallocation JAX takes only the memory it uses."""
        platforms = {"JAX_PLATFORMS": f"{self.device},cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        return {"KERAS_BACKEND": "jax", **platforms}


GPU = Scale("cuda", side=8192, image_size=224, steps=50, seconds=2.0)  # `fit` takes 45 ms to start
DRY_RUN = Scale("cpu", side=512, image_size=112, steps=2, seconds=0.0, layers=1, batch=2)
# compiled code of an earlier run would shorten the first step
TORCH = {"TIMM_FUSED_ATTN": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
COLUMNS = ("", "images/s", "faster than timm", "MFU", "peak GiB", "first step s")
NOTE = (
    "{0.image_size} px, 1000 classes, bfloat16 (training: float32 weights, AdamW). *MFU* is the speed in FLOP/s, "
    "relative to that of products of {0.side} x {0.side} matrices in JAX; a training step counts as three forward "
    "passes. *Peak* is the memory of the GPU, without one that of the process. *First step* includes compilation. Each "
    "contender runs alone. *keras_vit* has its defaults; *cuBLAS* sets `XLA_FLAGS=--xla_gpu_enable_triton_gemm=false`."
)


class Work:
    """The work of a contender; worker.py reports `peak` and `figures`."""

    def __init__(self, call, peak, **figures):
        self._call, self._peak, self.figures = call, peak, figures

    def __call__(self):
        self._call()

    @property
    def peak(self):
        """Peak memory of the GPU in bytes, or None without one."""
        return self._peak()


def keras_vit_inference(batch, steps, **arguments):
    import jax

    model, macs = _model("bfloat16", **arguments)
    weights = [[v.value for v in variables] for variables in (model.trainable_variables, model.non_trainable_variables)]
    forward = jax.jit(lambda weights, images: model.stateless_call(*weights, images, training=False)[0])
    images = jax.random.normal(jax.random.key(0), (batch, *model.input_shape[1:]), "bfloat16")

    def predict():
        for _ in range(steps):
            logits = forward(weights, images)
        logits.block_until_ready()

    return Work(predict, _jax_peak, macs=macs)


def keras_vit_training(batch, steps, **arguments):
    import jax
    import keras

    model, macs = _model("mixed_bfloat16", **arguments)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=True)
    images = jax.random.normal(jax.random.key(0), (batch, *model.input_shape[1:]))
    labels = jax.numpy.arange(batch) % model.config.classes

    def batches():
        for _ in range(steps):
            yield images, labels

    return Work(lambda: model.fit(batches(), steps_per_epoch=steps, verbose=0), _jax_peak, macs=macs)


def _model(dtype, variant, image_size, layers, one_product=False, **fields):
    """Return a model and its multiply-accumulates per image."""
    import keras_vit
    from keras_vit.layers import forms
    from keras_vit.models.costs import count_macs
    from keras_vit.zoo import VARIANTS

    if one_product:
        forms.is_on_gpu = lambda: False
    config = VARIANTS[variant].config(image_size=image_size, classes=1000, include_top=True, dtype=dtype, **fields)
    model = keras_vit.VisionTransformer(config.replace(num_layers=layers))
    return model, count_macs(model)


def timm_inference(variant, device, image_size, layers, batch, steps):
    import torch

    model = torch.compile(_timm_model(variant, device, image_size, layers).bfloat16().eval())
    images = torch.randn(batch, 3, image_size, image_size, device=device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def predict():
        for _ in range(steps):
            model(images)
        getattr(torch, device).synchronize()

    return Work(predict, _torch_peak)


def timm_training(variant, device, image_size, layers, batch, steps):
    import torch

    model = _timm_model(variant, device, image_size, layers).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    images = torch.randn(batch, 3, image_size, image_size, device=device)
    labels = torch.arange(batch, device=device) % model.num_classes

    def train():
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(compiled(images), labels)
            loss.backward()
            optimizer.step()
        getattr(torch, device).synchronize()

    return Work(train, _torch_peak)


def _timm_model(variant, device, image_size, layers):
    import timm
    import torch

    with torch.device(device):
        return timm.create_model(MODELS[variant].timm, num_classes=1000, img_size=image_size, depth=layers)


def matrix_product(device, side, steps):
    import jax

    kind = jax.devices(device)[0].device_kind  # fails if JAX cannot use the device
    left, right = jax.random.normal(jax.random.key(0), (2, side, side), "bfloat16")
    product = jax.jit(jax.numpy.matmul)

    def multiply():
        for _ in range(steps):
            result = product(left, right)
        result.block_until_ready()

    return Work(multiply, _jax_peak, device=kind)


def _jax_peak():
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def _torch_peak():
    import torch

    return torch.cuda.max_memory_allocated() or None


def run(options):
    scale = DRY_RUN if options.dry_run else GPU
    if scale is GPU and not shutil.which("nvidia-smi"):
        raise SystemExit(
            "the benchmark gpu needs an NVIDIA GPU with its driver; nvidia-smi was not found (use --dry-run to run a "
            "small part of each model on the CPU)"
        )
    arguments = {"device": scale.device, "side": scale.side, "steps": scale.steps}
    product = Contender("matrix product", "gpu:matrix_product", arguments, scale.jax)
    limit = contest([product], options.rounds, scale.seconds)["matrix product"]
    for variant, model in MODELS.items():
        if options.choose([model.layers]):
            for work in FORMS:
                yield _table(variant, model, work, limit, scale, options)


def _table(variant, model, work, limit, scale, options):
    batch, layers = scale.batch or getattr(model, work), scale.layers or model.layers
    arguments = {"variant": variant, "image_size": scale.image_size, "layers": layers}
    arguments |= {"batch": batch, "steps": scale.steps}
    contenders = [
        Contender(name, f"gpu:keras_vit_{work}", arguments | form, scale.jax | environment)
        for name, (environment, form) in FORMS[work].items()
    ]
    if options.peers and is_installed("timm"):
        contenders.append(Contender(TIMM, f"gpu:timm_{work}", {"device": scale.device, **arguments}, TORCH))
    results = {contender.name: _alone(contender, scale, options) for contender in contenders}
    timm, done = results.get(TIMM), [result for result in results.values() if result is not None]
    macs = next((result.figures["macs"] for result in done if "macs" in result.figures), math.nan)
    speed = scale.steps * 2 * scale.side**3 / limit.median  # FLOP/s
    rows = []
    for name, result in results.items():
        if result is None:
            rows.append((name, "failed", *[""] * (len(COLUMNS) - 2)))
            continue
        step = result.median / scale.steps
        rows.append(
            (
                name,
                f"{batch / step:.1f}",
                "" if timm in (None, result) else ratio(result.times_faster_than(timm)),
                f"{2 * macs * PASSES[work] * batch / step / speed:.1%}",
                f"{result.peak / 2**30:.2f}",
                f"{result.first - result.median + step:.1f}",
            )
        )
    part = "Dry run of one layer: " if options.dry_run else ""
    title = f"{part}{variant}, {work}, batch {batch}, {limit.figures['device']} ({speed / 1e12:.4g} TFLOP/s)"
    return Table(title, NOTE.format(scale), COLUMNS, rows)


def _alone(contender, scale, options):
    """Return the result of a contender, or None if it failed, such as for lack of memory."""
    try:
        return contest([contender], options.rounds, scale.seconds, warm_up=1)[contender.name]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return None
