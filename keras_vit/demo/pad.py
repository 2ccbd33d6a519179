"""The pad on which a digit is drawn by mouse, pen or finger: its HTML, its script, and what the script sends."""

import base64
import binascii

from keras_vit.demo.uploads import read_bytes

_BEGINNING = "data:image/png;base64,"
_LONGEST = 1_000_000  # characters; a drawing has about ten thousand

TEMPLATE = """
<div class="kv-pad">
  <canvas width="280" height="280" aria-label="draw a digit here"></canvas>
  <div><p>Draw a digit here.</p><p>It is read whenever the pen is lifted.</p><button type="button">Clear</button></div>
</div>
"""

# `element` and `trigger` are Gradio's: what was drawn goes to the event `submit`.
SCRIPT = """
const canvas = element.querySelector("canvas");
const pen = canvas.getContext("2d");
const clear = () => { pen.fillStyle = "white"; pen.fillRect(0, 0, canvas.width, canvas.height); };
const place = (event) => {
  const box = canvas.getBoundingClientRect();
  const scale = canvas.width / box.width;
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
};
Object.assign(pen, { lineWidth: 20, lineCap: "round", lineJoin: "round", strokeStyle: "#1e285a" });
let last = null;
const draw = (event) => {
  if (last === null) return;
  const next = place(event);
  pen.beginPath();
  pen.moveTo(...last);
  pen.lineTo(...next);
  pen.stroke();
  last = next;
};
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  last = place(event);
  draw(event);
});
canvas.addEventListener("pointermove", draw);
canvas.addEventListener("pointerup", () => {
  if (last === null) return;
  last = null;
  trigger("submit", { image: canvas.toDataURL("image/png") });
});
canvas.addEventListener("pointercancel", () => { last = null; });
element.querySelector("button").addEventListener("click", clear);
clear();
"""


def read_drawing(sent):
    """Returns the pixels, uint8 (height, width, 3), of what the pad sends: a PNG as a `data:` address.

    Raises:
        ValueError: on anything else, for a visitor may send what he likes.
    """
    if not isinstance(sent, str) or not sent.startswith(_BEGINNING) or len(sent) > _LONGEST:
        raise ValueError(f"a drawing must be a PNG as a data address of at most {_LONGEST:,} characters")
    try:
        contents = base64.b64decode(sent[len(_BEGINNING) :], validate=True)
    except binascii.Error:
        raise ValueError("a drawing must be in base 64; it is damaged") from None
    return read_bytes("the drawing", contents)
