"""build_page and launch: build the page of the demo, and serve it on this machine."""

from typing import TYPE_CHECKING

from keras_vit import checks
from keras_vit.demo.looks import MAX_BYTES
from keras_vit.demo.models import Offers
from keras_vit.models import ImageModel

if TYPE_CHECKING:
    import gradio

# The page loads nothing from other hosts, although some versions of Gradio request fonts and scripts there.
_POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob: ws: wss:"
_MAX_PORT = 65535
_SESSIONS = 100  # sessions whose last results are kept


def build_page(model: ImageModel | None = None, weights: str = "as given") -> "gradio.Blocks":
    """Build the page of the demo.

    On it, users choose a model, pick or upload an image, and see classes, attention rollout and heads.

    Without a model it starts with a small ViT for handwritten digits, which is trained when the first image is picked
    (40 seconds on two cores) and kept in Keras's cache. The models with published weights can be chosen as well; they
    are downloaded when they are first used.

    Args:
        model: a classifier of keras_vit, offered first; or None.
        weights: name of its weights on the page, such as their file name.

    Returns:
        A `gradio.Blocks`, to launch or to mount in another application.

    Raises:
        ImportError: if Gradio or scikit-learn is not installed.
        ValueError: if `model` is not a classifier of keras_vit.
    """
    page = _page()
    if model is not None:
        from keras_vit.evaluation.outputs import check_classifier, check_preprocessing
        from keras_vit.models.encoders import check_model

        check_classifier(model)
        check_model(model)
        check_preprocessing(model, None)
    return page.build(Offers(model, weights))


def launch(
    model: ImageModel | None = None,
    weights: str = "as given",
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    share: bool = False,
    block: bool = True,
) -> "gradio.Blocks":
    """Serve the page until Ctrl-C, one image at a time.

    Nothing is sent to other machines unless `share` is True.

    Args:
        model, weights: as in `build_page`.
        host: address to listen on. With the default, only this machine can open the page; with `"0.0.0.0"`, the network
            can.
        port: port number; None uses the first free one from 7860.
        browser: whether to open the page in the browser.
        share: whether to create a public link with Gradio's service.
        block: False returns at once, and a thread serves the page.

    Returns:
        The `gradio.Blocks`, with its address as `local_url`; `close()` ends it.

    Raises:
        ImportError, ValueError: as in `build_page`.
        OSError: if the port is in use.
    """
    for name, value in (("browser", browser), ("share", share), ("block", block)):
        checks.check_flag(name, value)
    if port is not None and checks.check_integer("port", port) > _MAX_PORT:
        raise ValueError(f"port must be at most {_MAX_PORT}; got port={port}")
    page = build_page(model, weights)
    page.launch(
        server_name=host,
        server_port=port,
        inbrowser=browser,
        share=share,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=MAX_BYTES,
        state_session_capacity=_SESSIONS,
        ssr_mode=False,
        enable_monitoring=False,
        app_kwargs={"middleware": [(_own_host_only, (), {})], "docs_url": None, "redoc_url": None, "openapi_url": None},
        **_page().appearance(),
    )
    if block:
        wait(page)
    return page


def wait(page: "gradio.Blocks") -> None:
    """Wait until Ctrl-C, then close a page.

    Args:
        page: result of `launch` with `block=False`.
    """
    page.block_thread()


def _page():
    """Return the module that imports Gradio, which takes seconds."""
    try:
        from keras_vit.demo import page
    except ImportError as error:
        if (error.name or "").split(".")[0] != "gradio":
            raise
        raise ImportError("the demo page needs Gradio: pip install gradio scikit-learn") from error
    return page


def _own_host_only(app):
    """ASGI middleware that tells the browser to load nothing from other hosts."""

    async def call(scope, receive, send):
        async def send_with_policy(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"content-security-policy", _POLICY)]
            await send(message)

        await app(scope, receive, send_with_policy if scope["type"] == "http" else send)

    return call
