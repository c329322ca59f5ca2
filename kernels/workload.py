"""Which class of workload a reference is, from the ATen operators of its forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from cuteforge.kernels.task import CaseCard, WorkloadClass

_ATTENTION = {"scaled_dot_product_attention"}
_MATMUL = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "_scaled_mm"}
_SCAN_SORT = {"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "topk", "argsort", "kthvalue"}
_SPARSE = {"_sparse_mm", "_sparse_sparse_matmul", "_sparse_coo_tensor_with_dims_and_tensors", "sspaddmm"}
_GATHERING = {"index_add", "index_add_", "scatter_add", "scatter_add_", "segment_reduce", "_segment_reduce"}
_LOSS = {
    "nll_loss_forward",
    "nll_loss2d_forward",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "_ctc_loss",
}
_NORMALIZATION = {
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm",
    "_batch_norm_with_update",
    "_fused_rms_norm",
    "_softmax",
    "_log_softmax",
}
_REDUCTION = {
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "prod",
    "argmax",
    "argmin",
    "var",
    "std",
    "var_mean",
    "linalg_vector_norm",
    "logsumexp",
    "any",
    "all",
    "aminmax",
}
_SOFTMAX = {"_softmax", "_safe_softmax"}


def infer_workload(operators: Sequence[str], card: CaseCard) -> WorkloadClass:
    """The class of a reference with these ATen operators and this case.

    The first rule that fits decides, from the most to the least specific: a fused or spelled-out attention
    (two contractions around a softmax), convolution, matmul, sparse, scan or sort, loss, normalization,
    reduction, elementwise. A stencil looks like elementwise work to ATen: state that class yourself.
    """
    names = set(operators)
    if not names:
        return "other"
    contractions = sum(1 for name in operators if name in _MATMUL)
    if any(name.startswith("_scaled_dot_product") for name in names) or names & _ATTENTION:
        return "attention"
    if (contractions >= 2 or {"bmm", "mm"} <= names) and names & _SOFTMAX:
        return "attention"
    if any("convolution" in name or name.startswith("conv") for name in names):
        return "convolution"
    if names & _SPARSE:
        return "sparse"
    if contractions:
        return "matmul"
    if names & _GATHERING:
        return "sparse"
    if names & _SCAN_SORT:
        return "scan_sort"
    outputs, inputs = card.role("output"), card.role("input")
    scalar_output = bool(outputs) and all(t.elements == 1 for t in outputs)
    if names & _LOSS or (scalar_output and len(inputs) >= 2 and names & _REDUCTION):
        return "loss"
    if names & _NORMALIZATION:
        return "normalization"
    if names & _REDUCTION:
        same_size = bool(outputs and inputs) and outputs[0].elements == inputs[0].elements
        return "normalization" if same_size and outputs[0].elements > 1 else "reduction"
    if any("pool" in name for name in names):
        return "reduction"
    same = bool(outputs and inputs) and outputs[0].elements == max(t.elements for t in inputs)
    return "elementwise" if same else "other"
