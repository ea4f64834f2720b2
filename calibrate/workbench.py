"""Everything that a run times, built once: the model, its KV, and for every task something to execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.nn import functional

from calibrate.cases import Limits
from calibrate.environment import Platform, is_out_of_memory
from calibrate.paged import BlockPool
from calibrate.tasks import TaskSpec
from calibrate.timing import Effort, Run, raw_samples
from calibrate.transformer import Transformer
from costmodel.specs import ModelSpec

POOL_SEED = 1
FIRST_LAYER = 0


class Workbench:
    """Times tasks on one platform. Operators are timed with cold caches, as the rest of a step would have left them;
    a step fills the caches by itself."""

    def __init__(self, at: Platform, model: ModelSpec, limits: Limits, dtype: torch.dtype) -> None:
        self._at = at
        self._model = model
        self._dtype = dtype
        self._pool = BlockPool(limits.pool_tokens // limits.block_tokens, limits.block_tokens, POOL_SEED)
        self._attention = at.attention(model, self._pool.num_blocks, dtype)
        self._transformer = Transformer(model, self._attention, limits.block_tokens, dtype=dtype, device=at.device)
        self._makers: Mapping[str, Callable[[TaskSpec], Run]] = {
            "step": self._step,
            "gemm": self._gemm,
            "prefill_attention": self._attend,
            "decode_attention": self._attend,
            "verify_attention": self._attend,
            "copy": self._copy,
            "swap_out": self._swap_out,
            "swap_in": self._swap_in,
            "launch": self._launch,
        }

    def samples(self, task: TaskSpec, effort: Effort) -> tuple[float, ...]:
        """Raw seconds of one task. Raises what torch raises when it has no memory."""
        with torch.inference_mode():
            run = self._makers[task.kind](task)
            return raw_samples(run, self._at.clock, effort, cold=task.kind not in ("step", "launch"))

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def release(self) -> None:
        self._at.release()

    def _step(self, task: TaskSpec) -> Run:
        batch = self._pool.sequences(task)
        token_ids = [place % self._model.vocabulary for place in range(task.shape.tokens)]
        return self._at.step_run(self._transformer, token_ids, batch)

    def _gemm(self, task: TaskSpec) -> Run:
        if task.gemm == "lm_head":
            weight = self._transformer.lm_head
        else:
            weight = getattr(self._transformer.layers[FIRST_LAYER], task.gemm)
        assert weight.shape == (task.n, task.k), (weight.shape, task)
        return partial(functional.linear, self._random(task.rows, task.k), weight)

    def _attend(self, task: TaskSpec) -> Run:
        batch = self._pool.sequences(task)
        queries = self._random(sum(s.tokens for s in batch), self._model.query_heads, self._model.head_dim)
        return partial(self._attention.attend, FIRST_LAYER, queries, self._attention.plan(batch))

    def _copy(self, task: TaskSpec) -> Run:
        """Blocks copied to others on the device, as copy-on-write does."""
        pool, chosen = self._blocks(task)
        target = torch.arange(task.num_blocks, 2 * task.num_blocks, device=self._at.device)
        return lambda: pool.index_copy_(0, target, pool.index_select(0, chosen))

    def _swap_out(self, task: TaskSpec) -> Run:
        """Scattered blocks gathered on the device, then one copy to the host."""
        pool, chosen = self._blocks(task)
        host = self._at.host_buffer(*self._block_shape(task))
        return lambda: host.copy_(pool.index_select(0, chosen))

    def _swap_in(self, task: TaskSpec) -> Run:
        """One copy from the host, then scattered to the blocks' places."""
        pool, chosen = self._blocks(task)
        host = self._at.host_buffer(*self._block_shape(task))
        staging = torch.empty(self._block_shape(task), dtype=torch.uint8, device=self._at.device)
        return lambda: pool.index_copy_(0, chosen, staging.copy_(host))

    def _launch(self, task: TaskSpec) -> Run:
        """The smallest operation there is: what it costs is what starting any costs."""
        one = torch.zeros(1, device=self._at.device)
        return lambda: one.add_(1)

    def _blocks(self, task: TaskSpec) -> tuple[torch.Tensor, torch.Tensor]:
        """Twice the blocks needed, and which of the first half are meant, in scattered order."""
        blocks, block_bytes = self._block_shape(task)
        pool = torch.zeros((2 * blocks, block_bytes), dtype=torch.uint8, device=self._at.device)
        order = torch.Generator().manual_seed(POOL_SEED)
        return pool, torch.randperm(blocks, generator=order).to(self._at.device)

    @staticmethod
    def _block_shape(task: TaskSpec) -> tuple[int, int]:
        return task.num_blocks, task.num_bytes // task.num_blocks

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=self._dtype, device=self._at.device)
