"""The page of `format="web"`: its files, and in a browser what it computes, says and asks the network for."""

import base64
import hashlib
import io
import json
import shutil
import tarfile
import threading
import time

import keras
import numpy as np
import PIL.Image
import pytest
import web_page
from download_server import Server, send
from drawn import draw, encode
from served import LABELS, make_model
from web_photos import photos

import keras_vit
from keras_vit import Preprocessing
from keras_vit.data import preprocessing as preparation
from keras_vit.data.images import as_images
from keras_vit.serving import ExportError, export, web

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="keras_vit.data needs TensorFlow")


def in_a_browser(test):
    return pytest.mark.docs(pytest.mark.skipif(not web_page.HAS_ALL, reason=web_page.NEEDS)(test))


@pytest.fixture
def runtime(tmp_path):
    """A folder like onnxruntime-web, of small files."""
    folder = tmp_path / "package"
    (folder / "dist").mkdir(parents=True)
    for name in web.RUNTIME:
        (folder / "dist" / name).write_text(name)
    return folder


def test_the_folder(runtime, tmp_path):
    folder = export(make_model(), tmp_path / "page", "web", runtime=runtime)
    names = ["README.txt", "index.html", "labels.txt", "model.onnx", "model_card.json"]
    assert sorted(path.name for path in folder.iterdir()) == [
        *names,
        *("page.css", "page.js", "page.json", "runtime", "worker.js"),
    ]
    assert sorted(path.name for path in (folder / "runtime").iterdir()) == sorted(web.RUNTIME)
    about = json.loads((folder / "page.json").read_text())
    assert (about["labels"], about["output"], about["activation"]) == (list(LABELS), "logits", "softmax")
    assert about["bytes"] == (folder / "model.onnx").stat().st_size
    assert json.loads((folder / "model_card.json").read_text())["options"]["compute_dtype"] == "float16"
    worker = (folder / "worker.js").read_text()
    again = export(make_model(), tmp_path / "page", "web", runtime=runtime / "dist", check=False)
    assert (again / "worker.js").read_text() == worker and "{{version}}" not in worker
    other = export(make_model(classes=6, labels=None), tmp_path / "page", "web", runtime=runtime, check=False)
    assert (other / "worker.js").read_text() != worker  # browsers replace what they have kept
    assert json.loads((other / "page.json").read_text())["labels"] is None


def test_what_cannot_be_a_page(runtime, tmp_path):
    model = make_model()
    with pytest.raises(FileNotFoundError, match="runtime must be a folder with .*; .*none does not exist"):
        export(model, tmp_path / "page", "web", runtime=tmp_path / "none", check=False)
    with pytest.raises(FileNotFoundError, match="runtime must have the files of onnxruntime-web; .* has no ort.webgpu"):
        export(model, tmp_path / "page", "web", runtime=tmp_path, check=False)
    with pytest.raises(ValueError, match="runtime is an option of format 'web'; got runtime="):
        export(model, tmp_path / "page", "onnx", runtime=runtime)
    with pytest.raises(ValueError, match="calibration must be typical images for quantization='int8', and None"):
        export(model, tmp_path / "page", "web", runtime=runtime, calibration=[draw(0)])  # float16, as it is small
    with pytest.raises(ValueError, match=r"a row per image, for format='web'; got .* with output \(None, "):
        export(make_model(include_top=False, pooling="unpooled"), tmp_path / "page", "web", runtime=runtime)
    assert not (tmp_path / "page").exists()


def test_a_large_model_gets_int8_if_there_are_images_to_calibrate_it(monkeypatch):
    model, options = make_model(), {"compute_dtype": None, "quantization": None, "calibration": [draw(0)]}
    choose = keras_vit.serving.formats.FORMATS["web"].choose
    assert choose(model, options)["compute_dtype"] == "float16"
    monkeypatch.setattr(keras_vit.serving.formats, "_LARGE_PAGE", 0.1)
    assert choose(model, options)["quantization"] == "int8"
    assert choose(model, {**options, "calibration": None})["compute_dtype"] == "float16"
    assert choose(model, {**options, "compute_dtype": "float32"})["compute_dtype"] == "float32"


