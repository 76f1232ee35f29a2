"""A browser for tests of the page: Chromium by Selenium, and what a person does with a page. A test that includes this exits with 77
where they are not installed."""
import contextlib
import importlib.util
import pathlib
import shutil
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "server"))

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    sys.exit(77)
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    sys.exit(77)

PATIENCE = 40  # seconds
AXE = importlib.util.find_spec("axe_playwright_python")  # has axe-core
AXE = AXE and pathlib.Path(AXE.submodule_search_locations[0]) / "axe.min.js"


def open_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(DRIVER), options=options)


def tag(text):
    """A button, by what stands on it."""
    return f'//button[normalize-space(.)="{text}"]'


class Valve:
    """A port before the server's, which lets an event stream begin and holds the rest until it is opened: an answer is cut in
    its middle however quick the server is."""
    PASSED = 4000  # bytes of a stream

    def __init__(self, port):
        self.server_port, self.is_open, self.connections = port, False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                continue
            self.connections += [client, server]
            for ends in [(client, server, False), (server, client, True)]:
                threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    def pass_on(self, source, target, holds):
        left = None
        with source, contextlib.suppress(OSError):  # cut
            while data := source.recv(1024):
                if holds and left is None and b"text/event-stream" in data:
                    left = self.PASSED
                if left is not None and not self.is_open:
                    data = data[:left]
                    left -= len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self):
        """Ends all connections, as a server that dies; those to come are passed on whole."""
        self.is_open = True
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections = []

    def close(self):
        self.cut()
        self.listener.close()


class BrowserTest(unittest.TestCase):
    """`server`: an object with a port; the class that has the tests makes it."""
    server = None
    pictures = None  # a directory for those that tests make

    @classmethod
    def setUpClass(cls):
        cls.browser = open_browser()
        cls.browser.set_script_timeout(PATIENCE)

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()

    def setUp(self):
        self.size(1280, 860)
        self.theme("light")
        self.forget()

    def forget(self):
        """Nothing is kept of earlier tests."""
        self.browser.get(f"http://127.0.0.1:{self.server.port}/page/icon.svg")
        self.browser.execute_async_script("""sessionStorage.clear(); localStorage.clear();
            const gone = indexedDB.deleteDatabase('invar'), done = arguments[0]; gone.onsuccess = gone.onerror = gone.onblocked = () => done();""")

    def open(self, view="chat", server=None):
        port = (server or self.server).port
        self.browser.get("about:blank")  # another port is another origin: nothing is kept
        self.browser.get(f"http://127.0.0.1:{port}/#/{view}")
        self.until(lambda: self.text("identity"))

    def size(self, width, height):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def theme(self, name):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def run_js(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def find(self, id):
        return self.browser.find_element(By.ID, id)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, id):
        return self.run_js("return document.getElementById(arguments[0]).textContent", id)

    def until(self, condition, what="the page"):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if value := condition():
                    return value
            except Exception:  # an element that was replaced meanwhile
                if time.monotonic() > end:
                    raise
            if time.monotonic() > end:
                facts = [facts.text for facts in self.all(".facts, .error")]
                states = [self.text(id) for id in ['notice', 'chat-state', 'bits-state', 'engine-state']]
                self.fail(f"waited in vain for {what}: {states} {facts}")
            time.sleep(0.02)

    def set(self, id, value):
        self.run_js("const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))", id, str(value))

    def click(self, text):
        self.browser.find_elements(By.XPATH, tag(text))[-1].click()

    def picture(self, name):
        if self.pictures:
            self.browser.save_screenshot(str(pathlib.Path(self.pictures) / f"{name}.png"))

    def ask(self, text, **fields):
        """Sends a message and waits for its answer's facts."""
        for id, value in fields.items():
            self.set(id, value)
        answers = len(self.all(".message.assistant"))
        self.find("prompt").send_keys(text, Keys.ENTER)
        self.until(lambda: len(self.all(".message.assistant")) > answers, "the answer to begin")
        return self.finished()

    def finished(self):
        self.until(lambda: not self.find("stop").is_displayed() and self.all(".facts"), "the answer's end")
        return self.all(".facts")[-1].text

    def no_faults(self):
        # A server that is away, and a refusal, are network errors and expected where they are.
        faults = [entry for entry in self.browser.get_log("browser") if entry["source"] != "network" and entry["level"] == "SEVERE"]
        self.assertEqual(faults, [])

    def low_contrast(self):
        """Texts that stand out from their background by less than 4.5 (WCAG AA)."""
        return self.run_js("""
            const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return [m[0], m[1], m[2], m[3] ?? 1]; };
            const light = (c) => { const f = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
              return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
            const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
            return [...document.querySelectorAll('body *')].filter((e) => e.offsetParent && !e.disabled &&
                [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
              const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
              return [e.outerHTML.slice(0, 80), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
            }).filter(([, ratio]) => ratio < 4.5)""")

    def axe(self):
        """The findings of axe-core, where it is installed: [rule, elements]."""
        if not AXE:
            return []
        self.run_js(AXE.read_text() + "; window.axe = axe")
        return self.browser.execute_async_script(
            "axe.run(document, { resultTypes: ['violations'] }).then((found) => arguments[0](found.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 120))])))")

    def processor_seconds(self):
        """The times of the page's thread, and of its process."""
        metrics = {m["name"]: m["value"] for m in self.browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
        return [metrics["ThreadTime"], metrics["ProcessTime"]]

    def ask_undisturbed(self, text):
        """Sends a message and returns the seconds until the answer stood there whole. Nobody asks the page anything meanwhile,
        which would cost more than the answer."""
        self.set("prompt", text)
        return self.browser.execute_async_script("""
            const stop = document.getElementById('stop'), done = arguments[0], began = performance.now();
            new MutationObserver(() => { if (stop.hidden) requestAnimationFrame(() => setTimeout(() => done((performance.now() - began) / 1000))); })
              .observe(stop, { attributes: true, attributeFilter: ['hidden'] });
            document.getElementById('ask').requestSubmit();""")

    def kept(self):
        """The messages of the conversation that is seen, as the browser keeps them."""
        return self.browser.execute_async_script("""
            const done = arguments[0], opened = indexedDB.open('invar');
            opened.onsuccess = () => { const all = opened.result.transaction('nodes').objectStore('nodes').getAll(); all.onsuccess = () => { opened.result.close(); done(all.result.filter((one) => one.talk === localStorage.getItem('talk'))); }; };""")
