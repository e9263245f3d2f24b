"""`find_images`: files as they are named, folders recursively and in order."""

from pathlib import Path

from genuine_files import write
from mxkit.data.image_files import find_images
from mxkit.errors import DataError, TrapWarning
import pytest


def made(root, *names):
    for name in names:
        write(root / name, b"")
    return root


def test_folders_are_read_in_order_and_files_stay_where_they_are_named(tmp_path):
    root = made(
        tmp_path / "a", "z.JPG", "b/2.png", "b/10.png", "b/c/1.webp", "b/.3.png", ".git/4.png", "__MACOSX/5.png"
    )
    assert find_images([f"{root}/"]) == [f"{root}/{name}" for name in ("z.JPG", "b/10.png", "b/2.png", "b/c/1.webp")]
    missing = str(tmp_path / "none.txt")
    assert find_images([missing, root / "b" / "c", missing]) == [missing, f"{root}/b/c/1.webp", missing]
    assert find_images([]) == []


def test_names_that_are_no_images_are_counted_and_folders_without_images_refused(tmp_path):
    root = made(tmp_path / "a", "1.png", "notes.txt", "b/readme")
    with pytest.warns(TrapWarning, match=r"left out 2 files that are no images by their names, like .*notes\.txt"):
        assert find_images([root]) == [str(root / "1.png")]
    with pytest.raises(DataError, match=r"b: this folder has no image; images end with \.bmp"):
        find_images([Path(root, "b")])
