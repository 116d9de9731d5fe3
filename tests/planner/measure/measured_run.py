"""One run of a real model, with what is needed to hold it against its prediction."""

from __future__ import annotations

from dataclasses import dataclass

from planner import Hardware, Launch, MemoryPlan, Model, predict
from planner.launch import resolve_context
from planner.measure import Measurement, Progress
from planner.measure.users import Workload, workload_for
from planner.memory import Learned, LearnedSize


@dataclass(frozen=True, slots=True)
class Run:
    """One launch, measured."""

    model: Model
    launch: Launch
    measurement: Measurement
    progress: tuple[Progress, ...]

    @property
    def workload(self) -> Workload:
        """What each person sent and got."""
        return workload_for(resolve_context(self.launch, self.model.hyperparameters.n_ctx_train))

    def predict(self, overhead_bytes: int | None = None) -> MemoryPlan:
        """The prediction for this machine and the prompts that were sent."""
        known = {} if overhead_bytes is None else {(): LearnedSize(overhead_bytes)}
        return predict(
            self.model,
            self.launch,
            Hardware.detect(),
            learned=Learned(overhead=known),
            prompt_tokens=self.workload.prompt_tokens,
        )
