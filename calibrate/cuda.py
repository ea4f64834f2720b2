"""All that is special about CUDA: events, the L2 flush, graphs, pinned memory, clocks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from calibrate.cases import Limits
from calibrate.environment import BLOCK_TOKENS, memory_limits
from calibrate.kernels import PagedAttention, TorchPagedAttention
from calibrate.paged import PagedSequence
from calibrate.records import DeviceInfo, Kernels
from calibrate.timing import Run
from calibrate.transformer import Transformer
from costmodel.specs import ModelSpec

MAX_TOKENS, MAX_REQUESTS, POOL_TOKENS = 8192, 256, 1 << 20
MEMORY_RATIO = 0.7
"""The rest is for activations: plain torch gathers a layer's KV before it attends."""
FLUSHED_BYTES = 512 << 20
"""Four times the largest L2 (B200's 126 MB); writing so much takes as long as queueing some 25 launches."""
EVENT_RESOLUTION_S = 0.5e-6
"""By CUDA's documentation of cudaEventElapsedTime."""
LARGEST_GRAPH_ROWS = 512
"""vLLM V1 captures up to so many rows by default."""
MS_PER_S = 1e3
LONGEST_REASON = 200
CLOCK_QUERY = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem")


class CudaClock:
    """CUDA events around a block. What the host does inside the block counts where the device waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._ballast = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device)
        overhead_s = min(self.block_seconds(lambda: None, 1) for _ in range(100))
        self.timer_overhead_s = max(overhead_s, EVENT_RESOLUTION_S)

    def block_seconds(self, run: Run, times: int, /) -> float:
        # torch's events and streams have no type annotations
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / MS_PER_S

    def flush(self) -> None:
        """Not waited for: the host queues what comes next meanwhile, so that its launches are not timed."""
        self._ballast.zero_()


class CudaPlatform:
    """One GPU. FlashInfer's kernels if they are wanted, installed and run this model, else SDPA and plain torch."""

    def __init__(self, model: ModelSpec, dtype: torch.dtype, *, use_flashinfer: bool) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.clock = CudaClock(self.device)
        usable = use_flashinfer and _flashinfer_runs(model, dtype, self.device)
        self.kernels: Kernels = "flashinfer" if usable else "sdpa"
        self.kernels_version = _installed_version("flashinfer-python") if usable else None

    def info(self) -> DeviceInfo:
        properties = torch.cuda.get_device_properties(self.device)
        driver, clocks = _driver_and_clocks(str(properties.uuid))
        return DeviceInfo(
            name=properties.name,
            kind="cuda",
            driver=driver,
            memory_bytes=properties.total_memory,
            threads=None,
            clock="cuda_events",
            clocks_mhz=clocks,
        )

    def limits(self, model: ModelSpec, dtype: torch.dtype) -> Limits:
        room = int(torch.cuda.get_device_properties(self.device).total_memory * MEMORY_RATIO)
        return memory_limits(model, dtype, room, MAX_TOKENS, MAX_REQUESTS, POOL_TOKENS)

    def attention(self, model: ModelSpec, num_blocks: int, dtype: torch.dtype) -> PagedAttention:
        if self.kernels == "flashinfer":
            from calibrate.flashinfer_kernels import FlashInferAttention

            return FlashInferAttention(model, num_blocks, BLOCK_TOKENS, dtype=dtype, device=self.device)
        return TorchPagedAttention(model, num_blocks, BLOCK_TOKENS, dtype=dtype, device=self.device)

    def step_run(self, model: Transformer, token_ids: Sequence[int], batch: Sequence[PagedSequence]) -> Run:
        """In a CUDA graph where engines use one: no chunk in the batch, and not too many rows."""
        if any(sequence.prompt for sequence in batch) or len(token_ids) > LARGEST_GRAPH_ROWS:
            return lambda: model.step(token_ids, batch)
        return _graphed(model, token_ids, batch)

    def host_buffer(self, num_blocks: int, block_bytes: int) -> torch.Tensor:
        return torch.zeros((num_blocks, block_bytes), dtype=torch.uint8, pin_memory=True)

    def release(self) -> None:
        """A capture that failed may have left its own stream the current one.

        A device that has broken down fails here as well: the tasks that follow will say so.
        """
        with suppress(RuntimeError):
            torch.cuda.set_stream(torch.cuda.default_stream())
            torch.cuda.empty_cache()


def _flashinfer_runs(model: ModelSpec, dtype: torch.dtype, device: torch.device) -> bool:
    """Tries one small batch, which compiles the kernels where that was not done before; says so if it fails.

    It does on some head sizes, in float32, and without a CUDA compiler where the kernels were not installed with it.
    """
    if find_spec("flashinfer") is None:
        return False
    print("trying FlashInfer: its first use on a machine compiles for some minutes, out of --minutes", file=sys.stderr)
    try:
        from calibrate.flashinfer_kernels import try_out

        try_out(model, dtype, device)
        torch.cuda.synchronize()
    except Exception as error:  # whatever a compiler, a loader or a kernel may raise: SDPA does without
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        print(f"FlashInfer cannot be used here ({type(error).__name__}: {reason}): SDPA instead", file=sys.stderr)
        return False
    return True


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _graphed(model: Transformer, token_ids: Sequence[int], batch: Sequence[PagedSequence]) -> Run:
    """Preparation on the host as ever, then one launch. The graph reads the inputs it was captured with, which are
    equal to those just prepared: what an engine copies into its static buffers is a few kilobytes."""
    captured = model.prepare(token_ids, batch)
    model.attention.keep_plan()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model.forward(captured)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampled = model.forward(captured)

    def run() -> object:
        model.prepare(token_ids, batch)
        graph.replay()
        return captured, sampled.tolist()

    return run


def _driver_and_clocks(uuid: str) -> tuple[str | None, dict[str, float]]:
    """From nvidia-smi; what it does not tell is left out."""
    query = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(CLOCK_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None, {}
    driver, *clocks = (cell.strip() for cell in answer.strip().split(","))
    names = (name.removeprefix("clocks.").replace(".", "_") for name in CLOCK_QUERY[1:])
    return driver, {name: float(mhz) for name, mhz in zip(names, clocks, strict=False) if mhz.isdecimal()}
