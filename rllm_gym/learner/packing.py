"""From a batch to micro-batches: rows that hold several sequences, and read once what these begin with in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rllm_gym.learner.batch import Batch
from rllm_gym.learner.block_attention import Block


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a padded [B, T] batch stand in rows [R, W] that hold several sequences each.

    A model that is given no attention mask takes positions that begin anew for the border between two sequences: no
    token attends to another sequence, and every one has the position that it has alone. Sequences that begin alike may
    stand there with their beginning once; then a mask says what each token attends to, or blocks do, for models that
    take them (`rllm_gym.learner.block_attention`).

    Args:
        places: int64 [B, T], where in the flattened rows each token is; -1 where the batch is padded.
        num_rows, width: R and W.
        blocks: what attends to what.
        is_shared: whether sequences share tokens.
    """

    places: torch.Tensor
    num_rows: int
    width: int
    blocks: list[Block]
    is_shared: bool

    @cached_property
    def mask(self) -> torch.Tensor | None:
        """bool [R, W, W], which tokens of its row (the last dimension) a token attends to; None: positions tell.

        What is empty attends to itself.
        """
        if not self.is_shared:
            return None
        mask_RWW = torch.eye(self.width, dtype=torch.bool).repeat(self.num_rows, 1, 1)
        for row, query_from, query_to, key_from, key_to, is_own in self.blocks:
            part = torch.ones(query_to - query_from, key_to - key_from, dtype=torch.bool)
            mask_RWW[row, query_from:query_to, key_from:key_to] = part.tril() if is_own else part
        return mask_RWW.to(self.places.device)

    def attention_mask(self, *, by_blocks: bool) -> torch.Tensor | None:
        """Return a model's attention mask, which may be blocks."""
        if by_blocks:
            return torch.tensor(self.blocks, dtype=torch.long).view(1, 1, -1, 6)
        return None if self.mask is None else self.mask[:, None]

    def place(self, sequence_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
        """Return where in the flattened rows the tokens (sequence, column) are, int64 [N]."""
        return self.places[sequence_N, column_N]

    def pack(self, tokens_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and positions, int64 [R, W]; the empty end of a row is a sequence of its own."""
        sequence_N, column_N = (self.places >= 0).nonzero(as_tuple=True)
        place_N = self.places[sequence_N, column_N]
        tokens_P = tokens_BT.new_zeros(self.num_rows * self.width)
        tokens_P[place_N] = tokens_BT[sequence_N, column_N]
        end_R = place_N.new_zeros(self.num_rows)
        end_R.scatter_reduce_(0, place_N // self.width, place_N % self.width + 1, "amax")
        position_P = (torch.arange(self.width, device=tokens_BT.device) - end_R[:, None]).flatten()
        position_P[place_N] = column_N
        return tokens_P.view(self.num_rows, -1), position_P.view(self.num_rows, -1)


@dataclass(frozen=True)
class Tree:
    """Sequences of which each branches off the one before it; or one sequence alone.

    Args:
        rows: of the batch.
        forks: how many tokens each has in common with the one before it; 0 for the first.
        lengths: of the sequences.
    """

    rows: list[int]
    forks: list[int]
    lengths: list[int]

    @property
    def num_tokens(self) -> int:
        """The number of tokens when common ones count once."""
        return sum(self.lengths) - sum(self.forks)


@dataclass
class MicroBatch:
    """Rows of a batch that go through the model at once. A filler has no rows: it only keeps ranks in step."""

    batch: Batch
    rows: torch.Tensor
    packing: Packing | None = None
    is_filler: bool = False
    num_chunks: int = 1

    @classmethod
    def filler(cls, batch: Batch) -> MicroBatch:
        tokens = torch.zeros(1, 2, dtype=torch.long, device=batch.tokens.device)
        empty = Batch(
            tokens=tokens,
            mask=torch.zeros_like(tokens, dtype=torch.bool),
            lengths=torch.tensor([2], device=tokens.device),
            episode=torch.tensor([0], device=tokens.device),
            per_token={name: value.new_zeros(1, 2) for name, value in batch.per_token.items()},
            per_sample={name: value.new_zeros(1) for name, value in batch.per_sample.items()},
        )
        return cls(empty, torch.zeros(0, dtype=torch.long), is_filler=True)

    @property
    def model_inputs(self) -> dict[str, Any]:
        """The columns that modules read; see `LLMModule`."""
        inputs = {"tokens": self.batch.tokens, "mask": self.batch.mask, "lengths": self.batch.lengths}
        return {**inputs, "num_chunks": self.num_chunks, "packing": self.packing}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The columns that losses read."""
        return {"tokens": self.batch.tokens, "mask": self.batch.mask, **self.batch.per_token, **self.batch.per_sample}

    def split_rows(self, out: Mapping[str, torch.Tensor]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each row's sample (see `index` in `collate`) and its part of outputs: float32 [T], or a float."""
        for row in range(0 if self.is_filler else len(self.rows)):
            length = int(self.batch.lengths[row])
            yield (
                int(self.batch.per_sample["index"][row]),
                {
                    name: value[row, :length].cpu().numpy().copy() if value.dim() > 1 else float(value[row])
                    for name, value in out.items()
                },
            )

    def with_chunks(self, num_chunks: int) -> MicroBatch:
        return replace(self, num_chunks=num_chunks)


class _Rows:
    """Rows of a fixed width that are filled first fit; with `is_packed` False a row holds one sequence."""

    def __init__(self, width: int, most: int, *, is_packed: bool) -> None:
        self._width, self._most, self._is_packed = width, most, is_packed
        self._room: list[int] = []  # what is left of each row
        self._trees: list[tuple[Tree, int, int]] = []  # each with its row, and where in it it begins

    def place(self, trees: Sequence[Tree]) -> bool:
        """Place trees if all of them fit, or if there is nothing here yet; return whether they were placed."""
        room, placed = list(self._room), []
        for tree in trees:
            size = tree.num_tokens
            row = next((k for k, left in enumerate(room) if left >= size), len(room))
            if row == len(room):
                room.append(self._width)
            placed.append((tree, row, self._width - room[row]))
            room[row] = room[row] - size if self._is_packed else 0
        if len(room) > self._most and self._room:
            return False
        self._room = room
        self._trees += placed
        return True

    @property
    def rows(self) -> list[int]:
        """The rows of the batch that are here, in the order in which they were placed."""
        return [row for tree, *_ in self._trees for row in tree.rows]

    def packing(self, width_T: int, device: Any) -> Packing | None:
        """Return where all the sequences are, in the order of `rows`; None if each has a row to itself."""
        if len(self._room) == len(self.rows):
            return None
        places = [path for tree, row, start in self._trees for path in _paths(tree, row * self._width + start)]
        place_BT = torch.full((len(places), width_T), -1)
        for path_T, to_T in zip(places, place_BT, strict=True):
            to_T[: len(path_T)] = path_T
        blocks = [block for tree, row, start in self._trees for block in _blocks(tree, row, start)]
        is_shared = any(len(tree.rows) > 1 for tree, *_ in self._trees)
        return Packing(place_BT.to(device), len(self._room), self._width, blocks, is_shared)


def _paths(tree: Tree, start: int) -> Iterator[torch.Tensor]:
    """Yield the places of each sequence's tokens, int64, for a tree that begins at a place."""
    path = torch.zeros(0, dtype=torch.long)
    for fork, length in zip(tree.forks, tree.lengths, strict=True):
        end = start + length - fork
        path = torch.cat([path[:fork], torch.arange(start, end)])
        start = end
        yield path


def _blocks(tree: Tree, row: int, start: int) -> list[Block]:
    """Return the pairs of blocks that attend in a tree from a column on: first each token's own, then those before.

    Branches side by side that go on from the same tokens attend to these in one block.
    """
    own: list[tuple[int, int]] = []
    before: dict[tuple[int, int], list[tuple[int, int]]] = {}  # the queries by their keys
    path: list[tuple[int, int]] = []  # the pieces of the row that the present sequence consists of
    for fork, length in zip(tree.forks, tree.lengths, strict=True):
        path, end = _first(path, fork), start + length - fork
        if end > start:
            _go_on(path, start, end)
            if own and path[-1][0] == own[-1][0]:
                own.pop()  # it goes on where the one before it has ended
            own.append(path[-1])
            for keys in path[:-1]:
                _go_on(before.setdefault(keys, []), start, end)
        start = end
    others = [(row, *queries, *keys, 0) for keys, of in before.items() for queries in of]
    return [(row, *piece, *piece, 1) for piece in own] + others


def _first(pieces: Sequence[tuple[int, int]], num_tokens: int) -> list[tuple[int, int]]:
    """Return the pieces of a row that the first tokens are."""
    found = []
    for start, end in pieces:
        if num_tokens > 0:
            found.append((start, min(end, start + num_tokens)))
        num_tokens -= end - start
    return found


def _go_on(pieces: list[tuple[int, int]], start: int, end: int) -> None:
    """Append a piece, or make the last one longer that ends where it starts."""
    pieces.append((pieces.pop()[0] if pieces and pieces[-1][1] == start else start, end))


def grow_trees(batch: Batch, rows: Sequence[int], most_tokens: int, knee: float) -> list[Tree]:
    """Join neighbours that begin alike, as long as that costs less than to read the beginning again.

    A row of W tokens costs W (1 + W / knee), for each of its tokens attends to all of the row, masked or not: the
    longer the tree, the more a new branch attends to for nothing.
    """
    tokens = batch.tokens.cpu().numpy()
    lengths = batch.lengths.tolist()
    trees: list[Tree] = []

    def cost(num_tokens: int) -> float:
        return num_tokens * (1.0 + num_tokens / knee)

    for row in rows:
        fork = _common(tokens[trees[-1].rows[-1]], tokens[row], lengths[row]) if trees else 0
        fork = min(fork, trees[-1].lengths[-1]) if trees else 0
        before = trees[-1].num_tokens if trees else 0
        after = before + lengths[row] - fork
        for_nothing = cost(after) - cost(before) - (after - before) * (1.0 + lengths[row] / knee)
        if fork and after <= most_tokens and for_nothing <= cost(fork):
            trees[-1].rows.append(row)
            trees[-1].forks.append(fork)
            trees[-1].lengths.append(lengths[row])
        else:
            trees.append(Tree([row], [0], [lengths[row]]))
    return trees


def in_token_order(batch: Batch) -> list[int]:
    """Return the rows so that what has most in common with one of them stands before it."""
    tokens, lengths = batch.tokens.cpu().numpy().astype(">i8"), batch.lengths.tolist()
    return sorted(range(len(lengths)), key=lambda row: tokens[row, : lengths[row]].tobytes())


def _common(one: np.ndarray, other: np.ndarray, most: int) -> int:
    differs = one[:most] != other[:most]
    return int(differs.argmax()) if differs.any() else most


def split_into_micro_batches(
    batch: Batch, tokens_per_micro_batch: int, *, is_packed: bool, knee: float | None = None
) -> list[MicroBatch]:
    """Cut a batch so that the rows of each micro-batch are within the budget; pairs stay whole, even if one exceeds it.

    Args:
        is_packed: let rows hold several sequences; a row is as long as the micro-batch's longest sequence, or tree.
        knee: read what sequences begin with in common once, see `grow_trees`; None: read each whole.
    """
    lengths = batch.lengths.tolist()
    pairs = batch.per_sample.get("pair")
    are_pairs = pairs is not None and bool((pairs >= 0).any())
    units = batch.units() if are_pairs else [list(range(len(lengths)))]
    # What goes into one micro-batch: the trees of a pair, or one tree.
    if knee is None:
        whole = [[Tree([row], [0], [lengths[row]]) for row in unit] for unit in units]
    else:
        units = units if are_pairs else [in_token_order(batch)]
        whole = [grow_trees(batch, unit, tokens_per_micro_batch, knee) for unit in units]
    if not are_pairs:
        whole = [[tree] for tree in whole[0]]
    parts: list[_Rows] = []
    for trees in sorted(whole, key=lambda trees: -max(tree.num_tokens for tree in trees)):
        if not parts or not parts[-1].place(trees):
            width = max(tree.num_tokens for tree in trees)
            parts.append(_Rows(width, tokens_per_micro_batch // width, is_packed=is_packed))
            parts[-1].place(trees)
    out = []
    for part in parts:
        index = torch.tensor(part.rows)
        selected = batch.select(index)
        out.append(MicroBatch(selected, index, part.packing(selected.tokens.shape[1], selected.tokens.device)))
    return out
