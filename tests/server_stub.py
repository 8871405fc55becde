"""A server of OpenAI's protocol, for faults: it answers what a test tells it to, and remembers what it was asked."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(text: str | None) -> str:
    """The body of a good answer, to both kinds of requests."""
    return json.dumps({"choices": [{"index": 0, "text": text, "message": {"role": "assistant", "content": text}}]})


def asked(body: dict[str, Any]) -> str:
    """The prompt of a request of either kind."""
    return str(body["prompt"] if "prompt" in body else body["messages"][-1]["content"])


@dataclass
class Stub:
    """What the server answers: one entry of `answers` a request, the last one from then on.

    `instead` writes what stands in the place of all this, head included.
    """

    answers: list[tuple[int, str]] = field(default_factory=lambda: [(200, completion("right"))])
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    instead: Callable[[BaseHTTPRequestHandler], None] | None = None
    reply: Callable[[str], str] | None = None
    refuses: Callable[[str], bool] = lambda prompt: False
    requests: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def running() -> Iterator[Stub]:
    """A server that runs during the block."""
    made = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with made.lock:
                made.requests.append({"path": self.path, "key": self.headers.get("authorization"), "body": body})
                status, text = made.answers.pop(0) if len(made.answers) > 1 else made.answers[0]
                if made.refuses(asked(body)):
                    status, text = 503, f"no model is loaded for {self.headers.get('authorization')}"
                made.at_once += 1
                made.most_at_once = max(made.most_at_once, made.at_once)
            time.sleep(made.seconds)
            if made.reply is not None:
                text = completion(made.reply(asked(body)))
            with made.lock:
                made.at_once -= 1
            if made.instead is not None:
                with suppress(OSError):
                    made.instead(self)
                return
            self.send_response(status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # nobody waits for it any more
                self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
