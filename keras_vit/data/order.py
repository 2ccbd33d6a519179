"""The order of images in batches: a function of the seed and the running number only."""

import dataclasses

import tensorflow as tf

from keras_vit.data.sources import ImageSource, pack, unpack

_SHUFFLE_BUFFER = 10_000  # elements, for sources without lookup
_ENDLESS = tf.int64.max


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of training or evaluation.

    The images of all batches have running numbers from 0. Pass p has the numbers p * size to (p + 1) * size - 1, one
    per image of the source. The order of a pass is drawn from `(seed, p)`, so that training can start at any batch.

    With `repeats` = k, a pass uses the first size / k images of its order (rounded up), each k times in succession, as
    in DeiT (arXiv 2012.12877, section 6; `RASampler` of its code, which rounds a pass down to a multiple of 256).
    Within a batch, the repetitions of an image are far apart: numbers 0, k, 2k, ... of the batch come first, then 1,
    k + 1, ... (DeiT's sampler places them on different devices). Therefore MixUp never mixes an image with itself if
    the batch has at least 3k images, all of one pass.

    Attributes:
        source: an `ImageSource`.
        batch_size: images of a batch, over all shards.
        seed: integer, 0 or above.
        shuffle: False keeps the order of the source.
        repeat: True for endless passes, False for one pass.
        repeats: how often each image appears in a pass.
        drop_remainder: whether to drop a last batch that is not full.
        shard: (index, count), the part of every batch that is read.
        has_partner: whether to read one more image, the MixUp partner of the shard's first image: the one before it in
            the batch; for the first image of the batch, the last one.
    """

    source: ImageSource
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    repeat: bool = False
    repeats: int = 1
    drop_remainder: bool = False
    shard: tuple[int, int] = (0, 1)
    has_partner: bool = False

    @property
    def steps(self):
        """Number of batches; `tf.data.INFINITE_CARDINALITY` for endless passes."""
        if self.repeat:
            return tf.data.INFINITE_CARDINALITY
        return self.source.size // self.batch_size if self.drop_remainder else -(-self.source.size // self.batch_size)

    @property
    def rows_per_batch(self):
        """Number of rows of a full batch, including the partner."""
        return self.batch_size // self.shard[1] + self.has_partner

    def batches(self, step):
        """Return the rows of each batch from `step` on.

        Returns:
            `tf.data.Dataset` of dicts of vectors: `number` (the running number of the image) and `position` (in the
            source). Without lookup also `image`, strings, and `label`.
        """
        first, skipped = step * self.batch_size // self.source.size, step * self.batch_size % self.source.size
        passes = tf.data.Dataset.range(first, _ENDLESS if self.repeat else 1)
        if self.source.lookup is None:
            batches = passes.flat_map(self._elements).skip(skipped)
            batches = batches.batch(self.batch_size, drop_remainder=self.drop_remainder)
        else:
            batches = passes.map(lambda n: {"position": self._positions(n)[tf.where(n == first, skipped, 0) :]})
            batches = batches.rebatch(self.batch_size, drop_remainder=self.drop_remainder)
        return batches.enumerate(step).map(self._in_batch)

    def candidates(self, row):
        """Return the dataset of `row` and the rows that may replace it, the next images of the source."""
        if self.source.lookup is None:  # its first images; reaching the next ones would mean reading it again
            others = self._as_rows(self.source.dataset)
        else:
            places = tf.data.Dataset.range(row["position"] + 1, row["position"] + self.source.size)
            others = places.map(lambda position: {"position": position % self.source.size})
        return tf.data.Dataset.from_tensors(row).concatenate(others.map(lambda other: {**row, **other}))

    def element(self, row):
        """Return `{"image": ..., "label": ...}` of a row."""
        if self.source.lookup is not None:
            return tf.function(self.source.lookup)(row["position"])  # with AutoGraph, which a user's function may need
        return {"image": unpack(row["image"], self.source.dataset.element_spec["image"]), "label": row["label"]}

    def _in_batch(self, step, batch):
        """Return the rows of this shard in the order of a batch."""
        length = tf.size(batch["position"], tf.int64)
        bounds = tf.constant((self.shard[0], self.shard[0] + 1), tf.int64) * self.batch_size // self.shard[1]
        first, end = tf.unstack(tf.minimum(bounds, length))
        places = tf.range(first - int(self.has_partner) * tf.cast(end > first, tf.int64), end) % length
        chosen = tf.gather(tf.argsort(tf.range(length) % self.repeats, stable=True), places)
        rows = {name: tf.gather(values, chosen) for name, values in batch.items()}
        return {**rows, "number": step * self.batch_size + tf.cast(chosen, tf.int64)}

    def _positions(self, number):
        """Return the positions of a pass: int64 (size,)."""
        positions = tf.range(self.source.size, dtype=tf.int64)
        if self.shuffle:
            key = tf.stack([tf.constant(self.seed, tf.int64), number])
            positions = tf.random.experimental.stateless_shuffle(positions, key)
        distinct = positions[: -(-self.source.size // self.repeats)]
        return tf.repeat(distinct, self.repeats)[: self.source.size]

    def _elements(self, number):
        """Return the dataset of the elements of a pass, for a source without lookup."""
        elements = self._as_rows(self.source.dataset.apply(tf.data.experimental.assert_cardinality(self.source.size)))
        if self.shuffle:
            elements = _shuffled(elements, self.seed, number)
        if self.repeats > 1:
            elements = elements.flat_map(lambda e: tf.data.Dataset.from_tensors(e).repeat(self.repeats))
        return elements.take(self.source.size)

    def _as_rows(self, dataset):
        """Return the elements with their positions."""
        return dataset.enumerate().map(
            lambda position, element: {**element, "position": position, "image": pack(element["image"])}
        )


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
