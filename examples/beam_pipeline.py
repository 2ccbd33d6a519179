"""Classify large image collections: an Apache Beam pipeline around an exported SavedModel.

    python examples/beam_pipeline.py --model serving/1 --images 'data/**.jpg' --output answers/rows

Images are files (`--images`, patterns of Beam: `*` matches within a folder, `**` across folders) or the feature
`--image-key` of the `tf.train.Example`s in TFRecord files (`--tfrecord 'data/train-*'`). The results are Parquet files,
`answers/rows-00000-of-00004.parquet` and so on, one row per image in arbitrary order:

- `path`, string: the file; for a record `FILE#INDEX`, counted from 0;
- `classes`, list of string, and `scores`, list of float32, best first: the output of `serving_default`;
- `features`, list of float32, with `--features`: the output of the signature `features`, which doubles the cost;
- `error`, string: why an image could not be read (then the lists are empty); "" otherwise.

Options that `--help` does not list are Beam's. They run the same command in several processes or in other places:

    ... --direct_running_mode multi_processing --direct_num_workers 8
    ... --runner FlinkRunner --flink_master HOST:8081 --environment_type DOCKER --environment_config IMAGE --shards 20
    ... --runner SparkRunner --spark_master_url spark://HOST:7077 --environment_type DOCKER --environment_config IMAGE
    ... --runner DataflowRunner --project PROJECT --region REGION --temp_location gs://BUCKET/tmp \
        --sdk_container_image IMAGE

Install `keras_vit` with its extras `beam` and `tensorflow`. The workers, such as those of the Docker image, need only
what the two extras install; Beam sends them the functions of this file. Model, images and output must have paths that
are valid on all workers, such as `gs://`. Without `--shards`, each bundle of the runner writes one file; Flink's
bundles are small.

The exit code is 0 if all rows are written, 2 on invalid arguments, and another one otherwise. Rows are written to
`answers/beam-temp-rows-...` and renamed at the end. An interrupted run leaves only that folder, and the same command
starts again from the beginning. An existing output raises an error; it is not overwritten.
"""

import argparse
import functools
import os
import sys
import threading

import apache_beam as beam
import pyarrow
import tensorflow as tf
from apache_beam.io import fileio, tfrecordio
from apache_beam.io.filesystems import FileSystems
from apache_beam.ml.inference.base import KeyedModelHandler, PredictionResult, RunInference
from apache_beam.ml.inference.tensorflow_inference import TFModelHandlerNumpy
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit import checks

_PROGRAM = "beam_pipeline.py"
_COLUMNS = {
    "path": pyarrow.string(),
    "classes": pyarrow.list_(pyarrow.string()),
    "scores": pyarrow.list_(pyarrow.float32()),
    "features": pyarrow.list_(pyarrow.float32()),
    "error": pyarrow.string(),
}
_OUTPUTS = {"serving_default": ("classes", "scores"), "features": ("features",)}  # signature -> outputs
_SUFFIX = ".parquet"
_LARGEST = 2**28  # bytes of a file; the default limit of an export, 64 million pixels, is 192 million bytes
_UNREAD = "unread"  # tag of the rows of unreadable images