def test_the_runtime_is_downloaded_once_and_its_hash_is_checked(tmp_path, monkeypatch):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in (*web.RUNTIME, "../../escaped"):
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    (tmp_path / "web.tgz").write_bytes(stream.getvalue())
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(web, "ARCHIVE", (tmp_path / "web.tgz").as_uri())
    with pytest.raises(ExportError, match="must have the SHA-512 q0y"):
        export(make_model(), tmp_path / "page", "web", check=False)
    assert not (tmp_path / "cache" / "models").exists()
    digest = hashlib.sha512(stream.getvalue()).digest()
    monkeypatch.setattr(web, "SHA512", base64.b64encode(digest).decode())
    export(make_model(), tmp_path / "page", "web", check=False)
    (tmp_path / "web.tgz").unlink()
    folder = export(make_model(), tmp_path / "page", "web", check=False)
    assert (folder / "runtime" / web.RUNTIME[0]).read_text() == web.RUNTIME[0]
    assert not list(tmp_path.rglob("escaped"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "other"))
    with pytest.raises(ConnectionError, match=r"web.tgz did not arrive .*download it elsewhere and pass runtime="):
        export(make_model(), tmp_path / "page", "web", check=False)
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(web, "ARCHIVE", f"{server.address}/web.tgz")
    broken = {"200 of 900 bytes": (200, 900), "sends 67108865 or more": (1, 2**26 + 1)}
    for reason, (sent, stated) in broken.items():
        server.answer = lambda handler, body=bytes(sent), stated=stated: send(handler, body, stated)
        with pytest.raises(ConnectionError, match="did not arrive .*" + reason.replace(" of ", " out of ")):
            web._downloaded()
    server.answer = lambda handler: send(handler, stream.getvalue())
    assert sorted(path.name for path in web._downloaded().iterdir()) == sorted(web.RUNTIME)
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(make_model(), tmp_path_factory.mktemp("page"), "web", runtime=web_page.RUNTIME)


@pytest.fixture(scope="module")
def page(folder):
    with web_page.opened(folder) as (page, *_):
        assert page.load().startswith("Ready (WebAssembly, ")
        yield page


PREPROCESSINGS = [
    Preprocessing(size=(24, 32), interpolation="bicubic"),
    Preprocessing(size=(24, 32), interpolation="bilinear"),
    Preprocessing(size=(24, 32), interpolation="bilinear_antialias"),
    Preprocessing(size=(24, 32), interpolation="area"),
    Preprocessing(size=(24, 32), interpolation="nearest"),
    Preprocessing(size=40, crop=32, interpolation="bicubic", rounding="torchvision"),
    Preprocessing(size=39, crop=32, interpolation="bilinear", rounding="big_vision"),
    Preprocessing(size=37, crop=32, interpolation="bilinear_antialias", rounding="transformers"),
    Preprocessing(size=(40, 50), crop=(24, 32), interpolation="bicubic"),
    Preprocessing(size=(48, 48), pad=True, interpolation="bilinear_antialias", mean=(0.4, 0.5, 0.6)),
    Preprocessing(size=(24, 32), interpolation="bicubic", mean=(0.5,), std=(0.5,)),
]


