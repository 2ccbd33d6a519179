"""The pages of the models: an overview, one page per family, and the tables of all models, files and names."""

import functools
import pathlib
import re

from diagrams import diagram
from families import groups, reference, results, sections
from parts import number
from tables import table

from keras_vit.checkpoints.foreign_names import foreign_names, task_models
from keras_vit.checkpoints.releases import list_releases
from keras_vit.config import Preprocessing, ViTConfig
from keras_vit.variants import VARIANTS
from keras_vit.zoo import constructor_name

_BASELINE = "ViT-B_16"
_INDEX = """# Models

{count} models in {families} families. Each model is a name for `keras_vit.create_model` and has a constructor of its
own. The parameters and the multiply-accumulates (MAC) are those with the default arguments. The MACs are those of
all matrix products and convolutions for one image. One MAC is two floating-point operations.

{table}
The accuracy is the highest published one on ImageNet's 50,000 validation images; how it was measured differs, and a
dash means that no figure is known. The licence is that of the weights.

- [All models](all.md): parameters, cost and the source of the sizes
- [Published weights](weights.md): the files that `weights=` finds by a short name
- [Names in other libraries](names.md): names of timm and of the Hugging Face hub
- [Published files of timm](timm_files.md): what `load` makes of each file, and how its outputs compare with timm's
- [Models of transformers](transformers_files.md): the same for each class of transformers
- [Task models](task_models.md): depth, segmentation, keypoints, detection and masks
- [Files of medicine and of the Earth](field_files.md): their licences, what they state, and how they are opened

`keras-vit list` prints a similar table, and `keras-vit info NAME` prints one model.
"""
_ALL = """# All models

`keras-vit list` prints a similar table. *GMAC* are billions of multiply-accumulates per image.

{table}"""
_WEIGHTS = """# Published weights

`weights=` takes the short name, which selects the file of the nearest size, or the name of the file. *Top-1* is the
published accuracy on ImageNet's 50,000 validation images, in percent, with its source; a dash means that no figure is
known. Heads for ImageNet-21k have 21,843 classes. Files of other families have no short names: use their
[names in other libraries](names.md).

{table}"""
_NAMES = """# Names in other libraries

`keras_vit.create_model` and `keras_vit.load` take these names of timm and of the Hugging Face hub; `create_model`
loads the weights with `pretrained=True`.

{table}"""
_FAMILY = """# {title}

Good for {use}. {facts}

{changed}

{papers}
## Architecture

{caption}

<div class="diagrams">
{diagrams}</div>

{numerics}
## Models

{models}
## Weights

{weights}
## Golden cases

{golden}"""
_TIMM_FILES = """# Published files of timm

timm 1.0.31 publishes {count} files of models that are a ViT, DeiT, EVA, BEiT, NaFlexViT, SAM, hybrid or Swin.
`keras_vit.load` opens {opened} of them. For the other {refused}, it raises an error that names what is missing:
MobileCLIP's `vit_base_mci_224` has a stem of convolutions with batch norms. Sapiens 2 has grouped-query attention in
some blocks, and LayerScale on the attention alone.

A tiny copy of each file was compared: timm built and saved a model with the same structure, two blocks, two heads of
the published width and random weights, and `keras_vit.load` read it. The difference is the largest one between the
outputs, relative to the largest output. `python -m benchmarks timm_files` makes this table.

{table}"""
_TRANSFORMERS_FILES = """# Models of transformers

`keras_vit.load` opens what `save_pretrained` writes of these classes of transformers, in the array names of version 4
and of version 5. A small model of each class, with two blocks and random weights, was saved and loaded. The difference
is the largest one between the outputs, relative to the largest output; a dash means that the version has no such
class. `python -m benchmarks transformers_files` makes this table.

{table}"""
_FIELD_FILES = """# Files of medicine and of the Earth

These Vision Transformers are published for images of tissue, eyes, plants and animals, and of the Earth from above.
None of them is part of this package. Read the licence before you use one. Gated files can be downloaded after you
accept the licence on their page.

Most of these files are pickles, `.bin`, `.pth` or `.pt`, which this package does not read. If you trust the file,
[convert it](../guides/convert.md), and put `model.safetensors` and the `config.json` of the repository, if it has one,
into a folder. *Open* is the call for this folder, or for the repository if it has safetensors. A dash means that `load`
refuses the file, or that it must not be opened.

The last column is the largest difference between the outputs of keras_vit and of timm or transformers for a copy with
the published structure, two blocks and random weights, relative to the largest output. A dash means that no copy was
made: the published config was not found, or the file is not opened. The published weights themselves were not
downloaded. `python -m benchmarks field_files` computes the differences.

{table}"""
_TASK_MODELS = """# Task models

`keras_vit.load("hf://REPOSITORY")` opens these files of transformers, and `keras_vit.predict` answers in pixels of the
image: see [Task models](../reference/tasks.md). `keras_vit.list_models(task="any")` and `keras-vit list --task any`
print the names.

```python
import keras_vit

model = keras_vit.load("hf://depth-anything/Depth-Anything-V2-Small-hf")
```

The parameters are those of `model.count_params()`. They include the running statistics of batch norms and the random
frequencies of SAM, and do not include the arrays that `keras_vit.describe(...).unused` lists. The encoder is the named
model with some changes: `keras-vit info REPOSITORY` prints them. The source in parentheses states the metric. A dash
means that the licence or the metric is not known. The published weights themselves were not downloaded:
`python -m benchmarks task_models` opens files with the names and shapes that transformers gives them.

{table}"""
_NUMERICS = """The arrays of a weights file do not show the following values, so the package has them in its tables. The
column *images* is the authors' preprocessing.

{table}"""
_GATED = """The downloads are gated: accept the licence on the page of the repository, and set `HF_TOKEN` to a token of
your account.

"""
_GOLDEN = """Other programs wrote small files with random weights and computed outputs with them. Each is a golden
case: the tests load the file and compare the outputs. The tolerance is the largest absolute difference that a test
allows.{note}

{table}"""


