"""Triton's kernels become machine code of an H100 here, without a GPU: what its interpreter accepts may not compile."""

from itertools import product

import pytest
import triton
from triton.backends.compiler import GPUTarget

from rljob_trainer.losses.output_head import triton_rows

H100 = GPUTarget("cuda", 90, 32)
VECTORS = {"targets": "*i64"} | dict.fromkeys(
    ("temperature", "log_probs", "entropies", "log_sums", "of_log_probs", "of_entropies", "of_sums"), "*fp32"
)
NUMBERS = {"V": "i32", "scale": "fp32", "cap": "fp32"}


@pytest.mark.parametrize("products", ["*bf16", "*fp32"])
@pytest.mark.parametrize("kernel", [triton_rows._reduce, triton_rows._gradient], ids=["reduce", "gradient"])
def test_a_kernel_compiles(kernel, products):
    flags = [name for name in kernel.arg_names if name.startswith("HAS")]
    types = {"products": products} | VECTORS | NUMBERS
    for values in product((False, True), repeat=len(flags)):
        constants = dict(zip(flags, values, strict=True)) | {"BLOCK": triton_rows._BLOCK}
        signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
        source = triton.compiler.ASTSource(
            kernel, signature, {(kernel.arg_names.index(n),): v for n, v in constants.items()}
        )
        compiled = triton.compile(source, target=H100, options={"num_warps": triton_rows._WARPS})
        assert compiled.asm["cubin"]
