"""What is special about CUDA, as far as it can be told without one: decisions, order of calls, FlashInfer's tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from calibrate import cuda
from calibrate.kernels import TorchPagedAttention
from calibrate.paged import BlockPool
from calibrate.transformer import Transformer
from tests.calibrate.small_run import TINY

CPU = torch.device("cpu")
MIXED = [(20, 37, True), (9, 0, True), (1, 100, False), (1, 31, False), (3, 64, False), (3, 15, False)]


class FakeWrapper:
    """FlashInfer's batch wrappers over NHD pages, with dense attention: reads only what was planned."""

    def __init__(self, workspace: torch.Tensor, layout: str, use_tensor_cores: bool = False) -> None:
        assert layout == "NHD"
        self.decodes = use_tensor_cores

    def plan(self, *arguments: Any, causal: bool = False, q_data_type: Any, kv_data_type: Any) -> None:
        assert causal != self.decodes
        if self.decodes:
            arguments = (torch.arange(len(arguments[0])), *arguments)
        self.rows, self.indptr, self.indices, self.last, self.query_heads, self.kv_heads, self.size, self.page = (
            arguments
        )

    def run(self, queries: torch.Tensor, pages: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        parts = []
        for i in range(len(self.last)):
            table = self.indices[self.indptr[i] : self.indptr[i + 1]].long()
            length = (len(table) - 1) * self.page + int(self.last[i])
            keys, values = (p[table].flatten(0, 1)[:length].transpose(0, 1)[None] for p in pages)
            mine = queries[self.rows[i] : self.rows[i + 1]].transpose(0, 1)[None]
            seen = torch.ones(mine.shape[2], length, dtype=torch.bool).tril(length - mine.shape[2])
            attend = torch.nn.functional.scaled_dot_product_attention
            parts.append(attend(mine, keys, values, seen, enable_gqa=True)[0].transpose(0, 1))
        return torch.cat(parts)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fake = ModuleType("flashinfer")
    fake.BatchDecodeWithPagedKVCacheWrapper = fake.BatchPrefillWithPagedKVCacheWrapper = FakeWrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    monkeypatch.delitem(sys.modules, "calibrate.flashinfer_kernels", raising=False)
    yield
    sys.modules.pop("calibrate.flashinfer_kernels", None)


def test_flashinfer_is_given_tables_that_mean_the_same_batch(flashinfer: None) -> None:
    from calibrate.flashinfer_kernels import FlashInferAttention

    torch.manual_seed(0)
    pool = BlockPool(64, 16, 0)
    batch = pool.place(MIXED)
    ours = TorchPagedAttention(TINY, 64, 16, dtype=torch.float32, device=CPU)
    theirs = FlashInferAttention(TINY, 64, 16, dtype=torch.float32, device=CPU)
    slots = torch.arange(64 * 16)
    keys, values = torch.randn(2, 64 * 16, TINY.kv_heads, TINY.head_dim)
    for attention in (ours, theirs):
        attention.write(0, keys, values, slots)
    queries = torch.randn(sum(tokens for tokens, _, _ in MIXED), TINY.query_heads, TINY.head_dim)
    want, got = (attention.attend(0, queries, attention.plan(batch)) for attention in (ours, theirs))
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def test_a_kept_plan_is_not_touched_by_the_next(flashinfer: None) -> None:
    from calibrate.flashinfer_kernels import FlashInferAttention

    pool = BlockPool(64, 16, 0)
    attention = FlashInferAttention(TINY, 64, 16, dtype=torch.float32, device=CPU)
    ((_, captured),) = attention.plan(pool.place([(1, 100, False)]))
    attention.keep_plan()
    ((_, later),) = attention.plan(pool.place([(1, 5, False)]))
    assert captured is not later
    assert len(captured.indices) == 7


def test_flashinfer_that_cannot_run_is_named_and_done_without(
    flashinfer: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert cuda._flashinfer_runs(TINY, torch.float32, CPU)
    assert "out of --minutes" in capsys.readouterr().err

    def no_compiler(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError("no nvcc")

    monkeypatch.setattr(FakeWrapper, "plan", no_compiler)
    assert not cuda._flashinfer_runs(TINY, torch.float32, CPU)
    assert "FlashInfer cannot be used here (FileNotFoundError: no nvcc): SDPA instead" in capsys.readouterr().err
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert not cuda._flashinfer_runs(TINY, torch.float32, CPU)
    assert capsys.readouterr().err == ""


def test_a_failed_task_gives_the_memory_back_and_leaves_the_usual_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: "default")
    monkeypatch.setattr(torch.cuda, "set_stream", calls.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    cuda.CudaPlatform.__new__(cuda.CudaPlatform).release()
    assert calls == ["default", "emptied"]


def transformer() -> Transformer:
    attention = TorchPagedAttention(TINY, 64, 16, dtype=torch.float32, device=CPU)
    return Transformer(TINY, attention, 16, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    ("parts", "graphed"),
    [
        ([(1, 50, False), (3, 20, False)], True),
        ([(5, 50, True), (1, 20, False)], False),
        ([(1, 0, False)] * 513, False),
    ],
)
def test_graphs_are_used_where_engines_use_them(
    monkeypatch: pytest.MonkeyPatch, parts: list[tuple[int, int, bool]], graphed: bool
) -> None:
    used = []
    monkeypatch.setattr(cuda, "_graphed", lambda *arguments: used.append(arguments))
    platform = cuda.CudaPlatform.__new__(cuda.CudaPlatform)
    batch = BlockPool(600, 16, 0).place(parts)
    platform.step_run(transformer(), [1] * sum(tokens for tokens, _, _ in parts), batch)
    assert bool(used) == graphed


def test_a_graphed_step_prepares_every_time_and_computes_what_the_plain_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replays = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: replays.append(1)))
    model = transformer()
    batch = BlockPool(64, 16, 0).place([(1, 50, False), (3, 20, False)])
    run = cuda._graphed(model, [1, 2, 3, 4], batch)
    prepared: list[int] = []
    prepare = model.prepare
    monkeypatch.setattr(model, "prepare", lambda *arguments: prepared.append(1) or prepare(*arguments))
    _, tokens = run()  # type: ignore[misc]
    run()
    assert tokens == model.step([1, 2, 3, 4], batch)
    assert (len(replays), len(prepared)) == (2, 3)


def test_driver_and_clocks_come_from_nvidia_smi_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(stdout="570.86.10, 345, [N/A], 1980, 3201\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: answer)
    assert cuda._driver_and_clocks("1f") == ("570.86.10", {"sm": 345.0, "max_sm": 1980.0, "max_mem": 3201.0})

    def missing(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", missing)
    assert cuda._driver_and_clocks("1f") == (None, {})