@functools.cache
def pages():
    made = {"models/index.md": _index()}
    made |= {f"models/{group.key}.md": _family(group) for group in groups()}
    made["models/all.md"] = _ALL.format(table=_wrapped(table(_COLUMNS, map(_row, VARIANTS.values()))))
    made["models/weights.md"] = _WEIGHTS.format(table=_wrapped(_releases(list_releases())))
    made["models/names.md"] = _NAMES.format(table=_wrapped(_foreign(foreign_names())))
    made["models/timm_files.md"] = _timm_files()
    made["models/transformers_files.md"] = _TRANSFORMERS_FILES.format(
        table=_wrapped(table(("class", "model type", "4.57.6", "5.24.0"), _rows("transformers_files")[1:]))
    )
    made["models/task_models.md"] = _TASK_MODELS.format(table=_wrapped(_task_models()))
    made["models/field_files.md"] = _FIELD_FILES.format(table=_wrapped(_field_files()))
    return made


def _index():
    columns = ("family", "good for", "million parameters", "GMAC", "best accuracy", "licence")
    rows = []
    for group in groups():
        parameters = _range([row.parameters / 1e6 for row in group.variants])
        macs = _range([row.macs / 1e9 for row in group.variants])
        link, licence = f"[{group.prose['title']}]({group.key}.md)", _licence(group)
        rows.append((link, group.prose["use"], parameters, macs, _best(group), licence))
    return _INDEX.format(count=len(VARIANTS), families=len(rows), table=_wrapped(table(columns, rows)))


def _best(group):
    best = (group.best or "-").replace(", ImageNet-1k", "")
    return best.replace(" %", "\u00a0%").replace(" px", "\u00a0px")


def _range(values):
    ends = [f"{value:,.0f}" if value >= 10 else f"{value:.1f}" for value in (min(values), max(values))]
    return "\u2060–\u2060".join(dict.fromkeys(ends))  # not to be broken


def _licence(group):
    return (", ".join(group.licences) or "no weights published") + (" (gated)" if group.is_gated else "")


_COLUMNS = ("model", "parameters", "GMAC", "pixels", "result", "sizes from")


def _row(variant):
    constructor = f"{variant.name}<br>`keras_vit.{constructor_name(variant.name)}`"
    return (
        constructor,
        f"{variant.parameters:,}",
        f"{variant.macs / 1e9:.2f}",
        str(variant.image_size),
        results(variant) or "-",
        _linked(variant.source),
    )


