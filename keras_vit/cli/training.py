"""What `keras-vit train` and `pretrain` do, and the changes to its recipe: `--set FIELD=VALUE` and the short forms."""

import contextlib
import json
import pathlib
import sys

import keras

import keras_vit
from keras_vit import checks
from keras_vit.cli.answers import Answer
from keras_vit.cli.failures import users_mistakes
from keras_vit.cli.models import build_model, find_source, given
from keras_vit.cli.sources import ANY_KIND, TASKS, kind_of, open_sources, open_task_source, split
from keras_vit.zoo import variant_name

_SHORT_FORMS = ("epochs", "steps", "batch_size", "learning_rate", "weight_decay", "seed", "image_size")


def train(args):
    """Train with a recipe, or show the recipe."""
    recipes = keras_vit.training.RECIPES
    if args.recipe not in recipes:
        hint = checks.suggestion(args.recipe, recipes, most=3, cutoff=0.4)
        raise ValueError(f"--recipe must be one that keras-vit list --recipes shows; got {args.recipe!r}{hint}")
    recipe = recipes[args.recipe].replace(**read_changes(args))
    kind, task = kind_of(args), keras_vit.training.recipe_checks.TASKS.get(recipe.loss)
    in_file = args.model is not None and find_source(args) is not None
    if args.model is not None and not in_file:
        args.model = variant_name("--model", args.model)
    if args.show:
        return Answer(recipe.to_dict(), json.dumps(recipe.to_dict(), indent=2))
    if args.workdir is None:
        raise ValueError("--workdir must be given, or --show to see the recipe")
    if args.model is None and recipe.model is None:
        raise ValueError(f"--model must be given: recipe {recipe.name!r} does not define one")
    if (task is None) == (kind in TASKS) and not (task is None and kind is None):
        expected = "must be given" if task else "need a recipe of a task model"
        raise ValueError(f"--annotations, --label-maps or --depths {expected}: recipe {recipe.name!r}")
    if kind is None and recipe.dataset is None:
        raise ValueError(f"{ANY_KIND} must be given: recipe {recipe.name!r} has no images of its own")
    training = keras_vit.training
    failures = training.CheckpointError, training.NonFiniteError, training.MissingDevicesError
    # Several workers must connect before TensorFlow creates anything, such as a source.
    with users_mistakes(*failures), _why_it_ended(), keras_vit.distribution(args.strategy) as devices:
        source, validation = open_sources(args, recipe.seed) if task is None else _task_sources(args, task, recipe.seed)
        model = args.model
        keras.utils.set_random_seed(recipe.seed)  # of a new head
        if in_file:
            model = _from_file(args, recipe, source) if task is None else build_model(args)
        return _run(recipe, source, args, model=model, weights=args.weights, validation=validation, strategy=devices)


def pretrain(args):
    """Go on training an encoder on images without labels."""
    source = keras_vit.data.from_files(args.folder)
    validation = None if args.labels is None else keras_vit.data.from_directory(args.labels)
    changes, training = read_changes(args), keras_vit.training
    with users_mistakes(training.CheckpointError, training.NonFiniteError), _why_it_ended():
        if find_source(args) is not None and (task := keras_vit.describe(args.model).task):
            raise ValueError(f"--from must be an encoder; got the task model {task} (save keras_vit.load(...).encoder)")
        fields = {name: changes[name] for name in training.recipe.MODEL_FIELDS if name in changes}
        encoder = build_model(args, include_top=False, **fields)
        if args.crop_size is not None:
            encoder = keras_vit.resize(encoder, "any")
            encoder.preprocessing = encoder.preprocessing.at(args.crop_size)
        sizes = {name: changes.pop(name) for name in ("batch_size", "epochs", "steps") if name in changes}
        recipe = training.continued_pretraining(encoder, source.size, **sizes).replace(**changes)
        keras.utils.set_random_seed(recipe.seed)  # of LoRA
        if args.trained == "lora":
            keras_vit.add_lora(encoder)
        elif args.trained != "all":
            _train_last(encoder, args.trained)
        if args.measure:
            options = {"seed": recipe.seed, **given(args, ("max_corrupt",))}
            encoder.preprocessing = keras_vit.data.measured_preprocessing(source, encoder.preprocessing, **options)
        return _run(recipe, source, args, model=encoder, validation=validation)


def _train_last(encoder, number):
    """Freeze what precedes the last blocks, of which at least one stays frozen."""
    count = encoder.config.num_layers
    if not number.isdecimal() or not 0 < int(number) < count:
        raise ValueError(f"--trained must be lora, all or a number of blocks above 0 and below {count}; got {number!r}")
    keras_vit.freeze(encoder, f"block_{count - 1 - int(number):02d}")


def _run(recipe, source, args, **options):
    """Train, and return the answer of the verb; `keras_vit.train` defines the defaults of what is not given."""
    options |= given(args, ("checkpoint_every", "max_corrupt"))
    result = keras_vit.train(recipe, source, args.workdir, verbose=0 if args.quiet else "auto", **options)
    folder = pathlib.Path(args.workdir)
    best = str(folder / "best.keras") if (folder / "best.keras").is_file() else None  # not of every run
    values = {"accuracy": result.accuracy, "saved": str(folder / "model.keras"), "best": best}
    shown = {**values, "accuracy": result.accuracy is not None and f"{100 * result.accuracy:.1f} %"}
    return Answer(values, "\n".join(f"{name}: {value}" for name, value in shown.items() if value))


def _task_sources(args, task, seed):
    source = open_task_source(args, task.models)
    return (source, None) if args.hold_out is None else split(source, args.hold_out, seed)


def _from_file(args, recipe, source):
    """Return the model in the file of `--model`, with the settings of the recipe and the classes of the images."""
    fields = recipe.model_arguments(type(keras_vit.describe(args.model).config))
    classes = {} if source is None else {"classes": len(source.class_names)}
    return build_model(args, include_top=True, **classes, **fields)


@contextlib.contextmanager
def _why_it_ended():
    """Print one line about a run that was interrupted and saved; the exception sets the exit code."""
    try:
        yield
    except (keras_vit.training.Preempted, keras_vit.training.Interrupted) as end:
        print(f"keras-vit: {end}", file=sys.stderr)
        raise


def read_changes(args):
    """Return the fields of the recipe that the arguments change, by name."""
    changes = given(args, _SHORT_FORMS)
    for name, text in args.set:
        if name in changes:
            raise ValueError(f"{name} must be given once; --set {name}={text} gives it again")
        changes[name] = keras_vit.training.recipes.read_field(name, text)
    return changes
