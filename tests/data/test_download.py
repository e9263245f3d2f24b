"""Downloads from a real server with every fault of servers; no wrong content is ever kept."""

from contextlib import suppress
import gzip
import hashlib
import http.server
import os
from pathlib import Path
import resource
import signal
import threading
import time

from genuine_files import mnist_files
import mxkit
from mxkit.data import datasets, download
from mxkit.data.datasets import mnist
from mxkit.data.download import LOCK, Mirror, RemoteFile, fetch, fetch_files
from mxkit.errors import DownloadError
import mxnet as mx
import numpy as np
import pytest
from sharing import wait_until

CONTENT = np.random.RandomState(0).bytes(300_000)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


def sha1_of(content):
    return "sha1:" + hashlib.sha1(content).hexdigest()


SHA1 = sha1_of(CONTENT)


class Handler(http.server.BaseHTTPRequestHandler):
    """Behaves as the first part of the path says; counts requests."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        how = self.path.split("/")[1]
        self.server.requests.append(how)
        self.close_connection = True
        content = self.server.content
        answer = ANSWERS.get(how)
        self.send(**answer(content)) if answer else getattr(self, how)(content)

    def send(self, body, status=200, length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # the client went away, which is its right
            self.wfile.write(body)

    def stalls(self, content):
        self.send(content[:50_000], length=len(content))
        self.server.stalled.wait(20)

    def drips(self, content):
        self.send(b"", length=len(content))
        for place in range(0, len(content), 20_000):
            self.wfile.write(content[place : place + 20_000])
            time.sleep(0.03)

    def endless(self, content):
        self.send_response(200)
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(content)

    def log_message(self, *ignored):
        """Say nothing."""


# What is sent at once.
ANSWERS = {
    "good": lambda content: {"body": content},
    "truncates": lambda content: {"body": content[:60_000], "length": len(content)},
    "lies_about_length": lambda content: {"body": content[:-7]},
    "corrupts": lambda content: {"body": content[:1000] + bytes([content[1000] ^ 1]) + content[1001:]},
    "missing": lambda content: {"body": b"<html>not here</html>", "status": 404},
    "broken": lambda content: {"body": b"", "status": 500},
    "redirects": lambda content: {"body": b"", "status": 302, "Location": "/good/file"},
    "circles": lambda content: {"body": b"", "status": 302, "Location": "/circles/file"},
    "html": lambda content: {"body": b"<html>log in first</html>", "Content-Type": "text/html; charset=utf-8"},
    "says_gzip": lambda content: {"body": content, "Content-Encoding": "gzip"},
}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that goes away is no error here."""


