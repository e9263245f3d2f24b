"""The book of MXNet's operators: what mxkit knows about each of them stands here, and every room asks it."""

from functools import lru_cache
import re
from typing import Dict, FrozenSet, NamedTuple, Optional

from mxkit.core.graph import Attributes

# A row: facts, ONNX's word and PyTorch's if one says it, and the names under which MXNet has the computation.
#   a number   operations for each element of the largest array
#   free       no arithmetic; `sum` one operation for each element read; without these a rule counts, or nothing
#   each       every element is computed by itself, from the same element of each input
#   same       the numbers stay as they are: they move, or get another shape or dtype
#   onto       a reduction of axes
#   jumps      the result jumps where two numbers are nearly equal
#   draws      random numbers, in prediction too
#   atomic     the gradient on a GPU is added up in a random order
#   cudnn      cuDNN chooses among algorithms, some with a random order of additions; `cublas` cuBLAS does
#   onednn     oneDNN computes it on a CPU, for float32 and bfloat16
#   weights    the second input is a weight that is multiplied; `owns` later inputs are parameters
#   unary, binary, swapped, compared, logical   how the words take the inputs; `swapped` the second one first
# PyTorch's word is an operator, the method of a reduction, a pattern as to_torch's `Node.filled` takes it, or `.`, the
# method that has the name of what is computed.
_BOOK = """
1 each unary | Abs | . | abs _npi_absolute
1 each unary | Neg | -{a} | negative _npi_negative
1 each unary | Sqrt | . | sqrt _npi_sqrt
1 each unary | Exp | . | exp _npi_exp
1 each unary | Log | . | log _npi_log
1 each unary jumps | Floor | . | floor _npi_floor
1 each unary jumps | Ceil | . | ceil _npi_ceil
1 each unary | Sin | . | sin _npi_sin
1 each unary | Cos | . | cos _npi_cos
1 each unary | Tan | . | tan _npi_tan
1 each unary | Sinh | . | sinh _npi_sinh
1 each unary | Cosh | . | cosh _npi_cosh
1 each unary | Tanh | . | tanh _npi_tanh
1 each unary | Asin | . | arcsin _npi_arcsin
1 each unary | Acos | . | arccos _npi_arccos
1 each unary | Atan | . | arctan _npi_arctan
1 each unary | Asinh | . | arcsinh _npi_arcsinh
1 each unary | Acosh | . | arccosh _npi_arccosh
1 each unary | Atanh | . | arctanh _npi_arctanh
1 each unary jumps | Sign | . | sign _npi_sign
1 each unary | Reciprocal | . | reciprocal _npi_reciprocal
1 each unary | Erf | . | erf
1 each unary | Sigmoid | . | sigmoid _npx_sigmoid
1 each unary | Relu | F.relu({x}) | relu _npx_relu
1 each unary | Softsign | F.softsign({x}) | softsign
1 each binary | Add | + | elemwise_add broadcast_add _npi_add _grad_add _plus_scalar _npi_add_scalar
1 each binary | Sub | - | elemwise_sub broadcast_sub _npi_subtract _minus_scalar _npi_subtract_scalar
1 each swapped | Sub | - | _rminus_scalar _npi_rsubtract_scalar
1 each binary | Mul | * | elemwise_mul broadcast_mul _npi_multiply _mul_scalar _npi_multiply_scalar
1 each binary | Div | / | elemwise_div broadcast_div _npi_true_divide _div_scalar _npi_true_divide_scalar
1 each swapped | Div | / | _rdiv_scalar _npi_rtrue_divide_scalar
1 each binary | Pow | ** | _power broadcast_power _npi_power _power_scalar _npi_power_scalar
1 each swapped | Pow | ** | _rpower_scalar _npi_rpower_scalar
1 each binary jumps | Mod | % | _mod broadcast_mod _npi_mod _mod_scalar _npi_mod_scalar
1 each swapped jumps | Mod | % | _rmod_scalar _npi_rmod_scalar
1 each binary | Max | torch.maximum({x}, {y}) | _maximum broadcast_maximum _maximum_scalar
1 each binary | Min | torch.minimum({x}, {y}) | _minimum broadcast_minimum _minimum_scalar
1 each | - | - | _hypot_scalar logical_not _npi_logical_not clip smooth_l1 gamma _npi_copysign _npi_copysign_scalar
    _npi_ldexp _npi_rcopysign_scalar _npi_ldexp_scalar _npi_rldexp_scalar _npi_lcm _npi_lcm_scalar _npi_arctan2_scalar
    _npi_rarctan2_scalar _npi_nan_to_num _npi_bitwise_and _npi_bitwise_or _npi_bitwise_xor _npi_bitwise_not
    _npi_bitwise_and_scalar _npi_bitwise_or_scalar _npi_bitwise_xor_scalar _contrib_quadratic _scatter_elemwise_div
    _scatter_plus_scalar _scatter_minus_scalar
1 each | - | {a} / {a}.shape[-1] ** 0.5 | _contrib_div_sqrt_dim
1 each | - | ({alpha} * {a} + {beta}).clamp(0, 1) | hard_sigmoid
1 each | - | torch.atan2({x}, {y}) | _npi_arctan2
1 each | - | torch.hypot({x}, {y}) | broadcast_hypot _npi_hypot _hypot
1 each | - | torch.lgamma({x}) | gammaln
1 each | - | torch.deg2rad({x}) | radians _npi_radians
1 each | - | torch.rad2deg({x}) | degrees _npi_degrees
1 each | - | {a}.sign() * {a}.abs().pow(-1 / 3) | rcbrt
1 each | - | {a}.sign() * {a}.abs().pow(1 / 3) | cbrt _npi_cbrt
1 each | - | . | log10 log2 log1p expm1 _npi_log10 _npi_log2 _npi_log1p _npi_expm1 square _npi_square rsqrt erfinv
    _npi_isnan _npi_isinf _npi_isfinite _npi_isposinf _npi_isneginf
1 each compared jumps | Equal | == | _equal broadcast_equal _npi_equal _equal_scalar _npi_equal_scalar
1 each compared jumps | not Equal | != | _not_equal broadcast_not_equal _npi_not_equal _not_equal_scalar
    _npi_not_equal_scalar
1 each compared jumps | Greater | > | _greater broadcast_greater _npi_greater _greater_scalar _npi_greater_scalar
1 each compared jumps | GreaterOrEqual | >= | _greater_equal broadcast_greater_equal _npi_greater_equal
    _greater_equal_scalar _npi_greater_equal_scalar
1 each compared jumps | Less | < | _lesser broadcast_lesser _npi_less _lesser_scalar _npi_less_scalar
1 each compared jumps | LessOrEqual | <= | _lesser_equal broadcast_lesser_equal _npi_less_equal _lesser_equal_scalar
    _npi_less_equal_scalar
1 each logical | And | - | _logical_and broadcast_logical_and _logical_and_scalar
1 each logical | Or | - | _logical_or broadcast_logical_or _logical_or_scalar
1 each logical | Xor | - | _logical_xor broadcast_logical_xor _logical_xor_scalar
1 each jumps | - | - | _contrib_round_ste _contrib_sign_ste
1 each jumps | - | {a}.round(decimals={decimals}) | _npi_around
1 each jumps | - | {a}.sign() * ({a}.abs() + 0.5).floor() | round
1 each jumps | - | ({a} - 0.5).ceil() | rint _npi_rint
1 each jumps | - | {a}.trunc() | trunc _npi_trunc fix _npi_fix
1 each onednn | - | - | Activation
1 each onednn owns | - | - | LeakyReLU
each | Sum | - | add_n
free same | Identity | {x} | _copy _np_copy MakeLoss make_loss
free same | Identity | {a}.detach() | BlockGrad
free same | - | - | _identity_with_attr_like_rhs _copyto _CrossDeviceCopy _contrib_gradientmultiplier squeeze
    _np_squeeze amp_cast amp_multicast _np_transpose _np_moveaxis _np_atleast_1d _np_atleast_2d _np_atleast_3d
    _npi_share_memory Reshape _np_reshape _npx_reshape reshape_like
free same | - | {a}.transpose({dim1}, {dim2}) | SwapAxis
free same | - | {a}.unsqueeze({axis}) | expand_dims
free same onednn | - | - | transpose
free same jumps | - | - | Cast
free same | - | {a}.flatten(1) | Flatten
free onednn | - | - | Concat
free | - | - | _npi_concatenate _rnn_param_concat stack _npi_stack _npi_vstack _npi_hstack _npi_dstack _npi_column_stack
    SliceChannel _split_v2 _npi_hsplit _npi_dsplit slice slice_axis slice_like Crop tile repeat reverse _npi_flip
    _np_roll _npi_rot90 broadcast_to broadcast_axis broadcast_like _npi_broadcast_to one_hot _onehot_encode _zeros _ones
    _full _eye _arange _linspace _npi_zeros _npi_ones _npi_eye _npi_identity _npi_arange _npi_indices _npi_logspace
    _zeros_without_dtype _contrib_arange_like SequenceMask SequenceLast SequenceReverse depth_to_space space_to_depth
    where _npi_where _npi_where_lscalar _npi_where_rscalar _npi_where_scalar2 diag _np_diag _np_diagonal _np_diagflat
    UpSampling _contrib_index_array _NDArray _contrib_boolean_mask Dropout _npi_pad
free | - | torch.zeros_like({x}) | zeros_like
free | - | torch.ones_like({x}) | ones_like
free | - | torch.full_like({x}, {fill_value}) | _npi_full_like
free | - | torch.tensor({a}.shape, device={a}.device) | shape_array
free | - | torch.tensor([{a}.numel()], device={a}.device) | size_array
free | - | {a}.tril({k}) | _npi_tril
free jumps | - | - | take pick
free jumps atomic | - | - | gather_nd
free atomic | - | - | Pad
free owns | - | - | Embedding _contrib_SparseEmbedding
free draws | - | - | _npi_bernoulli _npi_choice _npi_exponential _npi_gamma _npi_gumbel _npi_logistic _npi_multinomial
    _npi_normal _npi_normal_n _npi_pareto _npi_powerd _npi_rayleigh _npi_uniform _npi_uniform_n _npi_weibull
    _npi_laplace _random_exponential _random_exponential_like _random_gamma _random_gamma_like
    _random_generalized_negative_binomial _random_generalized_negative_binomial_like _random_negative_binomial
    _random_negative_binomial_like _random_normal _random_normal_like _random_poisson _random_poisson_like
    _random_randint _random_uniform _random_uniform_like _sample_exponential _sample_gamma
    _sample_generalized_negative_binomial _sample_multinomial _sample_negative_binomial _sample_normal _sample_poisson
    _sample_uniform _sample_unique_zipfian _shuffle
draws | - | - | _image_random_brightness _image_random_color_jitter _image_random_contrast _image_random_hue
    _image_random_flip_left_right _image_random_flip_top_bottom _image_random_lighting _image_random_saturation
    _contrib_dgl_csr_neighbor_uniform_sample _contrib_dgl_csr_neighbor_non_uniform_sample
sum onto | ReduceSum | sum | sum _np_sum
sum onto | ReduceMean | mean | mean _npi_mean
sum onto | ReduceMax | amax | max _np_max
sum onto | ReduceMin | amin | min _np_min
sum onto | ReduceProd | prod | prod _np_prod
sum onto | ReduceSum | nansum | nansum
sum onto | - | - | nanprod _npi_average
sum onto | - | . | _np_all _np_any
sum | - | - | _np_cumsum _np_trace
sum jumps | - | - | argmax argmin _npi_argmax _npi_argmin
jumps | - | - | topk sort argsort argmax_channel _contrib_box_nms ROIPooling
2 onto | - | - | norm _npi_norm
4 onto | - | - | _npi_std _npi_var
sum atomic | - | - | _contrib_AdaptiveAvgPooling2D
7 atomic | - | - | _contrib_BilinearResize2D
2 onednn owns | - | - | BatchNorm
2 owns | - | - | BatchNorm_v1 CuDNNBatchNorm _contrib_SyncBatchNorm
3 owns | - | - | _contrib_BatchNormWithReLU
3 | - | - | L2Normalization
7 owns | - | - | LayerNorm InstanceNorm GroupNorm
5 onednn | - | - | softmax log_softmax
5 | - | - | softmin SoftmaxOutput SoftmaxActivation
onednn | - | - | LRN
onednn weights owns cudnn | - | - | Convolution Deconvolution
weights owns cudnn | - | - | Convolution_v1
onednn weights owns | - | - | FullyConnected
onednn cudnn | - | - | Pooling
cudnn | - | - | Pooling_v1
onednn owns cublas | - | - | RNN
atomic owns | - | - | _contrib_DeformableConvolution _contrib_ModulatedDeformableConvolution
atomic | - | - | _contrib_ROIAlign BilinearSampler SpatialTransformer _contrib_PSROIPooling
    _contrib_DeformablePSROIPooling
- | - | - | dot _np_dot batch_dot _npi_matmul
    _linalg_gemm _linalg_gemm2 _npi_tensordot _npi_einsum Custom _npi_tensordot_int_axes
same | - | - | LinearRegressionOutput MAERegressionOutput SVMOutput
each | Sigmoid | - | LogisticRegressionOutput
- | - | attention_values({y}, part_of_heads({x}, {heads}, 2, 1), {heads}) | _contrib_interleaved_matmul_encdec_valatt
- | - | attention_values({y}, part_of_heads({x}, {heads}, 3, 2), {heads}) | _contrib_interleaved_matmul_selfatt_valatt
- | - | attention_scores(part_of_heads({x}, {heads}), part_of_heads({y}, {heads}, 2, 0)) |
    _contrib_interleaved_matmul_encdec_qk
- | - | attention_scores(part_of_heads({x}, {heads}, 3, 0), part_of_heads({x}, {heads}, 3, 1)) |
    _contrib_interleaved_matmul_selfatt_qk
"""
# The operator that a loss head of Module applies to its first input at inference. Its label only makes a gradient.
PLAIN_HEADS = {
    "LinearRegressionOutput": "_copy",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
    "SoftmaxOutput": "softmax",
}
_PREFIX = re.compile("^_?(npi_|npx_|np_|contrib_|broadcast_|elemwise_)?")


