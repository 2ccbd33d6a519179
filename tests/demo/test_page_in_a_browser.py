"""The page in a real browser: `keras-vit demo` serves it, a headless Chromium touches it as visitors do."""

import functools
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import keras
import numpy as np
import pytest
from page_models import NAME, small_digit_model
from PIL import Image

import keras_vit
import keras_vit_command
from keras_vit.demo.models import SCENES, digit_image, example_digits

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PATIENCE = 90  # seconds; a busy machine is slow, and nothing here waits longer than it must
WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"

pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="keras_vit.data needs TensorFlow"),
]


class Page:
    """The page in a browser.

    Args:
        driver: Selenium's.
        url: of the page.
    """

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        driver.get(url)
        self.until(lambda: len(self.all("#examples button img")) > 1)

    def until(self, condition):
        """Waits for `condition()` and returns what it gives; parts that are replaced meanwhile are looked up again."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, PATIENCE, 0.1, ignored_exceptions=(StaleElementReferenceException,))
        return wait.until(lambda _: condition(), f"the page says: {self.driver.title}")

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.until(lambda: self.all(selector))[0]

    def status(self):
        return self.one("#status textarea").get_property("value")

    def pick(self, place):
        """Picks an example and waits for the answer about it."""
        self.forget()
        self.all("#examples button")[place].click()
        self.until(lambda: " %)." in self.status())
        self.until(lambda: self.all("#figures img") and not self.all("#status .wrap:not(.hide)"))

    def upload(self, path):
        """Uploads a file and returns what the page says then: the answer, or an error, which it closes."""
        self.forget()
        self.one("#upload input[type=file]").send_keys(str(path))
        said = self.until(lambda: self.status() or self.error())
        for button in self.all("#upload button[aria-label*='emove'], #upload button[aria-label*='lear']")[:1]:
            button.click()
        self.until(lambda: self.all("#upload input[type=file]"))
        return said

    def error(self):
        """The text of the error that is shown, which is closed, or an empty string."""
        shown = self.all(".toast-body.error .toast-message-text")
        text = shown[0].text if shown else ""
        if text:
            self.one(".toast-body.error .toast-close").click()
            self.until(lambda: not self.all(".toast-body.error"))
        return text

    def forget(self):
        """Empties the sentence on the screen, so that the next one shows."""
        self.driver.execute_script("document.querySelector('#status textarea').value = ''")

    def images(self, selector):
        """The images of a gallery as uint8 arrays (height, width, 3)."""
        addresses = [image.get_attribute("src") for image in self.all(f"{selector} img")]
        return [np.asarray(Image.open(io.BytesIO(urllib.request.urlopen(url).read()))) for url in addresses]

    def answers(self):
        """(label, percentage) of every bar."""
        labels = [label.text for label in self.all("#answers dt")]
        scores = [100 * float(bar.get_attribute("value")) for bar in self.all("#answers meter")]
        return list(zip(labels, scores, strict=True))

    def set_depth(self, depth):
        """Moves the slider as its keys do."""
        self.driver.execute_script(
            "const slider = document.querySelector('#depth input[type=range]'); slider.value = arguments[0];"
            "slider.dispatchEvent(new Event('input', {bubbles: true}));"
            "slider.dispatchEvent(new Event('pointerup', {bubbles: true}));",
            depth,
        )
        self.until(lambda: f"block_{depth - 1:02d}" in self.all("#figures .caption-label")[1].text)

    def overflow(self):
        """How many pixels the page is wider than the window."""
        return self.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")


@pytest.fixture(scope="module")
def driver():
    selenium = pytest.importorskip("selenium.webdriver", reason="needs the extra [test-docs]")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def sized(driver):
    """A function that makes the window as large as a screen."""
    yield lambda width, height: driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def serve(folder, *words):
    """Starts `keras-vit demo`; returns the process and the address that it prints."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KERAS_HOME": str(folder / "keras"),
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "KERAS_VIT_WEIGHTS_URL": (folder / "no_publisher").as_uri(),
    }
    command = [sys.executable, keras_vit_command.__file__, "demo", "--no-browser", *map(str, words)]
    with open(folder / "stderr.txt", "w") as errors:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's `&` ignores Ctrl-C
        )
    killer = threading.Timer(2 * PATIENCE, process.kill)
    killer.start()
    url = process.stdout.readline().strip()
    killer.cancel()
    assert url.startswith("http://127.0.0.1:"), (folder / "stderr.txt").read_text()
    return process, url


