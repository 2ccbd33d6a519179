"""The built site in a headless Chromium: what its search finds first, and what does not fit on a phone."""

import contextlib
import functools
import http.server
import shutil
import threading

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDS = "needs a browser: apt-get install chromium chromium-driver"
_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
# the site's own search, in the worker of its pages: the places that it finds for each phrase, best first
_SEARCH = """
const [address, phrases, done] = arguments, found = {}, queue = [...phrases];
const worker = new Worker(address);
fetch("/search.json").then(answer => answer.json()).then(index => {
  const ask = () => worker.postMessage({type: 2, data: {input: queue[0], filter: {
    input: {type: "operator", data: {operator: "and", operands: []}}, aggregation: {input: []}}}});
  worker.onerror = worker.onmessageerror = error => done(String(error.message));
  worker.onmessage = ({data}) => {
    if (data.type === 4) return done("the search failed");
    if (data.type === 3) found[queue.shift()] = data.data.items.map(item => index.items[item.id].location);
    queue.length ? ask() : done(found);
  };
  worker.postMessage({type: 0, data: index});
});
"""
# words of the page's text that are broken over two lines, cells that nothing scrolls to, and boxes wider than the page
_MISFITS = """
const wide = document.documentElement.clientWidth, misfits = [], article = document.querySelector("article");
const scrolls = part => {
  for (let box = part.parentElement; box && box !== article; box = box.parentElement)
    if (box.scrollWidth > box.clientWidth && /auto|scroll/.test(getComputedStyle(box).overflowX)) return true;
  return false;
};
const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT), range = document.createRange();
while (walker.nextNode()) {
  const text = walker.currentNode, parent = text.parentElement;
  if (parent.closest("pre, svg, math, script, style, .md-annotation") || !parent.checkVisibility()) continue;
  for (const word of text.data.matchAll(/[\\p{L}\\p{N}_]{2,}/gu)) {
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
    if (lines.size > 1) misfits.push("broken: " + word[0]);
  }
}
for (const part of article.querySelectorAll("td, th, .equation, img, p > math, figure"))
  if (part.getBoundingClientRect().right > wide + 1 && !scrolls(part))
    misfits.push("hidden: " + part.tagName + " " + part.textContent.slice(0, 40));
if (document.documentElement.scrollWidth > wide) misfits.push("the page scrolls sideways");
return misfits;
"""


@contextlib.contextmanager
def opened(folder):
    """A `Site` that serves the folder of a built site on localhost."""
    from selenium import webdriver

    handler = functools.partial(_Handler, directory=str(folder))
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        try:
            yield Site(driver, folder, f"http://127.0.0.1:{server.server_port}")
        finally:
            driver.quit()
            server.shutdown()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


class Site:
    """The pages in a browser.

    Args:
        driver: Selenium's.
        folder: of the site.
        url: its address.
    """

    def __init__(self, driver, folder, url):
        self.driver, self.folder, self.url = driver, folder, url
        driver.set_script_timeout(60)

    def search(self, phrases):
        """A dict from each phrase to the places (path and anchor) that the search finds, best first."""
        (worker,) = self.folder.glob("assets/javascripts/workers/search.*.js")
        self.driver.get(self.url)
        found = self.driver.execute_async_script(_SEARCH, f"/{worker.relative_to(self.folder)}", list(phrases))
        assert isinstance(found, dict), found
        return found

    def misfits(self, page, width=390):
        """What is broken or hidden on a page of this width, in CSS pixels."""
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(f"{self.url}/{page}")
        return self.driver.execute_script(_MISFITS)
