"""The page of the words of other libraries: every row of the table, with what to write in keras_vit."""

from tables import table

from keras_vit.files import read_table

_PAGE = """# Words of other libraries

{count} arguments, functions, classes, methods and attributes of timm, transformers, keras-hub, keras.applications,
torchvision and others, and what to write in keras_vit. `ViT_B16(num_classes=10)`, `keras_vit.create_transform` and
`model.forward_features` raise errors that say the same. The pages of the libraries, such as [timm](migration/timm.md),
show whole tasks side by side.

In the lines, `model` is a model of keras_vit, and `x` are images from `keras_vit.preprocess`.

## Arguments

{argument}
## Functions and classes

{name}
## Methods and attributes of models

{method}"""


def pages():
    rows = read_table("words.tsv")
    tables = {
        kind: table(("word", "library", "keras_vit"), [_row(row) for row in rows if row["kind"] == kind])
        for kind in ("argument", "name", "method")
    }
    return {"words.md": _PAGE.format(count=len(rows), **tables)}


def _row(row):
    forms = row.get("ours", row.get("line", "")).split(" | ")
    return f"`{row['word']}`", row["library"], " or ".join(f"`{form}`" for form in forms)
