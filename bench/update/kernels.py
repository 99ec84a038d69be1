"""Compare triton_rows with rows on random products: on a GPU, or with TRITON_INTERPRET=1 on a CPU.

TRITON_INTERPRET=1 python -m bench.update.kernels
"""

from itertools import product

import torch

from rljob_trainer.losses.output_head import LogitTransform, rows, triton_rows

DTYPES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
TRANSFORMS = (LogitTransform(), LogitTransform(scale=0.5), LogitTransform(scale=2.0, cap=3.0))
TOKENS = 5


def check(dtype: torch.dtype, transform: LogitTransform, vocabulary: int, device: str) -> None:
    """Values and the gradient, with and without the entropy's; one token is impossible. Raises AssertionError."""
    torch.manual_seed(0)
    products = (torch.randn(TOKENS, vocabulary, device=device) * 3).to(dtype)
    if transform.cap is None:
        products[0, 1] = -torch.inf
    targets = torch.randint(2, vocabulary, (TOKENS,), device=device)
    temperature = torch.rand(TOKENS, device=device) + 0.5
    upstream = torch.randn(3, TOKENS, device=device)
    given = (targets, temperature, transform)
    expected = rows.reduce_rows(products.clone(), *given)
    found = triton_rows.reduce_rows(products.clone(), *given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=3e-5)
    for of_entropies in (None, upstream[1]):
        arguments = (*given, expected, upstream[0], of_entropies, upstream[2])
        torch.testing.assert_close(
            triton_rows.gradient_of_rows(products.clone(), *arguments),
            rows.gradient_of_rows(products.clone(), *arguments),
            rtol=DTYPES[dtype], atol=DTYPES[dtype] / 10,
        )  # fmt: skip


def check_all(device: str, vocabularies: tuple[int, ...] = (7, 8192, 20_000)) -> int:
    """The number of cases that agree."""
    cases = list(product(DTYPES, TRANSFORMS, vocabularies))
    for case in cases:
        check(*case, device)
    return len(cases)


if __name__ == "__main__":
    print(check_all("cpu"), "cases agree")
