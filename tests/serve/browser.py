#!/usr/bin/env python3
"""Tries the page of `mar serve` in headless Chromium: browser.py MAR [FOLDER]. Needs Debian's chromium.

At 400 and 1280 pixels, light and dark, it fills in the form, makes pictures, makes mistakes, gives tokens, and looks at
what the page shows. Errors on the console, violations of the page's policy, contents wider than the window and jumps of
the layout fail. FOLDER receives a screenshot of each view, to be looked at."""
import base64
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

LIMIT_S = 60
TOKEN = "0123456789abcdef"
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Browser:
    """Chromium by its debugging protocol: JSON with a NUL at its end, on two pipes."""

    def __init__(self, program, folder, pictures):
        self.pictures = pictures  # a folder, or None
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
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Network.emulateNetworkConditions", offline=False, latency=100, downloadThroughput=-1,
                  uploadThroughput=-1)  # so that it paints before the service has answered, as elsewhere
        self.call("Page.addScriptToEvaluateOnNewDocument", source="""window.shift = 0; new PerformanceObserver(list =>
            list.getEntries().forEach(e => window.shift += e.value)).observe({type: 'layout-shift', buffered: true})""")

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

    def show(self, url, width, height, scheme, ready="document.getElementById('model').textContent !== ''"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && !!(" + ready + ")")

    def press(self, key, text, code):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "",
                      windowsVirtualKeyCode=code)

    def picture(self, name):
        if not self.pictures:
            return
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(os.path.join(self.pictures, name + ".png"), "wb") as file:
            file.write(base64.b64decode(data))


def check(condition, what):
    if not condition:
        raise SystemExit("browser.py: " + what)


def fill(page, **values):
    page.run(f"""for (const [id, value] of Object.entries({json.dumps(values)}))
        document.getElementById(id).value = value""")


def make(page, **values):
    fill(page, **values)
    check(page.run("document.getElementById('make').click(), document.getElementById('cancel').disabled"),
          "there is a job to cancel before the service has one")


def state(page):
    return page.run("document.getElementById('state').textContent")


def await_pictures(page, n):
    page.wait("document.getElementById('state').textContent.startsWith('done in')")
    page.wait("[...document.querySelectorAll('figure img')].every(i => i.complete && i.naturalWidth === 32)")
    page.wait("[...document.querySelectorAll('dl')].every(l => l.children.length > 10)")
    check(page.run("document.querySelectorAll('figure').length") == n, f"expected {n} pictures")


def no_problems(page, expected):
    """What the console says: what the browser itself says of answers that are expected."""
    check(all(expected in problem for problem in page.problems), "on the console: " + "\n".join(page.problems))
    page.problems.clear()


def try_first_view(page, width, scheme, kind):
    """The prompt first, with the focus, then the button, then the options, closed; nothing jumps or sticks out."""
    check(page.run("document.activeElement.id + document.activeElement.tagName") == "prompt" + kind,
          "the focus is not on the prompt: " + page.run("document.activeElement.outerHTML"))
    places = page.run("""['prompt', 'make', 'options'].map(id =>
        document.getElementById(id).getBoundingClientRect().bottom)""")
    check(places == sorted(places) and places[2] < 500, f"prompt, button and options end at {places}")
    check(not page.run("document.getElementById('options').open"), "the options are open")
    unnamed = page.run("[...document.querySelectorAll('input, textarea')].filter(i => !i.labels.length).map(i => i.id)")
    check(not unnamed, f"fields without a label: {unnamed}")
    try_size(page, width)
    back = page.run("getComputedStyle(document.body).backgroundColor")
    dark = sum(int(part) for part in back[4:-1].split(",")) < 3 * 128
    check(dark == (scheme == "dark"), f"background {back} with the scheme {scheme}")


def try_size(page, width):
    wide = page.run("document.documentElement.scrollWidth")
    check(wide <= width, f"the page is {wide} pixels wide in a window of {width}")
    shift = page.run("window.shift")
    check(shift < 1e-4, f"the page jumps: layout shift {shift}")


def try_pictures(page, url, width, scheme):
    page.show(url, width, 900, scheme)
    try_first_view(page, width, scheme, "INPUT")
    page.picture(f"first-{width}-{scheme}")
    make(page, prompt="7", n="6", seed="5")
    await_pictures(page, 6)
    try_size(page, width)
    text = page.run("document.querySelector('dl').textContent")
    check(page.run("document.getElementById('negative_prompt').labels[0].hidden"), "a class has a negative prompt")
    check("seed5" in text and "class7" in text and "guarantee" in text, "the text of the picture: " + text)
    check("seed 5" in page.run("document.querySelector('figcaption').textContent"), "the caption has no seed")
    check("class 7" in page.run("document.querySelector('figure img').alt"), "the picture has no alternative text")
    page.run("document.querySelector('details').open = false")
    page.picture(f"pictures-{width}-{scheme}")
    make(page, n="1")
    page.wait("document.querySelectorAll('figure').length === 1")
    await_pictures(page, 1)
    large = page.run("document.querySelector('figure img').clientWidth")
    check(large >= min(0.8 * width, 600), f"one picture is {large} pixels wide in a window of {width}")
    page.picture(f"one-{width}-{scheme}")
    no_problems(page, "nothing")


