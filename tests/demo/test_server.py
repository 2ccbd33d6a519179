"""build_page and launch without Gradio: what they check, what they say, and what a browser is told to load."""

import asyncio
import builtins
import sys

import pytest

import keras_vit
from keras_vit.demo import server


@pytest.mark.parametrize("module", ["gradio", "keras_vit.demo.page"])
def test_without_gradio_it_says_what_to_install(monkeypatch, module):
    monkeypatch.delitem(sys.modules, "keras_vit.demo.page", raising=False)
    monkeypatch.delattr("keras_vit.demo.page", raising=False)
    real = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.split(".")[0] == "gradio":
            raise ModuleNotFoundError("No module named 'gradio'", name="gradio")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match="the demo page needs Gradio: pip install gradio scikit-learn$"):
        keras_vit.demo.build_page()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"browser": 1}, "browser must be True or False; got browser=1"),
        ({"share": "no"}, "share must be True or False"),
        ({"port": 0}, "port must be an integer of at least 1; got port=0"),
        ({"port": 70_000}, "port must be at most 65535; got port=70000"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_served(monkeypatch, arguments, message):
    monkeypatch.setattr(server, "wait", pytest.fail)
    with pytest.raises(ValueError, match=message):
        keras_vit.demo.launch(**arguments)


def test_the_browser_is_told_to_load_from_here_alone():
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message):
        sent.append(message)

    asyncio.run(server._own_host_only(app)({"type": "http"}, None, send))
    headers = dict(sent[0]["headers"])
    assert headers[b"a"] == b"b" and headers[b"content-security-policy"].startswith(b"default-src 'self'")
    assert b"http" not in headers[b"content-security-policy"] and len(sent) == 2
