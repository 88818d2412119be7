"""Whose code ran when: Python frames on the training thread, and which of them are the user's own.

Kineto names a frame `path(line): function`. The path is relative to whatever entry of `sys.path` it lies under, so a
library shows as `torch/nn/…`, the standard library as `threading.py`, the user's script as `train.py`. The line is
that of the function's definition, or, for a frame that was already open when recording began, the line it was at then.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.model import Frames, Names
from tightship_platform.text import shown

LIBRARIES = frozenset(
    [
        "accelerate",
        "albumentations",
        "apex",
        "av",
        "bitsandbytes",
        "click",
        "colossalai",
        "composer",
        "cupy",
        "cv2",
        "cython",
        "dask",
        "datasets",
        "deepspeed",
        "diffusers",
        "einops",
        "evaluate",
        "fairscale",
        "fastai",
        "fire",
        "flash_attn",
        "fsspec",
        "hydra",
        "ignite",
        "imageio",
        "jax",
        "joblib",
        "kornia",
        "lightning",
        "lightning_fabric",
        "lightning_utilities",
        "litdata",
        "megatron",
        "mmcv",
        "mmengine",
        "mpmath",
        "msgpack",
        "multiprocess",
        "networkx",
        "nltk",
        "numba",
        "numpy",
        "nvidia",
        "omegaconf",
        "onnx",
        "onnxruntime",
        "optuna",
        "orjson",
        "pandas",
        "peft",
        "PIL",
        "pip",
        "pkg_resources",
        "polars",
        "psutil",
        "pyarrow",
        "pydantic",
        "pytorch_lightning",
        "pyximport",
        "ray",
        "regex",
        "requests",
        "safetensors",
        "scipy",
        "sentencepiece",
        "setuptools",
        "skimage",
        "sklearn",
        "soundfile",
        "spacy",
        "streaming",
        "sympy",
        "tensorboard",
        "tensorboardX",
        "tensorflow",
        "tightship_collectors",
        "timm",
        "tokenizers",
        "torch",
        "torch_geometric",
        "torchao",
        "torchaudio",
        "torchdata",
        "torchgen",
        "torchmetrics",
        "torchrec",
        "torchtune",
        "torchvision",
        "tqdm",
        "transformer_engine",
        "transformers",
        "triton",
        "trl",
        "typing_extensions",
        "urllib3",
        "wandb",
        "webdataset",
        "xformers",
        "zarr",
        "zstandard",
    ]
)
"""Top-level packages that are nobody's own training code."""

_FRAME = re.compile(r"(?P<path>.+?)\((?P<line>\d+)\): (?P<function>.+)", re.DOTALL)
_PLACE_MAX = 200
MODULE = "nn.Module: "
_NUMBERED = re.compile(r"_\d+$")


def split_name(name: str) -> tuple[str, int, str] | None:
    """A frame's name as (path, line, function); None for built-ins and modules."""
    match = _FRAME.fullmatch(name)
    return (match["path"], int(match["line"][:9]), match["function"]) if match else None


def is_user_frame(name: str) -> bool:
    """Whether a frame is neither a library's, the standard library's, nor the interpreter's own."""
    parts = split_name(name)
    if parts is None:
        return False
    path, _, function = parts
    if path.startswith("<") or "site-packages/" in path or "dist-packages/" in path:
        return False
    top = path.lstrip("/").split("/", 1)[0].removesuffix(".py")
    if path.startswith("/"):
        # An absolute path lies outside of sys.path: the user's own, unless it is in the interpreter's folder.
        return re.search(r"/lib/python3\.\d+/", path) is None
    if top in LIBRARIES:
        return False
    # A script may be called like a module of the standard library (profile.py); then it is a program's bottom frame.
    return top not in sys.stdlib_module_names or (function == "<module>" and path == f"{top}.py")


def place_of(name: str) -> str:
    """A frame's name as people write places: `train.py:12 (main)`; empty where it is no frame of a file."""
    parts = split_name(name)
    if parts is None:
        return ""
    path, line, function = parts
    text = f"{path}:{line} ({function})"
    place = shown(text, len(text))
    return place if len(place) <= _PLACE_MAX else "…" + place[1 - _PLACE_MAX :]


@dataclass(frozen=True, slots=True, eq=False)
class ThreadFrames:
    """Python frames of the training thread."""

    needs: ClassVar[Needs] = (Window,)

    frames: Frames
    """All of them, by start."""
    files: Frames
    """Those of Python functions: neither built-ins nor modules."""
    user: Frames
    """The user's own functions."""
    modules: Frames
    """Calls of modules (`nn.Module: Linear_0`)."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a capture with stacks."""
        trace = facts.trace
        if not len(trace.frames):
            return NotApplicable("needs Python stacks; record with --stacks")
        window = facts[Window]
        frames = trace.frames.take(trace.frames.tid == window.tid)
        if not len(frames):
            return NotApplicable("needs Python stacks of the training thread; the trace has those of others only")
        files = frames.take(trace.names.mask(frames.name, lambda name: split_name(name) is not None))
        return cls(
            frames=frames,
            files=files,
            user=files.take(trace.names.mask(files.name, is_user_frame)),
            modules=frames.take(trace.names.mask(frames.name, lambda name: name.startswith(MODULE))),
        )

    def user_at(self, start_ns: int, end_ns: int) -> int | None:
        """Row in `user` of the innermost own frame that was open during all of [start_ns, end_ns)."""
        return _innermost(self.user, start_ns, end_ns)

    def place_at(self, names: Names, start_ns: int, end_ns: int) -> str:
        """The place of `user_at`; empty where no own frame covers the interval."""
        row = self.user_at(start_ns, end_ns)
        return "" if row is None else place_of(names[self.user.name[row]])

    def module_at(self, names: Names, start_ns: int, end_ns: int) -> str:
        """Class of the innermost module that was running during all of [start_ns, end_ns); empty where none was."""
        row = _innermost(self.modules, start_ns, end_ns)
        if row is None:
            return ""
        return shown(_NUMBERED.sub("", names[self.modules.name[row]].removeprefix(MODULE)), 80)

    def file_at(self, start_ns: int, end_ns: int) -> int | None:
        """Row in `files` of the innermost Python function that was open during all of [start_ns, end_ns)."""
        return _innermost(self.files, start_ns, end_ns)


def _innermost(frames: Frames, start_ns: int, end_ns: int) -> int | None:
    """Frames of one thread nest: of those that cover an interval the one that began last is the innermost."""
    stop = int(np.searchsorted(frames.start_ns, start_ns, side="right"))
    # Nearly always a recent frame covers it: look back in growing chunks instead of at the whole table.
    chunk = 64
    while stop > 0:
        begin = max(0, stop - chunk)
        rows = np.flatnonzero(frames.end_ns[begin:stop] >= end_ns)
        if len(rows):
            return begin + int(rows[-1])
        stop, chunk = begin, chunk * 4
    return None