def try_errors(page, url, width, scheme):
    """An error is under the field, in the page's words, and nothing that was filled in is lost."""
    page.show(url, width, 900, scheme)
    good = {"prompt": "7", "n": "1", "cfg": "2.5", "seed": "5"}
    for name, value, message in (
            ("n", "0", "Number of images is out of range, expected an integer from 1 to 10"),
            ("cfg", "much", "Guidance is no number, expected a number from 0 to"),
            ("seed", "1.5", "Seed is no integer, or too large, expected an integer from 0 to"),
            ("prompt", "", "Class is missing, expected a class"), ("prompt", "77", "Class 77: out of range")):
        filled = {**good, name: value}
        make(page, **filled)
        page.wait("!!document.querySelector('[aria-invalid]')")
        note = page.run(f"document.getElementById('{name}').labels[0].nextElementSibling.innerText")
        check(message in note and "cfg" not in note and "prompt" not in note, f"{name} {value}: {note}")
        check(page.run("document.activeElement.id") == name, f"{name}: the focus is elsewhere")
        check(page.run(f"document.getElementById('{name}').getAttribute('aria-errormessage')") == name + "-error" and
              page.run(f"document.getElementById('{name}-error').getAttribute('role')") == "alert",
              f"{name}: not read out")
        check(page.run("document.querySelectorAll('.bad').length") == 1, "an error is shown twice")
        kept = {i: page.run(f"document.getElementById('{i}').value") for i in filled}
        check(filled == kept, f"{name}: what was filled in is lost: {kept}")
        if name in ("n", "prompt"):
            page.picture(f"error-{name}-{width}-{scheme}")
    make(page, **good)
    await_pictures(page, 1)
    check(not page.run("document.querySelector('[aria-invalid], .bad')"), "an error stays when it is mended")
    no_problems(page, "400")


def try_warnings(page, url):
    """What has no effect is said; the page itself sends nothing of the kind."""
    page.show(url, 900, 900, "light")
    make(page, prompt="7")
    await_pictures(page, 1)
    check(not page.run("document.getElementById('warnings').innerText"), "a warning of the page's own fields")
    page.run("""window.plain = window.fetch; window.fetch = (path, options) => window.plain(path,
        options?.body ? {...options, body: JSON.stringify({...JSON.parse(options.body), sede: 5})} : options)""")
    make(page, prompt="7")
    page.wait("document.getElementById('warnings').innerText.includes('sede: has no effect')")
    await_pictures(page, 1)
    page.picture("warnings")
    no_problems(page, "nothing")


def try_names(page, url):
    """Names of classes are offered."""
    page.show(url, 900, 900, "light")
    names = page.run("[...document.getElementById('prompt').list.options].map(o => o.value)")
    check(names == NAMES, f"the names offered: {names}")
    check(page.run("document.getElementById('prompt').value") == NAMES[0], "no class is chosen")
    make(page, prompt="seven", n="1")
    await_pictures(page, 1)
    check(state(page).endswith(": seven"), state(page))


def try_prompts(page, url, width, scheme):
    """A model of prompts has a text area, and a field for the negative prompt."""
    page.show(url, width, 900, scheme)
    try_first_view(page, width, scheme, "TEXTAREA")
    page.picture(f"prompt-{width}-{scheme}")
    page.run("document.getElementById('options').open = true")
    check(page.run("document.getElementById('negative_prompt').offsetHeight > 0"), "there is no negative prompt")
    fill(page, prompt="a bold seven", negative_prompt="a thin 2")
    page.press("Enter", "\r", 13)
    await_pictures(page, 1)
    text = page.run("document.querySelector('dl').textContent")
    check("prompta bold seven" in text and "negativea thin 2" in text, "the text of the picture: " + text)
    page.picture(f"options-{width}-{scheme}")
    make(page, prompt="")
    page.wait("document.getElementById('prompt-error')?.innerText.includes('Prompt is missing')")
    no_problems(page, "400")


def try_slow_page(page, url, width, scheme):
    """Previews while it forms, and the end by the button."""
    page.show(url, width, 900, scheme)
    make(page, prompt="3", n="10")
    page.wait("[...document.querySelectorAll('img')].some(i => i.src.includes('/previews/') && i.naturalWidth === 32)")
    page.wait("[...document.querySelectorAll('figcaption')].some(c => c.textContent.startsWith('step '))")
    try_size(page, width)
    page.picture(f"running-{width}-{scheme}")
    page.run("document.getElementById('cancel').click()")
    page.wait("document.getElementById('state').textContent === 'cancelled'")
    page.wait("figures.every(f => !f.loading)")
    no_problems(page, "/previews/")  # the preview that was on its way is gone


