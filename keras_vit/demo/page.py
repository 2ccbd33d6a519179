"""The layout of the page and its event handlers. Only this module imports Gradio."""

import contextlib
import html
import os
import pathlib

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before the import, which looks for a newer version

import gradio as gr

from keras_vit import checks
from keras_vit.demo import looks, models

_HINT = "Pick an image, or drop one of your own."
_MISTAKES = (ValueError, TypeError, OSError, ImportError)  # errors whose message is shown on the page
_FORMATS = [".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"]
_FORGET = 3600  # seconds after which uploads, figures and answers are deleted
_QUEUED = {"concurrency_limit": 1, "concurrency_id": "model", "api_visibility": "private"}
_AT_ONCE = {"api_visibility": "private", "show_progress": "hidden", "trigger_mode": "always_last"}
_GALLERY = {"show_label": False, "interactive": False, "allow_preview": False, "format": "png", "buttons": []}
_STYLE = pathlib.Path(__file__).with_suffix(".css")


def build(offers):
    """Return the page as `gradio.Blocks`.

    Args:
        offers: `models.Offers`, the models that can be chosen.
    """
    handlers = _Handlers(offers)
    name, names = next(iter(offers.choices.items()))
    with gr.Blocks(title="keras_vit", analytics_enabled=False, delete_cache=(_FORGET, _FORGET)) as page:
        found = gr.State(None, time_to_live=_FORGET)  # (model, weights, Look)
        gr.Markdown("## keras_vit\nPredictions and attention of a Vision Transformer.")
        with gr.Row():
            with gr.Column(scale=4, min_width=320):
                with gr.Row():
                    model = gr.Dropdown(list(offers.choices), value=name, label="Model", min_width=140)
                    weights = gr.Dropdown(names, value=names[0], label="Weights", min_width=140)
                examples = gr.Gallery(**handlers.gallery(name, names[0]), **_GALLERY, elem_id="examples")
                upload = gr.File(show_label=False, file_types=_FORMATS, height=144, elem_id="upload")
            with gr.Column(scale=7, min_width=320):
                status = gr.Textbox(_HINT, show_label=False, interactive=False, max_lines=8, elem_id="status")
                figures = gr.Gallery(columns=3, visible=False, **_GALLERY, elem_id="figures")
                depth = gr.Slider(1, 2, step=1, visible=False, buttons=[], elem_id="depth")
                answers = gr.Label(show_label=False, show_heading=False, visible=False, elem_id="answers")
                show_heads = gr.Button("Show the heads of this block", visible=False, elem_id="show_heads")
                heads = gr.Gallery(columns=4, fit_columns=False, visible=False, **_GALLERY, elem_id="heads")

        chosen, results = [model, weights], [status, figures, depth, answers, show_heads, heads, found]
        shown = [status, figures, answers]  # an error message covers these
        examples.select(handlers.show_example, chosen, results, show_progress_on=shown, **_QUEUED)
        upload.upload(handlers.show_file, [*chosen, upload], results, show_progress_on=shown, **_QUEUED)
        model.input(handlers.change_model, model, [weights, examples, *results], **_AT_ONCE)
        weights.input(_nothing, None, results, **_AT_ONCE)
        depth.input(_change_depth, [found, depth], [figures, heads], **_AT_ONCE)
        show_heads.click(handlers.show_heads, [found, depth], heads, **_QUEUED)
    return page.queue(max_size=50, api_open=False)


def appearance():
    """Return the arguments of `gradio.Blocks.launch` for the style of the page, which uses the system's fonts."""
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="slate", **fonts)
    return {"theme": theme, "css_paths": _STYLE, "footer_links": []}


class _Handlers:
    """The event handlers that need the models."""

    def __init__(self, offers):
        self._offers = offers

    def show_example(self, name: str, weights: str, event: gr.SelectData) -> tuple:
        with _mistakes_shown():
            examples = list(self._examples(name, weights).values())
            checks.check_choice("index", event.index, range(len(examples)))  # visitors can send any value
            return self._show(name, weights, examples[event.index])

    def show_file(self, name, weights, path):
        with _mistakes_shown():
            return self._show(name, weights, looks.read_image(path))

    def show_heads(self, state, depth):
        """The heads of one block, which are computed on demand."""
        with _mistakes_shown(state):
            name, weights, found = state
            return gr.Gallery(found.heads(self._offers.open(name, weights, gr.Info), depth), visible=True)

    def change_model(self, name):
        """The weights and examples of another model, and no answers."""
        with _mistakes_shown():
            checks.check_choice("model", name, self._offers.choices)
            names = self._offers.choices[name]
            return gr.Dropdown(names, value=names[0]), gr.Gallery(**self.gallery(name, names[0])), *_nothing()

    def gallery(self, name, weights):
        """The example images as arguments of `gradio.Gallery`, with those of 8 x 8 pixels enlarged."""
        images = [(looks.enlarge(pixels, 160), caption) for caption, pixels in self._examples(name, weights).items()]
        return {"value": images, "columns": -(-len(images) // 2)}

    def _examples(self, name, weights):
        if self._offers.reads_digits(name, weights):
            return models.example_digits()
        return models.example_scenes()

    def _show(self, name, weights, image):
        model = self._offers.open(name, weights, gr.Info)
        found = looks.look(model, models.digit_image(image) if self._offers.reads_digits(name, weights) else image)
        (label, score), depth = found.answers[0], len(found.rollouts)
        said = " ".join([f"{found.name}: {label} ({100 * score:.1f} %).", *found.remarks])
        times = ", ".join(f"{part} {took:.0f} ms" for part, took in found.milliseconds.items())
        # Gradio merges equal labels, such as ImageNet's two cranes. Trailing spaces, which are invisible, prevent this.
        scores = {label + " " * rank: score for rank, (label, score) in enumerate(found.answers)}
        return (
            f"{said}\n{times}",
            gr.Gallery(found.figures(depth), visible=True),
            gr.Slider(1, max(2, depth), depth, label=f"Rollout up to block number (of {depth})", visible=depth > 1),
            gr.Label(scores, visible=True),
            gr.Button(visible=depth > 0),
            gr.Gallery(visible=False),
            (name, weights, found),
        )


def _change_depth(state, depth):
    """The figures up to another block. The heads on the page belong to the previous block, so they are hidden."""
    with _mistakes_shown(state):
        return state[2].figures(depth), gr.Gallery(visible=False)


def _nothing():
    """The results while no image is chosen."""
    hidden = (part(visible=False) for part in (gr.Gallery, gr.Slider, gr.Label, gr.Button, gr.Gallery))
    return _HINT, *hidden, None


@contextlib.contextmanager
def _mistakes_shown(state=()):
    """Show the package's own errors to the visitor as text; Gradio would render HTML in them."""
    try:
        if state is None:
            raise ValueError("no image is chosen, or its answer is deleted, as an hour has passed: pick an image")
        yield
    except _MISTAKES as error:
        raise gr.Error(html.escape(looks.sentence(error)), print_exception=False) from error