def _linked(source):
    """Return a source in which arXiv ids and addresses on GitHub are links."""
    source = re.sub(r"arXiv (\d+\.\d+)", r"arXiv [\1](https://arxiv.org/abs/\1)", source)
    return re.sub(r"(github\.com/[\w.-]+/([\w.-]+))", r"[\2](https://\1)", source)


def _family(group):
    drawn = [dict(entry) for entry in group.prose["drawn"]]
    titles = [", ".join([entry["model"], *list(entry)[1:]]) for entry in drawn]
    configs = [reference(entry.pop("model"), **entry) for entry in drawn]
    is_compared = configs[0].network in ("vit", "swin") and configs[0].name != _BASELINE
    caption = "The parts from the image to the output."
    if is_compared:
        caption = f"The parts from the image to the output. What differs from [{_BASELINE}](vit.md) is marked."
    other = reference(_BASELINE) if is_compared else None
    return _FAMILY.format(
        title=group.prose["title"],
        use=group.prose["use"],
        facts=_facts(group),
        changed=group.prose["changed"],
        papers=_papers(group),
        caption=caption,
        diagrams="".join(diagram(*row, other) for row in zip(configs, titles, strict=True)),
        numerics=_numerics(group),
        models=_models(group),
        weights=_weights(group),
        golden=_golden(group),
    )


def _facts(group):
    """Return the best published accuracy, if one is known, and the licence."""
    best = f"Best published accuracy on ImageNet: {_best(group)}. " if group.best else ""
    return f"{best}Licence of the weights: {_licence(group)}."


def _papers(group):
    lines = [f"- {sections()['papers'][key]} ([arXiv {key}](https://arxiv.org/abs/{key}))\n" for key in group.papers]
    code = ", ".join(f"[{address}](https://{address})" for address in group.code)
    return "".join(lines) + (f"- Code: {code}\n" if code else "")


def _numerics(group):
    """Return the table of what no array shows, a line for all models with the same values."""
    lines = {}
    for variant in group.variants:
        config = reference(variant.name)
        config = config.resolve() if isinstance(config, ViTConfig) else config
        fields = config.to_dict()
        epsilon = fields.get("epsilon") or fields["gn_epsilon"]
        resize = fields.get("embedding", {}).get("resize") or _RESIZES.get(config.network, "-")
        resize = "-" if fields.get("position_embedding") == "none" else resize
        images = _preprocessing((variant.preprocessing or Preprocessing()).at(config.image_size))
        line = (f"`{fields['gelu']}`" if "gelu" in fields else "-", number(epsilon), resize, images)
        lines.setdefault(line, []).append(variant.name)
    columns = ("GELU", "epsilon", "resizing of positions", "images", "models")
    names = {line: "all" if len(lines) == 1 else ", ".join(models) for line, models in lines.items()}
    return _NUMERICS.format(table=_wrapped(table(columns, [(*line, names[line]) for line in lines])))


# of configs that state none
_RESIZES = dict.fromkeys(("vit", "swin"), "that of the file's library")


def _preprocessing(images):
    """Return how images are prepared, as one line."""
    is_side = images.pad or isinstance(images.size, int)
    side = images.size if isinstance(images.size, int) else images.size[0]
    resized = f"{'longer' if images.pad else 'shorter'} side {side}" if is_side else " × ".join(map(str, images.size))
    end = f", crop {' × '.join(map(str, images.crop))}" if images.crop else ", padded" if images.pad else ""
    numbers = [", ".join(str(value) for value in dict.fromkeys(values)) for values in (images.mean, images.std)]
    return f"{resized}, {images.interpolation}{end}; mean {numbers[0]}; std {numbers[1]}"


def _models(group):
    return _wrapped(table(_COLUMNS, map(_row, group.variants)))


def _weights(group):
    """Return the licence, a call for each kind of file, and the known files."""
    if not group.releases and not group.names:
        return "No weights are published.\n\n"
    text = f"Licence: {_licence(group)}.\n\n"
    calls = [f"# {comment}\n{call}\n" for comment, call in _calls(group).items()]
    text += (_GATED if group.is_gated else "") + "```python\nimport keras_vit\n\n" + "".join(calls) + "```\n\n"
    text += "### Published files\n\n" + _wrapped(_releases(group.releases)) + "\n" if group.releases else ""
    text += "### Names in other libraries\n\n" + _wrapped(_foreign(group.names)) + "\n" if group.names else ""
    return text