def stop(process):
    with process:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(PATIENCE) in (0, 130)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def model(folder):
    model = small_digit_model()
    model.save(folder / "digits.keras")
    return model


@pytest.fixture(scope="module")
def url(folder, model):
    process, url = serve(folder, "--model", folder / "digits.keras")
    yield url
    stop(process)


@pytest.fixture(scope="module")
def page(driver, url):
    return Page(driver, url)


def expected(model, image):
    """(label, percentage) as it should be, computed here."""
    return [(label, 100 * score) for label, score in keras_vit.predict(model, image)[0]]


def assert_bars(page, bars):
    found = page.answers()
    assert [label for label, _ in found] == [label for label, _ in bars]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in bars], atol=1e-3)


def test_an_example_is_answered(page, model):
    page.pick(4)
    digit = example_digits()["4"]
    assert_bars(page, expected(model, digit))
    label, score = expected(model, digit)[0]
    said = rf"{NAME}: {label} \({score:.1f} %\)\.\npreprocessing \d+ ms, model \d+ ms, attention \d+ ms"
    assert re.fullmatch(said, page.status())
    seen, overlay, heat_map = page.images("#figures")
    np.testing.assert_array_equal(seen[::28, ::28, 0], digit[..., 0])
    assert overlay.shape == seen.shape == (224, 224, 3) and (overlay <= seen).all() and (overlay < seen).any()
    assert heat_map.shape == seen.shape and np.ptp(heat_map.astype(int), axis=-1).max() > 50  # colours


def test_the_slider_changes_overlay_and_heat_map_and_nothing_else(page):
    page.pick(2)
    answers, (seen, *last) = page.answers(), page.images("#figures")
    page.set_depth(1)
    still_seen, *first = page.images("#figures")
    assert all((early != late).any() for early, late in zip(first, last, strict=True))
    assert page.answers() == answers
    np.testing.assert_array_equal(still_seen, seen)
    page.set_depth(2)
    np.testing.assert_array_equal(page.images("#figures")[1:], last)


def test_heads_appear_on_demand_and_go_with_their_block(page):
    page.pick(8)
    assert page.images("#heads") == []
    page.one("#show_heads").click()
    page.until(lambda: len(page.all("#heads img")) == 2)
    first, second = page.images("#heads")
    assert first.shape == (224, 224, 3) and (first != second).any()
    assert page.all("#heads .caption-label")[0].text == "block_01, head 1"
    page.set_depth(1)
    page.until(lambda: not page.all("#heads img"))


def test_the_same_example_can_be_picked_again(page):
    page.pick(3)
    page.pick(3)


def test_a_file_is_read(page, model, tmp_path):
    six = Image.fromarray(255 - example_digits()["6"][..., 0]).resize((160, 160))
    six.save(tmp_path / "six.png")
    assert " %)." in page.upload(tmp_path / "six.png")
    assert_bars(page, expected(model, digit_image(np.asarray(six)[..., None])))


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("text.png", b"just text", "text.png must be an image"),
        ("empty.jpg", b"\n", "empty.jpg must be an image"),
    ],
)
def test_a_file_that_is_no_image_is_an_error_of_one_sentence(page, tmp_path, name, contents, message):
    (tmp_path / name).write_bytes(contents)
    page.pick(1)
    said = page.upload(tmp_path / name)
    assert said.startswith(message) and said.endswith(".") and "\n" not in said and str(tmp_path) not in said
    assert "Traceback" not in page.driver.page_source


