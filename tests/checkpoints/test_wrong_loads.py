"""Files that fit a model by names and shapes and are another model: refused, warned of, or built as what they are.

Every row is a file that loaded without a word before the numbers that no array shows were compared.
"""

import json
import shutil
import warnings
import zipfile

import h5py
import numpy as np
import pytest
import safetensors.numpy
from faults import for_each
from official_files import check_equal
from slow_rows import slow_after

import keras_vit

# how a file is written -> whether it states what no array shows
FORMATS = ("a.npz", "timm.safetensors", "hf.safetensors", "folder", "a.keras", "a.weights.h5")
LAYOUTS = {"a.npz": "official", "timm.safetensors": "timm", "hf.safetensors": "huggingface", "folder": "huggingface"}


def save(model, path):
    if path.name in LAYOUTS:
        keras_vit.save_weights(model, path, LAYOUTS[path.name])
    else:
        (model.save if path.suffix == ".keras" else model.save_weights)(path)
    return path


GAP = {"pooling": "gap", "class_token": True}
FIXED = {"position_embedding": "sincos2d"}
MAP = {"pooling": "map", "class_token": True}
ROTARY = {"block": {"rotary": {"kind": "eva02"}}}
POST_NORM = {"block": {"order": "post_norm"}}
WITH_BLOCKS = ("timm.safetensors", "a.keras", "a.weights.h5")
OF_THE_ROW = {"num_heads", "block", "head"}  # which a variant fixes

# what the file is, what the model is, formats that hold it, words of the refusal or the warning
CHANGES = [
    ({}, {"num_heads": 4}, FORMATS, "num_heads=2; the model has 4|shape"),
    ({}, {"gelu": "erf"}, FORMATS, "gelu='tanh'; the model has 'erf'"),
    ({}, {"epsilon": 1e-3}, FORMATS, "epsilon=1e-06; the model has 0.001"),
    ({}, GAP, FORMATS, "pooling='token'; the model has 'gap'"),
    (GAP, {}, ("timm.safetensors", "a.keras", "a.weights.h5"), "pooling='gap'; the model has 'token'"),
    (
        {"pooling": "map", "class_token": True},
        {"pooling": "map", "class_token": True, "num_heads": 4},
        ("timm.safetensors", "a.keras", "a.weights.h5"),
        "num_heads=2; the model has 4",
    ),
    (
        {"pooling": "gap", "norm_position": "after_pooling"},
        {"pooling": "gap"},
        ("a.keras", "a.weights.h5", "timm.safetensors"),
        "norm_position='after_pooling'; the model has 'before_pooling'",
    ),
    (FIXED, {"position_embedding": "none"}, ("a.npz", "a.keras", "a.weights.h5"), "position_embedding='sincos2d'"),
    ({"position_embedding": "none"}, FIXED, ("a.npz", "a.keras", "a.weights.h5"), "position_embedding='none'"),
    (
        {**FIXED, "position_placement": "every"},
        FIXED,
        ("a.keras", "a.weights.h5"),
        "position_placement='every'; the model has 'stem'",
    ),
    ({"gelu": "quick"}, {}, FORMATS, "gelu='quick'; the model has 'tanh'"),
    (POST_NORM, {}, WITH_BLOCKS, "block.order='post_norm'; the model has 'pre_norm'"),
    ({}, POST_NORM, WITH_BLOCKS, "block.order='pre_norm'; the model has 'post_norm'"),
    (ROTARY, {}, WITH_BLOCKS, "block.rotary.kind='eva02'; the model has None"),
    ({}, ROTARY, WITH_BLOCKS, "block.rotary.*'eva02'"),
    (ROTARY, {"block": {"rotary": {"kind": "pe"}}}, WITH_BLOCKS, "block.rotary.kind='eva02'; the model has 'pe'"),
    (
        {"block": {"rotary": {"kind": "eva02", "reference_grid": 7}}},
        ROTARY,
        WITH_BLOCKS,
        "block.rotary.reference_grid=.7, 7.; the model has None",
    ),
    ({**MAP, "head": {"map_heads": 4}}, MAP, WITH_BLOCKS, "head.map_heads=4; the model has 2"),
    ({**MAP, "head": {"map_prefix": True}}, MAP, WITH_BLOCKS, "head.map_prefix=True; the model has False"),
    (MAP, {**MAP, "head": {"map_prefix": True}}, WITH_BLOCKS, "head.map_prefix=False; the model has True"),
]


