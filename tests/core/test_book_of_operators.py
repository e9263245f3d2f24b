"""The book of operators: every operator that MXNet registers, as each room that asks the book sees it."""

import ctypes

from mxkit.core.graph import Graph, Node
from mxkit.core.operators import PLAIN_HEADS, book, draws, draws_in_training, known, operators_that
from mxkit.exporting.proof import JUMPING
from mxkit.exporting.to_onnx import onnx_model
from mxkit.nets.layer_table.costs import multiply_adds
from mxkit.profiling.operator_times import ONEDNN
import mxnet as mx
from mxnet.base import _LIB, py_str
import pytest

OF_GPUS = {"CuDNNBatchNorm"}
OF_OTHER_BUILDS = {"_npi_laplace"}
# Forward operators of MXNet 1.9.1 that nets do not meet, or about which mxkit has nothing to say
WITHOUT_A_ROW = 174
FACTS = {
    *("free", "sum", "each", "same", "onto", "jumps", "draws", "atomic", "cudnn", "cublas", "onednn", "weights"),
    *("owns", "unary", "binary", "swapped", "compared", "logical"),
}


def registered():
    """The names that MXNet writes into graphs, without those of gradients."""
    count, handles = ctypes.c_uint(), ctypes.POINTER(ctypes.c_void_p)()
    assert _LIB.MXSymbolListAtomicSymbolCreators(ctypes.byref(count), ctypes.byref(handles)) == 0
    name = ctypes.c_char_p()
    for handle in handles[: count.value]:
        _LIB.MXSymbolGetAtomicSymbolName(ctypes.c_void_p(handle), ctypes.byref(name))
        if "backward" not in py_str(name.value):
            yield py_str(name.value)


def node(operator, **attributes):
    return Node(0, {"op": operator, "name": "one", "inputs": [], "attrs": attributes})


def test_the_rows_are_operators_of_mxnet():
    names = set(registered())
    assert len(names - set(book())) == WITHOUT_A_ROW
    assert set(book()) - names == OF_GPUS | OF_OTHER_BUILDS


def test_rows_use_the_words_that_the_book_explains():
    assert {fact for row in book().values() for fact in row.facts} == FACTS


def test_no_row_contradicts_itself():
    for row in book().values():
        assert not any(map(row.facts.issuperset, ({"free", "sum"}, {"each", "onto"}, {"each", "same"}))), row.name
        assert row.work is None or not row.facts & {"free", "sum"}, row.name


def test_rooms_agree_about_every_operator():
    converters = onnx_model.CONVERTERS
    for name in registered():
        row, one = known(name), node(name)
        if draws(one):
            assert name not in converters, name  # no other library draws alike
            assert draws_in_training(one), name
            assert "each" not in row.facts, name
        if row.facts & {"unary", "binary", "swapped", "compared", "logical"}:
            assert name in converters, name
            assert multiply_adds(one, [(2, 3)] * 2, [(2, 3)]) == 0, name
        assert (name in JUMPING) == ("jumps" in row.facts)
        assert (name in ONEDNN) == ("onednn" in row.facts)


def test_gamma_of_numpy_draws_and_the_function_gamma_does_not():
    assert draws(node("_npi_gamma"))
    assert not draws(node("gamma"))
    assert not draws(node("L2Normalization"))
    assert not draws(node("_random_pdf_normal"))


@pytest.mark.parametrize(
    ("operator", "attributes", "expected"),
    [
        ("Dropout", {}, True),
        ("Dropout", {"p": "0"}, False),
        ("Dropout", {"p": "0", "mode": "always"}, True),
        ("RNN", {}, False),
        ("RNN", {"p": "0.5"}, True),
        ("LeakyReLU", {"act_type": "rrelu"}, True),
        ("LeakyReLU", {}, False),
        ("Custom", {"op_type": "mine"}, True),
        ("_npi_logistic", {}, True),
    ],
)
def test_what_draws_in_training(operator, attributes, expected):
    assert draws_in_training(node(operator, **attributes)) is expected


def test_loss_heads_have_plain_operators():
    assert set(PLAIN_HEADS) | set(PLAIN_HEADS.values()) <= set(book())
    assert operators_that("weights") <= operators_that("owns")
    assert Graph.of(mx.sym.MakeLoss(mx.sym.var("x"))).nodes[-1].operator in operators_that("same")