@pytest.mark.parametrize(("size", "place"), [((1280, 900), 3), ((390, 844), 5)])
def test_nothing_sticks_out(page, sized, size, place):
    sized(*size)
    page.pick(place)
    page.one("#show_heads").click()
    page.until(lambda: len(page.all("#heads img")) == 2)
    assert page.overflow() <= 0
    for part in ("#status", "#figures", "#depth", "#answers", "#examples", "#upload", "#heads"):
        box = page.one(part).rect
        assert box["x"] >= 0 and box["x"] + box["width"] <= size[0] + 0.5, part


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_figures_are_in_one_row_with_their_captions(page, sized, size):
    sized(*size)
    page.pick(7 if size[0] > 1000 else 9)
    assert len({image.rect["y"] for image in page.all("#figures img")}) == 1
    for caption in page.all("#figures .caption-label"):
        assert page.driver.execute_script("return arguments[0].scrollWidth - arguments[0].clientWidth", caption) <= 0


def test_a_failing_download_is_reported_and_another_model_chosen(page):
    from selenium.webdriver.common.keys import Keys

    box = page.one("input[aria-label='Model']")
    box.click()
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("ViT-B_32", Keys.ENTER)
    page.until(lambda: page.one("input[aria-label='Weights']").get_attribute("value") == "imagenet21k+imagenet2012")
    page.until(lambda: page.one("#examples img").get_attribute("alt") == next(iter(SCENES)))
    page.forget()
    page.all("#examples button")[0].click()
    assert "ViT-B_32" in page.until(page.error) and "Traceback" not in page.driver.page_source
    page.driver.get(page.url)
    page.until(lambda: page.one("#examples img").get_attribute("alt") == "0")


def test_nothing_is_asked_of_other_hosts(page):
    asked = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"]
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith((page.url, "data:", "blob:", "chrome:"))] == []


@pytest.mark.parametrize("path", ["/etc/passwd", str(pathlib.Path(__file__)), "setup.py"])
def test_the_servers_files_are_not_given_away(url, path):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{url}gradio_api/file={path}")
    assert error.value.code in (403, 404)
    error.value.close()


@pytest.mark.slow
def test_the_real_model_looks_at_the_ball(driver, sized, real_data, tmp_path_factory):
    """On the ball the overlay keeps more brightness and the heat map is hottest; screenshots go to the folder."""
    folder = tmp_path_factory.mktemp("real_page")
    process, url = serve(folder, "--model", "ViT-Ti_16", "--weights", real_data / "weights" / WEIGHTS, "--gelu", "erf")
    try:
        sized(1280, 900)
        page = Page(driver, url)
        page.pick(list(SCENES).index("soccer ball"))
        assert page.answers()[0][0] == "soccer ball"
        *shown, heat_map = (image.astype(int) for image in page.images("#figures"))
        seen, overlay = (image.sum(-1) for image in shown)
        left, top, right, bottom = (
            round(side * scale) for side, scale in zip((60, 120, 240, 300), (224 / 480, 224 / 360) * 2, strict=True)
        )
        is_ball = np.zeros(seen.shape, bool)
        is_ball[top:bottom, left:right] = True
        kept = overlay / np.maximum(seen, 1)
        assert kept[is_ball].mean() > 2 * kept[~is_ball].mean()  # 2.4
        warmth = heat_map[..., 0] - heat_map[..., 2]  # red without blue: orange and yellow, not violet or grey
        assert is_ball.flat[warmth.argmax()] and warmth[is_ball].mean() > 80 > 20 > warmth[~is_ball].mean()  # 110, -11
        driver.save_screenshot(str(folder / "desk.png"))
        sized(390, 844)
        assert page.overflow() <= 0
        driver.save_screenshot(str(folder / "phone.png"))
        assert all((folder / name).stat().st_size > 20_000 for name in ("desk.png", "phone.png"))
    finally:
        stop(process)
