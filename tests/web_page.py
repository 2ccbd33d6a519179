"""The page of `format="web"` in a headless Chromium, served by a static server that can be stopped."""

import base64
import contextlib
import functools
import http.server
import os
import pathlib
import threading

from site_browser import CHROMIUM, DRIVER

# the files of onnxruntime-web, which .ci/run fetches with npm
RUNTIME = pathlib.Path(
    os.environ.get("KERAS_VIT_ONNXRUNTIME_WEB", pathlib.Path(__file__).parents[1] / ".ci" / "package")
)
NEEDS = "needs a browser (apt-get install chromium chromium-driver) and onnxruntime-web (CONTRIBUTING.md, Exports)"
HAS_ALL = bool(CHROMIUM and DRIVER) and RUNTIME.is_dir()
_PATIENCE = 120  # seconds
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")

_CALL = """
const [body, names, texts, more, done] = arguments;
const files = texts.map((text, i) => new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], names[i]));
const page = window.keras_vit;
page.ready.then(() => new Function("page", "files", "more", `return (async () => {${body}})()`)(page, files, more))
  .then(done, error => done({error: error.message}));
"""


class Page:
    """The page in a browser.

    Args:
        driver: Selenium's.
        url: of the page.
    """

    def __init__(self, driver, url):
        self.driver, self.url, self.host = driver, url, url.rstrip("/")

    def load(self):
        """Open the page and return what it says when it is ready."""
        self.driver.get(self.url)
        self.driver.execute_async_script("window.keras_vit.ready.then(arguments[0])")
        return self.status()

    def status(self):
        return self.driver.find_element("id", "status").text

    def call(self, body, files=(), more=None):
        """Run JavaScript with `page`, `files` (of (name, bytes)) and `more`; return what it returns."""
        names, texts = [name for name, _ in files], [base64.b64encode(data).decode() for _, data in files]
        return self.driver.execute_async_script(_CALL, body, names, texts, more)

    def answer(self, *files):
        """Let the page answer for files (name, bytes) and return what it says then."""
        self.call("await page.answer(files)", files)
        return self.status()


@contextlib.contextmanager
def opened(folder, isolated=True, size=(1280, 800), dark=False, words=()):
    """A `Page` of a folder, its server, and the list of the paths that were asked for."""
    from selenium import webdriver

    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            asked.append(self.path)

        def end_headers(self):
            if isolated:
                self.send_header("Cross-Origin-Opener-Policy", "same-origin")
                self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    usual = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={size[0]},{size[1]}"]
    for word in [*usual, *words, *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else [])]:
        options.add_argument(word)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        driver.set_script_timeout(_PATIENCE)
        try:
            yield Page(driver, f"http://localhost:{server.server_port}/"), server, asked
        finally:
            driver.quit()
            server.shutdown()
