"""The parts of the page that show results, as HTML: bars of answers, figures, times and sentences."""

import base64
import html
import io

from PIL import Image

_SMALL = 160  # width of an image in the gallery, in pixels


def heading():
    """What stands at the top."""
    return (
        '<header class="kv-heading"><h1>keras_vit</h1>'
        "<p>What a Vision Transformer answers to an image, and where it looks.</p></header>"
    )


def gallery(pairs, columns):
    """Images to pick, as buttons in so many columns.

    Args:
        pairs: of (caption, uint8 array (height, width, 3)).
    """
    buttons = "".join(
        f'<button type="button" data-place="{place}" title="{html.escape(caption)}">'
        f'<img src="{_address(image, _SMALL)}" alt="{html.escape(caption)}"></button>'
        for place, (caption, image) in enumerate(pairs)
    )
    return f'<div class="kv-gallery" style="--kv-columns: {columns}">{buttons}</div>'


# `element` and `trigger` are Gradio's: the place of the image that is picked goes to the event `submit`.
GALLERY_SCRIPT = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-place]");
  if (button) trigger("submit", { place: Number(button.dataset.place) });
});
"""


def status(text, kind="hint"):
    """A sentence about what the page does or could not do.

    Args:
        text: one or more sentences.
        kind: `"hint"`, `"busy"` or `"error"`, which colours it.
    """
    return f'<p class="kv-status kv-{kind}" role="status">{html.escape(text)}</p>'


def answers(pairs):
    """A bar for each (label, score), scores from 0 to 1."""
    rows = "".join(
        f'<li><span class="kv-label">{html.escape(label)}</span>'
        f'<span class="kv-track"><span class="kv-bar" style="width: {100 * score:.1f}%"></span></span>'
        f'<span class="kv-score">{100 * score:.1f} %</span></li>'
        for label, score in pairs
    )
    return f'<ol class="kv-answers">{rows}</ol>'


def times(milliseconds):
    """One line with how long each part took."""
    parts = "".join(f"<span>{html.escape(part)} <b>{took:.0f} ms</b></span>" for part, took in milliseconds.items())
    return f'<p class="kv-times">{parts}</p>'


def figures(pairs, kind="kv-figures"):
    """Images with captions beside each other.

    Args:
        pairs: of (caption, uint8 array (height, width, 3)).
        kind: class of the row: `"kv-figures"` for large ones, `"kv-heads"` for small ones.
    """
    shown = "".join(
        f'<figure><img src="{_address(image)}" alt="{html.escape(caption)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for caption, image in pairs
    )
    return f'<div class="{kind}">{shown}</div>'


def _address(pixels, width=None):
    """The image itself as an address, so that nothing of it is kept on the server's disk."""
    file, image = io.BytesIO(), Image.fromarray(pixels)
    if width is not None and image.width > width:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.BOX)
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


# System fonts; the colours are those of Gradio's theme, light or dark as the visitor's system is.
STYLE = """
.gradio-container { max-width: 1180px !important; margin: 0 auto !important; }
.gradio-container .html-container { padding: 0 !important; }
.gradio-container .secondary-wrap input { text-overflow: ellipsis; padding-right: 1.75rem !important; }
.kv-heading { display: flex; align-items: baseline; gap: 0.9rem; flex-wrap: wrap; }
.kv-heading h1 { font-size: 1.45rem; font-weight: 650; margin: 0; letter-spacing: -0.01em; }
.kv-heading p { margin: 0; color: var(--body-text-color-subdued); }
.kv-status { margin: 0; padding: 0.55rem 0.8rem; border-radius: 8px; border-left: 4px solid var(--kv-colour);
  background: color-mix(in srgb, var(--kv-colour) 9%, transparent); overflow-wrap: anywhere; }
.kv-hint { --kv-colour: #5b7083; } .kv-busy { --kv-colour: #b7791f; } .kv-error { --kv-colour: #c53030; }
.kv-figures { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 0.8rem; }
.kv-heads { display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: 0.6rem; }
.kv-figures figure, .kv-heads figure { margin: 0; }
.kv-figures img, .kv-heads img { width: 100%; height: auto; display: block; border-radius: 8px; }
.kv-figures img { max-height: 340px; object-fit: contain; object-position: left top; }
.kv-figures figcaption, .kv-heads figcaption { font-size: 0.82rem; margin-top: 0.3rem;
  color: var(--body-text-color-subdued); overflow-wrap: anywhere; }
ol.kv-answers { list-style: none; margin: 0; padding: 0; display: grid; gap: 0.35rem; }
.kv-answers li { display: grid; grid-template-columns: minmax(6rem, 11rem) 1fr 4.2rem; gap: 0.7rem;
  align-items: center; margin: 0; }
.kv-label { overflow-wrap: anywhere; line-height: 1.2; }
.kv-answers li:first-child .kv-label { font-weight: 650; }
.kv-track { height: 0.85rem; border-radius: 5px; background: var(--border-color-primary); overflow: hidden; }
.kv-bar { display: block; height: 100%; border-radius: 5px; background: #2b6cb0; }
.kv-score { text-align: right; font-variant-numeric: tabular-nums; }
.kv-times { margin: 0; display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; font-size: 0.85rem;
  color: var(--body-text-color-subdued); }
.kv-times b { font-weight: 600; color: var(--body-text-color); font-variant-numeric: tabular-nums; }
.kv-pad { display: flex; gap: 1rem; align-items: center; }
.kv-pad canvas { width: 200px; height: 200px; flex: none; touch-action: none; cursor: crosshair;
  border: 1px solid var(--border-color-primary); border-radius: 8px; }
.kv-pad p { margin: 0 0 0.4rem; color: var(--body-text-color-subdued); }
.kv-pad button { padding: 0.3rem 0.9rem; border-radius: 6px; border: 1px solid var(--border-color-primary); }
.kv-gallery { display: grid; grid-template-columns: repeat(var(--kv-columns), minmax(0, 1fr)); gap: 8px; }
.kv-gallery button { margin: 0 !important; align-self: start; padding: 0; border: 0; border-radius: 8px;
  background: none; overflow: hidden; cursor: pointer; line-height: 0; }
.kv-gallery button:hover, .kv-gallery button:focus-visible { outline: 3px solid #2b6cb0; outline-offset: 1px; }
.kv-gallery img { width: 100%; height: auto; display: block; margin: 0 !important; border: 0 !important; }
@media (max-width: 640px) { .kv-answers li { grid-template-columns: 6.5rem 1fr 3.8rem; gap: 0.5rem; }
  .kv-figures { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
"""