def _calls(group):
    """Return a dict from a kind of file to a call that loads one, if possible of the first model that is drawn."""
    calls, model = {}, group.prose["drawn"][0]["model"]
    for row in sorted(group.releases, key=lambda row: row.model != model):
        kind = "the hub, by a short name" if row.is_on_hub else "the authors' .npz file, by a short name"
        calls.setdefault(kind, f'model = keras_vit.{constructor_name(row.model)}(weights="{row.alias}")')
    for row in sorted(group.names, key=lambda row: (row.variant != model, len(row.name))):
        if "/" in row.name:
            calls.setdefault("the Hugging Face hub", f'model = keras_vit.load("{row.weights}")')
        else:
            calls.setdefault("timm", f'model = keras_vit.create_model("{row.name}", pretrained=True)')
    suffix = "safetensors" if group.names else "npz"
    local = f'model = keras_vit.load("weights.{suffix}", variant="{model}")'
    return calls | {"a file on your disk, with the array names of any of these libraries": local}


def _releases(rows):
    columns = ("model", "`weights=`", "pixels", "top-1 %", "published by", "file")
    return table(columns, map(_release, rows))


def _release(row):
    top1 = "-" if row.top1 is None else f"{row.top1:.1f}"
    return row.model, f"`{row.alias}`", str(row.image_size), top1, _linked(row.top1_source), f"`{row.path}`"


def _foreign(rows):
    return table(("name", "model", "pixels"), ((f"`{row.name}`", row.variant, str(row.image_size)) for row in rows))


def _rows(name):
    """Return the lines of a table beside this file, without comments, as lists of cells."""
    text = pathlib.Path(__file__).with_name(f"{name}.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def _field_files():
    cells = [
        (name, f"`{address}`", licence, gated, states, call if call == "-" else f"`{call}`", difference or "-")
        for name, address, licence, gated, states, call, _, difference in _rows("field_files")[1:]
    ]
    return table(("file", "address", "licence", "gated", "what it states", "open", "difference"), cells)


def _task_models():
    columns = ("repository", "class", "task", "encoder", "parameters", "licence", "metric", "architecture")
    rows = [
        (
            f"`{row['model']}`",
            f"`{row['class']}`",
            *(row["task"], row["encoder"], f"{row['parameters']:,}", row.get("licence", "-")),
            *(_linked(row.get(name, "-")) for name in ("metric", "source")),
        )
        for row in task_models().values()
    ]
    return table(columns, rows)


def _timm_files():
    rows = _rows("timm_files")
    opened = sum(difference != "-" for *_, difference in rows)
    cells = [(f"`{name}`", network, difference) for name, network, difference in rows]
    made = _wrapped(table(("file", "model", "difference"), cells))
    return _TIMM_FILES.format(count=len(rows), opened=opened, refused=len(rows) - opened, table=made)


def _wrapped(text):
    """Return a table whose long names may be broken."""
    return f'<div class="wrapped" markdown="1">\n\n{text}\n</div>\n'


def _golden(group):
    note = group.prose.get("golden_note", "")
    if not group.cases:
        return f"{note}\n"
    rows = [(f"`{case['name']}`", _program(case), _compared(case), _tolerance(case)) for case in group.cases]
    columns = ("case", "computed with", "compared", "tolerance")
    return _GOLDEN.format(note=note and f" {note}", table=_wrapped(table(columns, rows)))


def _program(case):
    """Return the program that computed a case, with short hashes."""
    return re.sub(r"(@[0-9a-f]{7})[0-9a-f]+", r"\1", case["source"]).partition(",")[0]


def _atols(case):
    """Return a dict from each compared array to its tolerance."""
    stated = case["tolerance"]
    return stated.get("per_key_atol") or {
        name.removesuffix("_atol"): value
        for name, value in stated.items()
        if isinstance(value, float) and name.endswith("atol")
    }


def _compared(case):
    """Return the names of the compared arrays; those that differ in numbers alone are one."""
    names = [name for name in _atols(case) if name != "atol"] or ["the resized table"]
    kinds = dict.fromkeys(re.sub(r"\d+", "N", name.partition("/")[0]) for name in names)
    return ", ".join(kinds)


def _tolerance(case):
    numbers = _atols(case).values()
    return "–".join(dict.fromkeys(number(float(f"{value:.1g}")) for value in (min(numbers), max(numbers))))
