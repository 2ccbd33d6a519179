"""Compare training and inference on one GPU, in bfloat16: keras_vit on JAX, and timm's model with torch.compile.

It needs `pip install -e '.[bench]' 'jax[cuda12]'`, and does not use TensorFlow. The inputs are already on the device,
and each timing includes waiting for the result.
"""

import shutil

from benchmarks.contest import Contender, contest
from benchmarks.report import Table, ratio

# variant -> timm's name, GFLOP of one image forward at 224 px
MODELS = {"ViT-B_16": ("vit_base_patch16_224", 35.1), "ViT-L_16": ("vit_large_patch16_224", 123.1)}
# work -> batch, passes: the backward pass counts as two forward passes
WORK = {"inference": (256, 1), "training": (128, 3)}
STEPS = {"inference": 1, "training": 10}  # steps per call, which share the fixed cost of a call of `fit`
SIDE = 8192  # of the square matrices whose product is the limit
JAX = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # leaves GPU memory for the others
NOTE = (
    "224 px, bfloat16 (training: float32 weights, AdamW). *MFU* is the speed in FLOP/s, relative to that of products "
    f"of {SIDE} x {SIDE} matrices in the same run; a training step counts as three forward passes."
)


def keras_vit_inference(variant, batch):
    import jax
    import jax.numpy as jnp

    import keras_vit

    model = keras_vit.create_model(variant, dtype="bfloat16")
    weights = [[v.value for v in variables] for variables in (model.trainable_variables, model.non_trainable_variables)]
    forward = jax.jit(lambda weights, images: model.stateless_call(*weights, images, training=False)[0])
    images = jnp.zeros((batch, 224, 224, 3), "bfloat16")
    return lambda: forward(weights, images).block_until_ready()


def keras_vit_training(variant, batch):
    import jax.numpy as jnp
    import keras

    import keras_vit

    model = keras_vit.create_model(variant, dtype="mixed_bfloat16")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=True)
    images, labels = jnp.zeros((batch, 224, 224, 3)), jnp.zeros(batch, "int32")

    def batches():
        for _ in range(STEPS["training"]):
            yield images, labels

    return lambda: model.fit(batches(), steps_per_epoch=STEPS["training"], verbose=0)


def timm_inference(variant, batch):
    import timm
    import torch

    model = torch.compile(timm.create_model(MODELS[variant][0]).cuda().bfloat16().eval())
    images = torch.zeros(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)

    @torch.inference_mode()
    def predict():
        model(images)
        torch.cuda.synchronize()

    return predict


def timm_training(variant, batch):
    import timm
    import torch

    model = timm.create_model(MODELS[variant][0]).cuda().train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    images = torch.zeros(batch, 3, 224, 224, device="cuda")
    labels = torch.zeros(batch, dtype=torch.int64, device="cuda")

    def steps():
        for _ in range(STEPS["training"]):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(compiled(images), labels)
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()

    return steps


def matrix_product():
    import torch

    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def multiply():
        left @ right
        torch.cuda.synchronize()

    return multiply


def run(options):
    if not shutil.which("nvidia-smi"):
        raise SystemExit("the benchmark gpu needs an NVIDIA GPU with its driver; nvidia-smi was not found")
    for variant, (_, gflop) in MODELS.items():
        for work, (batch, passes) in WORK.items():
            yield _table(variant, work, batch, passes * batch * gflop, options)


def _table(variant, work, batch, gflop, options):
    arguments = {"variant": variant, "batch": batch}
    contenders = [Contender("keras_vit on JAX", f"gpu:keras_vit_{work}", arguments, JAX)]
    if options.peers:
        contenders.append(Contender("timm, torch.compile", f"gpu:timm_{work}", arguments))
    contenders.append(Contender("matrix product", "gpu:matrix_product", {}))
    results = contest(contenders, options.rounds)
    limit = results.pop("matrix product")
    speed = 2 * SIDE**3 / 1e9 / limit.median  # GFLOP/s
    ours, steps = results["keras_vit on JAX"], STEPS[work]
    rows = [
        (
            name,
            f"{steps * batch / result.median:.0f}",
            "" if result is ours else ratio(ours.times_faster_than(result)),
            f"{steps * gflop / result.median / speed:.1%}",
            f"{result.first:.1f}",
        )
        for name, result in results.items()
    ]
    columns = ("", "images/s", "keras_vit is faster by", "MFU", "first call s")
    return Table(f"{variant}, {work}, batch {batch}, one GPU ({speed / 1000:.0f} TFLOP/s)", NOTE, columns, rows)
