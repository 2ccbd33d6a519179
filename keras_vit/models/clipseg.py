"""CLIPSeg: segmentation of what a text or an example image describes (arXiv 2112.10003)."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import keep_beside_graph
from keras_vit.config.text import TextConfig
from keras_vit.layers.clipseg import FiLM, MaskHead, PostNormBlock
from keras_vit.layers.patches import PatchMap
from keras_vit.models.task_model import TaskModel
from keras_vit.models.texts import WithTexts, read_text
from keras_vit.models.vit import VisionTransformer
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class CLIPSeg(WithTexts, TaskModel):
    """Build a model that segments what a text, or another image, describes.

    The tokens of some blocks of a CLIP, the deepest first, are projected to a small width and added to the output of
    the previous level; a post-norm block follows. At one level, the condition scales and shifts the tokens (FiLM).
    `embed_text` and `embed_images` make conditions; `segment` calls the model with arrays or tensors.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are those of the encoder,
    `level_0_reduced`, `level_0_block` and so on for the levels, the deepest first, `film` and `mask_head`.
    The text tower, see `keras_vit.models.text.text_tower`, is the attribute `text_tower`.

    Args:
        encoder: a `VisionTransformer` of a CLIP: without a stem, for one image size or any. Its pooling and head are
            used by `embed_images` only.
        text: `TextConfig` of the text tower, or its dict; `causal` must be True and `pooling` `end`.
        blocks: indices, from 0, of the blocks whose tokens are used, in ascending order.
        width: width of the decoder.
        num_heads: attention heads of the decoder; they must divide `width`.
        mlp_dim: width of the hidden layers of the MLPs of the decoder.
        condition_level: index of the level at which the condition acts; 0 is the deepest.
        refined: whether the head has several convolutions, see `keras_vit.layers.clipseg.MaskHead`.
        name: name of the Keras model.

    Shapes:
        a dict of `images` (batch, height, width, channels), prepared as `preprocessing` describes, and `condition`
        (batch, text.projection_dim), not normalised -> logits (batch, rows, columns) of the pixels that the patches
        cover; the probabilities are their sigmoid

    Raises:
        TypeError: if the encoder is not a `VisionTransformer`.
        ValueError: if a value is out of range, the encoder has no such blocks, or the text tower is of another kind.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        text: TextConfig | Mapping[str, Any],
        blocks: Sequence[int] = (3, 6, 9),
        width: int = 64,
        num_heads: int = 4,
        mlp_dim: int = 2048,
        condition_level: int = 0,
        refined: bool = False,
        name: str | None = None,
    ) -> None:
        checks.check_instance("encoder", encoder, VisionTransformer, "a keras_vit.VisionTransformer")
        config, blocks = read_text(text), checks.check_indices("blocks", blocks)
        if not blocks or sorted(set(blocks)) != list(blocks):
            raise ValueError(f"blocks must be at least one index, in ascending order; got blocks={blocks}")
        arguments: dict[str, Any] = {
            "text": config.to_dict(),
            "blocks": blocks,
            "width": checks.check_integer("width", width),
            "num_heads": checks.check_integer("num_heads", num_heads),
            "mlp_dim": checks.check_integer("mlp_dim", mlp_dim),
            "condition_level": checks.check_integer("condition_level", condition_level, 0, len(blocks) - 1),
            "refined": checks.check_flag("refined", refined),
        }
        inputs = {"images": encoder.inputs[0], "condition": keras.Input((config.projection_dim,), name="condition")}
        outputs = self._head(encoder, condition=inputs["condition"], **arguments)
        self._finish(encoder, inputs, outputs, name, arguments)
        self._add_text_tower(config)
        for layer in encoder.layers:  # `embed_images` uses all layers of the encoder
            if layer.weights:
                keep_beside_graph(self, layer)

    @staticmethod
    def _head(encoder, condition, blocks, width, num_heads, mlp_dim, condition_level, refined, **others):
        config, images, own = encoder.config, encoder.inputs[0], {"dtype": encoder.config.dtype}
        if blocks[-1] >= config.num_layers or config.stem is not None:
            raise ValueError(
                f"blocks must be below {config.num_layers}, the number of blocks of an encoder without a stem; got "
                f"blocks={blocks}, stem={config.stem}"
            )
        tokens = None
        for level, block in enumerate(reversed(blocks)):
            reduce = keras.layers.Dense(width, name=f"level_{level}_reduced", **own)
            reduced = reduce(encoder.get_layer(f"block_{block:02d}").output)
            tokens = reduced if tokens is None else reduced + tokens
            if level == condition_level:
                tokens = FiLM(name="film", **own)(tokens, condition)
            tokens = PostNormBlock(num_heads, mlp_dim, config.epsilon, name=f"level_{level}_block", **own)(tokens)
        maps = PatchMap(config.patch_size, config.embedding.pad, name="patch_map", **own)(tokens, images)
        return MaskHead(config.patch_size, refined, name="mask_head", **own)(maps)

    def segment(self, images: Any, condition: Any, training: bool | None = None) -> Tensor:
        """Return the logits of each pixel for the condition of its image.

        Args:
            images: (batch, height, width, channels), prepared as `preprocessing` describes.
            condition: (batch, width), or (1, width) for all images.
            training: whether dropout is active.

        Returns:
            (batch, rows, columns)

        Raises:
            ValueError: if the arrays have other shapes.
        """
        images, condition = (ops.convert_to_tensor(given, dtype="float32") for given in (images, condition))
        width, count = self.text_config.projection_dim, images.shape[0]
        if tuple(condition.shape) not in ((count, width), (1, width)):
            raise ValueError(f"condition must have the shape ({count} or 1, {width}); got {tuple(condition.shape)}")
        condition = ops.broadcast_to(condition, (count, width))
        return self({"images": images, "condition": condition}, training=training)

    def embed_images(self, images: Any) -> Tensor:
        """Return conditions for example images, each of which shows what to segment.

        Args:
            images: (batch, height, width, channels), prepared as `preprocessing` describes.

        Returns:
            Embeddings (batch, width), not normalised

        Raises:
            ValueError: if the encoder has no head of the width of the text tower.
        """
        found, width = tuple(self.encoder.output.shape[1:]), self.text_config.projection_dim
        if found != (width,):
            raise ValueError(f"embed_images needs an encoder with outputs (batch, {width}); got (batch, *{found})")
        return self.encoder(ops.convert_to_tensor(images, dtype="float32"))

    def embed_text(self, texts: Any, attention_mask: Any = None) -> Tensor:
        """Return conditions for texts.

        Strings need the extra `text` and a tokenizer, which `keras_vit.load` sets if the folder has tokenizer.json, or
        vocab.json and merges.txt. As in transformers, they are not cut: a longer text raises an error.

        The ids of a text end with the end token; the rest is padding. As attention is causal, the padding after a text
        has no influence on it.

        Args:
            texts: strings, or integers (texts, tokens), of at most `context_length` tokens; or with another dimension
                in front.
            attention_mask: 1 for tokens and 0 for padding, in the shape of the ids; padding must be at the end. None
                uses the ids as they are.

        Returns:
            Embeddings (texts, width), not normalised; or with another dimension in front

        Raises:
            ImportError: if `texts` are strings and tokenizers is not installed.
            ValueError: if the model has no tokenizer, a text is too long, or arrays have other shapes or values.
        """
        return self._embed(texts, attention_mask)[1]
