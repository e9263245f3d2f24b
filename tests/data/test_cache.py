"""The cache folder: what is in it, cleaned without losing or touching anything else."""

import hashlib
import os
from pathlib import Path
import time

from genuine_files import mnist_files, write
from mxkit.data import download as cache
from mxkit.data.download import clean_cache, dataset_folder, home, homes, list_cache, locked
import mxnet as mx
import pytest

UUID = "0a1b2c3d-0000-4000-8000-0123456789ab"
NUMBERS = b"numbers of a net"
NET = f"resnet18_v1-{hashlib.sha1(NUMBERS).hexdigest()[:8]}.params"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache with one of everything; it is the only one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MXNET_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setattr(cache, "homes", lambda: [folder])
    write(folder / "models" / NET, NUMBERS)
    write(folder / "models" / "alexnet-00000000.params", NUMBERS)
    write(folder / "models" / f"vgg-44335d1f.zip{UUID}", b"half")
    for name, content in mnist_files().items():
        write(folder / "datasets/mnist" / name, content)
    write(folder / "datasets/cifar10/.cifar-10-binary.tar.gz.c4a38c50.part", b"half")
    write(folder / f"datasets/fashion-mnist/train-images-idx3-ubyte.gz.{UUID}", b"half")
    write(folder / "datasets/own/deep/a.txt", b"12345")
    write(folder / "embeddings/glove/glove.txt", b"1")
    write(folder / "notes.txt", b"mine")
    return folder


def files_below(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def age(path, days):
    os.utime(str(path), (time.time() - 86400 * days,) * 2)


def test_the_folder_is_where_the_environment_says_now(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MXNET_HOME", raising=False)
    assert home() == tmp_path / ".mxnet"
    monkeypatch.setenv("MXNET_HOME", "~/elsewhere")
    assert home() == tmp_path / "elsewhere"
    assert dataset_folder("mnist") == tmp_path / "elsewhere/datasets/mnist"
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "third"))
    assert str(home()) == mx.base.data_dir()
    # what MXNet took for its datasets when it was imported stays
    assert mx.gluon.data.vision.MNIST.__init__.__defaults__[0] != str(dataset_folder("mnist"))


def test_every_cache_folder_is_found_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".mxnet").mkdir()
    assert homes()[:2] == [tmp_path / "elsewhere", tmp_path / ".mxnet"]
    (tmp_path / ".mxnet").rmdir()
    (tmp_path / ".mxnet").symlink_to(tmp_path / "elsewhere")
    assert homes()[:1] == [tmp_path / "elsewhere"]
    assert tmp_path / ".mxnet" not in homes()


def test_the_list(folder):
    write(folder / "datasets/mnist" / cache.LOCK, b"")
    rows = {entry.name: entry for entry in list_cache()}
    states = {name: (entry.kind, entry.state) for name, entry in rows.items()}
    assert states == {
        "mnist": ("dataset", "unknown"),
        "cifar10": ("dataset", "partial"),
        "fashion-mnist": ("dataset", "partial"),
        "own": ("dataset", "unknown"),
        NET: ("model", "complete"),
        "alexnet-00000000.params": ("model", "damaged"),
        f"vgg-44335d1f.zip{UUID}": ("model", "partial"),
        "glove": ("embedding", "unknown"),
        "notes.txt": ("other", "unknown"),
    }
    assert (rows["mnist"].files, rows["mnist"].bytes) == (4, sum(map(len, mnist_files().values())))
    assert (rows["own"].files, rows["own"].bytes, rows["own"].path) == (1, 5, folder / "datasets/own")


# Cleaning


def test_cleaning_takes_only_what_was_left_over(folder):
    age(folder / f"models/vgg-44335d1f.zip{UUID}", 1)
    age(folder / f"datasets/fashion-mnist/train-images-idx3-ubyte.gz.{UUID}", 1)
    write(folder / "datasets/cifar10" / cache.LOCK, b"")
    before = files_below(folder)
    told = clean_cache(dry_run=True)
    assert files_below(folder) == before
    gone = clean_cache()
    assert [entry.path for entry in gone] == [entry.path for entry in told]
    lost = set(before) - set(files_below(folder))
    assert lost == {
        f"models/vgg-44335d1f.zip{UUID}",
        f"datasets/fashion-mnist/train-images-idx3-ubyte.gz.{UUID}",
        "datasets/cifar10/.cifar-10-binary.tar.gz.c4a38c50.part",
    }
    assert clean_cache() == []


def test_what_is_at_work_now_is_left(folder):
    # MXNet and gluoncv hold no lock, so what they wrote to within the hour is theirs
    assert clean_cache() == []
    with locked(folder / "datasets/cifar10"):
        assert clean_cache() == []
    assert [entry.name for entry in clean_cache()] == [".cifar-10-binary.tar.gz.c4a38c50.part"]


def test_cleaning_by_name_and_age(folder):
    age(folder / "datasets/own/deep/a.txt", 40)
    age(folder / "embeddings/glove/glove.txt", 40)
    age(folder / "notes.txt", 400)
    assert clean_cache(name="mnist", older_than=30, partial=False) == []
    assert [entry.name for entry in clean_cache(name="own", older_than=30, partial=False)] == ["own"]
    assert [entry.name for entry in clean_cache(older_than=30, partial=False)] == ["glove"]
    assert [entry.name for entry in clean_cache(name="mnist", partial=False)] == ["mnist"]
    assert not (folder / "datasets/mnist").exists()
    assert (folder / "notes.txt").exists()
    with pytest.raises(ValueError, match=r"there is no 'mnits' in the cache; there is .*cifar10"):
        clean_cache(name="mnits")


def test_cleaning_never_leaves_the_folder(folder, tmp_path):
    write(tmp_path / "big" / f"a.{UUID}", b"1" * 1000)
    age(tmp_path / "big" / f"a.{UUID}", 400)
    (folder / "datasets/imagenet").symlink_to(tmp_path / "big")
    (folder / "datasets/own/link").symlink_to(tmp_path / "big")
    rows = {entry.name: entry for entry in list_cache()}
    assert (rows["imagenet"].state, rows["imagenet"].bytes < 1000) == ("link", True)
    assert (rows["own"].files, rows["own"].bytes < 1000) == (2, True)
    (folder / "embeddings").rename(tmp_path / "embeddings")
    (folder / "embeddings").symlink_to(tmp_path / "embeddings")
    age(tmp_path / "embeddings/glove/glove.txt", 400)
    clean_cache(older_than=30)
    clean_cache(name="own")
    clean_cache(name="imagenet")
    assert not (folder / "datasets/imagenet").is_symlink()
    assert not (folder / "datasets/own").exists()
    assert (tmp_path / "big" / f"a.{UUID}").exists()
    assert (tmp_path / "embeddings/glove/glove.txt").exists()
