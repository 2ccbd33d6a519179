"""A mistake on the command line is one line and an exit code; a fault of ours is raised."""

import os
import re
import shlex

import pytest
from command_line import SAVED, error_of, run
from faults import for_each

from keras_vit.cli import failures

MISTAKES = [
    ("predict cat.jpg --model ViT-Ti_16", "--weights must be given with --model ViT-Ti_16"),
    (
        "predict cat.jpg --model ViT-Ti_17 --weights ViT-Ti_16.npz",
        "--model='ViT-Ti_17' is the name of no model .did you mean 'ViT-Ti_16'.*; or a file, .* or hf://org/repo$",
    ),
    (
        "predict cat.jpg --model nonsense --weights ViT-Ti_16.npz",
        "^--model='nonsense' is the name of no model: it must be one of the 151 of keras_vit.list_models",
    ),
    (
        "predict cat.jpg --model ViT-S_16 --weights ViT-Ti_16.npz",
        "weights of ViT-Ti_16 or DeiT-Ti_16, not of ViT-S_16: ",
    ),
    (
        "predict cat.jpg --model ViT-Ti_16 --weights no/such.npz",
        "there is no such file here, and weights='no/such.npz' is no file of ViT-Ti_16; published for ViT-Ti_16: '",
    ),
    (
        "predict cat.jpg --model ViT-B_16 --weights ViT-B_16-384.npz",
        "here, and weights='ViT-B_16-384.npz' is no file of ViT-B_16 .did you mean 'ViT-B_16-224'",
    ),
    ("predict cat.jpg --model model.keras --weights ViT-Ti_16.npz", "--weights must be omitted"),
    ("predict cat.jpg --model other.keras", "^--model: file other.keras does not exist$"),
    ("export --model other.keras --output serving", "^--model: file other.keras does not exist$"),
    ("info other.keras", "^MODEL: file other.keras does not exist$"),
    ("predict cat.jpg --model other.safetensors", "^--model: file other.safetensors does not exist$"),
    ("info drawings.npz --weights ViT-Ti_16.npz", "^--weights must be omitted with MODEL drawings.npz"),
    ("train --recipe quickstart --show --model other.keras", "^--model: file other.keras does not exist$"),
    ("train --recipe quickstart --show --model model.keras --weights x", "^--weights must be omitted with --model"),
    ("predict cat.jpg --model text.keras", "must be a whole .keras file.*b'no model'"),
    ("predict dog.jpg --model model.keras", "there is no image file dog.jpg"),
    ("predict text.keras --model model.keras", "must be an image"),
    ("predict cat.jpg --model model.keras --top 0", "top must be an integer of at least 1"),
    ("predict cat.jpg --model model.keras --crop 8", "must be the model's image size 16 x 16 .*; got 8 x 8"),
    ("predict cat.jpg --model model.keras --resize 8", "crop must not exceed size"),
    ("predict cat.jpg --model model.keras --resize 8x8x8", "argument --resize: expected N or HEIGHTxWIDTH"),
    ("predict cat.jpg --model model.keras --interpolation cubic", "interpolation must be one of 'bilinear'"),
    ("predict cat.jpg --model model.keras --mean 0.5,0.5", "one number per channel; got mean=.0.5, 0.5."),
    ("predict cat.jpg --model model.keras --mean red", "argument --mean: invalid numbers value: 'red'"),
    ("predict cat.jpg --model model.keras --std 0", "std must be above 0"),
    ("predict cat.jpg --model model.keras --image-size 2", "image_size must be at least patch_size"),
    ("predict cat.jpg --model model.keras --gelu exact", "gelu must be one of 'tanh', 'erf'"),
    ("predict --model model.keras", "arguments are required: IMAGE .*predict --help"),
    (
        "predict cat.jpg --modle model.keras",
        "^predict has no option '--modle' .did you mean '--model'.. .keras-vit predict --help shows",
    ),
    ("predict cat.jpg --model model.keras --topp=3", "no option '--topp' .did you mean '--top'.*predict --help"),
    ("predict cat.jpg --model model.keras --image_size 32", "'--image_size' .did you mean '--image-size'"),
    ("predict cat.jpg --model model.keras --colour x", "^predict has no option '--colour' .keras-vit predict --help"),
    (
        "predict cat.jpg --model model.keras cat.jpg",
        "predict takes no further argument; got 'cat.jpg' .keras-vit predict --help",
    ),
    ("explain cat.jpg dog.jpg --model model.keras -o x.png", "explain takes no further argument; got 'dog.jpg'"),
    ("explain cat.jpg -model model.keras -ox.png", "explain has no option '-model' .did you mean '--model'"),
    (
        "train quickstart --recipe quickstart --show",
        "train takes no further argument; got 'quickstart' .keras-vit train --help",
    ),
    ("train --recipe quickstart --lr 1", "train has no option '--lr' .did you mean '--learning-rate'"),
    ("--verbose list", "^unrecognized arguments: --verbose .keras-vit --help"),
    ("list ViT-Ti_16 ViT-S_16", "list takes no further argument; got 'ViT-S_16'"),
    ("evaluate --folder nowhere --model model.keras", "nowhere does not exist"),
    ("evaluate --model model.keras", "one of the arguments --folder --tfds --tfrecord --arrays is required"),
    (
        "list 'no such' --recipes",
        "^PATTERN 'no such' matches none of the names; keras-vit list --recipes shows all 93$",
    ),
    ("list vit/finetun/pets --recipes", "names .did you mean 'vit/finetune/pets' or .*list --recipes shows"),
    ("list xyzzy", "^PATTERN 'xyzzy' matches none of the names; keras-vit list shows all 151$"),
    ("list vit_bse_patch16_224", "names .did you mean 'vit_base_patch16_224' or "),
    ("evaluate --folder images --model model.keras --batch-size 0", "batch_size must be an integer"),
    (
        "probe --folder images --model model.keras",
        "probe needs test images: --validation, --hold-out or --arrays with",
    ),
    ("probe --arrays none.npz --model model.keras", "there is no file none.npz"),
    ("probe --arrays text.keras --model model.keras", "text.keras' must be a whole .npz file"),
    (
        "probe --arrays drawings.npz --validation x --model model.keras",
        "--validation requires --folder or --tfds or --tfrecord; got --arrays",
    ),
    (
        "probe --arrays drawings.npz --model model.keras",
        "got shots=25, and train has 10 of class '0'; 2 of 2 classes have too few",
    ),
    ("probe --arrays drawings.npz --model model.keras --shots 1,x", "expected an integer of at least 1; got 'x'"),
    ("probe --arrays drawings.npz --model model.keras --seeds 0", "--seeds: expected an integer of at least 1"),
    ("probe --arrays drawings.npz --model model.keras --shots 1 --l2 0", "l2 must be a finite number above 0"),
    ("probe --arrays drawings.npz --model model.keras --shots 1 --layer tail", "among .*'block_00'.*; got 'tail'"),
    (
        "probe --arrays drawings.npz --model model.keras --plot x.csv",
        "ending of --plot must be one of '.png', .*'.csv'",
    ),
    ("probe --arrays drawings.npz --model model.keras --table no/x.csv", "--table must be in a folder that exists"),
    ("train --recipe quickstat --show", "keras-vit list --recipes shows; got 'quickstat' .did you mean 'quickstart'"),
    ("train --recipe quickstart --show --set learning_rat=1", "got 'learning_rat' .did you mean 'learning_rate'"),
    ("train --recipe quickstart --show --set lr=1", "got 'lr' .did you mean 'learning_rate'"),
    ("train --recipe quickstart --show --set learning_rate", "argument --set: expected FIELD=VALUE"),
    ("train --recipe quickstart --show --set learning_rate=fast", "learning_rate must be a finite number above 0"),
    ("train --recipe quickstart --show --seed 1 --set seed=2", "seed must be given once; --set seed=2 gives it again"),
    ("train --recipe quickstart --show --epochs 3 --steps 5", "exactly one of epochs and steps must be given"),
    ("train --recipe quickstart --show --set 'augment=flip, mirror'", "augment must be one of .*augment='mirror'"),
    ("train --recipe vit/imagenet --workdir x", "--model must be given: recipe 'vit/imagenet' does not define one"),
    (
        "train --recipe vit/imagenet --workdir x --model ViT-Ti_16",
        "--folder, --tfds, --tfrecord or --arrays must be given",
    ),
    (
        "train --recipe quickstart --workdir x --validation images",
        "--validation requires --folder or .*; got no images",
    ),
    ("train --recipe quickstart --workdir x --hold-out 0.1", "--hold-out requires --folder or .*; got no images"),
    ("train --recipe quickstart --workdir x --folder images --tfds mnist", "not allowed with argument --folder"),
    ("train --recipe quickstart --workdir x --tfds mnist", "--split must be given with --tfds"),
    ("train --recipe quickstart --workdir x --folder images --split train", "--split requires --tfds"),
    (
        "train --recipe quickstart --workdir x --folder images --hold-out 0.5 --validation images",
        "argument --validation: not allowed with argument --hold-out",
    ),
    ("train --recipe quickstart --workdir x --folder images --image-key i", "--image-key requires --tfds or"),
    ("train --recipe quickstart --workdir x --tfrecord 'no/such-*'", "no/such-"),
    ("train --recipe quickstart --workdir x --tfrecord images", "images is a folder: .*such as 'images/\\*'"),
    ("train --recipe quickstart --show --model nonsense", "--model='nonsense' is the name of no model"),
    (
        "train --recipe quickstart --show --model ViT-B16",
        "--model='ViT-B16' is the name of no model .did you mean 'ViT-B_16'",
    ),
    ("train --recipe quickstart --show --strategy bogus", "argument --strategy: invalid choice: 'bogus'"),
    ("train --recipe quickstart --show --split q", "--split requires --tfds"),
    ("train --recipe quickstart --show --validation x", "--validation requires --folder or .*; got no images"),
    ("train --recipe quickstart --show --checkpoint-every 0", "--checkpoint-every: expected an integer of at least 1"),
    ("train --recipe quickstart --show --max-corrupt 2", "--max-corrupt: expected a share from 0 to 1; got '2'"),
    ("train --recipe quickstart --show --hold-out 1.5", "--hold-out: expected a share from 0 to 1; got '1.5'"),
    (
        "train --recipe quickstart --workdir x --folder images --hold-out 0.1",
        "--hold-out must leave each part an image; got 0.1 of 4 images",
    ),
    ("train --recipe quickstart --show --seed 99999999999", "seed must be an integer .* at most 4294967295"),
    ("train --recipe quickstart", "--workdir must be given"),
    ("train --recipe vit/finetune/pets --steps 20 --show", "got warmup_steps=100, steps=20 .* --set warmup_steps="),
    ("train --recipe quickstart --epochs 0 --show", "epochs must be an integer of at least 1"),
    ("export --model model.keras --output text.keras", "text.keras is a file"),
    ("export --model model.keras --output serving --version 0", "version must be an integer"),
    (
        "export --model model.keras --output out --check cat.jpg --no-check",
        "argument --no-check: not allowed with argument --check",
    ),
    ("export --model model.keras --output out --format onnx --top 3", "top is an option of format 'saved_model'"),
    ("export --model model.keras --output out --format pickle", "invalid choice: 'pickle'"),
    ("convert --model model.keras --output w.npz --layout torch", "invalid choice: 'torch'"),
    ("", "required: COMMAND"),
    ("praise", "invalid choice: 'praise' .choose from .*'completion'. .keras-vit --help"),
    ("predit cat.jpg", "invalid choice: 'predit' .*did you mean 'predict'.. .keras-vit --help"),
    ("export --model model.keras --output out --format onx", "invalid choice: 'onx' .*did you mean 'onnx'"),
]


