"""build_page and launch: the page as an object, and on this machine's own address."""

from typing import TYPE_CHECKING

from keras_vit import checks
from keras_vit.demo.looks import MAX_BYTES
from keras_vit.demo.models import Offers
from keras_vit.models import ImageModel

if TYPE_CHECKING:
    import gradio

# The page and what it loads come from this server alone, whatever a version of Gradio would fetch from elsewhere.
_POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob: ws: wss:"
_MAX_PORT = 65535
_SESSIONS = 100  # whose last answers are kept
_PACKAGES = "gradio scikit-learn"  # of the extra demo; the digits come with scikit-learn


def build_page(model: ImageModel | None = None, weights: str = "as given") -> "gradio.Blocks":
    """Builds the page: choose a model, pick, upload or draw an image, see answers, attention rollout and heads.

    Without a model it begins with a small ViT that reads handwritten digits. It is trained when the first image is
    picked, in 40 seconds on two cores, and kept in Keras's cache. The models of the zoo with published weights can be
    chosen as well; they are downloaded when they are first used.

    Args:
        model: a classifier of keras_vit, offered first; or None.
        weights: what the page calls its weights, such as the name of their file.

    Returns:
        A `gradio.Blocks`, which can be mounted or launched as Gradio says.

    Raises:
        ImportError: without Gradio (`pip install gradio scikit-learn`).
        ValueError: if `model` is no classifier of keras_vit.
    """
    page = _page()
    if model is not None:
        from keras_vit.evaluation.outputs import check_classifier, check_preprocessing

        check_classifier(model)
        check_preprocessing(model, model.preprocessing)
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
    """Serves the page until Ctrl-C. One image is computed at a time; nothing is sent to other machines.

    Args:
        model, weights: as of `build_page`.
        host: address to listen on. The default is for this machine alone; `"0.0.0.0"` lets in whoever reaches it.
        port: number, or None for the first free one from 7860.
        browser: whether to open the page in the browser.
        share: whether Gradio's service makes a public link to it.
        block: False returns at once, while the page is served by a thread.

    Returns:
        The `gradio.Blocks`, with its address as `local_url`; `close()` ends it.

    Raises:
        ImportError, ValueError: as `build_page`.
        OSError: where the port is taken.
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
        app_kwargs={"middleware": [(_OwnHostOnly, (), {})], "docs_url": None, "redoc_url": None, "openapi_url": None},
        **_page().appearance(),
    )
    if block:
        wait(page)
    return page


def wait(page: "gradio.Blocks") -> None:
    """Waits until Ctrl-C, then closes a page that was launched.

    Args:
        page: what `launch` returned with `block=False`.
    """
    page.block_thread()


def _page():
    """The module that speaks to Gradio, which takes seconds to import."""
    try:
        from keras_vit.demo import page
    except ImportError as error:
        if (error.name or "").split(".")[0] != "gradio":
            raise
        raise ImportError(f"the demo page needs Gradio: pip install {_PACKAGES}") from error
    return page


class _OwnHostOnly:
    """ASGI middleware: tells the browser to load nothing from other hosts."""

    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send):
        async def send_with_policy(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"content-security-policy", _POLICY)]
            await send(message)

        await self._app(scope, receive, send_with_policy if scope["type"] == "http" else send)
