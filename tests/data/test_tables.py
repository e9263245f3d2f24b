"""Text files: nothing is guessed, and what cannot be read is told by line and column."""

import gzip

from mxkit.data.describing import ArraySummary
from mxkit.data.tables import csv, lines
from mxkit.errors import DataError, TrapWarning, UnknownNameError
import numpy as np
import pytest

TEXT = """size,colour,weight,kind
1.5,red,10,b
2.5,green,20,a
3.5,red,30,a
4.5,"blue, light",40,b
"""


def write(folder, text, name="table.csv"):
    path = folder / name
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def read(path, **settings):
    """All rows in the training part, in the order of the file."""
    return csv(path, **{"target": "kind", "categories": ["kind", "colour"], "valid": 0, "test": 0, **settings})


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
@pytest.mark.parametrize("text", [TEXT, "\ufeff" + TEXT, TEXT.replace("\n", "\r\n"), TEXT + "\n\n"])
def test_a_table(tmp_path, text, name):
    data = read(write(tmp_path, text, name))
    np.testing.assert_array_equal(data.train.x, [[1.5, 2, 10], [2.5, 1, 20], [3.5, 2, 30], [4.5, 0, 40]])
    assert data.train.x.dtype == np.float32
    assert data.train.y.tolist() == [1, 0, 0, 1]
    assert data.train.y.dtype == np.int32
    assert data.classes == ["a", "b"]
    assert data.columns == ("size", "colour", "weight")
    assert data.categories == {"colour": ["blue, light", "green", "red"]}


def test_columns_by_name_and_number_and_a_quantity_to_learn(tmp_path):
    path = write(tmp_path, TEXT)
    data = read(path, target=2, columns=["colour", 0], categories=[1])
    np.testing.assert_array_equal(data.train.x, [[2, 1.5], [1, 2.5], [2, 3.5], [0, 4.5]])
    assert data.train.y.tolist() == [10, 20, 30, 40]
    assert data.train.y.dtype == np.float32
    assert data.classes == []
    bare = write(tmp_path, "1;2\n3;4\n", "bare.csv")
    found = read(bare, target="1", categories=[], header=False, delimiter=";")
    assert (found.columns, found.train.x.tolist(), found.train.y.tolist()) == (("0",), [[1], [3]], [2, 4])
    named = read(bare, target="b", categories=[], header=["a", "b"], delimiter=";")
    assert named.columns == ("a",)


def test_classes_that_are_numbers_are_sorted_as_numbers(tmp_path):
    path = write(tmp_path, "x,kind\n" + "".join(f"0,{kind}\n" for kind in (10, 9, 2, 10)))
    data = read(path, categories=["kind"])
    assert data.classes == ["2", "9", "10"]
    assert data.train.y.tolist() == [2, 1, 0, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT.replace("30", ""), r"line 4, column 'weight': the value is missing"),
        (TEXT.replace("30", "NA"), "line 4, column 'weight': expected a number; received 'NA'. Name the col"),
        (TEXT.replace("30", "nan"), r"line 4, column 'weight': expected a finite number; received 'nan'"),
        (TEXT.replace("30", "1e39"), r"line 4, column 'weight': expected a finite number; received '1e39'"),
        (TEXT.replace("30", "1_000"), r"line 4, column 'weight': expected a number; received '1_000'"),
        (TEXT.replace("30", "-inf"), r"line 4, column 'weight': expected a finite number; received '-inf'"),
        (TEXT.replace("green", " "), r"line 3, column 'colour': the value is missing"),
        (TEXT.replace(",30", ""), r"line 4: expected 4 cells, as columns are \['size', .*; received 3"),
        (TEXT.replace("30", "3,0"), r"line 4: expected 4 cells.*received 5"),
        (TEXT.replace("size", "kind"), r"several columns are named \['kind'\]"),
        (TEXT.replace('light"', "light"), r"cannot be read after line 4: unexpected end of data"),
        ('size,kind\n1,"a\nb"\nx,a\n', "line 4, column 'size': expected a number; received 'x'"),
        ("", "there is no row in the table"),
        (TEXT.splitlines()[0], "there is no row in the table"),
        (b"size,kind\n\xff,1\n", "cannot be read after line 0: 'utf-8' codec"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, text, words):
    with pytest.raises(DataError, match=f"table.csv.*{words}"):
        read(write(tmp_path, text), categories=["kind", "colour"] if "colour" in str(text) else ["kind"])