@pytest.mark.parametrize(("theirs", "ours", "names", "words"), slow_after(2, CHANGES))
def test_a_built_model_takes_no_file_of_another(
    make_model, weights_of, logits_of, tmp_path, theirs, ours, names, words
):
    source, model = make_model(seed=1, **theirs), make_model(seed=2, **ours)
    before = weights_of(model)
    for name in names:
        path = save(source, tmp_path / name)
        with pytest.raises((ValueError, UserWarning), match=words) as caught:
            keras_vit.load_weights(model, path)
        if caught.type is UserWarning:
            with pytest.warns(UserWarning, match=words):
                report = keras_vit.load_weights(model, path)
            assert any(words in note for note in report.notes), name
            assign(model, before)
        else:
            check_equal(weights_of(model), before)
        if path.suffix in (".keras", ".h5"):  # Keras's own method compares as well
            with pytest.raises((ValueError, UserWarning), match=words) as caught:
                model.load_weights(path)
            if caught.type is UserWarning:
                assign(model, before)
            else:
                check_equal(weights_of(model), before)
    # the same weights in the other model do not compute the same: the refusal has a reason
    for variable, value in zip(model.weights, source.weights, strict=True):
        if variable.shape == value.shape:
            variable.assign(value)
    assert np.abs(logits_of(model) - logits_of(source)).max() > 1e-6


def assign(model, arrays):
    for variable in model.weights:
        variable.assign(arrays[variable.path])


def test_keras_split_weights_are_compared_as_well(make_model, tmp_path):
    source, path = make_model(seed=1), tmp_path / "a.weights.json"
    source.save_weights(path, max_shard_size=1e-5)
    make_model(seed=2).load_weights(path)
    with pytest.raises(ValueError, match="num_heads=2; the model has 4"):
        make_model(num_heads=4).load_weights(path)


@for_each("config", [b"{}", b"[1]", b"{", None])
def test_keras_own_load_weights_names_a_damaged_file(make_model, tmp_path, config):
    source = save(make_model(), tmp_path / "a.keras")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "b.keras", "w") as new:
        for name in old.namelist():
            if name != "config.json":
                new.writestr(name, old.read(name))
        if config is not None:
            new.writestr("config.json", config)
    with pytest.raises(ValueError, match=r"b\.keras' must be a file that Keras wrote"):
        make_model().load_weights(tmp_path / "b.keras")


@pytest.mark.parametrize(
    ("theirs", "names"), slow_after(1, [(row[0], row[2]) for row in CHANGES if not OF_THE_ROW & set(row[0] | row[1])])
)
def test_create_model_builds_what_the_file_states(make_model, in_zoo, logits_of, tmp_path, theirs, names):
    source = make_model(seed=1, **theirs)
    explicit = {"class_token": True} if "class_token" in theirs else {}
    for name in names:
        model = in_zoo("vit")(save(source, tmp_path / name), **explicit)
        np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("theirs", slow_after(1, [ROTARY, POST_NORM, {**MAP, "head": {"map_heads": 4}}]), ids=str)
def test_a_row_of_other_blocks_takes_no_file(make_model, in_zoo, tmp_path, theirs):
    for name in WITH_BLOCKS:
        path = save(make_model(seed=1, **theirs), tmp_path / name)
        with pytest.raises(ValueError, match="block.order='post_norm'|block.rotary.kind='eva02'|head.map_heads=4"):
            in_zoo("vit")(path, **(MAP if "pooling" in theirs else {}))


def test_a_row_of_other_heads_takes_no_file(make_model, in_zoo, tmp_path):
    source = make_model(num_heads=4)
    for name in FORMATS:
        with pytest.raises(ValueError, match="num_heads=4; the model has 2|needs"):
            in_zoo("vit")(save(source, tmp_path / name))