@in_a_browser
def test_pixels_are_those_of_the_package(page):
    files, worst = photos(), {}
    for preprocessing in PREPROCESSINGS:
        known = {**preprocessing.to_dict(), "image_size": preprocessing.image_size, "channels": preprocessing.channels}
        body = "return Promise.all(files.map(async file => [...await page.pixels(file, more)]))"
        found = page.call(body, files.items(), known)
        assert isinstance(found, list), found
        for (name, data), values in zip(files.items(), found, strict=True):
            (read,) = as_images(data)
            expected = np.asarray(preparation.resize(preprocessing, read(preprocessing.channels)))
            difference = np.abs(np.reshape(values, expected.shape) - expected)
            limit = difference.mean() < 0.5 if name.endswith("jpg") else difference.max() <= 1
            worst[name] = max(worst.get(name, 0.0), float(difference.max()))
            assert limit, (name, preprocessing, difference.mean(), difference.max())
    print("largest differences:", worst)


@in_a_browser
def test_answers_are_those_of_predict(page):
    files = {f"{seed}.png": encode(draw(seed)) for seed in range(6)}
    body = "const found = []; for (const file of files) found.push([...(await page.run(file)).output]); return found"
    found = page.call(body, files.items())
    for (name, data), scores in zip(files.items(), found, strict=True):
        (expected,) = keras_vit.predict(make_model(), data, top=len(LABELS))
        assert LABELS[np.argmax(scores)] == expected[0][0], name
        np.testing.assert_allclose(
            [scores[LABELS.index(label)] for label, _ in expected], [x for _, x in expected], atol=1e-3
        )


@in_a_browser
def test_what_a_visitor_sees(page):
    page.load()
    said = page.answer(("cat.png", encode(draw(0))))
    assert said.startswith("WebAssembly, ") and said.endswith(" ms for the last photo")
    (article,) = page.driver.find_elements("css selector", "article")
    ((best, score), *_) = keras_vit.predict(make_model(), encode(draw(0)))[0]
    rows = [row.text.splitlines() for row in article.find_elements("css selector", "li")]
    assert len(rows) == 5 and rows[0][0] == best and abs(float(rows[0][1].removesuffix(" %")) - 100 * score) < 0.1
    assert article.find_element("css selector", "img").get_attribute("alt") == "cat.png"
    field = page.driver.find_element("id", "files")
    assert field.is_enabled() and field.accessible_name.startswith("Choose photos")
    assert page.driver.find_element("id", "answers").get_attribute("aria-live") == "polite"


@in_a_browser
def test_each_mistake_is_one_sentence(page):
    header = encode(PIL.Image.new("1", (20000, 10000)))  # 200 megapixels in a small file
    texts = {
        "notes.txt": (b"hello", "notes.txt is no image that this browser can read: choose a JPEG, PNG or WebP."),
        "none.png": (b"", "none.png is empty: choose another file."),
        "huge.png": (header, "huge.png has 200 megapixels: choose one of at most 64."),
        "cut.png": (
            encode(draw(0))[:40],
            "cut.png is no image that this browser can read: choose a JPEG, PNG or WebP.",
        ),
    }
    for name, (data, expected) in texts.items():
        assert page.answer((name, data)) == expected
    good = "cat.png", encode(draw(0))
    files = [(name, data) for name, (data, _) in texts.items()]
    assert page.answer(good, *files, good) == " ".join(expected for _, expected in texts.values())  # none is lost
    assert "last photo" in page.answer(good)  # the page still works


