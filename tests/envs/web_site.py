"""Two small sites, for tests of the browser, which answer to their names as a proxy does, and refuse all others."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SITES = ("http://shop.test", "http://forum.test")

TRICKLE_BYTES = 4096

PAGES = {
    "/": """<h1>Welcome</h1>
        <a href="/next">next</a> <a href="http://forum.test/" target="_blank">forum</a>
        <a href="http://other.test/">elsewhere</a> <a href="https://example.com/">far away</a>
        <a href="file:///etc/passwd">passwords</a> <a href="chrome://version">browser</a> <a href="/file.bin">file</a>
        <form action="/search"><input name="q" aria-label="Query" value="old">
            <select name="s" aria-label="Sort"><option>name<option>price</select>
            <input type="date" name="d" aria-label="Day"><textarea name="t" aria-label="Text"></textarea>
            <input type="checkbox" name="c" aria-label="Agree"><button>Search</button></form>
        <iframe srcdoc="<button onclick='parent.document.title = `framed`'>inside</button>"></iframe>""",
    "/next": "<p>You came.</p><a href='/'>home</a>",
    "/popup": "<button onclick='window.close()'>leave</button>",
    "/trickle": f"<p>first</p><!--{' ' * TRICKLE_BYTES}--><p>second</p>",
    "/scripts": """<button onclick="confirm('Sure?') && (document.title = 'yes')">ask</button>
        <button onclick="fetch('/slow').then(() => document.title = 'fetched')">fetch</button>
        <button onclick="this.remove()">vanish</button>
        <button onclick="window.open('/popup')">open</button>
        <button onclick="for (let i = 0; i < 20; i++) window.open('/next')">open many</button>
        <button onclick="window.open('/trickle')">open a slow one</button>
        <button onclick="for (;;) {}">hang</button>
        <button onclick="setTimeout(() => document.title = 'late', 60000)">later</button>
        <a href="javascript:document.title = 'script'">script</a>
        <div onmouseover="document.title = 'hovered'">hover me</div>
        <div style="height: 3000px"></div><button onclick="document.title = 'far'">far down</button>""",
    "/long": "".join(f"<p>This is paragraph {i}</p>" for i in range(300)),
    "/inner": "<style>body{margin:0}#b{height:100vh;overflow:auto}</style><div id=b>"
    + "".join(f"<p>Line {i}</p>" for i in range(300))
    + "</div>",
    "/login": "<script>document.cookie = 'user=ann; path=/'; localStorage.setItem('user', 'ann')</script>",
    "/who": "<script>document.title = `${document.cookie} ${localStorage.getItem('user')}`</script>",
    "/leak": "<img src='http://other.test/pixel'><script>fetch('http://127.0.0.1:9/').catch(() => 0)</script>leak",
}


class Site(ThreadingHTTPServer):
    """The server, with a list of what it was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = []
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def stop(self):
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts = urlsplit(self.path)
        self.server.requests.append(self.path)
        site = f"{parts.scheme}://{parts.netloc}" if parts.scheme else SITES[0]
        if parts.path == "/slow":
            time.sleep(0.3)
        body = f"<!doctype html><title>{parts.path}</title>{PAGES.get(parts.path, 'Not Found')}"
        self.send_response(200 if site in SITES and parts.path in (*PAGES, "/slow", "/search", "/file.bin") else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        if parts.path == "/file.bin":
            self.send_header("Content-Disposition", "attachment; filename=file.bin")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if parts.path == "/trickle":
            self.wfile.write(body[:-TRICKLE_BYTES].encode())  # up to the middle of the comment
            self.wfile.flush()
            time.sleep(1.0)
            body = body[-TRICKLE_BYTES:]
        self.wfile.write(body.encode())

    def do_CONNECT(self):
        self.server.requests.append(f"CONNECT {self.path}")
        self.send_error(403)

    def log_message(self, format, *args):
        pass
