"""Which rows of a table a tensor-parallel rank holds."""

from __future__ import annotations


def bounds(total: int, rank: int, tp: int) -> tuple[int, int]:
    """The half-open range of rows of `rank`: floor(total * rank / tp) to floor(total * (rank + 1) / tp).

    Raises ValueError unless total >= 0 and tp >= 1. That rank is below tp is not checked.
    """
    if total < 0 or tp < 1:
        raise ValueError(f"no rows for total={total} rank={rank} tp={tp}")
    return total * rank // tp, total * (rank + 1) // tp


def tiles(total: int, tp: int) -> bool:
    """Whether the ranges of all ranks cover [0, total) without gap or overlap."""
    edge = 0
    for rank in range(tp):
        first, last = bounds(total, rank, tp)
        if first != edge:
            return False
        edge = last
    return edge == total