@in_a_browser
def test_what_keeps_the_page_from_starting(folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.onnx").unlink()
    with web_page.opened(broken) as (page, *_):
        assert page.load() == "model.onnx did not arrive (status 404): reload the page."
        command = {"source": "delete window.WebAssembly"}
        page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", command)
        assert page.load() == "This browser has no WebAssembly, which the model needs: use a current browser."
        page.driver.get((folder / "index.html").as_uri())
        assert page.status().startswith("This page needs JavaScript and a web server")


@in_a_browser
def test_a_graphics_processor_that_cannot_run_the_model_is_not_used(folder):
    """Chromium's software processor has no 16-bit floats, so the first call fails; as a slow one, it is skipped."""
    as_real = """
    const ask = navigator.gpu.requestAdapter.bind(navigator.gpu);
    const named = adapter => adapter && Object.defineProperty(adapter, "info", {value: {}});
    navigator.gpu.requestAdapter = async () => named(await ask());
    """
    with web_page.opened(folder, words=web_page.SOFTWARE_GPU) as (page, _, asked):
        for source in (None, as_real):
            if source is not None:
                page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
            del asked[:]
            assert page.load().startswith("Ready (WebAssembly, ")
            assert ("/runtime/ort-wasm-simd-threaded.asyncify.wasm" in asked) == (source is not None)
            assert page.answer(("a.png", encode(draw(0)))).startswith("WebAssembly, ")
        failed = [entry["message"] for entry in page.driver.get_log("browser")]
        assert any("f16" in message for message in failed), failed


@in_a_browser
def test_a_photo_that_is_dropped_too_early_does_not_replace_the_page(page):
    drop = "const drop = new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: new DataTransfer()}); "
    drop += "drop.dataTransfer.items.add(new File(['x'], 'a.png')); return !document.dispatchEvent(drop)"
    hold = {"source": "window.fetch = () => new Promise(() => {})"}
    identifier = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", hold)
    page.driver.get(page.url)
    assert page.driver.execute_script(drop)
    assert page.driver.find_element("id", "status").get_attribute("class") != "error"
    page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", identifier)
    page.load()
    assert page.call(drop.replace("return", "").replace("'x'", "''") + "; await page.answer([])") is None
    assert page.status() == "a.png is empty: choose another file."


@in_a_browser
def test_offline_and_alone(folder):
    with web_page.opened(folder, isolated=False) as (page, server, asked):
        assert page.load() == "Ready (WebAssembly, 1 thread)."
        first = page.call("return [...(await page.run(files[0])).output]", [("a.png", encode(draw(0)))])
        wanted = {"/", "/page.css", "/page.js", "/page.json", "/worker.js", "/model.onnx"}
        assert wanted <= set(asked) and {path for path in asked if not path.startswith("/runtime/")} <= wanted
        assert asked.count("/model.onnx") == 1
        server.shutdown()
        server.server_close()
        cores = {"source": "Object.defineProperty(navigator, 'hardwareConcurrency', {value: 4})"}
        page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", cores)
        assert page.load() == "Ready (WebAssembly, 2 threads)."  # the worker adds the headers that allow them
        again = page.call("return [...(await page.run(files[0])).output]", [("a.png", encode(draw(0)))])
        np.testing.assert_allclose(again, first, atol=1e-6)
        hosts = set()
        for entry in page.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                hosts.add(message["params"]["request"]["url"].removeprefix("blob:").split("/")[2])
        assert hosts == {page.url.split("/")[2]}
        refused = "return fetch('https://example.com').then(() => 'sent', error => error.message)"
        assert page.call(refused) == "Failed to fetch"


@in_a_browser
def test_a_new_version_replaces_the_old_one_and_no_other_page_of_the_host(folder, tmp_path):
    """The new version has the same model, and labels that would be markup if they were not text."""
    labels = [f"<img src=x onerror=document.title='run{place}'>" for place in range(len(LABELS))]
    new = tmp_path / "new"
    new.mkdir()
    shutil.copyfile(folder / "model.onnx", new / "model.onnx")
    web.write_page(make_model(labels=labels), new, web_page.RUNTIME)
    for name in ("one", "two"):
        shutil.copytree(folder, tmp_path / "site" / name)
    with web_page.opened(tmp_path / "site", isolated=False) as (page, server, asked):

        def best(name):
            page.url = f"{page.host}/{name}/"
            page.load()
            page.answer(("a.png", encode(draw(0))))
            return page.driver.find_element("css selector", "li").text.splitlines()[0]

        assert (best("one"), best("two")) == ("cat", "cat")
        shutil.rmtree(tmp_path / "site" / "one")
        shutil.copytree(new, tmp_path / "site" / "one", copy_function=shutil.copyfile)
        deadline = time.monotonic() + 30
        while (found := best("one")) == "cat" and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == labels[LABELS.index("cat")] and page.driver.title == make_model().name
        del asked[:]
        assert best("one") == found and best("two") == "cat"
        assert not [path for path in asked if path.endswith(".onnx")]  # both are kept


@in_a_browser
def test_an_encoder_finds_the_nearest_photo_and_a_model_may_have_no_names(tmp_path):
    encoder = export(make_model(include_top=False), tmp_path / "encoder", "web", runtime=web_page.RUNTIME, check=False)
    with web_page.opened(encoder) as (page, *_):
        page.load()
        photos = [(f"{name}.png", encode(image)) for name, image in {"a": draw(0), "b": draw(1)}.items()]
        page.answer(*photos, ("again.png", encode(draw(0).resize((49, 40)))))
        newest, *_ = page.driver.find_elements("css selector", "article")
        rows = [row.text.splitlines() for row in newest.find_elements("css selector", "li")]
        names, scores = [name for name, _ in rows], [float(score) for _, score in rows]
        assert len(newest.find_elements("css selector", "li img")) == 2
        body = "return Promise.all(files.map(async file => [...(await page.run(file)).output]))"
        model, files = make_model(include_top=False), [data for _, data in photos]
        expected = model.predict(keras_vit.preprocess(files, model.preprocessing), verbose=0)
        np.testing.assert_allclose(page.call(body, photos), expected, atol=0.01 * np.abs(expected).max())
        assert names == ["a.png", "b.png"] and 0.9 < scores[0] <= 1 and scores[1] < scores[0]
    model = make_model(classes=1, labels=None)
    unnamed = export(model, tmp_path / "unnamed", "web", runtime=web_page.RUNTIME, check=False)
    with web_page.opened(unnamed) as (page, *_):
        page.load()
        page.answer(("a.png", encode(draw(0))))
        ((_, score),) = keras_vit.predict(model, encode(draw(0)))[0]
        found = page.driver.find_element("css selector", "li").text.splitlines()
        assert found[0] == "class 0" and abs(float(found[1].removesuffix(" %")) - 100 * score) < 0.2  # of a sigmoid
        assert "Classes by number, as their names are unknown" in page.driver.find_element("id", "about").text


@pytest.mark.slow
@in_a_browser
def test_two_hundred_photos(real_data, tmp_path):
    cropped = Preprocessing(size=248, crop=224, interpolation="bicubic")
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    model = keras_vit.ViT_Ti16(weights=weights, preprocessing=cropped)
    paths = sorted((real_data / "imagenet200").glob("*/*"))
    folder = export(model, tmp_path, "web", runtime=web_page.RUNTIME, check=[str(path) for path in paths[:8]])
    answers = keras_vit.predict(model, [str(path) for path in paths], top=1)
    same, means, largest, times = 0, [], [], []
    with web_page.opened(folder) as (page, *_):
        page.load()
        body = "const {output, pixels, milliseconds} = await page.run(files[0]); "
        body += "return [page.label(page.best(output, 1)[0]), [...pixels], milliseconds]"
        for path, ((expected, _),) in zip(paths, answers, strict=True):
            label, pixels, milliseconds = page.call(body, [(path.name, path.read_bytes())])
            (read,) = as_images(str(path))
            difference = np.abs(np.reshape(pixels, (224, 224, 3)) - preparation.resize(cropped, read(3)))
            same, means, largest = same + (label == expected), [*means, difference.mean()], [*largest, difference.max()]
            times.append(milliseconds)
    print(
        f"same {same} of {len(paths)}, pixels: mean {np.mean(means):.3f} (largest mean {max(means):.3f}), "
        f"largest {max(largest):.0f}; {np.median(times):.0f} ms per photo"
    )
    assert len(paths) == 200 and same >= 198 and max(means) < 0.5