NO_HEADER = {"target": 3, "categories": [1, 3], "header": False}


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"target": "knid"}, UnknownNameError, "unknown column of table.csv 'knid': did you mean 'kind'"),
        ({"target": 4}, UnknownNameError, "unknown column of table.csv 4: Known: colour"),
        ({"categories": ["color"]}, UnknownNameError, "'color': did you mean 'colour'"),
        (NO_HEADER, DataError, "line 1, column '0'.*pass header=True if line 1 holds the columns' names"),
    ],
)
def test_columns_that_are_not_there(tmp_path, settings, error, words):
    with pytest.raises(error, match=words):
        read(write(tmp_path, TEXT), **settings)


def big_table(folder, rows=200):
    table = [f"{row * 0.1 + 100},0.1,{'xyz'[row % 3]},{'ab'[row % 4 == 0]}" for row in range(rows)]
    return write(folder, "value,constant,letter,kind\n" + "\n".join(table) + "\n")


def test_a_first_line_of_numbers_is_no_header(tmp_path):
    numbers = write(tmp_path, "62,1.5,0\n63,2.5,1\n64,3.5,0\n", "numbers.csv")
    with pytest.raises(DataError, match="line 1: expected names of columns; received 62, .*header=False"):
        csv(numbers, target=2)
    assert len(csv(numbers, target=2, header=False, valid=0, test=0).train.x) == 3
    with pytest.raises(DataError, match="line 1: expected names of columns; received 1, 2"):
        csv(write(tmp_path, "1,2\n3,3\n4,5\n", "rows.csv"), target="1")
    numbered = write(tmp_path, "0,1,2\n63,2.5,1\n64,3.5,0\n", "numbered.csv")
    assert len(csv(numbered, target="2", valid=0, test=0).train.x) == 2


def test_parts_have_each_class_in_its_share_and_share_nothing(tmp_path):
    table = big_table(tmp_path)
    logs = write(tmp_path, "".join(f"{row} 0 {row % 4 // 3}\n" for row in range(200)), "a.log")

    def of_table(**settings):
        return csv(table, target="kind", categories=["kind", "letter"], valid=0.1, test=40, **settings)

    for data in (of_table(), lines(logs, pair, valid=20, test=0.2)):
        assert [len(part.y) for part in data[:3]] == [140, 20, 40]
        assert [int(part.y.sum()) for part in data[:3]] == [35, 5, 10]
        assert len({row for part in data[:3] for row in part.x[:, 0].tolist()}) == 200
    np.testing.assert_array_equal(of_table().test.x, of_table().test.x)
    assert not np.array_equal(of_table(seed=1).test.x, of_table().test.x)


def test_standardising_uses_the_training_part_alone(tmp_path):
    path = big_table(tmp_path)
    settings = {"target": "kind", "categories": ["kind", "letter"], "valid": 0.2, "test": 0.2}
    plain, data = csv(path, **settings), csv(path, standardise=True, **settings)
    first = plain.train.x[:, 0].astype("float64")
    np.testing.assert_allclose(data.mean, [first.mean(), 0.1, 0], rtol=1e-6)
    np.testing.assert_allclose(data.std, [first.std(), 1, 1], rtol=1e-6)
    for part, before in zip(data[:3], plain[:3]):
        np.testing.assert_allclose(part.x, (before.x - np.array(data.mean)) / data.std, rtol=2e-4, atol=1e-7)
        assert not part.x[:, 1].any()
        np.testing.assert_array_equal(part.x[:, 2], before.x[:, 2])
        assert part.x.dtype == np.float32
    assert abs(data.train.x[:, 0].mean()) < 1e-4
    assert abs(data.test.x[:, 0].mean()) > 1e-3


def test_numbers_that_float32_cannot_tell_apart(tmp_path):
    path = write(tmp_path, "id,kind\n16777217,a\n16777216,b\n")
    with pytest.warns(TrapWarning, match=r"column 'id': numbers up to 16777217, .* equal \(T14\); pass standard"):
        read(path, categories=["kind"])
    assert read(path, categories=["kind", "id"]).train.x.tolist() == [[1], [0]]  # warns of nothing


COLUMNS = {"timestamps": 1.7e9 + np.arange(100), "steps": 100000 + np.arange(100) * 0.001}


