"""A stand-in for the benchmark's shop, and for a language model's endpoint, on 127.0.0.1."""

import contextlib
import html
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

EMMA = {"login[username]": ["emma.lopez@gmail.com"], "login[password]": ["Password.123"]}
ADMIN = {"username": "admin", "password": "admin1234"}
LOGIN = """<form method=post><input type=hidden name=form_key value=1><input type=text name=q hidden>
<label>Email <input type=email name="login[username]"></label>
<label>Password <input type=password name="login[password]"></label><button>Sign In</button></form>"""
REVIEWS = [{"nickname": "Ann", "ratings": [{"percent": 20}]}, {"nickname": "Bob", "ratings": [{"percent": 80}]}]


class Shop:
    """The server, what it was asked, and what it has sold.

    Attributes:
        requests: "METHOD path" of each request.
        judged: the bodies that were posted to the language model.
        keys: what it was sent as authorization.
        verdicts: what the model says next, or a status; the last one is kept.
    """

    def __init__(self):
        self.requests, self.judged, self.keys, self.cart = [], [], [], []
        self.verdicts = ["correct"]
        self.pages = {}
        self.lets_in = True
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                shop.get(self)

            def do_POST(self):
                shop.post(self)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def get(self, request):
        path = urlsplit(request.path).path
        self.requests.append(f"GET {path}")
        user = "emma" if "session=emma" in request.headers.get("Cookie", "") else "guest"
        if path == "/rest/V1/orders":
            query = parse_qs(urlsplit(request.path).query)
            newest = query["searchCriteria[sortOrders][0][direction]"] == ["DESC"]
            is_admin = request.headers.get("Authorization") == "Bearer token"
            return answer(
                request, {"items": [{"increment_id": "000000007"}]} if newest else {}, 200 if is_admin else 401
            )
        if path.startswith("/rest/V1/products/"):
            return answer(request, REVIEWS if "/sold/" in path else [])
        if path in self.pages:
            return answer(request, self.pages[path])
        if path == "/customer/account/login/":
            return answer(request, LOGIN)
        if path == "/checkout/cart":
            body = f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in self.cart)}</ul>"
        elif path == "/sales/order/view/order_id/7/" and user == "emma":
            body = '<div class="order-details-items ordered">SKU B07DFJ5XKH</div>'
        else:
            body = "<form method=post action='/checkout/cart/add/uenc/aHR0/product/32202'>"
            body += "<input name=qty value=1 aria-label=Quantity><input type=hidden name=item value=32202>"
            body += "<button>Add to Cart</button></form>"
        return answer(request, f"<title>Shop {path}</title><p>Hello {user}</p>{body}")

    def post(self, request):
        path = urlsplit(request.path).path
        self.requests.append(f"POST {path}")
        body = request.rfile.read(int(request.headers["Content-Length"])).decode()
        if path == "/v1/chat/completions":
            self.judged.append(json.loads(body))
            self.keys.append(request.headers.get("Authorization"))
            said = self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]
            if isinstance(said, int):
                return answer(request, {"error": "no"}, said)
            if isinstance(said, dict):
                return answer(request, said)
            return answer(request, {"choices": [{"message": {"role": "assistant", "content": said}}]})
        if path.endswith("/integration/admin/token"):
            is_admin = json.loads(body) == ADMIN
            return answer(request, "token", 200 if is_admin else 401, is_json=True)
        fields = parse_qs(body)
        if path == "/customer/account/login/":
            if self.lets_in and {key: fields.get(key) for key in EMMA} == EMMA:
                return answer(
                    request, "", 302, {"Location": "/customer/account/", "Set-Cookie": "session=emma; Path=/"}
                )
            return answer(request, LOGIN)
        self.cart.append(f"SPAAS White Taper Candles - 4 Pack x {fields['qty'][0]}")
        return answer(request, "You added it to your cart.")


def answer(request, content, status=200, headers=None, *, is_json=False):
    is_json = is_json or not isinstance(content, str)
    data = (json.dumps(content) if is_json else content).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json" if is_json else "text/html; charset=utf-8")
    request.send_header("Content-Length", str(len(data)))
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    with contextlib.suppress(BrokenPipeError):  # the page was left
        request.end_headers()
        request.wfile.write(data)
