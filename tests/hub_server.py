"""A server on this machine that speaks the part of the Hugging Face hub's protocol that huggingface_hub needs."""

import hashlib
import http.server
import json
import re
import sys
import threading
from urllib.parse import unquote, urlsplit

_ADDRESS = re.compile(
    r"/api/models/(?P<one>[^/]+/[^/]+)(?:/revision/(?P<of>.+))?|/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<file>.+)"
)


class HubServer(http.server.ThreadingHTTPServer):
    """`commit(repository, files)` publishes; `asked` has the requests. Private repositories need the token "good"."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commits, self.branches, self.asked, self.broken = {}, {}, [], 0
        self.private, self.gated = set(), set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repository, files, branch="main"):
        """Publish files on a branch; return the hash of the commit."""
        number = sum(key[0] == repository for key in self.commits)
        sha = hashlib.sha1(f"{repository} {number}".encode()).hexdigest()
        self.commits[repository, sha] = dict(files)
        self.branches[repository, branch] = sha
        return sha


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *ignored):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        server = self.server
        path = urlsplit(self.path).path
        server.asked.append(f"{self.command} {path}")
        if server.broken:
            return self._send(server.broken)
        match = _ADDRESS.fullmatch(path)
        repository = match and (match["one"] or match["repo"])
        known = {name for name, _ in server.branches}
        may = self.headers.get("Authorization") == "Bearer good"
        if repository not in known or (repository in server.private and not may):
            return self._send(401, {"X-Error-Code": "RepoNotFound"})
        if repository in server.gated and match["repo"]:
            return self._send(403, {"X-Error-Code": "GatedRepo"})
        revision = unquote(match["of"] or match["rev"] or "main")
        sha = server.branches.get((repository, revision), revision)
        files = server.commits.get((repository, sha))
        if files is None:
            return self._send(404, {"X-Error-Code": "RevisionNotFound"})
        if match["one"]:
            told = {"_id": "0", "id": repository, "modelId": repository, "sha": sha, "private": False, "tags": []}
            told["siblings"] = [{"rfilename": name} for name in files]
            return self._send(200, {"Content-Type": "application/json"}, json.dumps(told).encode())
        content = files.get(unquote(match["file"]))
        if content is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
        etag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
        return self._send(200, {"X-Repo-Commit": sha, **etag}, content)

    def _send(self, status, headers=(), content=b""):
        self.send_response(status)
        for name, value in {**dict(headers), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def running_hub(monkeypatch, tmp_path):
    """A running server that a freshly imported huggingface_hub uses, with an empty cache."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fresh_hub(monkeypatch, HF_ENDPOINT=server.url, HF_HOME=str(tmp_path / "hub-home"))
        yield server
        server.shutdown()
        thread.join()


def fresh_hub(monkeypatch, **variables):
    """Set variables that huggingface_hub reads while it is imported, and let the next import read them."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE", "MXKIT_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **variables}.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