@pytest.fixture
def server():
    server = Server(("127.0.0.1", 0), Handler)
    server.requests, server.stalled, server.content = [], threading.Event(), CONTENT
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stalled.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("MXKIT_OFFLINE", raising=False)


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Seconds that were waited between rounds; no test waits them."""
    found = []
    monkeypatch.setattr(download, "sleep", found.append)
    return found


def get(server, folder, *ways, size=300_000, digest=SHA256, **settings):
    urls = [f"{server.url}/{way}/file" for way in ways]
    # on a busy machine, a good answer may take longer than the stalled one is waited for
    timeout = 0.5 if "stalls" in ways else 10
    return fetch(urls, digest=digest, size=size, folder=folder, timeout=timeout, **settings)


def kept(folder):
    """What lies in the folder, but the lock."""
    return sorted(path.name for path in Path(folder).iterdir() if path.name != LOCK)


@pytest.mark.parametrize("size", [len(CONTENT), None])
@pytest.mark.parametrize("digest", [SHA256, SHA1, "md5:" + hashlib.md5(CONTENT).hexdigest()])
def test_a_file_is_fetched_once(server, tmp_path, size, digest):
    for _ in range(2):
        path = get(server, tmp_path / "a/b", "good", size=size, digest=digest)
        assert path == tmp_path / "a/b/file"
        assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert kept(path.parent) == ["file"]


# The way that fails, the words of its error, how often it is asked, and the pauses between.
FAULTS = [
    ("truncates", "broke off after 60000 of 300000 bytes|60000 bytes read", 3, [0, 2]),
    ("lies_about_length", "offers 299993 bytes, expected 300000", 1, []),
    ("stalls", "timed out", 3, [0, 2]),
    ("corrupts", "gave 300000 bytes with the wrong content: expected sha256:.*, received sha256:", 1, []),
    ("missing", "404", 1, []),
    ("broken", "500", 3, [0, 2]),
    ("html", "of a web page", 1, []),
    ("endless", "gives more than the expected 300000 bytes", 1, []),
    ("circles", "redirects", None, []),
]


@pytest.mark.parametrize(("way", "words", "asked", "waited"), FAULTS)
def test_faults_are_said_in_words_and_only_what_may_change_is_asked_again(
    server, tmp_path, pauses, way, words, asked, waited
):
    with pytest.raises(DownloadError, match=words):
        get(server, tmp_path, way)
    assert pauses == waited
    assert asked in (None, len(server.requests))
    assert kept(tmp_path) == []
    pauses.clear()
    assert get(server, tmp_path, way, "good").read_bytes() == CONTENT
    assert pauses == []  # the next mirror comes before a pause
    assert kept(tmp_path) == ["file"]


@pytest.mark.parametrize("way", ["redirects", "says_gzip"])
def test_servers_with_habits(server, tmp_path, way):
    server.content = gzip.compress(CONTENT)  # which arrives as it is
    assert get(server, tmp_path, way, digest=sha1_of(server.content), size=None).read_bytes() == server.content


def test_a_busy_server_is_asked_again(server, tmp_path, pauses, monkeypatch):
    answers = iter([{"body": b"", "status": 503}] * 2 + [{"body": CONTENT}])
    monkeypatch.setitem(ANSWERS, "busy", lambda content: next(answers))
    assert get(server, tmp_path, "busy").read_bytes() == CONTENT
    assert pauses == [0, 2]


def test_one_error_tells_all(server, tmp_path):
    files = [
        RemoteFile("one.gz", [Mirror(f"{server.url}/missing/one.gz", SHA256, 300_000)]),
        RemoteFile("two.gz", [Mirror(f"{server.url}/good/two.gz", SHA1, None)]),
        RemoteFile(
            "three.gz", [Mirror(f"{server.url}/corrupts/3.gz", SHA1, 300_000), Mirror("http://127.0.0.1:9/3", SHA1)]
        ),
    ]
    with pytest.raises(DownloadError) as caught:
        fetch_files(files, tmp_path, timeout=10)
    text = str(caught.value)
    assert f"into {tmp_path}\n" in text
    assert f"    {server.url}/missing/one.gz  300000 bytes  {SHA256}\n" in text
    assert f"    http://127.0.0.1:9/3  {SHA1}\n" in text
    assert "404" in text
    # what comes after the first that cannot be had is listed too, so that one trip by hand is enough
    assert "3 file(s) could not be downloaded" in text
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value, mxkit.errors.MxkitError)
    assert kept(tmp_path) == []


def test_a_wrong_file_in_the_place_is_told_offline_and_replaced_online(server, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * len(CONTENT))
    with pytest.raises(DownloadError, match="the file there has another content"):
        get(server, tmp_path, "good", offline=True)
    with pytest.raises(DownloadError, match="the file there has another content"):
        get(server, tmp_path, "missing")
    assert (tmp_path / "file").read_bytes() == b"x" * len(CONTENT)
    assert get(server, tmp_path, "good").read_bytes() == CONTENT


def test_offline_asks_nobody(server, tmp_path, monkeypatch):
    with pytest.raises(DownloadError, match=r"the network must not be used \(offline\)"):
        get(server, tmp_path / "new", "good", offline=True)
    monkeypatch.setenv("MXKIT_OFFLINE", "1")
    with pytest.raises(DownloadError, match="offline"):
        get(server, tmp_path / "new", "good")
    assert not (tmp_path / "new").exists()
    get(server, tmp_path, "good", offline=False)
    assert get(server, tmp_path, "good", offline=True).read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_place_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DownloadError, match="Free some space, or pass root="):
        get(server, tmp_path / "file" / "inside", "good")


def test_a_full_disk_is_told_as_such(server, tmp_path):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))
    try:
        with pytest.raises(DownloadError, match=r"File too large.* Free some space"):
            get(server, tmp_path, "good")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert kept(tmp_path) == []


# Real processes


def fetch_in_child(url, folder):
    fetch(url, digest=SHA256, size=len(CONTENT), folder=folder)


def run_child(forks, server, folder, meanwhile):
    return forks.run("test_download:fetch_in_child", f"{server.url}/drips/file", str(folder), meanwhile=meanwhile)


def test_a_killed_process_leaves_a_part_that_the_next_overwrites(server, tmp_path, forks):
    part = tmp_path / ".file.part"

    def kill(process):
        assert wait_until(lambda: part.exists() and part.stat().st_size > 30_000)
        os.kill(process, signal.SIGKILL)

    assert run_child(forks, server, tmp_path, kill).returncode == -signal.SIGKILL
    assert kept(tmp_path) == [part.name]
    assert get(server, tmp_path, "good").read_bytes() == CONTENT
    assert kept(tmp_path) == ["file"]


def test_processes_and_threads_at_once_read_the_file_once(server, tmp_path, forks):
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(get(server, tmp_path, "drips"))) for _ in range(2)]
    done = run_child(forks, server, tmp_path, lambda process: [thread.start() for thread in threads])
    for thread in threads:
        thread.join()
    assert done.returncode == 0, done.stderr
    assert [path.read_bytes() == CONTENT for path in paths] == [True, True]
    assert server.requests == ["drips"]
    assert kept(tmp_path) == ["file"]


# What datasets make of it


def test_a_dataset_is_fetched_from_the_mirrors_into_the_cache(server, tmp_path, monkeypatch):
    files = mnist_files()
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    monkeypatch.delitem(ANSWERS, "good")
    monkeypatch.setattr(
        Handler, "good", lambda self, content: self.send(files[self.path.rsplit("/", 1)[-1]]), raising=False
    )
    places = [f"{server.url}/missing/", f"{server.url}/good/"]
    known = [{"name": name, "size": len(file), "digest": sha1_of(file)} for name, file in files.items()]
    changed = {"places": places, "files": [{**file, "of_mxnet": file["digest"]} for file in known]}
    monkeypatch.setitem(datasets.PUBLISHED, "mnist", changed)
    with pytest.raises(mxkit.errors.DataError, match=r"expected the \(60000, 10000\) samples"):
        mnist(valid=0.1)
    assert kept(tmp_path / "datasets/mnist") == sorted(files)
    assert len(server.requests) == 8
    assert len(mnist(tmp_path / "datasets/mnist", valid=0.1, offline=True).test.x) == 40


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_every_source_is_told_in_full_and_as_gluon_knows_it(dataset, monkeypatch):
    monkeypatch.setenv("MXNET_GLUON_REPO", "https://mirror.example/repo")
    gluons = Path(mx.gluon.data.vision.datasets.__file__).read_text()
    for file in datasets.files_of(dataset):
        assert file.mirrors[-1].url == f"https://mirror.example/repo/gluon/dataset/{dataset}/{file.name}"
        assert f"'{file.name}'" in gluons
        assert file.mirrors[-1].digest.partition(":")[2] in gluons
        for mirror in file.mirrors:
            assert mirror.url.endswith(file.name)
            algorithm, digits = mirror.digest.split(":")
            assert len(digits) == 2 * hashlib.new(algorithm).digest_size
            assert mirror.size is None or mirror.size > 4000