# kind, changes, how its fields lie in the config.json of a folder with the arrays of others, words
HF = {"model_type": "vit", "num_attention_heads": 2, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
FOLDERS = [
    ("huggingface", {**HF, "num_attention_heads": 4}, "num_heads=4; the model has 2"),
    ("huggingface", {**HF, "hidden_act": "relu"}, "hidden_act must be one of"),
    ("huggingface", {**HF, "hidden_act": "quick_gelu"}, "gelu='quick'; the model has 'tanh'"),
    ("huggingface", {**HF, "hidden_act": "gelu"}, "gelu='erf'; the model has 'tanh'"),
    ("huggingface", {**HF, "layer_norm_eps": 1e-12}, "epsilon=1e-12; the model has 1e-06"),
    ("huggingface", {**HF, "num_hidden_layers": 3}, "num_layers=3; the model has 2"),
    ("huggingface", {**HF, "patch_size": 2}, "patch_size=.2, 2.; the model has .4, 4."),
    ("huggingface", {**HF, "hidden_size": 16}, "hidden_dim=16; the model has 8"),
    ("huggingface", {**HF, "qkv_bias": False}, "qkv_bias=False; the model has True"),
    ("huggingface", {**HF, "pooler_act": "relu"}, "pooler_act must be 'tanh'"),
    ("huggingface", {**HF, "patch_size": 4, "image_size": [8, 32]}, "2 x 8 -> 4 x 4"),
    ("huggingface", {**HF, "patch_size": 4, "image_size": 64}, "states a grid of 16 x 16 patches; its table has 17"),
    ("huggingface", {**HF, "use_mean_pooling": True}, "config.json also has use_mean_pooling"),
    ("huggingface", {"model_type": "segformer"}, "model_type must be one of 'vit', 'deit', .*; got 'segformer'"),
    ("huggingface", {"model_type": "beit"}, "num_heads=12; the model has 2"),  # the default of transformers
    ("huggingface", {**HF, "model_type": "dinov3_vit", "key_bias": True}, "block.rotary.kind='dinov3'; the model has"),
    ("timm", {"architecture": "vit_base_patch16_rpn_224"}, "block.order='post_norm'; the model has 'pre_norm'"),
    ("timm", {"architecture": "vit_base_patch16_xp_224"}, "architecture must be one"),
    ("timm", {"architecture": "vit_small_patch16_36x1_224"}, "architecture must be one"),
    ("timm", {"architecture": "vit_base_patch16_clip_quickgelu_224"}, "gelu='quick'|num_heads=12"),
    ("timm", {"architecture": "vit_relpos_base_patch16_224"}, "position_embedding='relative_mlp'; the model"),
    ("timm", {"architecture": "beit_base_patch16_224"}, "beit_base_patch16_224 has hidden_dim=768, which the file"),
    ("timm", {"architecture": "vit_tiny_patch4_16"}, "assumed, as the file does not state them: num_heads=2"),
    ("timm", {"model_args": {"num_heads": 4}}, "num_heads=4; the model has 2"),
    ("timm", {"model_args": {"act_layer": "relu"}}, "act_layer in model_args must be one of"),
    ("timm", {"model_args": {"act_layer": "gelu"}}, "gelu='erf'; the model has 'tanh'"),
    ("timm", {"model_args": {"norm_layer": "rmsnorm"}}, "norm_layer in model_args must be one of"),
    ("timm", {"model_args": {"block_fn": "ResPostBlock"}}, "block_fn in model_args is not supported by keras_vit"),
    ("timm", {"model_args": {"pre_norm": True}}, "embedding.pre_norm=True; the model has False"),
    ("timm", {"model_args": {"qk_norm": True}}, "qk_norm=True; the model has False"),
    ("timm", {"model_args": {"class_token": False}}, "class_token=False; the model has True"),
    ("timm", {"model_args": {"img_size": [8, 32], "patch_size": 4}}, "2 x 8 -> 4 x 4"),
    ("timm", {"global_pool": "avg"}, "pooling='gap'; the model has 'token'"),
    ("timm", {"global_pool": "map"}, "pooling='map'; the model has 'token'"),
    ("timm", {"global_pool": "avgmax"}, "global_pool in model_args must be one of"),
]


@pytest.fixture(scope="module")
def foreign_files(make_model, save_foreign, tmp_path_factory):
    """{layout: file without our metadata} of one model."""
    source, folder = make_model(seed=1), tmp_path_factory.mktemp("foreign")
    files = {layout: folder / f"{layout}.safetensors" for layout in ("huggingface", "timm")}
    for layout, path in files.items():
        save_foreign(source, path, layout)
    return files


@pytest.fixture
def foreign_folder(foreign_files, tmp_path):
    """Function of a layout and of a config.json that writes both, without our metadata."""

    def write(layout, values):
        shutil.copy(foreign_files[layout], tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path

    return write


@pytest.fixture(scope="module")
def loaded(make_model):
    """A model that files are loaded into, one after another."""
    return make_model()


@for_each(("layout", "values", "words"), FOLDERS)
def test_a_config_json_is_not_passed_over(loaded, foreign_folder, layout, values, words):
    """Refused, or warned of, or what it changes is in the report."""
    folder = foreign_folder(layout, values)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            said = str(keras_vit.load_weights(loaded, folder))
        except ValueError as error:
            said = str(error)
    said += "\n".join(str(warning.message) for warning in warned)
    with pytest.raises(ValueError, match=words):
        raise ValueError(said)


@pytest.mark.parametrize(
    ("layout", "values", "expected"),
    [
        ("huggingface", HF, {"gelu": "tanh", "epsilon": 1e-6}),
        ("timm", {"global_pool": "avg", "model_args": {"num_heads": 2}}, {"pooling": "gap", "class_token": True}),
        ("timm", {"model_args": {"act_layer": "gelu_tanh"}}, {"gelu": "tanh"}),
        ("timm", {"model_args": {"norm_layer": "layernorm"}}, {"epsilon": 1e-6}),
    ],
)
def test_what_a_config_json_states_is_built(make_model, foreign_folder, in_zoo, logits_of, layout, values, expected):
    model = in_zoo("vit")(foreign_folder(layout, values))
    assert {name: getattr(model.config, name) for name in expected} == expected
    source = make_model(seed=1, **{"gelu": "erf", "epsilon": 1e-12 if layout == "huggingface" else 1e-6, **expected})
    np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6)


@pytest.mark.parametrize("norm_position", ["before_pooling", "after_pooling"])
def test_timm_average_pooling_is_built_with_the_norm_that_the_file_has(
    make_model, save_foreign, in_zoo, logits_of, tmp_path, norm_position
):
    source = make_model(seed=1, **GAP, norm_position=norm_position, gelu="erf")
    save_foreign(source, tmp_path / "model.safetensors", "timm")
    (tmp_path / "config.json").write_text(json.dumps({"global_pool": "avg"}))
    model = in_zoo("vit")(tmp_path)
    assert model.config.norm_position == norm_position
    np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6)


