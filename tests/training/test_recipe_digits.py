"""A ViT learns the digits from scratch by the AugReg recipe, as somebody would who has 1,438 images of 8 x 8."""

import pytest

from keras_vit.training import RECIPES, train

# Shorter, by smaller batches and a higher rate; digits are not symmetric, and there is little to crop from 8 x 8.
CHANGES = {
    "dataset": "digits",
    "model": RECIPES["quickstart"].model,
    "image_size": 8,
    "batch_size": 128,
    "steps": 2000,
    "warmup_steps": 200,
    "learning_rate": 3e-3,
    "augment": ("inception_crop(0.7)", "randaugment(2, 10)"),
    "steps_per_execution": 25,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_augreg_reads_98_percent_of_the_held_out_fifth(seed, tmp_path):
    """Seeds 0, 1 and 2."""
    recipe = RECIPES["augreg/light2"].replace(seed=seed, **CHANGES)
    assert recipe.mix == ("mixup(0.2)",) and recipe.weight_decay == 0.1 and recipe.dropout_rate == 0
    result = train(recipe, None, tmp_path, verbose=0)
    print(f"seed {seed}: {100 * result.accuracy:.2f} %")
    assert result.accuracy >= 0.98
