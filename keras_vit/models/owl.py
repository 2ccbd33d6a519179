"""OWL: open-vocabulary detection, OWL-ViT (arXiv 2205.06230) and OWLv2 (arXiv 2306.09683)."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vit.config.text import TextConfig
from keras_vit.layers.base import NORM_LAYERS
from keras_vit.layers.open_vocabulary import (
    CellBoxes,
    ClassHead,
    ClassTokenProduct,
    QueryLogits,
    best_example,
    unit,
)
from keras_vit.layers.patches import PatchMap
from keras_vit.layers.perceptron import Perceptron
from keras_vit.models.task_model import TaskModel
from keras_vit.models.texts import WithTexts, read_text
from keras_vit.models.vit import VisionTransformer
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class OWL(WithTexts, TaskModel):
    """Build a model that detects the objects that texts or examples describe.

    The model itself reads images and does not depend on queries: call it, or `predict`, once, and pass its outputs with
    any queries to `classify`; or use `detect`. `embed_text` makes queries of texts, `embed_examples` of images.

    The patch tokens after the final norm of the encoder are multiplied by its class token. Another layer norm, with the
    epsilon of the encoder, gives the features of the patches. The class head compares them with the queries, see
    `QueryLogits`, whose epsilon is 1e-6. The box head and the objectness head are MLPs with two hidden layers of the
    width of the encoder and the exact GELU after these. Boxes are relative to the cell of their patch, see `CellBoxes`.
    The objectness head passes no gradients on to the features.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder,
    `class_product`, `head_norm`, `image_embeds`, `class_head`, `box_head`, `boxes` and `objectness_head`. The text
    tower, see `keras_vit.models.text.text_tower`, is the attribute `text_tower`.

    OWLv2 was trained on images that are padded to a square before they are resized: `sizing="square"` of
    `preprocessing`. Its boxes are shares of the square.

    Args:
        encoder: a `VisionTransformer` of a CLIP: with a class token and a final norm of all tokens, without registers.
        text: `TextConfig` of the text tower, or its dict; `causal` must be True and `pooling` `end`.
        objectness: whether the model has an objectness head: OWLv2 has one, OWL-ViT has none.
        name: name of the Keras model.

    Shapes:
        images (batch, height, width, channels), prepared as `preprocessing` describes -> a dict of `boxes`
        (batch, patches, 4): centre x, centre y, width and height as shares of the image; `image_embeds` (batch, rows,
        columns, dim), the features; `class_embeds` (batch, patches, width), not normalised; `shifts` and `scales`
        (batch, patches, 1); and with an objectness head `objectness`, logits (batch, patches)

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, or the encoder or the text tower are of another kind.
    """

    own_checks = {"text": lambda name, text: read_text(text).to_dict()}

    def __init__(
        self,
        encoder: VisionTransformer,
        text: TextConfig | Mapping[str, Any],
        objectness: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(encoder, name, text=text, objectness=objectness)
        self._add_text_tower(read_text(text))
        self._query_logits = QueryLogits(dtype="float32", name="query_logits")

    @staticmethod
    def _head(encoder, text, objectness):
        config, own, images = encoder.config, {"dtype": encoder.config.dtype}, encoder.inputs[0]
        names = [layer.name for layer in encoder.layers]
        if (
            config.stem is not None
            or config.num_prefix_tokens != 1
            or not config.num_class_tokens
            or "encoder_norm" not in names
            or len(encoder.get_layer("encoder_norm").output.shape) != 3
        ):
            raise ValueError(
                "encoder must have a class token, no registers, no stem and norm_position='before_pooling', as the "
                f"image tower of a CLIP; got {config.num_class_tokens} class tokens, {config.num_registers} registers, "
                f"stem={config.stem}, norm_position={config.norm_position!r}"
            )
        width = config.hidden_dim
        features = ClassTokenProduct(name="class_product", **own)(encoder.get_layer("encoder_norm").output)
        features = NORM_LAYERS["layer"](epsilon=config.epsilon, name="head_norm", **own)(features)
        maps = PatchMap(config.patch_size, config.embedding.pad, name="image_embeds", **own)(features, images)
        class_embeds, shifts, scales = ClassHead(text["projection_dim"], name="class_head", **own)(features)
        boxes = Perceptron((width, width, 4), hidden="gelu", name="box_head", **own)(features)
        outputs = {
            "boxes": CellBoxes(name="boxes", dtype="float32")(boxes, maps),
            "image_embeds": maps,
            "class_embeds": class_embeds,
            "shifts": shifts,
            "scales": scales,
        }
        if objectness:
            head = Perceptron((width, width, 1), hidden="gelu", name="objectness_head", **own)
            outputs["objectness"] = head(ops.stop_gradient(features))[..., 0]
        return outputs

    def embed_text(self, texts: Any, attention_mask: Any = None) -> Tensor:
        """Return queries for texts.

        Strings need the extra `text` and a tokenizer, which `keras_vit.load` sets if the folder has tokenizer.json, or
        vocab.json and merges.txt. As in transformers, they are not cut: a longer text raises an error.

        The ids of a text are the start token, its tokens, the end token, which has the highest id, and padding with 0.
        A text whose first id is 0 is no query; its embedding is zeros, for which `classify` gives the lowest logits. As
        attention is causal, the padding after a text has no influence on it.

        Args:
            texts: strings, or integers (queries, tokens), of at most `context_length` tokens; or with another dimension
                in front: (batch, queries) strings, (batch, queries, tokens) integers.
            attention_mask: 1 for tokens and 0 for padding, in the shape of the ids; padding must be at the end. None
                uses the ids as they are.

        Returns:
            L2-normalised embeddings (queries, width) or (batch, queries, width)

        Raises:
            ImportError: if `texts` are strings and tokenizers is not installed.
            ValueError: if the model has no tokenizer, a text is too long, or arrays have other shapes or values.
        """
        ids, embeddings = self._embed(texts, attention_mask)
        return ops.where(ids[..., :1] > 0, unit(embeddings), 0.0)

    def embed_examples(self, images: Tensor) -> dict[str, Tensor]:
        """Return queries for example images, each of which shows one object.

        The query is the class embedding of one patch, see `keras_vit.layers.open_vocabulary.best_example`.

        Args:
            images: (batch, height, width, channels), prepared as for the model itself.

        Returns:
            Dict of `queries` (batch, 1, width), `patches`, the index of the patch (batch,), and `boxes` (batch, 4), the
            box of this patch
        """
        found = self(images)
        boxes, embeddings = found["boxes"], ops.cast(found["class_embeds"], "float32")
        chosen = best_example(boxes, embeddings, found.get("objectness"))
        places = chosen[:, None, None]
        return {
            "queries": ops.take_along_axis(embeddings, places, axis=1),
            "patches": chosen,
            "boxes": ops.take_along_axis(boxes, places, axis=1)[:, 0],
        }

    def classify(self, found: Mapping[str, Any], queries: Any) -> Tensor:
        """Return the logits of queries for the outputs of this model.

        Args:
            found: outputs of the model for images.
            queries: (batch, queries, width), or (queries, width) for all images, as `embed_text` and `embed_examples`
                return them; they need not be normalised.

        Returns:
            float32 (batch, patches, queries); the probabilities are their sigmoid

        Raises:
            ValueError: if the arrays have other shapes, or `found` is something else.
        """
        needed = ("class_embeds", "shifts", "scales")
        if not isinstance(found, Mapping) or any(name not in found for name in needed):
            got = sorted(found) if isinstance(found, Mapping) else type(found).__name__
            raise ValueError(f"found must be the dict of outputs of this model, with {', '.join(needed)}; got {got}")
        embeddings, shifts, scales = (ops.convert_to_tensor(found[name], dtype="float32") for name in needed)
        queries = ops.convert_to_tensor(queries, dtype="float32")
        batch, width = embeddings.shape[0], embeddings.shape[-1]
        is_right = len(queries.shape) in (2, 3) and queries.shape[-1] == width
        if not is_right or (len(queries.shape) == 3 and queries.shape[0] != batch):
            wanted = f"(queries, {width}) or ({batch}, queries, {width})"
            raise ValueError(f"queries must have the shape {wanted}; got queries of shape {tuple(queries.shape)}")
        if len(queries.shape) == 2:
            queries = ops.broadcast_to(queries[None], (ops.shape(embeddings)[0], *ops.shape(queries)))
        return self._query_logits(embeddings, shifts, scales, queries)

    def detect(self, images: Tensor, queries: Any, training: bool | None = None) -> dict[str, Tensor]:
        """Return what queries find in images.

        `keras_vit.tasks` has the functions that prepare images and select boxes.

        Args:
            images: (batch, height, width, channels), prepared as for the model itself.
            queries: see `classify`.
            training: whether dropout and stochastic depth are active.

        Returns:
            Dict of `logits` (batch, patches, queries), `boxes` (batch, patches, 4) and, of a model with an objectness
            head, `objectness` (batch, patches)

        Raises:
            ValueError: see `classify`.
        """
        found = self(images, training=training)
        logits = self.classify(found, queries)
        return {"logits": logits, **{name: found[name] for name in ("boxes", "objectness") if name in found}}
