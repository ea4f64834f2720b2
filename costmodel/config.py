"""Which cost model to use: one small config class per kind, and `build_cost_model`, which makes the model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, model_validator

from costmodel.graphs import GraphBuckets
from costmodel.linear import Line, LinearModel
from costmodel.model import CostModel
from costmodel.profile import SMALLEST_STEP_S, load_profile
from costmodel.roofline import RooflineAssumptions, RooflineModel
from costmodel.specs import device_spec, model_spec
from costmodel.token_weights import TokenWeightsModel
from costmodel.work import DEFAULT_REFERENCE, EQUAL_WORK, TokenWork, token_work

StepSeconds = Annotated[float, Field(ge=SMALLEST_STEP_S, allow_inf_nan=False)]
TokenSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GraphsConfig(_Config):
    """CUDA-graph buckets. Without `sizes`: vLLM V1's default for `max_num_seqs`."""

    sizes: tuple[PositiveInt, ...] | None = None
    max_num_seqs: PositiveInt = 256
    eager_penalty_s: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _sizes_make_sense(self) -> Self:
        self.buckets()
        return self

    def buckets(self) -> GraphBuckets:
        if self.sizes is None:
            return GraphBuckets.vllm_v1(self.max_num_seqs, self.eager_penalty_s)
        return GraphBuckets(self.sizes, self.eager_penalty_s)


class LinearConfig(_Config):
    """a_s + b_s_per_token * tokens; steps with a prefill chunk may have their own a and b."""

    kind: Literal["linear"] = "linear"
    a_s: StepSeconds
    b_s_per_token: TokenSeconds
    prefill_a_s: StepSeconds | None = None
    prefill_b_s_per_token: TokenSeconds | None = None
    graphs: GraphsConfig | None = None

    def build(self) -> LinearModel:
        line = Line(self.a_s, self.b_s_per_token)
        prefill_line = Line(
            self.a_s if self.prefill_a_s is None else self.prefill_a_s,
            self.b_s_per_token if self.prefill_b_s_per_token is None else self.prefill_b_s_per_token,
        )
        return LinearModel(line, prefill_line, _buckets(self.graphs))


class ProfileConfig(_Config):
    """A calibrated profile: shipped, by name, or a path that ends in .json."""

    kind: Literal["profile"] = "profile"
    name: str
    graphs: GraphsConfig | None = GraphsConfig()
    """Of no effect where the profile says that its device has none."""

    def build(self) -> TokenWeightsModel:
        profile = load_profile(self.name)
        buckets = _buckets(self.graphs) if profile.cuda_graphs else None
        return TokenWeightsModel(profile.terms(), profile.range(), buckets)


class RooflineConfig(_Config):
    """Nominal numbers of a device and a model, and what they do not say. Nothing here was measured."""

    kind: Literal["roofline"] = "roofline"
    device: str
    """A name in costmodel/specs.py, as is `model`."""
    model: str
    tensor_parallel: PositiveInt = 1
    compute_ratio: Share = 0.7
    memory_ratio: Share = 0.8
    host_step_s: StepSeconds = 0.9e-3
    host_request_s: TokenSeconds = 25e-6
    all_reduce_s: TokenSeconds = 8e-6
    """Latency of one all-reduce inside a CUDA graph."""
    graphs: GraphsConfig | None = GraphsConfig()

    @model_validator(mode="after")
    def _specs_are_known(self) -> Self:
        self.build()
        return self

    def build(self) -> RooflineModel:
        assumptions = RooflineAssumptions(
            compute_ratio=self.compute_ratio,
            memory_ratio=self.memory_ratio,
            host_step_s=self.host_step_s,
            host_request_s=self.host_request_s,
            all_reduce_s=self.all_reduce_s,
        )
        return RooflineModel(
            device_spec(self.device),
            model_spec(self.model),
            assumptions,
            tensor_parallel=self.tensor_parallel,
            buckets=_buckets(self.graphs),
        )


def _buckets(graphs: GraphsConfig | None) -> GraphBuckets | None:
    return graphs.buckets() if graphs else None


CostModelConfig = Annotated[LinearConfig | ProfileConfig | RooflineConfig, Field(discriminator="kind")]


def build_cost_model(config: CostModelConfig) -> CostModel:
    """The model that a config describes; a profile is read here, not by the config."""
    return config.build()


def build_token_work(config: CostModelConfig) -> TokenWork:
    """What a token weighs in budgets and reports: equal for the linear model, else from the model without graphs."""
    match config:
        case LinearConfig():
            return EQUAL_WORK
        case ProfileConfig():
            profile = load_profile(config.name)
            return token_work(TokenWeightsModel(profile.terms()), profile.reference)
        case RooflineConfig():
            return token_work(config.model_copy(update={"graphs": None}).build(), DEFAULT_REFERENCE)
