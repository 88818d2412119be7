"""The pairs and controls of proof.py, in the open.

A job is an ordinary training script in `pairs/`, `controls/` or `examples/`. The fix is the unified diff of the same
name: the edit that the finding asks for, and no other. A pair has a defect that its fix takes away. A control has none,
or one whose fix cannot pay on a machine of two cores; its diff is measured, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAIR_FOLDER, CONTROL_FOLDER, EXAMPLES = HERE / "pairs", HERE / "controls", HERE.parents[1] / "examples"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job, and what there is to be said of it."""

    job: str
    """File name of the script without its ending."""
    rule: str | None = None
    """Id of the rule whose fix the diff is; None: there is nothing to fix, and no diff."""
    asks: str = ""
    """Code that the finding has to ask for, in its fix or its changed code."""
    arguments: tuple[str, ...] = ()
    """Of the script."""
    steps: int
    """Optimizer steps that are timed in one run: whole periods of what the job does now and then, 2 to 4 s."""
    recorded: int = 8
    """Optimizer steps of a recording."""
    ranks: int = 1
    is_control: bool = False
    """No finding may be certain of a saving."""
    is_found: bool = False
    """The rule is known to find the defect, on any machine."""

    @property
    def script(self) -> Path:
        """The job as it is."""
        own = CONTROL_FOLDER if self.is_control else PAIR_FOLDER
        return next(path for folder in (own, EXAMPLES) if (path := folder / f"{self.job}.py").is_file())

    @property
    def diff(self) -> Path | None:
        """The fix; None: there is none."""
        path = (CONTROL_FOLDER if self.is_control else PAIR_FOLDER) / f"{self.job}.diff"
        return path if path.is_file() else None


LOADER, SAVING, LOGGING = "starved-input", "synchronous-checkpoint", "logging-in-step"
COLLECTING, COMPILING = "garbage-collection", "recompilation"
LOOP, OPTIMIZER = "loop-indexing", "single-tensor-optimizer"
ENDLESS = ("--seconds", "1000")
WORKERS, SELDOM, RARELY = "num_workers=2", "less often", "100"

PAIRS = (
    Case(job="digits_classifier", arguments=ENDLESS, rule=LOADER, asks=WORKERS, steps=48, is_found=True),
    Case(job="tokenize_on_the_fly", rule=LOADER, asks=WORKERS, steps=30, is_found=True),
    Case(job="augmented_resnet", rule=LOADER, asks=WORKERS, steps=30, is_found=True),
    Case(job="remote_samples", rule=LOADER, asks=WORKERS, steps=80, is_found=True),
    Case(job="one_worker", rule=LOADER, asks="num_workers", steps=60, is_found=True),
    Case(job="workers_every_epoch", rule=LOADER, asks="persistent_workers=True", steps=48, recorded=16),
    Case(job="trainer_collates", rule=LOADER, asks=WORKERS, steps=40),
    Case(job="lightning_spectrograms", rule=LOADER, asks=WORKERS, steps=64, is_found=True),
    Case(job="frequent_checkpoints", arguments=ENDLESS, rule=SAVING, asks=SELDOM, steps=60, recorded=16, is_found=True),
    Case(job="checkpoint_fsync", rule=SAVING, asks=SELDOM, steps=64, recorded=16, is_found=True),
    Case(job="checkpoint_every_ten", rule=SAVING, asks=SELDOM, steps=100, recorded=20, is_found=True),
    Case(job="trainer_saves", rule=SAVING, asks=SELDOM, steps=30, recorded=10),
    Case(job="pickled_state", rule=SAVING, asks=SELDOM, steps=200, recorded=100),
    Case(job="printed_tensors", rule=LOGGING, asks=RARELY, steps=400, recorded=100, is_found=True),
    Case(job="logged_samples", rule=LOGGING, asks=RARELY, steps=400, recorded=40),
    Case(job="progress_bar", rule=LOGGING, asks=RARELY, steps=2000, recorded=200),
    Case(job="collect_every_step", rule=COLLECTING, asks="gc.freeze()", steps=12, recorded=4, is_found=True),
    Case(job="collect_with_index", rule=COLLECTING, asks="gc.freeze()", steps=60, recorded=10, is_found=True),
    Case(job="lightning_collects", rule=COLLECTING, asks="gc.freeze()", steps=8, recorded=4, is_found=True),
    Case(job="compiled_sentences", rule=COMPILING, asks="dynamic=True", steps=8, recorded=1, is_found=True),
    Case(job="compiled_multiscale", rule=COMPILING, asks="dynamic=True", steps=8, recorded=1, is_found=True),
    Case(job="compiled_point_sets", rule=COMPILING, asks="dynamic=True", steps=8, recorded=1, is_found=True),
    Case(job="recurrent_loop", arguments=ENDLESS, rule=LOOP, asks="unbind", steps=40),
    Case(job="gru_cell_loop", rule=LOOP, asks="unbind", steps=60),
    Case(job="loss_per_sample", rule=LOOP, asks="unbind", steps=150),
    Case(job="attention_decoder", rule=LOOP, asks="unbind", steps=40, is_found=True),
    Case(job="bert_adamw", rule=OPTIMIZER, asks="fused=True", steps=80, is_found=True),
    Case(job="resnet_sgd", rule=OPTIMIZER, asks="fused=True", steps=60, is_found=True),
    Case(job="lightning_adam", rule=OPTIMIZER, asks="fused=True", steps=100),
    Case(job="recommender_adagrad", rule=OPTIMIZER, asks="fused=True", steps=200, recorded=20, is_found=True),
    Case(job="trainer_adamw", rule=OPTIMIZER, asks="fused", steps=80, is_found=True),
    Case(job="zeroed_gradients", rule="zero-grad-memset", asks="set_to_none=True", steps=100),
    Case(
        job="written_attention", rule="unfused-attention", asks="scaled_dot_product_attention", steps=30, is_found=True
    ),
    Case(job="eager_bert", rule="unfused-attention", asks="sdpa", steps=30, is_found=True),
    Case(job="float_norm", rule="dtype-ping-pong", asks="layer_norm", steps=30),
    Case(job="written_gelu", rule="unfused-elementwise", asks="torch.compile", steps=80),
    Case(job="reduce_each_gradient", rule="tiny-collectives", asks="flat", steps=60, ranks=2, is_found=True),
    Case(job="small_buckets", rule="tiny-collectives", asks="bucket", steps=60, ranks=2),
    Case(job="uneven_ranks", rule="straggling-rank", asks="LengthGrouped", steps=60, ranks=2),
)

CONTROLS = (
    Case(job="resident_tensors", rule=LOADER, steps=2000, recorded=100, is_control=True),
    Case(job="workers_and_full_cores", rule=LOADER, steps=32, is_control=True),
    Case(job="checkpoint_and_full_cores", rule=SAVING, steps=40, recorded=16, is_control=True),
    Case(job="loader_ahead", steps=40, is_control=True),
    Case(job="rare_checkpoint", steps=60, is_control=True),
    Case(job="whole_sequence_gru", steps=60, is_control=True),
    Case(job="compiled_clean", steps=100, is_control=True),
    Case(job="tiny_gpt", arguments=ENDLESS, steps=60, is_control=True),
    Case(job="trainer_clean", steps=40, is_control=True),
    Case(job="lightning_clean", steps=60, is_control=True),
    Case(job="ddp_clean", steps=30, ranks=2, is_control=True),
)