@for_each(("command", "expected"), MISTAKES)
def test_mistake_is_one_line_and_exit_code_2(here, capsys, command, expected):
    (here / "text.keras").write_text("no model")
    assert re.search(expected, error_of(run(capsys, *shlex.split(command))))


@pytest.mark.parametrize("command", ["predict cat.jpg dog.jpg", "explain dog.jpg -o dog.png"])
def test_an_absent_image_is_missed_before_the_model_is_opened(here, capsys, command):
    error = error_of(run(capsys, *shlex.split(command), "--model", "text.keras"))  # another mistake
    assert error.endswith("there is no image file dog.jpg")


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_DEBUG", "1")
    code, _, err = run(capsys, "list", "nothing")
    assert code == 2 and "Traceback" in err and err.splitlines()[-1].startswith("keras-vit: error: PATTERN")


class TestFailures:
    @for_each(
        ("error", "expected"),
        [
            (ValueError("no"), 2),
            (TypeError("no"), 2),
            (FileNotFoundError(2, "no", "x"), 2),
            (FileExistsError("no"), 2),
            (ConnectionError("no"), 2),
            (ImportError("needs scikit-learn"), 2),
            (KeyboardInterrupt(), 130),
            (SystemExit(2), 2),
            (SystemExit(None), 0),
        ],
    )
    def test_exit_codes(self, capsys, error, expected):
        assert failures.guarded(lambda: _raise(error)) == expected

    @pytest.mark.parametrize("error", [RuntimeError("a fault of ours"), KeyError("x"), AssertionError()])
    def test_a_fault_of_ours_is_raised(self, error):
        with pytest.raises(type(error)):
            failures.guarded(lambda: _raise(error))

    def test_missing_backend_says_what_to_install(self, capsys):
        error = ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
        assert failures.guarded(lambda: _raise(error)) == 2
        expected = "keras-vit: error: tensorflow is not installed: pip install tensorflow\n"
        assert capsys.readouterr().err == expected

    def test_a_terminal_gets_no_control_characters(self):
        assert failures.one_line("labels '\x1b]0;a\x07\x9b' of\ttwo\nlines") == (
            r"labels '\u001b]0;a\u0007\u009b' of" + "\ttwo; lines"
        )

    def test_long_message_is_cut(self):
        text = failures.one_line("does not fit:\n" + "\n".join(f"  + extra {index}" for index in range(8)))
        assert text.startswith("does not fit: + extra 0; + extra 1; ") and "\n" not in text
        assert text.endswith("; and 3 more lines (KERAS_VIT_DEBUG=1 shows them)")


def _raise(error):
    raise error


@for_each(
    ("command", "named"),
    [
        (["train", "--recipe", "quickstart", "--workdir", ""], "--workdir"),
        (["train", "--recipe", "quickstart", "--workdir="], "--workdir"),
        (["train", "--recipe", "quickstart", "--workdir", "run", "--folder", ""], "--folder"),
        (["export", *SAVED, "--output", ""], "--output"),
        (["convert", *SAVED, "--layout", "keras", "--output", ""], "--output"),
        (["explain", "cat.jpg", *SAVED, "-o", ""], "-o"),
        (["predict", "", *SAVED], "an argument of predict"),
        (["predict", "cat.jpg", "", *SAVED], "an argument of predict"),
        (["info", ""], "an argument of info"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch, capsys, command, named):
    monkeypatch.chdir(tmp_path)
    assert error_of(run(capsys, *command)).startswith(f"{named} must not be empty; got '")
    assert os.listdir() == []
