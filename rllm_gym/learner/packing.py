"""Packing: several sequences behind each other in one row, each with positions that begin anew at 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rllm_gym.learner.batch import Batch, MicroBatch

Place = tuple[int, int]  # a row, and where in it a sequence begins


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a padded [B, T] batch stand in rows [R, W] that hold several sequences each.

    A model that is given no attention mask takes positions that begin anew for the border between two sequences: no
    token attends to another sequence, and every one has the position that it has alone.

    Args:
        row, start: int64 [B], the row of each sequence and where in it the sequence begins.
        lengths: int64 [B].
        num_rows, width: R and W.
    """

    row: torch.Tensor
    start: torch.Tensor
    lengths: torch.Tensor
    num_rows: int
    width: int

    @classmethod
    def at(cls, places: Sequence[Place], lengths_B: torch.Tensor, *, num_rows: int, width: int) -> Packing:
        row_B, start_B = torch.tensor(places, device=lengths_B.device).unbind(1)
        return cls(row_B, start_B, lengths_B, num_rows, width)

    def pack(self, tokens_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and positions, int64 [R, W]; the empty end of a row is a sequence of its own."""
        is_token_BT, place_N = self._places(tokens_BT.shape[1])
        tokens_P = tokens_BT.new_zeros(self.num_rows * self.width)
        tokens_P[place_N] = tokens_BT[is_token_BT]
        column_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        end_R = column_T.new_zeros(self.num_rows).scatter_reduce(0, self.row, self.start + self.lengths, "amax")
        position_P = (torch.arange(self.width, device=tokens_BT.device) - end_R[:, None]).flatten()
        position_P[place_N] = column_T.expand_as(tokens_BT)[is_token_BT]
        return tokens_P.view(self.num_rows, -1), position_P.view(self.num_rows, -1)

    def unpack(self, hidden_RWH: torch.Tensor, num_columns: int) -> torch.Tensor:
        """Return [B, T, H], 0 in the padding, of what the model made of packed rows."""
        is_token_BT, place_N = self._places(num_columns)
        hidden_BTH = hidden_RWH.new_zeros(*is_token_BT.shape, hidden_RWH.shape[-1])
        return hidden_BTH.index_put(is_token_BT.nonzero(as_tuple=True), hidden_RWH.flatten(0, 1)[place_N])

    def _places(self, num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the batch has tokens, bool [B, T], and the place of each of them in the rows, int64 [N]."""
        column_T = torch.arange(num_columns, device=self.row.device)
        is_token_BT = column_T < self.lengths[:, None]
        place_BT = (self.row * self.width + self.start)[:, None] + column_T
        return is_token_BT, place_BT[is_token_BT]


class _Rows:
    """Rows of a fixed width that are filled first fit; with `is_packed` False a row holds one sequence."""

    def __init__(self, width: int, most: int, *, is_packed: bool) -> None:
        self._width, self._most, self._is_packed = width, most, is_packed
        self._room: list[int] = []  # what is left of each row
        self.places: list[Place] = []

    def place(self, lengths: Sequence[int]) -> bool:
        """Place sequences if all of them fit, or if there is nothing here yet; return whether they were placed."""
        room, places = list(self._room), []
        for length in lengths:
            row = next((k for k, left in enumerate(room) if left >= length), len(room))
            if row == len(room):
                room.append(self._width)
            places.append((row, self._width - room[row]))
            room[row] = room[row] - length if self._is_packed else 0
        if len(room) > self._most and self._room:
            return False
        self._room = room
        self.places += places
        return True

    def packing(self, lengths_B: torch.Tensor) -> Packing | None:
        """Return where all the sequences are; None if each has a row to itself."""
        if len(self._room) == len(self.places):
            return None
        return Packing.at(self.places, lengths_B, num_rows=len(self._room), width=self._width)


def pack_into_micro_batches(batch: Batch, tokens_per_micro_batch: int, *, is_packed: bool) -> list[MicroBatch]:
    """Cut a batch so that the rows of each micro-batch are within the budget; units stay whole, even if one exceeds it.

    Args:
        is_packed: let rows hold several sequences; a row is as long as the micro-batch's longest sequence.
    """
    lengths = batch.lengths.tolist()
    parts: list[tuple[list[int], _Rows]] = []
    for unit in sorted(batch.units(), key=lambda rows: -max(lengths[row] for row in rows)):
        wanted = [lengths[row] for row in unit]
        if not parts or not parts[-1][1].place(wanted):
            width = max(wanted)
            parts.append(([], _Rows(width, tokens_per_micro_batch // width, is_packed=is_packed)))
            parts[-1][1].place(wanted)
        parts[-1][0].extend(unit)
    out = []
    for rows, space in parts:
        index = torch.tensor(rows)
        selected = batch.select(index)
        out.append(MicroBatch(selected, index, packing=space.packing(selected.lengths)))
    return out
