"""One table of mistakes: each raises (or warns) with words that name the argument, what was expected and what came."""

import io
import types

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the rooms of pictures need TensorFlow"
)

TINY = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_dim": 8,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_dim": 8,
    "classes": 3,
}
PICTURE = np.full((20, 20, 3), 128, "uint8")


def config(**changes):
    return keras_vit.ViTConfig(**{"name": "tiny", **TINY, **changes})


def tiny(**changes):
    model = keras_vit.VisionTransformer(config(**changes))
    if model.config.include_top:
        model.get_layer("head").kernel.assign(np.ones(model.get_layer("head").kernel.shape))
    return model


def jpeg():
    file = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), "uint8")).save(file, "JPEG")
    return file.getvalue()


def recipe(**changes):
    from keras_vit.training import RECIPES

    return RECIPES["quickstart"].replace(**changes)


@pytest.fixture
def room(tmp_path):
    """What the rows of the table work with: a folder, a model, its arrays, and functions that write files."""
    model = tiny()
    keras_vit.save_weights(model, tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as file:
        arrays = dict(file)

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def npz(changes=(), without=()):
        np.savez(
            tmp_path / "a.npz", **{k: v for k, v in {**arrays, **dict(changes)}.items() if k not in without}
        )
        return tmp_path / "a.npz"

    def load(path, **kwargs):
        return keras_vit.load_weights(model, path, **kwargs)

    return types.SimpleNamespace(folder=tmp_path, model=model, write=write, npz=npz, load=load)


def nan(room):
    kernel = np.zeros((8, 3), "float32")
    kernel[1, 2] = np.nan
    return room.load(room.npz({"head/kernel": kernel}))


def unmatched(room):
    for name in ("zebra", "yak"):
        room.write(f"{name}/1.jpg", jpeg())
    (room.folder / "good.npz").unlink()
    model = tiny(classes=3)
    model.labels = ("ant", "bee", "cat")
    return keras_vit.evaluate(model, room.folder)


def export_twice(room):
    keras_vit.export(room.model, room.folder / "served", version=1)
    return keras_vit.export(room.model, room.folder / "served", version=1)


# name -> (function of the room, what it raises, words of the message: the argument, the expectation, the value)
TABLE = {
    # Configs and names
    "wrong classifier": (
        lambda room: config(classifier="tokn"),
        ValueError,
        "classifier 'token' 'gap' 'tokn'",
    ),
    "wrong gelu": (lambda room: config(gelu="relu"), ValueError, "gelu 'tanh' 'erf' 'relu'"),
    "wrong position embedding": (
        lambda room: config(position_embedding="sincos"),
        ValueError,
        "position_embedding 'sincos2d' 'sincos'",
    ),
    "indivisible image": (
        lambda room: config(image_size=(17, 16)),
        ValueError,
        "image_size divisible patch_size (17,16)",
    ),
    "indivisible width": (lambda room: config(num_heads=3), ValueError, "hidden_dim divisible num_heads 8 3"),
    "image size of three": (
        lambda room: config(image_size=(16, 16, 3)),
        ValueError,
        "image_size pair (16,16,3)",
    ),
    # Architectures
    "axial with a class token": (
        lambda room: keras_vit.create_model("AxialViT-B_32", classifier="token"),
        ValueError,
        "attention='axial' classifier without class token 'gap' 'token'",
    ),
    "relative positions in the stem": (
        lambda room: keras_vit.create_model("ViT-Ti_16", position_embedding="relative"),
        ValueError,
        "position_embedding='relative' position_placement 'every' 'shared' 'stem'",
    ),
    "distilled without class token": (
        lambda room: keras_vit.DeiT_Ti16(distilled=True, classifier="gap"),
        ValueError,
        "distilled=True classifier='token' 'gap'",
    ),
    "indivisible image of Swin": (
        lambda room: keras_vit.Swin_T(image_size=(226, 224)),
        ValueError,
        "image_size divisible patch_size (226,224) (4,4)",
    ),
    "heads for each stage of Swin": (
        lambda room: keras_vit.SwinConfig(
            name="s", image_size=32, embed_dim=24, depths=(2, 2), num_heads=(2,), window_size=4
        ),
        ValueError,
        "depths num_heads one per stage (2,2) (2,)",
    ),
    "argument of another architecture": (
        lambda room: keras_vit.BiT_R50x1(qkv_bias=False),
        TypeError,
        "BiT_R50x1 unexpected 'qkv_bias' classes gn_epsilon",
    ),
    "width of a ResNet": (
        lambda room: keras_vit.ResNetConfig(stage_sizes=(2,), width_factor=0.3),
        ValueError,
        "width_factor multiple 0.5 0.3",
    ),
    "config of another architecture": (
        lambda room: keras_vit.SwinTransformer(config()),
        TypeError,
        "config keras_vit.SwinConfig ViTConfig",
    ),
    "stem that is no model": (
        lambda room: keras_vit.VisionTransformer(config(), stem="resnet50"),
        TypeError,
        "stem keras model feature map str",
    ),
    "file of another architecture": (
        lambda room: keras_vit.Swin_T(weights=room.folder / "good.npz", image_size=64),
        ValueError,
        "good.npz Swin Transformer huggingface timm microsoft Vision Transformer",
    ),
    "layout of another architecture": (
        lambda room: keras_vit.save_weights(room.model, room.folder / "a.safetensors", "microsoft"),
        ValueError,
        "layout 'official' 'timm' 'huggingface' 'microsoft'",
    ),
    "unknown layer to freeze": (
        lambda room: keras_vit.freeze(room.model, up_to="block_07"),
        ValueError,
        "up_to block_00 'block_07'",
    ),
    "no layers": (lambda room: config(num_layers=0), ValueError, "num_layers integer least 1 0"),
    "negative dropout": (lambda room: config(dropout_rate=-0.1), ValueError, "dropout_rate [0,1) -0.1"),
    "certain stochastic depth": (
        lambda room: config(stochastic_depth_rate=1.0),
        ValueError,
        "stochastic_depth_rate [0,1) 1.0",
    ),
    "flag as text": (lambda room: config(qkv_bias="no"), ValueError, "qkv_bias True False 'no'"),
    "class token where none is": (
        lambda room: config(classifier="unpooled", class_token=True),
        ValueError,
        "classifier='unpooled' class_token=True",
    ),
    "sincos of an odd width": (
        lambda room: config(position_embedding="sincos2d", hidden_dim=6),
        ValueError,
        "hidden_dim divisible 4 6",
    ),
    "unknown model": (
        lambda room: keras_vit.create_model("ViT-B16"),
        ValueError,
        "variant 'ViT-Ti_16' 'ViT-B_16' 'ViT-B16'",
    ),
    "unknown keyword": (
        lambda room: keras_vit.create_model("ViT-Ti_16", dropot_rate=0.1),
        TypeError,
        "'dropot_rate' 'dropout_rate' epsilon",
    ),
    "unknown keyword of a constructor": (
        lambda room: keras_vit.ViT_Ti16(dropot_rate=0.1),
        TypeError,
        "ViT_Ti16 'dropot_rate' dropout_rate",
    ),
    "unknown release": (
        lambda room: keras_vit.ViT_Ti16(weights="imagenet"),
        ValueError,
        "weights='imagenet' ViT-Ti_16 published 'augreg/",
    ),
    "release of another model": (
        lambda room: keras_vit.ViT_Ti16(weights="sam"),
        ValueError,
        "weights='sam' ViT-Ti_16 published",
    ),
    "weights of a wrong type": (
        lambda room: keras_vit.ViT_Ti16(weights=True),
        TypeError,
        "weights path release hf:// True",
    ),
    "address of no repository": (
        lambda room: room.load("hf://org"),
        ValueError,
        "hub hf://org/repo 'hf://org'",
    ),
    "too few labels": (
        lambda room: setattr(room.model, "labels", ["a", "b"]),
        ValueError,
        "labels 3 classes 2 names",
    ),
    "labels that are a text": (
        lambda room: setattr(room.model, "labels", "abc"),
        TypeError,
        "labels sequence 'abc'",
    ),
    "preprocessing of another size": (
        lambda room: setattr(room.model, "preprocessing", keras_vit.Preprocessing(size=32)),
        ValueError,
        "preprocessing image_size (16,16) (32,32)",
    ),
    "preprocessing as text": (
        lambda room: keras_vit.VisionTransformer(config(), preprocessing="bicubic"),
        TypeError,
        "preprocessing Preprocessing 'bicubic'",
    ),
    "crop above size": (
        lambda room: keras_vit.Preprocessing(size=200, crop=224),
        ValueError,
        "crop exceed size (224,224) 200",
    ),
    "std of zero": (
        lambda room: keras_vit.Preprocessing(std=(0, 1, 1)),
        ValueError,
        "std above 0 (0.0,1.0,1.0)",
    ),
    "resize to half a patch": (
        lambda room: keras_vit.resize(room.model, 20),
        ValueError,
        "image_size divisible patch_size (20,20)",
    ),
    "features of no layer": (
        lambda room: keras_vit.features(room.model, "block_7"),
        ValueError,
        "names 'block_00' 'block_7'",
    ),
    # Files of weights
    "missing file": (
        lambda room: room.load(room.folder / "b.npz"),
        FileNotFoundError,
        "weights existing b.npz",
    ),
    "pickled object": (
        lambda room: room.load(room.npz({"head/bias": np.array([{}], object)})),
        ValueError,
        "'head/bias.npy' numbers Python objects",
    ),
    "truncated npz": (
        lambda room: room.load(room.write("t.npz", room.npz().read_bytes()[:-50])),
        ValueError,
        "t.npz whole .npz b'PK",
    ),
    "text named npz": (
        lambda room: room.load(room.write("t.npz", b"weights")),
        ValueError,
        "t.npz whole .npz b'weights'",
    ),
    "empty npz": (lambda room: room.load(room.write("t.npz", b"")), ValueError, "t.npz whole .npz b''"),
    "empty safetensors": (
        lambda room: room.load(room.write("t.safetensors", b"")),
        ValueError,
        "t.safetensors whole",
    ),
    "text named weights.h5": (
        lambda room: room.load(room.write("t.weights.h5", b"x")),
        ValueError,
        "whole HDF5 b'x'",
    ),
    "pickle of PyTorch": (
        lambda room: room.load(room.write("m.pth", b"x")),
        ValueError,
        "weights pickle m.pth safetensors",
    ),
    "unknown kind of file": (
        lambda room: room.load(room.write("m.onnx", b"x")),
        ValueError,
        "weights .npz .keras m.onnx",
    ),
    "folder without weights": (
        lambda room: room.load(room.folder),
        FileNotFoundError,
        "folder hold model.safetensors",
    ),
    "missing array": (
        lambda room: room.load(room.npz(without=["cls"])),
        ValueError,
        "fit missing cls class_token",
    ),
    "extra array": (lambda room: room.load(room.npz({"other": np.zeros(3)})), ValueError, "fit extra other"),
    "array of another shape": (
        lambda room: room.load(room.npz({"cls": np.zeros((1, 1, 9))})),
        ValueError,
        "cls shape (1,1,9) needs (1,1,8)",
    ),
    "head of other classes": (
        lambda room: room.load(room.npz({"head/bias": np.zeros(4)}), head="load"),
        ValueError,
        "head/bias (4,) needs (3,)",
    ),
    "array of texts": (
        lambda room: room.load(room.npz({"cls": np.full((1, 1, 8), "x")})),
        ValueError,
        "'cls' numbers <U1",
    ),
    "wrong architecture": (
        lambda room: keras_vit.load_weights(tiny(num_layers=2), room.npz()),
        ValueError,
        "fit missing encoderblock_1",
    ),
    "no vision transformer": (
        lambda room: room.load(room.npz(without=["embedding/kernel"])),
        ValueError,
        "hold Vision official encoder_norm",
    ),
    "positions of no grid": (
        lambda room: room.load(room.npz({"Transformer/posembed_input/pos_embedding": np.zeros((1, 4, 8))})),
        ValueError,
        "position table square 2 x 2 got 4 rows",
    ),
    "NaN weights": (nan, UserWarning, "'head/kernel' NaN a.npz"),
    "head of zeros": (
        lambda room: room.load(room.npz({"head/kernel": np.zeros((8, 3))})),
        UserWarning,
        "head a.npz zeros",
    ),
    "layout of another family": (
        lambda room: room.load(room.npz(), layout="flax"),
        ValueError,
        "layout 'official' 'flax'",
    ),
    "unknown way to resize": (
        lambda room: room.load(room.npz(), resize="nearest"),
        ValueError,
        "resize 'bilinear' 'nearest'",
    ),
    "registers in an official file": (
        lambda room: keras_vit.save_weights(tiny(num_registers=2), room.folder / "r.npz"),
        ValueError,
        "'official' class_token/registers",
    ),
    "suffix of another layout": (
        lambda room: keras_vit.save_weights(room.model, room.folder / "r.bin"),
        ValueError,
        "path .npz 'official' r.bin",
    ),
    # Pictures
    "PDF named jpg": (
        lambda room: keras_vit.predict(room.model, room.write("p.jpg", b"%PDF-1.7 text")),
        ValueError,
        "p.jpg picture JPEG %PDF",
    ),
    "truncated JPEG": (
        lambda room: keras_vit.predict(room.model, room.write("p.jpg", jpeg()[:-100])),
        ValueError,
        "p.jpg whole JPEG cut",
    ),
    "empty picture file": (
        lambda room: keras_vit.predict(room.model, room.write("p.jpg", b"")),
        ValueError,
        "p.jpg empty 0 bytes",
    ),
    "missing picture": (
        lambda room: keras_vit.predict(room.model, room.folder / "p.jpg"),
        FileNotFoundError,
        "picture p.jpg",
    ),
    "folder as a picture": (
        lambda room: keras_vit.predict(room.model, room.folder),
        ValueError,
        "folder picture from_folder",
    ),
    "no pictures": (lambda room: keras_vit.predict(room.model, []), ValueError, "images least one []"),
    "picture of zero height": (
        lambda room: keras_vit.predict(room.model, np.zeros((0, 9, 3), "uint8")),
        ValueError,
        "images length 0 (0,9,3)",
    ),
    "floats up to 255 as up to 1": (
        lambda room: keras_vit.predict(room.model, PICTURE.astype("float32")),
        ValueError,
        "images 0 to 1 128 value_range=(0,255)",
    ),
    "NaN pixels": (
        lambda room: keras_vit.predict(room.model, np.full((9, 9, 3), np.nan)),
        ValueError,
        "images finite NaN",
    ),
    "signed pixels": (
        lambda room: keras_vit.predict(room.model, PICTURE.astype("int64")),
        ValueError,
        "images uint8 value_range int64",
    ),
    "wrong rank": (
        lambda room: keras_vit.predict(room.model, np.zeros((1, 1, 9, 9, 3), "uint8")),
        ValueError,
        "images shape (1,1,9,9,3)",
    ),
    "channels first": (
        lambda room: keras_vit.predict(room.model, np.zeros((3, 9, 9), "uint8")),
        ValueError,
        "images channels last (3,9,9)",
    ),
    "no picture at all": (
        lambda room: keras_vit.predict(room.model, object()),
        TypeError,
        "images path array object",
    ),
    "top of zero": (
        lambda room: keras_vit.predict(room.model, PICTURE, top=0),
        ValueError,
        "top integer least 1 0",
    ),
    "predict without head": (
        lambda room: keras_vit.predict(tiny(include_top=False), PICTURE),
        ValueError,
        "model head include_top=False",
    ),
    "predict with another model": (
        lambda room: keras_vit.predict(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), PICTURE),
        ValueError,
        "model keras_vit Sequential",
    ),
    # Data, training, serving
    "classes that match nothing": (unmatched, ValueError, "match labels WordNet 'yak' 'zebra'"),
    "missing folder": (
        lambda room: keras_vit.evaluate(room.model, room.folder / "x"),
        FileNotFoundError,
        "path folder x",
    ),
    "folder without classes": (
        lambda room: keras_vit.data.from_folder(room.folder),
        ValueError,
        "path sub-folder class",
    ),
    "negative batch size": (
        lambda room: keras_vit.evaluate(room.model, room.folder, batch_size=-1),
        ValueError,
        "batch_size integer least 1 -1",
    ),
    "floats as pictures of a source": (
        lambda room: keras_vit.data.from_arrays(np.zeros((2, 8, 8, 3)), [0, 1]),
        ValueError,
        "images uint8 float64",
    ),
    "labels of another length": (
        lambda room: keras_vit.data.from_arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1, 2]),
        ValueError,
        "labels 2 (3,)",
    ),
    "unknown recipe": (
        lambda room: keras_vit.train("quikstart", None, room.folder),
        ValueError,
        "recipe 'quickstart' 'quikstart'",
    ),
    "recipe with a negative batch size": (
        lambda room: recipe(batch_size=-1),
        ValueError,
        "batch_size integer least 1 -1",
    ),
    "recipe with two lengths": (lambda room: recipe(steps=10), ValueError, "one epochs steps steps=10"),
    "recipe with an unknown field": (lambda room: recipe(epoch=3), ValueError, "Recipe 'epoch' 'epochs'"),
    "export of an existing version": (export_twice, FileExistsError, "version never overwritten served/1"),
    "version of zero": (
        lambda room: keras_vit.export(room.model, room.folder / "served", version=0),
        ValueError,
        "version integer least 1 0",
    ),
    "unknown format": (
        lambda room: keras_vit.export(room.model, room.folder, format="tflite2"),
        ValueError,
        "format 'saved_model' 'tflite2'",
    ),
    "export without head": (
        lambda room: keras_vit.export(tiny(include_top=False), room.folder / "served"),
        ValueError,
        "model head include_top=False",
    ),
}


def test_the_table_is_long_enough():
    assert len(TABLE) >= 30


@pytest.mark.parametrize("case", TABLE)
def test_bad_input(case, room):
    function, kind, words = TABLE[case]
    catch = pytest.warns if issubclass(kind, Warning) else pytest.raises
    with catch(kind) as caught:
        function(room)
    message = str(caught[0].message if issubclass(kind, Warning) else caught.value)
    assert issubclass(kind, Warning) or caught.type is kind
    folded = message.replace(str(room.folder), "").replace(
        ", ", ","
    )  # pytest's folder bears the name of the case
    missing = [word for word in words.split() if word not in folded]
    assert not missing, f"{missing} should be in: {message}"
