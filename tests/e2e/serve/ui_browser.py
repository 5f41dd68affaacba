#!/usr/bin/env python3
"""The page at / in a headless Chromium, which a small client of its DevTools protocol drives: it
types, clicks, and reads the DOM and the pixels. Skipped where there is no Chromium.
UI_PICTURE=FILE.png draws the page into that file.
usage: ui_browser.py OCTAVO [unittest arguments]"""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from urllib.parse import urlsplit

from harness import LONG, PATIENCE, ROOT, SKIP, SLOW, Server, eventually, main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not CHROMIUM:
    print("SKIPPED ui_browser.py: no chromium")
    sys.exit(SKIP)

PICTURE = os.environ.get("UI_PICTURE")
KEYS = {"alice": "key-of-alice", "root": "key-of-root"}
HOSTILE = "<img src=x onerror=\"document.title='taken'\"> &amp; <b>bold</b> <script>document.title='taken'</script>"


class Socket:
    """A WebSocket client (RFC 6455), as much of it as DevTools asks for."""

    def __init__(self, url):
        at = urlsplit(url)
        self.s = socket.create_connection((at.hostname, at.port), timeout=PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall((f"GET {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.s.recv(4096)
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise AssertionError(head)

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        n = len(data)
        size = bytes([0x80 | n]) if n < 126 else b"\xfe" + struct.pack(">H", n) if n < 65536 else \
            b"\xff" + struct.pack(">Q", n)
        self.s.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def take(self, n):
        while len(self.rest) < n:
            part = self.s.recv(1 << 16)
            if not part:
                raise AssertionError("Chromium has gone")
            self.rest += part
        got, self.rest = self.rest[:n], self.rest[n:]
        return got

    def receive(self):
        """The next message: its frames together."""
        text, last = b"", False
        while not last:
            head = self.take(2)
            n = head[1] & 127
            if n > 125:
                n = struct.unpack(">H" if n == 126 else ">Q", self.take(2 if n == 126 else 8))[0]
            data = self.take(n)
            if head[0] & 15 in (0, 1):
                text, last = text + data, bool(head[0] & 0x80)
        return text.decode()


class Browser:
    """A Chromium with one page."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update",
             "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", "--window-size=1280,900",
             "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        text = ""
        while not (found := re.search(r"ws://(\S+?)/", text)):
            line = self.process.stderr.readline()
            if not line:
                raise AssertionError(f"Chromium does not start: {text}")
            text += line
        self.n, self.events = 0, []
        pages = subprocess.run([sys.executable, "-c", "import sys, urllib.request as u; "
                                "sys.stdout.write(u.urlopen(sys.argv[1]).read().decode())",
                                f"http://{found.group(1)}/json/list"], check=True, capture_output=True).stdout
        self.socket = Socket(next(p["webSocketDebuggerUrl"] for p in json.loads(pages) if p["type"] == "page"))
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self):
        self.call("Browser.close")
        self.process.wait(PATIENCE)
        self.process.stderr.close()
        self.folder.cleanup()

    def call(self, method, **params):
        self.n += 1
        self.socket.send(json.dumps({"id": self.n, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.n:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, url):
        self.call("Page.navigate", url=url)
        eventually("the page is there", lambda: self.run(
            "location.href !== 'about:blank' && document.readyState === 'complete'"))

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector):
        """Clicks in the middle of what is there, as a mouse does."""
        x, y = self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
                        "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
                        "return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key, code=None, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, modifiers=modifiers,
                      windowsVirtualKeyCode={"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40, "Home": 36,
                                             "End": 35}.get(key, 0))

    def type(self, selector, text):
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def choose(self, selector, value):
        self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)}; "
                 "e.dispatchEvent(new Event('change', {bubbles: true})); })()")

    def picture(self, path=None):
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path:
            with open(path, "wb") as f:
                f.write(data)
        return data

    def colours(self):
        """How many pixels of the map have each colour."""
        return self.run("(() => { const c = document.getElementById('map'); const d = c.getContext('2d')"
                        ".getImageData(0, 0, c.width, c.height).data; const n = {}; for (let i = 0; i < d.length; "
                        "i += 4) { const k = d[i] + ',' + d[i + 1] + ',' + d[i + 2]; n[k] = (n[k] || 0) + 1; } "
                        "return n; })()")

    def colour(self, name):
        """A colour of the style, as `colours` writes it."""
        return self.run("(() => { const c = document.createElement('canvas').getContext('2d'); c.fillStyle = "
                        f"getComputedStyle(document.documentElement).getPropertyValue('{name}'); "
                        "c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3)"
                        ".join(','); })()")

    def complaints(self):
        """What the page's console says, but for a request that is not known yet or no more, and
        for the pixels that are read here."""
        said = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        said = [s for s in said if "willReadFrequently" not in s["text"]]
        said = [s for s in said if not ("404" in s["text"] and "/octavo/pages/" in s.get("url", ""))]
        thrown = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        return said + thrown

    def asked(self):
        """The addresses that the page asked for."""
        return {e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"}


class Page(unittest.TestCase):
    """One server with keys, one browser; the cases run in the order of their names."""

    @classmethod
    def setUpClass(cls):
        cls.files = tempfile.NamedTemporaryFile("w", suffix=".keys")
        cls.files.write(KEYS["root"] + "\n")
        cls.files.flush()
        cls.server = Server("--api-key", KEYS["alice"], "--admin-key-file", cls.files.name, model=SLOW)
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.stop()
        cls.files.close()

    def dataset(self):
        return {k: int(v) for k, v in self.browser.run("({...document.getElementById('map').dataset})").items()}

    def test_1_the_page_is_painted_and_asks_for_a_key(self):
        b = self.browser
        b.open(self.server.url + "/")
        b.call("Page.bringToFront")
        paint = eventually("it is painted", lambda: b.run(
            "performance.getEntriesByName('first-contentful-paint').map((e) => e.startTime)[0]"))
        print(f"first contentful paint: {paint:.0f} ms", file=sys.stderr)
        eventually("it asks for a key", lambda: "asks for an API key" in b.text("#trouble"))
        self.assertEqual([], b.run("[...document.querySelectorAll('[style], [onclick]')].map((e) => e.outerHTML)"))
        self.assertEqual({"h1": 1, "main": 1}, b.run("({h1: document.querySelectorAll('h1').length, "
                                                     "main: document.querySelectorAll('main').length})"))

    def test_2_every_control_has_a_name(self):
        tree = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "textbox", "combobox", "spinbutton", "meter", "application", "log", "checkbox"}
        named = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree
                 if not n.get("ignored") and n.get("role", {}).get("value") in roles}
        self.assertEqual([], [n for n in named if not n[1].strip()])
        self.assertLessEqual({"button", "textbox", "combobox", "spinbutton", "meter", "log"}, {r for r, _ in named})

    def test_3_an_answer_streams_in_and_its_pages_appear(self):
        b = self.browser
        b.type("#key", KEYS["alice"])
        eventually("the key is taken", lambda: b.run("document.getElementById('trouble').hidden"))
        eventually("methods are listed", lambda: b.run("document.getElementById('method').options.length") > 20)
        b.choose("#method", "chunkkv")
        b.type("#tokens", str(LONG))
        b.type("#prompt", HOSTILE + " Now is the winter of our discontent." * 12)
        b.key("Enter", modifiers=2)
        first = eventually("text comes", lambda: b.text("#log article:last-child p"))
        eventually("more text comes", lambda: len(b.text("#log article:last-child p")) > len(first))
        eventually("pages were dropped", lambda: self.dataset().get("dropped"))
        got = self.dataset()
        self.assertEqual(got["rows"] * got["columns"], got["kept"] + got["dropped"])
        self.assertGreater(got["kept"], 0)
        eventually("attention is there", lambda: self.dataset().get("measured") == got["rows"])
        pixels = b.colours()
        self.assertGreater(len(pixels), 4) # shades
        self.assertGreater(pixels[b.colour("--kept")], 0) # the cell with most attention
        self.assertGreater(pixels[b.colour("--dropped")], 0)
        self.assertRegex(b.text("#legend-mass"), r"the last token's attention, [\d.]+ % or less to [\d.]+ % of a layer's")
        self.assertTrue(b.run("document.getElementById('legend-read').hidden"))
        self.assertRegex(b.text("#map-summary"), r"Token \d+ attends most to tokens \d+ to \d+, [\d.]+ %, on average over "
                         r"all rows\.")
        self.assertRegex(b.text("#map-state"), r"chunkkv, \d+ \+ \d+ tokens")
        eventually("the request is listed", lambda: b.run("document.querySelectorAll('#requests button').length") == 1)
        eventually("the pool is used", lambda: b.run("document.getElementById('pool').value") > 0)
        if PICTURE:
            b.run("document.activeElement.blur(), scrollTo(0, 0)")
            time.sleep(1) # an overview comes each second
            b.picture(PICTURE)
        b.click("#stop")
        eventually("it stops", lambda: b.text("#log article:last-child .note") == "stopped")
        eventually("the map stays", lambda: "ended" in b.text("#map-state"))
        self.assertEqual(HOSTILE.split()[0], b.run("document.querySelector('#log p').textContent").split()[0])
        self.assertEqual(0, b.run("document.querySelectorAll('#log img, #log b, #log script').length"))
        self.assertEqual("Octavo", b.run("document.title"))

    def test_4_the_keyboard_reads_cells(self):
        b = self.browser
        b.run("document.getElementById('map').focus()")
        self.assertEqual("map", b.run("document.activeElement.id"))
        b.key("Home")
        first = b.text("#cell")
        self.assertRegex(first, r"^layers? 0.*, tokens 0 to \d+: ")
        b.key("ArrowRight")
        b.key("ArrowDown")
        self.assertRegex(b.text("#cell"), r"^layers? [1-9].*, tokens 16 to 31: ")
        b.key("End")
        # The last cells may have tokens after the one that was measured.
        while b.text("#cell").endswith(": kept, not measured"):
            b.key("ArrowLeft")
        self.assertRegex(b.text("#cell"), r": (kept|\d eighths kept)(, shared)?, (less than )?[\d.]+ % of the attention$")
        self.assertEqual(b.text("#cell"), b.run("document.getElementById('said').textContent"))
        b.run("document.getElementById('layers').open = true")
        eventually("the table has all rows", lambda: b.run("document.querySelectorAll('#layer-rows tr').length")
                   == self.dataset()["rows"])
        self.assertRegex(b.text("#layer-rows tr:last-child"), r"\d+\s+tokens \d+ to \d+, [\d.]+ %$")

    def test_5_what_is_read_is_marked(self):
        b = self.browser
        c = self.server.connect()
        c.request("POST", "/v1/completions", json.dumps({
            "prompt": list(range(1, 801)), "max_tokens": LONG, "ignore_eos": True, "stream": True,
            "retrieval": {"method": "ktransformers", "block_size": 16, "local_windows_len": 32, "second_select_num": 6,
                          "dense_layer_num": 1}}),
            {"Authorization": "Bearer " + KEYS["alice"], "X-Request-Id": "reads", "Content-Type": "application/json"})
        answer = c.getresponse()
        self.assertEqual(200, answer.status)
        button = "#requests button[data-id=reads]"
        eventually("it is listed", lambda: b.run(f"document.querySelector('{button}') !== null"))
        b.run(f"document.querySelector('{button}').click()")
        eventually("it is shown", lambda: b.text("#map-state").startswith("Request reads: running"))
        eventually("reads are marked", lambda: not b.run("document.getElementById('legend-read').hidden"))
        got = self.dataset()
        self.assertLess(got["columns"], got["read"]) # the first layer reads all
        self.assertLess(got["read"], got["rows"] * got["columns"] / 2)
        self.assertIn(b.colour("--text"), b.colours())
        self.assertRegex(b.text("#map-summary"), r"It read \d+ tokens in a layer\.$")
        read = [int(n) for n in b.run("[...document.querySelectorAll('#layer-rows tr')].map((r) => r.cells[4].innerText)")]
        self.assertGreater(read[0], 800)
        self.assertTrue(all(n < 200 for n in read[1:]), read)
        # Each cell is read, or not, in words; what changes by itself is not read out.
        b.run("document.getElementById('map').focus()")
        b.key("Home")
        b.key("ArrowDown")
        said, words = b.run("document.getElementById('said').textContent"), set()
        for _ in range(got["columns"] - 1):
            words.add(b.text("#cell").rsplit(", ", 1)[-1])
            b.key("ArrowRight")
        self.assertLessEqual({"read by the last token", "not read by the last token"}, words)
        token = self.dataset()["token"]
        eventually("another token is measured", lambda: self.dataset()["token"] != token)
        self.assertNotEqual(said, b.run("document.getElementById('said').textContent"))
        self.assertEqual("off", b.run("document.getElementById('cell').getAttribute('aria-live')"))
        if PICTURE:
            b.run("document.activeElement.blur(), scrollTo(0, 0)")
            b.picture(PICTURE.replace(".png", "-reads.png"))
        answer.close()
        c.close()
        eventually("the map stays", lambda: "ended" in b.text("#map-state"))

    def test_6_light_and_dark(self):
        b = self.browser
        seen = {}
        for scheme in ("light", "dark"):
            b.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            seen[scheme] = b.run("getComputedStyle(document.body).backgroundColor"), b.picture()
        self.assertNotEqual(seen["light"][0], seen["dark"][0])
        self.assertNotEqual(seen["light"][1], seen["dark"][1])

    def test_7_nothing_else_was_asked_for(self):
        b = self.browser
        self.assertEqual(set(), {u for u in b.asked() if not u.startswith((self.server.url + "/", "data:"))})
        refused = [c for c in b.complaints() if "401" not in c.get("text", "")]
        self.assertEqual([], refused)
        self.assertEqual([0, 0, ""], b.run("[localStorage.length, sessionStorage.length, document.cookie]"))


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
