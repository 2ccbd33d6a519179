"""The layout of the page and what happens when it is touched; the one file that imports Gradio."""

import os
from collections.abc import Iterator

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import, which looks for a newer version

import gradio as gr
import numpy as np

from keras_vit import checks
from keras_vit.demo import drawn_digits, drawn_scenes, looks, markup, pad
from keras_vit.demo.digit_images import digit_image
from keras_vit.demo.uploads import read_image

_HINT = "Pick an image, or drop one of your own."
_MISTAKES = (ValueError, TypeError, OSError, ImportError)  # whose message is for the visitor
_FORMATS = [".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"]
_FORGET = 3600  # seconds after which uploads and answers are deleted
_ONE_AT_A_TIME = {"concurrency_limit": 1, "concurrency_id": "model", "api_visibility": "private"}
_AT_ONCE = {"api_visibility": "private", "show_progress": "hidden", "trigger_mode": "always_last"}


def build(offers):
    """Returns the page as `gradio.Blocks`.

    Args:
        offers: `Offers`, what visitors choose from.
    """
    model = offers.models()[0]
    has_digits = offers.has_digits(model, offers.weights(model)[0])
    with gr.Blocks(title="keras_vit", analytics_enabled=False, delete_cache=(_FORGET, _FORGET)) as page:
        found = gr.State(None, time_to_live=_FORGET)
        gr.HTML(markup.heading())
        with gr.Row():
            with gr.Column(scale=4, min_width=320):
                with gr.Row():
                    models = gr.Dropdown(offers.models(), value=model, label="Model", min_width=140)
                    weights = gr.Dropdown(
                        offers.weights(model), value=offers.weights(model)[0], label="Weights", min_width=140
                    )
                examples = gr.HTML(_gallery(has_digits), js_on_load=markup.GALLERY_SCRIPT, elem_id="examples")
                upload = gr.File(show_label=False, file_types=_FORMATS, height=144, elem_id="upload")
                drawing = gr.HTML(html_template=pad.TEMPLATE, js_on_load=pad.SCRIPT, visible=has_digits, elem_id="pad")
            with gr.Column(scale=7, min_width=320):
                status = gr.HTML(markup.status(_HINT), elem_id="status")
                figures = gr.HTML(elem_id="figures")
                depth = gr.Slider(
                    1, 2, value=2, step=1, label="Rollout up to block", visible=False, buttons=[], elem_id="depth"
                )
                answers = gr.HTML(elem_id="answers")
                times = gr.HTML(elem_id="times")
                show_heads = gr.Button("Show the heads of this block", visible=False, elem_id="show_heads")
                heads = gr.HTML(elem_id="heads")

        results = [status, figures, depth, answers, times, show_heads, heads, found]
        chosen = [models, weights]
        answer = _Answers(offers)
        examples.submit(answer.to_example, chosen, results, **_ONE_AT_A_TIME)
        upload.upload(answer.to_file, [upload, *chosen], results, **_ONE_AT_A_TIME)
        drawing.submit(answer.to_drawing, chosen, results, trigger_mode="always_last", **_ONE_AT_A_TIME)
        models.input(answer.to_model, models, [weights, examples, drawing, *results], **_AT_ONCE)
        weights.input(_nothing, None, results, **_AT_ONCE)
        depth.input(_to_depth, [found, depth], [figures, heads], **_AT_ONCE)
        show_heads.click(answer.to_heads, [found, depth], [status, heads], **_ONE_AT_A_TIME)
    return page.queue(max_size=50, api_open=False)


def appearance():
    """Arguments of `gradio.Blocks.launch` that make the page look as it does; no font is fetched."""
    theme = gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    return {"theme": theme, "css": markup.STYLE, "footer_links": []}


