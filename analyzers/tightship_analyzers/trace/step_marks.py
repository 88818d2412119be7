"""How annotations that mark a step begin, of training or of a server."""

import re

PROFILER = "ProfilerStep#"
"""Of `prof.step()`, and of programs that mark their steps themselves; the number of the step follows."""

OPTIMIZER = "Optimizer.step#"
"""Torch's own, around every call of an optimizer; the class follows."""

START = OPTIMIZER + "before the first"
"""No call of an optimizer: where a source without calls tells that its first step begins."""

SERVER = re.compile(
    r"execute_(?:\d+_)?context_\d+\(|execute_new_\d+_cached_\d+$"
    r"|step\[[A-Z_]+ bs=\d+|(?:eager_)?(?:prefill|decode)\[bs=\d+"
)
"""Of servers, around each batch.

- vLLM: `execute_context_1(512)_generation_8(8)`, with sums of lengths `execute_520_context_1(sq512…)_generation_8(…)`,
  and in its first form, which backends beside it still have, `execute_new_1_cached_8`
- SGLang: `step[EXTEND bs=2 toks=512]`; of a draft model `draft step[…]`, once without the first word
- ATOM: `decode[bs=8 tok=8 d=8]`

Text Generation Inference, Triton's Python backend and the pipelines of diffusers write none. Source: `annotate_profile`
in https://github.com/vllm-project/vllm (pull request 22496), `build_step_span_name` in
https://github.com/sgl-project/sglang, and https://github.com/ROCm/ATOM.
"""
