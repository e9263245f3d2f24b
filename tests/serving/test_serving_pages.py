"""The servers of the cookbook: each is started as a process, as its page says, and asked on this machine."""

from concurrent.futures import ThreadPoolExecutor
import http.client
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

import mxkit
from mxkit.recipe.run import load_run
import numpy as np
from pages import ROOT, blocks
from PIL import Image
import pytest
from sharing import needs_fastapi

PAGES = ROOT / "docs" / "cookbook"
SECONDS = 120


@pytest.fixture(scope="module")
def digits(digits_run):
    """Images as PNG, and what the run's net says of them."""
    x = np.zeros((24, 28, 28), np.uint8)
    for number, image in enumerate(x):
        image[4:24, 3 + number % 8 : 8 + number % 8] = 255
        image[8 + number % 5 : 12 + number % 5, 6:22] = 200
    files = []
    for image in x:
        files.append(io.BytesIO())
        Image.fromarray(image).save(files[-1], "png")
    _, net = load_run(digits_run)
    scores = mxkit.predict(net, x[:, None].astype(np.float32) / 255).softmax().asnumpy()
    return [file.getvalue() for file in files], scores


@pytest.fixture
def server(tmp_path):
    """Start a command beside the code of a page; it is ended by SIGTERM, and must end well."""
    processes = []

    def start(page, name, command, **variables):
        ((_, code),) = blocks(PAGES / page, "python")
        (tmp_path / name).write_text(code)
        paths = os.pathsep.join([str(ROOT), str(tmp_path), *sys.path])
        variables = {**os.environ, "PYTHONPATH": paths, **variables}
        log = (tmp_path / "log").open("w")
        processes.append(
            subprocess.Popen([sys.executable, *command], cwd=str(tmp_path), env=variables, stdout=log, stderr=log)
        )
        log.close()

    def said():
        return (tmp_path / "log").read_text()

    start.said = said
    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(SECONDS) in (0, -signal.SIGTERM), said()
        finally:
            process.kill()


def until(found, said):
    end = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < end, said()
        time.sleep(0.05)
    return found()


def check(answers, scores):
    assert len(answers) == len(scores)
    for answer, row in zip(answers, scores):
        assert answer["class"] == str(row.argmax())
        assert answer["probability"] == pytest.approx(row.max(), abs=1e-5)


@needs_fastapi
def test_fastapi(digits_run, digits, server):
    files, scores = digits
    server("serve-with-fastapi.md", "serve.py", ["-m", "uvicorn", "serve:app", "--port", "0"], RUN=str(digits_run))
    running = until(lambda: re.search(r"running on http://127.0.0.1:(\d+)", server.said()), server.said)

    def ask(body, method="POST", path="/predict"):
        connection = http.client.HTTPConnection("127.0.0.1", int(running[1]), timeout=SECONDS)
        connection.request(method, path, body)
        response = connection.getresponse()
        found = response.status, json.loads(response.read())
        connection.close()
        return found

    with ThreadPoolExecutor(8) as pool:
        bodies = [*files, b"no image", files[0][:-30]]
        found = list(pool.map(ask, bodies))
    assert [status for status, _ in found] == [200] * len(files) + [422] * 2
    check([answer for _, answer in found[:-2]], scores)
    assert "no image that OpenCV knows" in found[-2][1]["detail"]
    assert "the PNG ends before its end" in found[-1][1]["detail"]
    status, stats = ask(None, "GET", "/stats")
    assert (status, stats["requests"], stats["failed"], stats["queue"]) == (200, len(files), 0, 0)


def test_unix_socket(digits_run, digits, server, tmp_path):
    files, scores = digits
    path = tmp_path / "digits.sock"
    code = f"import worker; worker.serve({str(digits_run)!r}, 'digits.sock')"
    server("serve-on-a-socket.md", "worker.py", ["-c", code])
    until(path.exists, server.said)
    until(lambda: "listening" in server.said(), server.said)
    folder = os.open(str(tmp_path), os.O_RDONLY)  # a socket's path has 107 characters at most
    name = f"/proc/self/fd/{folder}/digits.sock"

    def ask(images, cut=0):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(SECONDS)
            client.connect(name)
            lines = client.makefile()
            for image in images:
                message = struct.pack("!I", len(image)) + image
                client.sendall(message[: len(message) - cut])
            return [] if cut else [json.loads(lines.readline()) for _ in images]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, [files[number::8] for number in range(8)]))
        assert pool.submit(ask, files[:1], cut=5).result() == []  # a client that ends in the middle
    for number, answers in enumerate(found):
        check(answers, scores[number::8])
    (broken, good) = ask([b"no image", files[0]])
    assert "no image that OpenCV knows" in broken["error"]
    check([good], scores[:1])
    os.close(folder)
    (tmp_path / "seven.png").write_bytes(files[0])
    ((_, shown),) = blocks(PAGES / "serve-on-a-socket.md", "console")
    client = re.search(r'python -c "\n(.*?)"\n', shown, re.DOTALL)[1]
    done = subprocess.run([sys.executable, "-c", client], cwd=str(tmp_path), capture_output=True, text=True)
    check([json.loads(done.stdout)], scores[:1])