class _Answers:
    """What the page does where a model is needed; `offers` is what visitors choose from."""

    def __init__(self, offers):
        self._offers = offers

    def to_example(self, name: str, weights: str, event: gr.EventData) -> Iterator[tuple]:
        has_digits = self._offers.has_digits(name, weights)
        place = getattr(event, "place", None)  # a visitor may send what he likes
        yield from self._show(name, weights, lambda: _example(has_digits, place), has_digits)

    def to_file(self, path, name, weights):
        yield from self._show(name, weights, lambda: read_image(path), self._offers.has_digits(name, weights))

    def to_drawing(self, name: str, weights: str, event: gr.EventData) -> Iterator[tuple]:
        yield from self._show(name, weights, lambda: pad.read_drawing(getattr(event, "image", None)), True)

    def to_model(self, name):
        """The weights, examples and drawing pad of another model, and no answers yet."""
        weights = self._offers.weights(name)
        has_digits = self._offers.has_digits(name, weights[0])
        return (
            gr.Dropdown(weights, value=weights[0]),
            _gallery(has_digits),
            gr.HTML(visible=has_digits),
            *_nothing(),
        )

    def to_heads(self, state, depth):
        """The heads of one block, which are computed when they are asked for."""
        name, weights, found = state
        try:
            maps = looks.head_heat_maps(found, self._offers.open(name, weights), depth)
        except _MISTAKES as error:
            return markup.status(looks.sentence(error), "error"), ""
        block = looks.block_name(found, depth)
        shown = [(f"{block}, head {number}", heat_map) for number, heat_map in enumerate(maps, 1)]
        return gr.skip(), markup.figures(shown, "kv-heads")

    def _show(self, name, weights, read, has_digits):
        """Yields what the page shows: a sentence while the model is opened, then the answers or what went wrong."""
        busy = self._offers.wait(name, weights)
        if busy:
            yield _nothing(markup.status(busy, "busy"))
        try:
            model = self._offers.open(name, weights)
            found = looks.look(model, lambda: digit_image(read()) if has_digits else read())
        except _MISTAKES as error:
            yield _nothing(markup.status(looks.sentence(error), "error"))
            return
        yield _results(found, (name, weights, found))


def _to_depth(state, depth):
    """The figures up to another block; attention itself is there already. The heads of the last block go."""
    return _figures(state[2], depth), ""


def _nothing(status=None):
    """The results of no image: status, figures, slider, answers, times, button, heads, state."""
    status = markup.status(_HINT) if status is None else status
    return status, "", gr.Slider(visible=False), "", "", gr.Button(visible=False), "", None


def _results(found, state):
    count = len(found.blocks)
    label, score = found.answers[0]
    said = " ".join([f"{found.name} says {label} ({100 * score:.1f} %).", *found.remarks])
    return (
        markup.status(said),
        _figures(found, count),
        gr.Slider(1, max(2, count), value=count, label=f"Rollout up to block number (of {count})", visible=count > 1),
        markup.answers(found.answers),
        markup.times(found.milliseconds),
        gr.Button(visible=count > 0),
        "",
        state,
    )


def _figures(found, depth):
    shown = [("What the model sees", found.image)]
    if found.blocks:
        caption = f"Attention rollout up to {looks.block_name(found, depth)}"
        shown.append((caption, looks.rollout_overlay(found, depth)))
        shown.append(("The same as a heat map", looks.rollout_heat_map(found, depth)))
    return markup.figures(shown)


def _gallery(has_digits):
    return markup.gallery(_examples(has_digits), columns=5 if has_digits else 4)


def _example(has_digits, place):
    """Pixels of one of the examples."""
    examples = _examples(has_digits)
    checks.check_choice("place", place, range(len(examples)))
    return examples[place][1]


def _examples(has_digits):
    """(caption, pixels) of the gallery: digits, or scenes."""
    if has_digits:
        return [(name, np.asarray(drawn_digits.draw_digit(name))) for name in drawn_digits.list_digits()]
    return [(name, np.asarray(drawn_scenes.draw_scene(name).image)) for name in drawn_scenes.list_scenes()]