@pytest.mark.parametrize("kind", COLUMNS)
def test_an_offset_is_removed_in_float64(tmp_path, kind):
    cells = COLUMNS[kind]
    path = write(tmp_path, "value,y\n" + "".join(f"{cell!r},{row}\n" for row, cell in enumerate(cells.tolist())))
    expected = (cells - cells.mean()) / cells.std()
    data = csv(path, target="y", valid=0, test=0, standardise=True)  # warns of nothing
    assert data.train.x.dtype == np.float32
    assert len(np.unique(data.train.x)) == 100
    np.testing.assert_allclose(data.train.x[:, 0], expected, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose([data.mean, data.std], [[cells.mean()], [cells.std()]], rtol=1e-12)
    with pytest.warns(TrapWarning, match="column 'value': numbers up to .* pass standardise=True"):
        read(path, target="y", categories=[])
    with pytest.warns(TrapWarning, match="column 'value': numbers up to .* subtract a number near their mean"):
        read(path, target="value", categories=[])
    summary = ArraySummary()
    for start in range(0, 100, 7):
        summary.add(cells[start : start + 7, None])
    np.testing.assert_allclose([summary.mean, summary.std], [data.mean, data.std], rtol=1e-9)
    constant = ArraySummary()
    constant.add(np.full((5000, 1), 100000.1))
    assert (constant.mean, constant.std) == ((100000.1,), (0.0,))


def test_a_second_file_has_the_codes_and_the_unit_of_the_first(tmp_path):
    first = write(tmp_path, "age,region,churn\n20,north,yes\n40,west,no\n60,south,no\n", "train.csv")
    second = write(tmp_path, "region,churn,age\nwest,no,30\nsouth,no,50\n", "test.csv")
    settings = {"target": "churn", "categories": ["churn", "region"], "valid": 0, "test": 0, "standardise": True}
    table = csv(first, **settings)
    data = csv(second, like=table, **settings)
    assert (data.classes, data.categories) == (table.classes, table.categories)
    assert (data.columns, data.mean, data.std) == (table.columns, table.mean, table.std)
    assert data.train.y.tolist() == [0, 0]
    std = np.std([20, 40, 60])
    np.testing.assert_allclose(data.train.x, [[-10 / std, 2], [10 / std, 1]], rtol=1e-6)
    unlabelled = write(tmp_path, "id,age,region\n7,30,west\n8,50,south\n", "new.csv")
    new = csv(unlabelled, like=table, **{**settings, "target": "id", "categories": []}).train
    np.testing.assert_array_equal(new.x, data.train.x)
    assert new.y.tolist() == [7, 8]


def test_a_second_file_that_does_not_fit_the_first(tmp_path):
    plain, table = read(write(tmp_path, TEXT)), read(write(tmp_path, TEXT), standardise=True)
    other = write(tmp_path, TEXT.replace("green", "black"), "other.csv")
    no_table = "csv: like: expected a table that csv read, and no columns"
    for settings, error, words in (
        ({"like": table, "standardise": True}, DataError, "line 3, column 'colour': 'black' is no category of `like`"),
        ({"like": table.train}, TypeError, f"{no_table}; received Split"),
        ({"like": table, "columns": ["size"]}, TypeError, no_table),
        ({"like": table}, ValueError, "csv: like: its x is standardised: pass standardise=True"),
        ({"like": plain, "standardise": True}, ValueError, "its x is not standardised: pass standardise=False"),
    ):
        with pytest.raises(error, match=words):
            read(other, **settings)


# Lines


def pair(line):
    a, b, y = line.split()
    return (float(a), float(b)), int(y)


@pytest.mark.parametrize("name", ["a.log", "a.log.gz"])
def test_lines(tmp_path, name):
    path = write(tmp_path, "1 2 0\n\n3 4 1\r\n   \n# comment\n5 6 1", name)
    parse = lambda line: None if line.startswith("#") else pair(line)  # noqa: E731
    data = lines(path, parse, valid=0, test=0, classes=["no", "yes"])
    assert data.train.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.train.y.tolist() == [0, 1, 1]
    assert (data.train.x.dtype, data.train.y.dtype, data.classes) == (np.float32, np.int32, ["no", "yes"])


@pytest.mark.parametrize(
    ("text", "parse", "words"),
    [
        ("1 2 0\n\n1 x 0\n", pair, r"line 3: parse raised ValueError: could not convert.*; the line is '1 x 0'"),
        ("\n \n", pair, ""),
        ("1\n", float, r"line 1: parse must return \(x, y\) or None; it returned 1.0"),
        ("1\n", lambda line: (line, 1), "line 1: parse must return numbers"),
        ("1\n1 2\n", lambda line: ([float(one) for one in line.split()], 0), r"line 1 and \(2,\) in .*line 2"),
    ],
)
def test_lines_that_cannot_be_read(tmp_path, text, parse, words):
    with pytest.raises(DataError, match=f"a.log.*{words}") as caught:
        lines(write(tmp_path, text, "a.log"), parse)
    assert isinstance(caught.value.__cause__, ValueError) == ("raised" in words)


@pytest.mark.parametrize("cut", [12, 40, -5])
def test_a_gzip_file_that_was_cut_off(tmp_path, cut):
    content = gzip.compress("".join(f"{row} {row * 7 % 13} 0\n" for row in range(200)).encode())
    (tmp_path / "a.gz").write_bytes(content[:cut])
    with pytest.raises(DataError, match="a.gz.*cannot be read after line"):
        csv(tmp_path / "a.gz", target=2, header=False, delimiter=" ")
