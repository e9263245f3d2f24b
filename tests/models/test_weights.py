"""Weights by path and by name: whole or not at all, checked, explained, fetched from a real server of our own."""

from functools import partial
import hashlib
import http.server
import io
import threading
import zipfile

from built_nets import ready
import mxkit
from mxkit.data import download
from mxkit.data.download import LOCK
from mxkit.errors import CheckpointError, DownloadError
from mxkit.models import get_model
from mxkit.models.weights import find_weights
import mxnet as mx
from mxnet.gluon.model_zoo import model_store, vision
import numpy as np
import pytest
from sharing import text_of

NET = "mobilenet0.25"
X = np.random.RandomState(0).rand(2, 3, 32, 32).astype("float32")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A net of the zoo that has run, and its file."""
    mxkit.seed_all(0)
    net = ready(vision.get_model(NET, classes=6))
    net(mx.nd.array(X))
    path = tmp_path_factory.mktemp("net") / "own.params"
    net.save_parameters(str(path))
    return net, path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder's `models/`, the only one there is, and no way out."""
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9/")
    monkeypatch.delenv("MXKIT_OFFLINE", raising=False)
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def published(trained, monkeypatch):
    """The file's name, once the zoo lists its SHA-1."""
    sha1 = hashlib.sha1(trained[1].read_bytes()).hexdigest()
    monkeypatch.setitem(model_store._model_sha1, NET, sha1)
    return f"{NET}-{sha1[:8]}.params"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The folder that is served, and the paths that were asked for; pauses between tries take no time."""
    monkeypatch.setattr(download, "sleep", lambda seconds: None)
    folder, asked = tmp_path / "served" / "gluon" / "models", []
    folder.mkdir(parents=True)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *ignored):
            asked.append(self.path)

        def log_message(self, *ignored):
            pass

    handler = partial(Handler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        monkeypatch.setenv("MXNET_GLUON_REPO", f"http://127.0.0.1:{running.server_port}")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, asked
        running.shutdown()
        thread.join()


def zipped(name, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def outputs(net):
    return net(mx.nd.array(X)).asnumpy()


class TestPaths:
    def test_a_path_needs_neither_a_name_nor_a_checksum(self, trained, cache):
        net, path = trained
        for given in (path, str(path)):
            loaded = get_model(f"zoo:{NET}", classes=6, weights=given)
            np.testing.assert_array_equal(outputs(loaded), outputs(net))
        assert mxkit.nets.build(mxkit.nets.describe(loaded))
        twin = get_model(f"zoo:{NET}", classes=6, weights=path, ctx=[mx.cpu(0), mx.cpu(1)])
        assert twin.output.weight.list_ctx() == [mx.cpu(0), mx.cpu(1)]
        assert mxkit.to(loaded, "cpu:2").output.weight.list_ctx() == [mx.cpu(0), mx.cpu(1)]

    def test_nets_of_mxkit_and_of_gluoncv(self, tmp_path, cache):
        for name in ("mlp", "gluoncv:cifar_resnet20_v1"):
            net = ready(get_model(name), devices="cpu")
            expected = outputs(net)
            net.save_parameters(str(tmp_path / "a.params"))
            np.testing.assert_array_equal(outputs(get_model(name, weights=tmp_path / "a.params")), expected)

    def test_other_classes_lead_to_finetune(self, trained, cache):
        told = text_of(CheckpointError, get_model, f"zoo:{NET}", classes=4, weights=trained[1])
        assert f"model 'zoo:{NET}': {trained[1]}" in told
        assert "output.0.weight is (6, 256, 1, 1) in the file, (4, 256, 1, 1) in the net" in told or "another" in told
        assert "mxkit.finetune(mxkit.models.get_model(..., classes=..., weights=...), classes)" in told
        net = mxkit.finetune(get_model(f"zoo:{NET}", classes=6, weights=trained[1]), 4)
        assert net(mx.nd.array(X)).shape == (2, 4)
        told = text_of(CheckpointError, get_model, "zoo:resnet18_v2", weights=trained[1])
        assert "which is left as it was" in told

    def test_a_damaged_file(self, trained, tmp_path, cache):
        short = tmp_path / "short.params"
        short.write_bytes(trained[1].read_bytes()[:-100])
        assert "damaged" in text_of(CheckpointError, get_model, f"zoo:{NET}", classes=6, weights=short)

    def test_what_is_no_file(self, tmp_path, cache):
        told = text_of(FileNotFoundError, get_model, f"zoo:{NET}", weights=tmp_path / "no.params")
        assert f"there is no file {tmp_path / 'no.params'}. Pass the path of a .params file, or 'pretrained'" in told
        for wrong in (True, 5, ""):
            assert "expected a path or 'pretrained'; received" in text_of(
                TypeError, get_model, f"zoo:{NET}", weights=wrong
            )
        told = text_of(ValueError, get_model, f"zoo:{NET}", weights="a.params", pretrained=True)
        assert "weights='a.params' and pretrained: pass one of them" in told

    def test_a_description_brings_no_weights(self, trained, cache):
        description = mxkit.nets.describe(get_model(f"zoo:{NET}", classes=6, weights=trained[1]))
        assert "own.params" not in str(description)
        hostile = {"format": 1, "net": {"model": f"gluoncv:{NET}", "arguments": {"weights": "/etc/passwd"}}}
        with pytest.raises(mxkit.errors.ArchitectureError, match="weights: a description makes nets without weights"):
            mxkit.nets.build(hostile)


class TestCache:
    @pytest.mark.parametrize("asking", [{"weights": "pretrained"}, {"pretrained": True}])
    def test_a_right_file_is_used_without_the_network(self, trained, cache, published, monkeypatch, asking):
        monkeypatch.setenv("MXKIT_OFFLINE", "1")
        (cache / published).write_bytes(trained[1].read_bytes())
        np.testing.assert_array_equal(outputs(get_model(f"zoo:{NET}", classes=6, **asking)), outputs(trained[0]))

    def test_old_arguments_of_gluon(self, trained, tmp_path, cache, published):
        (tmp_path / published).write_bytes(trained[1].read_bytes())
        net = get_model(f"zoo:{NET}", classes=6, pretrained=True, root=str(tmp_path), ctx=mx.cpu(1))
        assert net.output.weight.list_ctx() == [mx.cpu(1)]
        assert not list(cache.iterdir())

    def test_a_file_in_another_cache_folder_is_found(self, trained, tmp_path, cache, published):
        other = tmp_path / "user" / ".mxnet" / "models"
        other.mkdir(parents=True)
        (other / published).write_bytes(trained[1].read_bytes())
        assert find_weights(f"zoo:{NET}") == other / published

    @pytest.mark.parametrize("gluoncv", [False, True])
    @pytest.mark.parametrize("asking", [{"weights": "pretrained"}, {"pretrained": True}])
    def test_another_checksum_is_explained_and_nothing_is_touched(self, trained, cache, server, asking, gluoncv):
        """T57."""
        content, name = trained[1].read_bytes(), f"{'gluoncv' if gluoncv else 'zoo'}:{NET}"
        sha1 = _store(gluoncv)._model_sha1[NET]
        path = cache / f"{NET}-{sha1[:8]}.params"
        found = hashlib.sha1(content).hexdigest()[:8]
        path.write_bytes(content)
        told = text_of(CheckpointError, get_model, name, **asking)
        assert f"{path} is not the published file, and was left as it is" in told
        assert f"expected SHA-1 {sha1[:8]}..., found {found}... of {len(content)} bytes" in told
        assert f"get_model('{name}', weights='{path}')" in told
        assert f"{NET}-{sha1[:8]}.zip" in told
        assert path.read_bytes() == content
        path.write_bytes(content[:70_000])
        told = text_of(CheckpointError, get_model, name, **asking)
        assert "of 70000 bytes" in told
        assert path.read_bytes() == content[:70_000]
        assert server[1] == []
        assert [one.name for one in cache.iterdir()] == [path.name]

    @pytest.mark.parametrize("asking", [{"weights": "pretrained"}, {"pretrained": True}])
    @pytest.mark.parametrize("gluoncv", [False, True])
    def test_offline_is_one_error_with_what_to_fetch(self, trained, cache, monkeypatch, asking, gluoncv):
        """T57."""
        monkeypatch.setenv("MXKIT_OFFLINE", "1")
        sha1, name = _store(gluoncv)._model_sha1[NET], f"{'gluoncv' if gluoncv else 'zoo'}:{NET}"
        told = text_of(DownloadError, get_model, name, **asking)
        assert "are missing and cannot be downloaded: MXKIT_OFFLINE forbids the network" in told
        assert f"expected: {NET}-{sha1[:8]}.params in {cache}, SHA-1 {sha1}" in told
        assert (
            f"download http://127.0.0.1:9/gluon/models/{NET}-{sha1[:8]}.zip, unpack it, and put the file there" in told
        )

    def test_no_weights_were_published(self, cache):
        assert "no weights of it were published; pass weights=" in text_of(
            ValueError, get_model, "mlp", weights="pretrained"
        )
        told = text_of(ValueError, get_model, "gluoncv:se_resnet18_v1", weights="pretrained")
        assert "no weights of it were published" in told


class TestFetching:
    def test_it_is_fetched_once_and_kept_under_its_name(self, trained, cache, published, server):
        (folder, asked), content = server, trained[1].read_bytes()
        (folder / f"{published[:-7]}.zip").write_bytes(zipped(published, content))
        np.testing.assert_array_equal(outputs(get_model(f"zoo:{NET}", classes=6, pretrained=True)), outputs(trained[0]))
        get_model(f"zoo:{NET}", classes=6, weights="pretrained")
        assert len(asked) == 1
        assert (cache / published).read_bytes() == content
        assert not [one for one in cache.iterdir() if "part" in one.name]

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (None, "404"),
            (b"<html>log in first</html>", "BadZipFile"),
            (zipped("other.params", b"1"), "There is no item named"),
            ("other numbers", "gave 13 bytes with sha1:"),
        ],
        ids=["absent", "page", "other name", "other numbers"],  # the bytes of a zip file hold the time
    )
    def test_what_a_server_gives_wrong_is_told_once_and_not_kept(self, cache, published, server, content, why):
        folder, asked = server
        if content is not None:
            packed = zipped(published, content) if isinstance(content, str) else content
            (folder / f"{published[:-7]}.zip").write_bytes(packed)
        told = text_of(DownloadError, get_model, f"zoo:{NET}", classes=6, weights="pretrained")
        assert why in told
        assert f"expected: {published} in {cache}" in told
        assert len(asked) == 1  # MXNet's own loader tries five times
        assert [one for one in cache.iterdir() if one.name != LOCK] == []

    def test_nobody_answers(self, cache, published, monkeypatch):
        monkeypatch.setattr(download, "sleep", lambda seconds: None)
        told = text_of(DownloadError, get_model, f"zoo:{NET}", weights="pretrained")
        assert "ConnectionError" in told
        assert "put the file there\n  or pass a file that you have, without a checksum: weights='its path'" in told


def _store(gluoncv):
    if not gluoncv:
        return model_store
    from gluoncv.model_zoo import model_store as theirs

    return theirs