def main(argv=None):
    """Run the command and return its exit code.

    Args:
        argv: list of arguments; None uses those of the process.
    """
    parser = _parser()
    args, words = parser.parse_known_args(argv)
    # The last --runner wins. Beam's default would download a server from GitHub and ignore --direct_*.
    options = PipelineOptions(["--runner=FnApiRunner", *words])
    FileSystems.set_options(options)
    try:
        _check(args)
    except (ValueError, OSError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    threading.excepthook = _end_with_worker
    pipeline = beam.Pipeline(options=options)
    classify(pipeline, **vars(args))
    state = pipeline.run().wait_until_finish()
    if state != PipelineState.DONE:
        print(f"{parser.prog}: error: the pipeline ended as {state}", file=sys.stderr)
        return 1
    return 0


def classify(pipeline, *, model, images, tfrecord, image_key, output, features, batch_size, shards):
    """Add all steps from the file patterns to the Parquet files to a pipeline.

    Args:
        pipeline: a `beam.Pipeline`.
        model: folder of an exported SavedModel.
        images, tfrecord: lists of file patterns.
        image_key: feature of the encoded image in the records.
        output: prefix of the Parquet files.
        features: whether the rows contain features.
        batch_size: images per call of the model.
        shards: number of Parquet files; 0 lets the runner decide.
    """
    handler = _SavedModelHandler(
        model,
        inference_fn=functools.partial(_answer, signatures=_signatures(features)),
        min_batch_size=batch_size,
        max_batch_size=batch_size,
    )
    files = _files(pipeline, "Images", images) | "Read images" >> _tagged(beam.FlatMap(_read_file))
    records = _files(pipeline, "TFRecord", tfrecord) | "Read records" >> _tagged(beam.FlatMap(_read_records, image_key))
    answers = (files.read, records.read) | beam.Flatten() | RunInference(KeyedModelHandler(handler))
    rows = (answers | "Rows" >> beam.Map(_row), files[_UNREAD], records[_UNREAD]) | "All rows" >> beam.Flatten()
    columns = [(name, kind) for name, kind in _COLUMNS.items() if features or name != "features"]
    _ = rows | beam.io.WriteToParquet(
        output,
        pyarrow.schema(columns),
        codec="snappy",
        use_compliant_nested_type=True,
        file_name_suffix=_SUFFIX,
        num_shards=shards,
    )


def _parser():
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Classify images with an exported SavedModel in an Apache Beam pipeline. Options that are not "
        "listed here are Beam's, such as --runner.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", type=_absolute, required=True, metavar="FOLDER", help="an exported SavedModel, such as serving/1")
    patterns = {"nargs": "+", "action": "extend", "type": _absolute, "default": [], "metavar": "PATTERN"}
    add("--images", **patterns, help="files, such as 'data/**.jpg'")
    add("--tfrecord", **patterns, help="TFRecord files of tf.train.Example, such as 'data/train-*'")
    add("--image-key", default="image/encoded", metavar="NAME", help="feature of the image (default: image/encoded)")
    add("--output", type=_prefix, required=True, metavar="PREFIX", help="of the Parquet files, such as answers/rows")
    add("--features", action="store_true", help="also write the features that the head reads")
    add("--batch-size", type=int, default=32, metavar="N", help="images per call of the model (default: 32)")
    add("--shards", type=int, default=0, metavar="N", help="number of Parquet files (default: 0, the runner decides)")
    return parser


def _absolute(path):
    return path if "://" in path else os.path.abspath(path)  # workers may have another current folder


def _prefix(path):
    if not os.path.basename(path):
        raise argparse.ArgumentTypeError(f"must be a prefix of file names, such as answers/rows; got {path!r}")
    return _absolute(path)


def _signatures(features):
    return ("serving_default", "features") if features else ("serving_default",)


def _check(args):
    """Raise on arguments that would fail on the workers, or return only rows with errors."""
    checks.check_integer("--batch-size", args.batch_size)
    checks.check_integer("--shards", args.shards, minimum=0)
    _check_model(args.model, _signatures(args.features))
    if not args.images and not args.tfrecord:
        raise ValueError("--images or --tfrecord must be given; got neither")
    for option, patterns in (("--images", args.images), ("--tfrecord", args.tfrecord)):
        for pattern in patterns:
            if os.path.isdir(pattern):
                raise ValueError(f"{option} must match files; {pattern} is a folder: name its files, '{pattern}/*'")
            if not FileSystems.match([pattern], [1])[0].metadata_list:
                raise FileNotFoundError(f"{option} must match files; none matches {pattern}")
    if args.tfrecord:
        _check_first_record(args.tfrecord[0], args.image_key)
    _check_output(args.output)


def _check_model(folder, signatures):
    path = os.path.join(folder, "saved_model.pb")
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(
            f"--model must be the folder of an exported SavedModel, such as serving/1; {folder} has no saved_model.pb"
        )
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            found = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0].signature_def
    except (DecodeError, IndexError):
        raise ValueError(f"--model must be the folder of a SavedModel; {path} is damaged") from None
    known = ", ".join(sorted(name for name in found if not name.startswith("__")))
    for name in signatures:
        inputs, outputs = set(found[name].inputs), set(found[name].outputs)
        if inputs != {"image_bytes"} or not outputs.issuperset(_OUTPUTS[name]):
            raise ValueError(
                f"--model must have the signature {name!r} as keras_vit.export writes it; {folder} has {known}"
            )
        if "error" not in outputs:
            raise ValueError(
                "--model must return a row for an unreadable image: export it with on_error='row'; "
                f"{folder} was exported with on_error='raise', where such an image fails the whole batch"
            )


def _check_first_record(pattern, image_key):
    file = fileio.ReadableFile(FileSystems.match([pattern], [1])[0].metadata_list[0])
    try:
        with file.open() as stream:
            record = tfrecordio._TFRecordUtil.read_record(stream)
    except RuntimeError:  # raised by Beam without google-crc32c
        raise
    except Exception:  # a damaged record; its row will report it
        return
    if record is not None:
        _encoded(record, image_key)


