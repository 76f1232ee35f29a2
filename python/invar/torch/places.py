"""Where the rows of attention stand: their positions, their slots in blocks of keys and values, and the tables of blocks."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

DENSE_BLOCK = 64  # slots of a block where no cache is given
MANY_ROWS = 16    # tables of so many rows are read by tiles of rows (src/kernels/inference.h)


class Places(NamedTuple):
    """int32 tensors on one device, T rows: see QkvParams and AttentionParams in src/kernels/inference.h."""

    positions: Tensor    # [T]
    write_begin: Tensor  # [T + 1]
    write_block: Tensor  # [T]
    write_slot: Tensor   # [T]
    table_of: Tensor     # [T]
    tables: Tensor       # addresses of tables, int64
    offsets: Tensor      # [T], of a row in its sequence's new rows
    few_rows: Tensor     # [1 + T]
    fewest_rows: int
    most_rows: int
    kept: Tensor         # the tables that `tables` points to


class _Rows(NamedTuple):
    """The places that follow from the sequences' numbers of rows alone."""

    offsets: Tensor  # of a row in its sequence
    sequence: Tensor
    write_begin: Tensor
    few_rows: Tensor
    fewest: int
    most: int


_rows: dict[tuple[tuple[int, ...], torch.device], _Rows] = {}
_sequences: dict[tuple[tuple[int, ...], torch.device], tuple[Places, int]] = {}
_MOST_KEPT = 512
_recorded: list[object] = []  # what graphs read, for as long as they may be launched


def _known(kept: dict, key: tuple[tuple[int, ...], torch.device]):
    found = kept.get(key)
    if found is not None and key[1].type == "cuda" and torch.cuda.is_current_stream_capturing():
        _recorded.append(found)
    return found


def _keep(kept: dict, key: tuple[tuple[int, ...], torch.device], made):
    if len(kept) >= _MOST_KEPT:
        kept.pop(next(iter(kept)))
    kept[key] = made
    return made


def _expect_known(device: torch.device) -> None:
    """Tables of new lengths are copied from the host, which cannot be recorded."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("attention: expected lengths that were used before the graph's recording began, found new ones")


def _rows_of(lengths: tuple[int, ...], device: torch.device) -> _Rows:
    known = _known(_rows, (lengths, device))
    if known is not None:
        return known
    if not lengths or min(lengths) < 1:
        raise ValueError("expected sequences of at least one row each")
    _expect_known(device)
    offsets = [i for length in lengths for i in range(length)]
    sequence = [s for s, length in enumerate(lengths) for _ in range(length)]
    few = [t for t, s in enumerate(sequence) if lengths[s] < MANY_ROWS]
    few_rows = [len(few), *few, *[0] * (len(offsets) - len(few))]
    made = _Rows(*(torch.tensor(one, dtype=torch.int32, device=device)
                   for one in (offsets, sequence, list(range(len(offsets) + 1)), few_rows)), min(lengths), max(lengths))
    return _keep(_rows, (lengths, device), made)


def empty(lengths: tuple[int, ...], starts: Tensor, tables: Tensor) -> Places:
    """The result of in_tables before the parts that follow from the tensors are there."""
    rows, count = _rows_of(lengths, tables.device), len(lengths)
    if tables.dim() != 2 or tables.shape[0] != count or starts.shape != (count,):
        raise ValueError(f"expected a start and a table for each of {count} sequences, found {list(starts.shape)} and "
                         f"{list(tables.shape)}")
    made = [torch.empty_like(rows.offsets) for _ in range(3)]
    return Places(positions=made[0], write_begin=rows.write_begin, write_block=made[1], write_slot=made[2], table_of=rows.sequence,
                  tables=torch.empty(count, dtype=torch.int64, device=tables.device), offsets=rows.offsets, few_rows=rows.few_rows,
                  fewest_rows=rows.fewest, most_rows=rows.most, kept=tables.detach().contiguous())


def in_tables(lengths: tuple[int, ...], starts: Tensor, tables: Tensor, block_size: int) -> Places:
    """New rows of sequences that have `starts` [S] rows in blocks before: tables [S, B] int32."""
    at = empty(lengths, starts, tables)
    count, width = tables.shape
    positions = at.offsets + starts.detach().to(torch.int32)[at.table_of]
    page, begin = positions // block_size, at.kept.data_ptr()
    return at._replace(positions=positions, write_block=at.kept[at.table_of, page], write_slot=positions - page * block_size,
                       tables=torch.arange(begin, begin + count * width * 4, width * 4, dtype=torch.int64, device=tables.device))


def of_sequences(lengths: tuple[int, ...], device: torch.device) -> tuple[Places, int]:
    """Whole sequences in blocks of their own, and how many blocks that are."""
    known = _known(_sequences, (lengths, device))
    if known is not None:
        return known
    _rows_of(lengths, device)
    each = [-(-length // DENSE_BLOCK) for length in lengths]
    table, first = torch.zeros(len(lengths), max(each), dtype=torch.int32), 0
    for s, blocks in enumerate(each):
        table[s, :blocks] = torch.arange(first, first + blocks)
        first += blocks
    made = in_tables(lengths, torch.zeros(len(lengths), dtype=torch.int32, device=device), table.to(device), DENSE_BLOCK), first
    return _keep(_sequences, (lengths, device), made)


def cache(blocks: int, kv_heads: int, head_dim: int, block_size: int, device: torch.device, order: str) -> tuple[Tensor, Tensor]:
    """Empty blocks of keys and of values, [blocks, G, elements] bf16, as the kernels of a device and an order read them."""
    def up(x: int, multiple: int) -> int:
        return (x + multiple - 1) // multiple * multiple
    rows = device.type == "cuda" and order == "hopper"
    widths = [up(head_dim, 8)] * 2 if rows else [up(head_dim, 32), up(head_dim, 16)]
    keys, values = (torch.zeros(blocks, kv_heads, block_size * width, dtype=torch.bfloat16, device=device) for width in widths)
    return keys, values


def expect_inside(at: Places, blocks: int, positions: int) -> None:
    """Throws where a row has no block or no angle. Of CUDA's tensors nobody looks at the numbers."""
    for what, numbers, end in (("blocks", at.write_block, blocks), ("blocks", at.kept, blocks), ("positions", at.positions, positions)):
        if numbers.min() < 0 or numbers.max() >= end:
            raise ValueError(f"expected {what} from 0 to {end - 1}, found {int(numbers.min())} to {int(numbers.max())}")


def attend(kernel: Callable[[dict[str, Any]], None], shape: dict[str, Any], at: Places, qkv: Tensor, keys: Tensor, values: Tensor,
           block_size: int, **others: Any) -> Tensor:
    """Writes these rows' keys and values to their slots, then attends: [T, H * E] bf16. shape: packed_attention's keywords."""
    heads, head_dim, rows = shape["heads"], shape["head_dim"], qkv.shape[0]
    padded = (head_dim + 31) // 32 * 32
    # The room between heads of whole leaves stays zero.
    make = qkv.new_empty if padded == head_dim else qkv.new_zeros
    out = qkv.new_empty(rows, (heads * head_dim + 31) // 32 * 32, dtype=torch.bfloat16)
    kernel({**shape, **at._asdict(), "qkv": qkv, "keys": keys, "values": values, "block_size": block_size, "out": out,
            "q": make(rows, heads, padded, dtype=torch.bfloat16), "non_finite": qkv.new_empty(rows, dtype=torch.bool), **others})
    return out[:, :heads * head_dim].contiguous()
