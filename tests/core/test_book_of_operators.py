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
FACTS = {
    *("free", "sum", "each", "same", "onto", "jumps", "draws", "atomic", "cudnn", "cublas", "onednn", "weights"),
    *("owns", "unary", "binary", "swapped", "compared", "logical"),
}
# Forward operators without a row: nets do not meet them, or mxkit has nothing to say about them
WITHOUT_A_ROW = """
CTCLoss Correlation GridGenerator IdentityAttachKLSparseReg _CachedOp _CachedOpThreadSafe _CustomFunction _Native
_NoGradient _adamw_update _cond _contrib_MultiProposal _contrib_Proposal _contrib_RROIAlign _contrib_allclose
_contrib_bipartite_matching _contrib_box_decode _contrib_box_encode _contrib_box_iou _contrib_calibrate_entropy
_contrib_count_sketch _contrib_dequantize _contrib_dgl_adjacency _contrib_dgl_graph_compact _contrib_dgl_subgraph
_contrib_edge_id _contrib_fft _contrib_getnnz _contrib_group_adagrad_update _contrib_hawkesll _contrib_ifft
_contrib_index_copy _contrib_quantize _contrib_quantize_asym _contrib_quantize_v2 _contrib_quantized_act
_contrib_quantized_batch_norm _contrib_quantized_concat _contrib_quantized_conv _contrib_quantized_elemwise_add
_contrib_MultiBoxDetection _contrib_MultiBoxPrior _contrib_MultiBoxTarget
_contrib_quantized_elemwise_mul _contrib_quantized_embedding _contrib_quantized_flatten
_contrib_quantized_fully_connected _contrib_quantized_pooling _contrib_quantized_rnn _contrib_requantize
_cvcopyMakeBorder _cvimdecode _cvimread _cvimresize _foreach _histogram _image_adjust_lighting _image_crop
_image_flip_left_right _image_flip_top_bottom _image_normalize _image_resize _image_to_tensor _imdecode _linalg_det
_linalg_extractdiag _linalg_extracttrian _linalg_gelqf _linalg_inverse _linalg_makediag _linalg_maketrian
_linalg_potrf _linalg_potri _linalg_slogdet _linalg_sumlogdiag _linalg_syevd _linalg_syrk _linalg_trmm _linalg_trsm
_mp_adamw_update _multi_adamw_update _multi_lamb_update _multi_mp_adamw_update _multi_mp_lamb_update _npi_bincount
_npi_blackman _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor _npi_cholesky _npi_delete
_npi_diag_indices_from _npi_diff _npi_ediff1d _npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh _npi_hamming
_npi_hanning _npi_insert_scalar _npi_insert_slice _npi_insert_tensor _npi_percentile _npi_pinv
_npi_pinv_scalar_rcond _npi_polyval _npi_solve _npi_svd _npi_tensorinv _npi_tensorsolve _npi_unique
_npx_constraint_check _npx_nonzero _random_pdf_dirichlet _random_pdf_exponential _random_pdf_gamma
_random_pdf_generalized_negative_binomial _random_pdf_negative_binomial _random_pdf_normal _random_pdf_poisson
_random_pdf_uniform _ravel_multi_index _scatter_set_nd _set_value _sg_mkldnn_conv _sg_mkldnn_fully_connected
_sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt _slice_assign _slice_assign_scalar _sparse_adagrad_update
_sparse_retain _square_sum _unravel_index _while_loop adam_update all_finite batch_take cast_storage col2im
fill_element_0index ftml_update ftrl_update im2col khatri_rao lamb_update_phase1 lamb_update_phase2 moments
mp_lamb_update_phase1 mp_lamb_update_phase2 mp_nag_mom_update mp_sgd_mom_update mp_sgd_update multi_all_finite
multi_lars multi_mp_sgd_mom_update multi_mp_sgd_update multi_sgd_mom_update multi_sgd_update multi_sum_sq
nag_mom_update preloaded_multi_mp_sgd_mom_update preloaded_multi_mp_sgd_update preloaded_multi_sgd_mom_update
preloaded_multi_sgd_update reset_arrays rmsprop_update rmspropalex_update scatter_nd sgd_mom_update sgd_update
signsgd_update signum_update softmax_cross_entropy
"""


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


def test_every_operator_of_mxnet_has_a_row_or_is_listed():
    names = set(registered())
    assert names - set(book()) == set(WITHOUT_A_ROW.split())
    assert set(book()) - names == OF_GPUS | OF_OTHER_BUILDS


def test_rows_use_the_words_that_the_book_explains():
    assert {fact for row in book().values() for fact in row.facts} == FACTS


@pytest.mark.parametrize("facts", [("free", "sum"), ("each", "onto"), ("each", "same")])
def test_no_row_contradicts_itself(facts):
    assert not [row.name for row in book().values() if row.facts.issuperset(facts)]
    assert not [row.name for row in book().values() if row.work is not None and row.facts & {"free", "sum"}]


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