@for_each("name", ["a.npz", "timm.safetensors", "a.weights.h5"])
def test_integers_are_no_weights(make_model, weights_of, tmp_path, name):
    path, model = save(make_model(seed=1), tmp_path / name), make_model(seed=2)
    before = weights_of(model)
    for dtype in ("int8", "uint8", "int64", "bool"):
        convert_one(path, dtype)
        with pytest.raises(ValueError, match="dtype .*, the model needs float32 .convert the file with its scales"):
            keras_vit.load_weights(model, path)
        check_equal(weights_of(model), before)


def convert_one(path, dtype):
    """Converts one array of a file."""
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            group = file["layers/patch_encoder/projection/vars"]
            values = np.asarray(group["0"])
            del group["0"]
            group["0"] = values.astype(dtype)
        return
    is_npz = path.suffix == ".npz"
    array = "embedding/kernel" if is_npz else "patch_embed.proj.weight"
    arrays = dict((np.load if is_npz else safetensors.numpy.load_file)(path))
    arrays[array] = arrays[array].astype(dtype)
    if is_npz:
        np.savez(path, **arrays)
    else:
        safetensors.numpy.save_file(arrays, path)


@pytest.mark.slow
def test_floats_are_no_quantised_weights(make_model, tmp_path):
    path = save(make_model(seed=1), tmp_path / "a.npz")
    model = make_model(seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.quantize("int8")
    with pytest.raises(ValueError, match="the model needs int8 .quantize after loading"):
        keras_vit.load_weights(model, path)


@pytest.mark.parametrize("interpolation", slow_after(1, ["bilinear_antialias", "bilinear", "bicubic"]))
def test_the_protocol_is_the_same_from_every_format(make_model, in_zoo, tmp_path, caplog, interpolation):
    source, model = make_model(seed=1), make_model(seed=2)
    source.preprocessing = keras_vit.Preprocessing(
        size=18, crop=16, interpolation=interpolation, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
    )
    for name in ("a.npz", "timm.safetensors", "folder", "a.keras", "a.weights.h5"):
        caplog.clear()
        path = save(source, tmp_path / name)
        is_told = "other libraries resize images differently" in caplog.text
        assert is_told == (name == "folder" and interpolation == "bilinear"), name
        assert in_zoo("vit")(path).preprocessing == source.preprocessing, name
        model.preprocessing = None
        keras_vit.load_weights(model, path)
        assert model.preprocessing == source.preprocessing, name


def test_an_edited_preprocessor_config_wins_over_our_metadata(make_model, in_zoo, tmp_path):
    folder = save(make_model(seed=1), tmp_path / "folder")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "image_mean": [0.1, 0.1, 0.1]}))
    model = in_zoo("vit")(folder)
    assert (model.preprocessing.mean, model.preprocessing.interpolation) == ((0.1, 0.1, 0.1), "bilinear_antialias")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"do_resize": False}, "do_resize must be True"),
        ({"do_rescale": False}, "do_rescale must be True"),
        ({"rescale_factor": 1.0}, "rescale_factor must be 1 / 255"),
    ],
)
def test_a_step_that_is_left_out_is_not_passed_over(make_model, tmp_path, values, words):
    folder = save(make_model(seed=1), tmp_path / "folder")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ValueError, match=rf"preprocessor_config.json': {words}"):
        keras_vit.load_weights(make_model(), folder)


def test_a_norm_before_and_after_taking_one_token_are_the_same(make_model, logits_of, tmp_path):
    source, model = make_model(seed=1, norm_position="after_pooling"), make_model(seed=2)
    keras_vit.load_weights(model, save(source, tmp_path / "a.keras"))
    np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6)