def _check_output(prefix):
    found = FileSystems.match([f"{prefix}-*-of-*{_SUFFIX}"])[0].metadata_list
    if found:
        raise FileExistsError(
            f"--output must be new; {found[0].path} exists from an earlier run: remove {prefix}-*{_SUFFIX} or choose "
            "another"
        )


def _end_with_worker(failure):
    """Handle `threading.excepthook`: end the run if a worker process of FnApiRunner has died.

    FnApiRunner itself would continue and fail at the end, when the rows may already have their final names.
    """
    threading.__excepthook__(failure)
    if failure.thread is not None and failure.thread.name == "run_worker":
        print(f"{_PROGRAM}: error: a worker process died", file=sys.stderr, flush=True)
        os._exit(1)  # sys.exit would only end this thread


def _tagged(transform):
    return transform.with_outputs(_UNREAD, main="read")


class _SavedModelHandler(TFModelHandlerNumpy):
    """Load a SavedModel: Beam's handler uses `tf.keras.models.load_model`, which cannot read one in Keras 3."""

    def load_model(self):
        return tf.saved_model.load(self._model_uri)


def _answer(model, batch, inference_args, model_id=None, *, signatures):
    """Return a `PredictionResult` for each encoded image in `batch`: a dict of the outputs of the signatures."""
    images = tf.constant(batch)  # not via NumPy, which removes zero bytes at the end
    outputs = {}
    for name in signatures:
        outputs |= {key: value.numpy().tolist() for key, value in model.signatures[name](image_bytes=images).items()}
    rows = [dict(zip(outputs, values, strict=True)) for values in zip(*outputs.values(), strict=True)]
    return [PredictionResult(*pair, model_id) for pair in zip(batch, rows, strict=True)]


def _files(pipeline, label, patterns):
    """Return the distinct files that match any of the patterns."""
    return (
        pipeline
        | f"{label}: patterns" >> beam.Create(patterns)
        | f"{label}: match" >> fileio.MatchAll(fileio.EmptyMatchTreatment.DISALLOW)
        | f"{label}: paths" >> beam.Map(_path)
        | f"{label}: each once" >> beam.Distinct()  # also distributes them over the workers
        | f"{label}: open" >> fileio.ReadMatches()
    )


def _path(metadata):
    """Return the path; one that is not UTF-8 is escaped, because Beam and Parquet need UTF-8, and is not found."""
    return metadata.path.encode(errors="backslashreplace").decode()


def _read_file(file):
    """Yield the path and the bytes of a file, or the row of an unreadable one."""
    path = file.metadata.path
    try:
        with file.open() as stream:
            contents = stream.read(_LARGEST + 1)
    except Exception as error:  # each file system and each compression raises its own
        yield _unread(path, f"not read: {error}")
        return
    if len(contents) > _LARGEST:
        yield _unread(path, f"not read: it has more than {_LARGEST:,} bytes")
    else:
        yield path, contents


def _read_records(file, image_key):
    """Yield the same for the records of a file, up to the first damaged one."""
    path = file.metadata.path
    index = 0
    try:
        with file.open() as stream:
            # Beam's public readers do not return positions, and stop the pipeline at a damaged record.
            while (record := tfrecordio._TFRecordUtil.read_record(stream)) is not None:
                yield _image(f"{path}#{index}", record, image_key)
                index += 1
    except RuntimeError:  # raised by Beam on a worker without google-crc32c
        raise
    except Exception as error:
        yield _unread(f"{path}#{index}", f"not read from here to the end of the file: {error}")


def _image(key, record, image_key):
    try:
        return key, _encoded(record, image_key)
    except ValueError as error:
        return _unread(key, f"not read: {error}")


def _encoded(record, image_key):
    """Return the image in a serialised `tf.train.Example`."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        raise ValueError("the record must be a tf.train.Example") from None
    if image_key not in features or len(features[image_key].bytes_list.value) != 1:
        raise ValueError(
            f"the record must have one string under --image-key {image_key}; its features are "
            f"{', '.join(sorted(features)) or 'none'}"
        )
    return features[image_key].bytes_list.value[0]


def _unread(path, error):
    row = {"path": path, "classes": [], "scores": [], "features": [], "error": error}
    return beam.pvalue.TaggedOutput(_UNREAD, row)


def _row(answer):
    """Return the row of a path and its `PredictionResult`."""
    path, result = answer
    values = result.inference
    error = values["error"].decode()
    return {
        "path": path,
        "classes": [] if error else [name.decode() for name in values["classes"]],
        "scores": [] if error else values["scores"],
        "features": [] if error else values.get("features", []),
        "error": error,
    }


if __name__ == "__main__":
    sys.exit(main())