def try_token(page, url, width, scheme):
    """The token is asked for, a wrong one is named, the right one is kept for the tab."""
    page.show(url, width, 900, scheme, "document.getElementById('ask').open")
    page.run("sessionStorage.clear()")
    page.show(url, width, 900, scheme, "document.getElementById('ask').open")
    page.press("Escape", "", 27)
    page.wait("document.getElementById('state').textContent === 'the service needs its token'")
    make(page, prompt="7", n="1")
    page.wait("document.getElementById('ask').open")
    check("--token_file" in page.run("document.getElementById('ask').innerText"), "where the token is from is not said")
    check(page.run("document.activeElement.id") == "token", "the focus is not on the token")
    page.picture(f"token-{width}-{scheme}")
    works = "document.getElementById('model').textContent && !document.getElementById('ask').open"
    error = "document.getElementById('token-error')?.innerText"
    for value, done in (("", error), ("жетон", error), ("wrong-token-of-mine", error), (TOKEN, works)):
        page.run("document.getElementById('token-error')?.remove()")
        fill(page, token=value)
        page.press("Enter", "\r", 13)
        page.wait(done)
        if value != TOKEN:
            check("not the service's token" in page.run(done), page.run(done))
            page.picture(f"token-wrong-{width}-{scheme}")
    await_pictures(page, 1)
    check(state(page).endswith(": class 7"), "what was filled in before the token is lost: " + state(page))
    page.show(url, width, 900, scheme)
    make(page, prompt="7", n="1")
    await_pictures(page, 1)
    page.run("sessionStorage.clear()")  # as if the service had another one by now
    make(page)
    page.wait("document.getElementById('ask').open")
    page.press("Escape", "", 27)
    page.wait("document.getElementById('state').textContent === 'the service needs its token'")
    check(page.run("document.getElementById('prompt').value === '7' && !document.getElementById('make').disabled"),
          "the page is not ready again")
    no_problems(page, "401")


class Proxy(http.server.BaseHTTPRequestHandler):
    """A proxy that has the service under /mar/."""
    protocol_version = "HTTP/1.0"
    upstream = ""

    def do_GET(self):
        if not self.path.startswith("/mar/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self.command == "POST" else None
        headers = {name: self.headers[name] for name in ("Content-Type", "Authorization") if name in self.headers}
        request = urllib.request.Request(self.upstream + self.path[len("/mar"):], body, headers, method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.end_headers()
                while piece := answer.read1(65536):
                    self.wfile.write(piece)
        except OSError:  # the service's answer is no success, or the page has left: it sees a closed connection
            pass

    do_POST = do_GET

    def log_message(self, *_):
        pass


def try_proxy(page, url):
    """All addresses are beside the page's."""
    Proxy.upstream = url
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.show(f"http://127.0.0.1:{server.server_port}/mar/", 900, 900, "light")
        make(page, prompt="7", n="2")
        await_pictures(page, 2)
        away = page.run("""performance.getEntriesByType('resource').map(e => e.name)
            .filter(name => !name.startsWith(location.href) && !name.startsWith('data:'))""")
        check(not away, f"not beside the page: {away}")
        server.shutdown()
    no_problems(page, "nothing")


def serve(mar, *options):
    command = [mar, "serve", "--port", "0", "--grace", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def main():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        print("SKIPPED: no chromium")
        return 77
    mar, pictures = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, text in (("names", "\n".join(NAMES)), ("token", TOKEN)):
            with open(os.path.join(folder, name), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(text)
        page = Browser(program, folder, pictures)
        services = []
        try:
            quick = ("--num_iter", "16")
            services = [serve(mar, *quick), serve(mar, "--num_iter", "64", "--num_sampling_steps", "1000",
                                                  "--batch", "1", "--threads", "1", "--dtype", "f32"),
                        serve(mar, "--model", "demo-harmon", "--num_iter", "4", "--num_sampling_steps", "4"),
                        serve(mar, *quick, "--class_names", os.path.join(folder, "names")),
                        serve(mar, *quick, "--token_file", os.path.join(folder, "token"))]
            plain, slow, prompts, named, closed = (url for _, url in services)
            for width in (400, 1280):
                for scheme in ("light", "dark"):
                    try_pictures(page, plain, width, scheme)
                    try_errors(page, plain, width, scheme)
                    try_prompts(page, prompts, width, scheme)
                    try_slow_page(page, slow, width, scheme)
                    try_token(page, closed, width, scheme)
            try_names(page, named)
            try_warnings(page, plain)
            try_proxy(page, plain)
        finally:
            page.process.kill()
            page.process.wait()
            for process, _ in services:
                process.terminate()
        check(all(process.wait(LIMIT_S) == 0 for process, _ in services), "a service did not end well")
    print("browser.py: the page works")
    return 0


sys.exit(main())
