#!/usr/bin/env python3
"""Tries the page of `mar serve` in headless Chromium: browser.py MAR [PICTURE.png]. Needs Debian's chromium.

At 400, 900 and 1600 pixels, light and dark, it fills in the form, makes pictures, and looks at what the page shows.
Errors on the console, violations of the page's policy and contents wider than the window fail. PICTURE.png receives a
screenshot."""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

LIMIT_S = 120


class Browser:
    """Chromium by its debugging protocol: JSON with a NUL at its end, on two pipes."""

    def __init__(self, program, folder):
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()

        def set_pipes():
            # 3 and 4 are the protocol's; the ends may have these numbers themselves
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", "--user-data-dir=" + folder, "about:blank"],
            preexec_fn=set_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.session, self.problems = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def receive(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.read_end, 1 << 20)
            if not piece:
                raise SystemExit("Chromium ended")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **arguments):
        self.number += 1
        message = {"id": self.number, "method": method, "params": arguments}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            parameters = answer.get("params", {})
            advice = parameters.get("entry", {}).get("level") == "verbose"
            if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown") and not advice:
                self.problems.append(json.dumps(parameters))
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script):
        began = time.monotonic()
        while not (value := self.run(script)):
            if time.monotonic() - began > LIMIT_S:
                raise SystemExit(f"never true: {script}; the page says: " + self.run("document.body.innerText"))
            time.sleep(0.05)
        return value

    def show(self, url, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.getElementById('model').textContent !== ''")

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


def check(condition, what):
    if not condition:
        raise SystemExit("browser.py: " + what)


def make(page, prompt, n, seed):
    page.run(f"""for (const [id, value] of Object.entries({{prompt: '{prompt}', n: {n}, seed: '{seed}'}}))
        document.getElementById(id).value = value;
        document.getElementById('make').click()""")


def try_page(page, url, picture):
    for width, scheme in ((400, "light"), (400, "dark"), (900, "light"), (900, "dark"), (1600, "dark"), (1600, "light")):
        page.show(url, width, 900, scheme)
        make(page, 7, 6, 5)
        page.wait("document.getElementById('state').textContent.startsWith('done in')")
        page.wait("[...document.querySelectorAll('figure img')].every(i => i.complete && i.naturalWidth === 32)")
        page.wait("[...document.querySelectorAll('dl')].every(l => l.children.length > 10)")
        check(page.run("document.querySelectorAll('figure').length") == 6, "expected 6 pictures")
        text = page.run("document.querySelector('dl').textContent")
        check(page.run("document.getElementById('negative-row').hidden"), "a model of classes has a negative prompt")
        check("seed5" in text and "class7" in text and "guarantee" in text, "the text of the picture: " + text)
        check("seed 5" in page.run("document.querySelector('figcaption').textContent"), "the caption has no seed")
        wide = page.run("document.documentElement.scrollWidth")
        check(wide <= width, f"the page is {wide} pixels wide in a window of {width}")
        back = page.run("getComputedStyle(document.body).backgroundColor")
        dark = sum(int(part) for part in back[4:-1].split(",")) < 3 * 128
        check(dark == (scheme == "dark"), f"background {back} with the scheme {scheme}")
        if picture and (width, scheme) == (900, "light"):
            page.run("document.querySelector('details').open = true")
            page.picture(picture)
    make(page, 77, 1, "")
    page.wait("document.getElementById('state').textContent.includes('class 77: out of range')")
    page.run("document.getElementById('state').textContent = ''")
    check(all("400" in problem for problem in page.problems), "on the console: " + "\n".join(page.problems))
    page.problems.clear()


def try_prompts(page, url):
    """A model of prompts has a field for the negative one."""
    page.show(url, 900, 900, "light")
    page.wait("!document.getElementById('negative-row').hidden")
    page.run("document.getElementById('negative').value = 'a thin 2'")
    make(page, "a bold seven", 1, 5)
    page.wait("document.querySelectorAll('dl')[0]?.children.length > 10")
    text = page.run("document.querySelector('dl').textContent")
    check("prompta bold seven" in text and "negativea thin 2" in text, "the text of the picture: " + text)


def try_slow_page(page, url):
    """Previews while it forms, and the end by the button."""
    page.show(url, 900, 900, "light")
    make(page, 3, 10, "")
    page.wait("[...document.querySelectorAll('img')].some(i => i.src.includes('/previews/') && i.naturalWidth === 32)")
    page.wait("[...document.querySelectorAll('figcaption')].some(c => c.textContent.startsWith('step '))")
    page.run("document.getElementById('cancel').click()")
    page.wait("document.getElementById('state').textContent === 'cancelled'")
    # the preview that was on its way is gone
    check(all("/previews/" in problem for problem in page.problems), "on the console: " + "\n".join(page.problems))


def serve(mar, *options):
    process = subprocess.Popen([mar, "serve", "--port", "0", "--grace", "0", *options], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def main():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        print("SKIPPED: no chromium")
        return 77
    mar, picture = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Browser(program, folder)
        services = []
        try:
            services = [serve(mar, "--num_iter", "16"), serve(mar, "--num_iter", "64", "--num_sampling_steps", "1000",
                                                              "--batch", "1", "--threads", "1", "--dtype", "f32"),
                        serve(mar, "--model", "demo-harmon", "--num_iter", "4", "--num_sampling_steps", "4")]
            try_page(page, services[0][1], picture)
            try_slow_page(page, services[1][1])
            try_prompts(page, services[2][1])
        finally:
            page.process.kill()
            page.process.wait()
            for process, _ in services:
                process.terminate()
        check(all(process.wait(LIMIT_S) == 0 for process, _ in services), "a service did not end well")
    print("browser.py: the page works")
    return 0


sys.exit(main())
