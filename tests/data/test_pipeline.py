"""train_pipeline and eval_pipeline: order, shuffling, repetition, augmentation and damaged files."""

import itertools

import numpy as np
import PIL.Image
import pytest

from keras_vit import Preprocessing
from keras_vit.data import ImageSource, eval_pipeline, from_arrays, from_folder, train_pipeline
from keras_vit.data.pipeline import eval_batches

# Picture n has the level 2 * n everywhere, so that a batch tells which pictures it holds.
SIZE = 11
NUMBERED = np.broadcast_to(2 * np.arange(SIZE, dtype=np.uint8)[:, None, None, None], (SIZE, 8, 8, 1)).copy()
SOURCE = from_arrays(NUMBERED, np.arange(SIZE))
LEVELS = Preprocessing(size=8, mean=(0.0,), std=(1 / 255,))  # leaves levels as they are


def numbers(dataset, batches=None):
    """The numbers of the pictures in each batch, checked against the labels."""
    found = []
    for inputs, labels in itertools.islice(dataset.as_numpy_iterator(), batches):
        assert inputs.dtype == np.float32 and labels.dtype == np.int32
        np.testing.assert_allclose(
            inputs, np.broadcast_to(2.0 * labels[:, None, None, None], inputs.shape), atol=1e-4
        )
        found.append(labels.tolist())
    return found


def test_eval_keeps_the_order_and_the_last_pictures():
    dataset = eval_pipeline(SOURCE, LEVELS, 4)
    assert dataset.element_spec[0].shape == (None, 8, 8, 1)
    assert numbers(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert numbers(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_train_shuffles_every_pass_anew_and_joins_passes():
    found = numbers(train_pipeline(SOURCE, LEVELS, 4, seed=1), batches=11)
    assert all(len(batch) == 4 for batch in found)
    stream = sum(found, [])
    passes = [tuple(stream[start : start + SIZE]) for start in range(0, 4 * SIZE, SIZE)]
    assert all(sorted(one) == list(range(SIZE)) for one in passes)
    assert len(set(passes)) == 4 and tuple(range(SIZE)) not in passes


def test_train_is_determined_by_its_seed():
    def stream(seed):
        return numbers(train_pipeline(SOURCE, LEVELS, 4, seed=seed), batches=6)

    assert stream(1) == stream(1) != stream(2)


def test_train_without_repetition_and_shuffling():
    once = train_pipeline(SOURCE, LEVELS, 4, repeat=False)
    assert [len(batch) for batch in numbers(once)] == [4, 4]
    assert once.element_spec[0].shape == (4, 8, 8, 1)
    plain = train_pipeline(SOURCE, LEVELS, 4, shuffle=False, repeat=False, drop_remainder=False)
    assert numbers(plain) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_train_on_a_source_without_lookup():
    source = ImageSource(SOURCE.dataset, SOURCE.class_names, SOURCE.size)
    stream = sum(numbers(train_pipeline(source, LEVELS, 4, seed=1), batches=11), [])
    assert all(
        sorted(stream[start : start + SIZE]) == list(range(SIZE)) for start in range(0, 4 * SIZE, SIZE)
    )
    assert stream[:SIZE] != list(range(SIZE))
    plain = train_pipeline(source, LEVELS, 4, shuffle=False, repeat=False, drop_remainder=False)
    assert numbers(plain) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def augmented(names, count=256, seed=0):
    """The same 16 x 16 picture, augmented `count` times."""
    image = np.random.default_rng(0).integers(1, 256, (1, 16, 16, 3), dtype=np.uint8)
    protocol = Preprocessing(size=16, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    dataset = train_pipeline(from_arrays(image, [0]), protocol, count, augment=names, seed=seed)
    return image[0].astype(np.float32), next(dataset.as_numpy_iterator())[0]


def test_flip_mirrors_every_second_picture():
    image, results = augmented(("flip",))
    mirrored = np.isclose(results, image[:, ::-1], atol=1e-3).all(axis=(1, 2, 3))
    plain = np.isclose(results, image, atol=1e-3).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(plain, ~mirrored)
    assert 96 < mirrored.sum() < 160  # 256 fair coins: four standard deviations


def test_shift_moves_by_at_most_an_eighth_and_fills_with_black():
    image, results = augmented(("shift",))
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    shifts = {(y, x): padded[y : y + 16, x : x + 16] for y in range(5) for x in range(5)}
    found = [
        [at for at, moved in shifts.items() if np.allclose(result, moved, atol=1e-3)] for result in results
    ]
    assert all(len(matches) == 1 for matches in found)
    assert {matches[0] for matches in found} == set(shifts)


def test_augmentations_are_drawn_apart_and_from_the_seed():
    image, results = augmented(("flip", "shift"), seed=3)
    assert len(np.unique(results.reshape(len(results), -1), axis=0)) == 50  # 2 flips of 25 shifts
    np.testing.assert_array_equal(results, augmented(("flip", "shift"), seed=3)[1])
    assert not np.array_equal(results, augmented(("flip", "shift"), seed=4)[1])


def test_files_and_arrays_give_the_same_batches(tmp_path):
    for number, image in enumerate(NUMBERED):
        (tmp_path / f"{number:02}").mkdir()
        PIL.Image.fromarray(image[..., 0]).save(tmp_path / f"{number:02}" / "x.png")
    source = from_folder(tmp_path)
    assert numbers(eval_pipeline(source, LEVELS, 4)) == numbers(eval_pipeline(SOURCE, LEVELS, 4))
    train = [numbers(train_pipeline(s, LEVELS, 4, seed=5), batches=5) for s in (source, SOURCE)]
    assert train[0] == train[1]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "class").mkdir()
    for number in range(7):
        PIL.Image.fromarray(NUMBERED[number, ..., 0]).save(tmp_path / "class" / f"{number}.png")
    source = from_folder(tmp_path)
    whole = (tmp_path / "class" / "5.png").read_bytes()
    (tmp_path / "class" / "5.png").write_bytes(whole[:60])
    batches = eval_batches(source, LEVELS, 2)
    assert [len(next(batches)[1]) for _ in range(2)] == [2, 2]
    with pytest.raises(ValueError, match="5.png must be a whole picture.*begins as PNG but is cut short"):
        next(batches)
    (tmp_path / "class" / "5.png").unlink()
    with pytest.raises(FileNotFoundError, match="5.png"):
        list(eval_batches(source, LEVELS, 2))


def test_refusals():
    refused = [
        (
            lambda: train_pipeline(SOURCE, LEVELS, 4, augment=("flop",)),
            "one of 'flip', 'shift'; got augment='flop'",
        ),
        (
            lambda: train_pipeline(SOURCE, LEVELS, 4, augment="flip"),
            r"sequence of names, such as \('flip',\)",
        ),
        (
            lambda: train_pipeline(SOURCE, LEVELS, 0),
            "batch_size must be an integer of at least 1; got batch_size=0",
        ),
        (lambda: train_pipeline(SOURCE, LEVELS, 4, seed=-1), "seed must be an integer of at least 0"),
        (lambda: train_pipeline(SOURCE, LEVELS, 4, repeat=1), "repeat must be True or False"),
        (
            lambda: train_pipeline(SOURCE, LEVELS, 12, repeat=False),
            "not exceed the 11 pictures.*got batch_size=12",
        ),
        (lambda: eval_pipeline(SOURCE, LEVELS, 2.5), "batch_size must be an integer"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            print(message, call())  # shown where nothing is raised
