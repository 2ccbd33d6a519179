"""The order of images in batches: a function of the seed and the running number only."""

import dataclasses
import functools

import tensorflow as tf

from keras_vit.data.sources import ImageSource

_SHUFFLE_BUFFER = 10_000  # elements, for sources without lookup
_ENDLESS = tf.int64.max


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of training or evaluation.

    The rows of all batches have running numbers from 0. Pass p has the numbers from p * size on, one per image of the
    source. The order of a pass is drawn from `(seed, p)`, so that training can start at any batch.

    With `repeats` = k, a pass uses the first size / k images of its order (rounded up), each k times in succession, as
    in DeiT (arXiv 2012.12877, section 6; `RASampler` of its code, which rounds a pass down to a multiple of 256).
    Within a batch, `rows` places the repetitions of an image far apart, as DeiT's sampler places them on different
    devices: numbers 0, k, 2k, ... of the batch come first, then 1, k + 1, ... Therefore MixUp never mixes an image with
    itself.

    Attributes:
        source: an `ImageSource`.
        batch_size: rows of a batch.
        seed: integer, 0 or above.
        shuffle: False keeps the order of the source.
        repeat: True for endless passes, False for one pass.
        repeats: how often each image appears in a pass.
        drop_remainder: whether to drop a last batch that is not full.
    """

    source: ImageSource
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    repeat: bool = False
    repeats: int = 1
    drop_remainder: bool = False

    @property
    def steps(self):
        """Number of batches; `tf.data.INFINITE_CARDINALITY` for endless passes."""
        if self.repeat:
            return tf.data.INFINITE_CARDINALITY
        return self.source.size // self.batch_size if self.drop_remainder else -(-self.source.size // self.batch_size)

    def batches(self, start_step=0):
        """Return the dataset of (number of the batch, argument of `rows`), from batch `start_step` on."""
        first_pass, skipped = divmod(start_step * self.batch_size, self.source.size)
        passes = tf.data.Dataset.range(first_pass, _ENDLESS if self.repeat else 1)
        join = self._join_elements if self.source.lookup is None else self._join_positions
        return join(passes, first_pass, skipped).enumerate(start=start_step)

    def length(self, number):
        """Return the rows of batch `number`, int64; a last batch may have fewer than `batch_size`."""
        if self.repeat or self.drop_remainder:
            return tf.constant(self.batch_size, tf.int64)
        return tf.minimum(tf.constant(self.batch_size, tf.int64), self.source.size - number * self.batch_size)

    def rows(self, number, batch):
        """Return the dataset of (running number, position in the source, element); with lookup, element is ()."""
        first = number * self.batch_size
        numbers = tf.data.Dataset.range(first, first + self.length(number))
        if self.source.lookup is None:
            positions, elements = batch
            rows = tf.data.Dataset.zip((numbers, positions, tf.data.Dataset.zip(elements)))
        else:
            rows = tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensor_slices(batch)))
            rows = rows.map(lambda number, position: (number, position, ()))
        if self.repeats == 1:
            return rows
        return functools.reduce(
            tf.data.Dataset.concatenate, [rows.shard(self.repeats, place) for place in range(self.repeats)]
        )

    def others(self, number):
        """Return all images of the source in the form of `rows`, for a batch whose images are all unreadable.

        They start where batch `number` starts without shuffling, so that no image is preferred, and all have its first
        running number.
        """
        first = number * self.batch_size
        start = tf.math.floormod(first, self.source.size)
        if self.source.lookup is None:
            elements = self.source.dataset.enumerate()
            return elements.skip(start).concatenate(elements).map(lambda position, e: (first, position, e))
        positions = tf.data.Dataset.range(start, start + self.source.size)
        return positions.map(lambda position: (first, tf.math.floormod(position, self.source.size), ()))

    def element(self, position, element):
        """Return `{"image": ..., "label": ...}` of a row."""
        return element if self.source.lookup is None else self.source.lookup(position)

    def _join_positions(self, passes, first_pass, skipped):
        """Return the positions in batches: int64 (rows,)."""

        def of_pass(number):
            positions = tf.range(self.source.size, dtype=tf.int64)
            if self.shuffle:
                key = tf.stack([tf.constant(self.seed, tf.int64), number])
                positions = tf.random.experimental.stateless_shuffle(positions, key)
            distinct = positions[: -(-self.source.size // self.repeats)]
            of_this = tf.repeat(distinct, self.repeats)[: self.source.size]
            return of_this[tf.where(number == first_pass, skipped, 0) :]

        return passes.map(of_pass).rebatch(self.batch_size, drop_remainder=self.drop_remainder)

    def _join_elements(self, passes, first_pass, skipped):
        """Return (position, element) in batches: nested datasets, because pixels may differ in size."""
        elements = self.source.dataset.apply(tf.data.experimental.assert_cardinality(self.source.size)).enumerate()

        def of_pass(number):
            ordered = _shuffled(elements, self.seed, number) if self.shuffle else elements
            if self.repeats > 1:
                ordered = ordered.flat_map(lambda *e: tf.data.Dataset.from_tensors(e).repeat(self.repeats))
            return ordered.take(self.source.size)

        joined = passes.flat_map(of_pass).skip(skipped)
        return joined.window(self.batch_size, drop_remainder=self.drop_remainder)


def _shuffled(dataset, seed, number):
    # Dataset.shuffle adds TensorFlow's global seed to its own, so the order would depend on it.
    flat = tf.nest.flatten(dataset.element_spec)
    shuffled = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=tf.constant(_SHUFFLE_BUFFER, tf.int64),
        seed=tf.constant(seed, tf.int64),
        seed2=number + 1,  # two zeros would mean a random seed
        output_types=[spec.dtype for spec in flat],
        output_shapes=[spec.shape for spec in flat],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(shuffled, dataset.element_spec)