class Operator(NamedTuple):
    """A row of the book.

    Attributes:
        name: MXNet's name.
        facts: Words of the row, as the head of the book explains them.
        work: Operations for each element of its largest array; None if another rule counts them, or none does.
        onnx: ONNX's word for it; '' if there is none.
        torch: PyTorch's, likewise.
    """

    name: str
    facts: FrozenSet[str] = frozenset()
    work: Optional[int] = None
    onnx: str = ""
    torch: str = ""

    @property
    def kind(self) -> str:
        """What it computes: its name in lower case, without the prefixes of NumPy's and of broadcasting variants.

        >>> known("_npi_multiply_scalar").kind, known("_contrib_BilinearResize2D").kind
        ('multiply', 'bilinearresize2d')
        """
        return re.sub("_scalar$", "", _PREFIX.sub("", self.name.lower()))


@lru_cache(maxsize=None)
def book() -> Dict[str, Operator]:
    """All rows by MXNet's names."""
    rows: Dict[str, Operator] = {}
    for line in re.sub(r"\n +", " ", _BOOK.strip()).splitlines():
        words, onnx, torch, names = (part.strip() for part in line.split(" | "))
        work = next((int(word) for word in words.split() if word.isdigit()), None)
        facts = frozenset(word for word in words.split() if word.isalpha())
        for name in names.split():
            rows[name] = Operator(name, facts, work, onnx.strip("-"), "" if torch == "-" else torch)
    return rows


def known(name: str) -> Operator:
    """The row of an operator; one without facts if the book does not have it."""
    return book().get(name) or Operator(name)


def operators_that(*facts: str) -> FrozenSet[str]:
    """MXNet's names of the operators with one of some facts."""
    return frozenset(name for name, row in book().items() if row.facts.intersection(facts))


def draws(node: Attributes) -> bool:
    """Whether an operator draws random numbers in prediction too."""
    return "draws" in known(node.operator).facts or (node.operator == "Dropout" and node.text("mode") == "always")


def draws_in_training(node: Attributes) -> bool:
    """Whether an operator draws random numbers in training; a custom one may."""
    if node.operator in ("Dropout", "RNN"):
        return node.real("p") > 0 or draws(node)
    return draws(node) or node.operator == "Custom" or node.text("act_type") == "rrelu"
