"""Which model a file holds, for what is kept about it between runs."""

from __future__ import annotations

from functools import lru_cache

from planner.model.model import Model


@lru_cache(maxsize=64)
def fingerprint(model: Model) -> str:
    """The model's tensors and architecture, wherever the file lies, and whether it is a ghost.

    The measurements on disk are kept under this: the same model must have the same one for ever.
    """
    import hashlib  # a prediction before the first measurement starts faster without

    # A ghost's vocabulary may be made up, so what it teaches is not true of the real file.
    digest = hashlib.sha256(f"{model.architecture} {model.is_ghost}".encode())
    for tensor in model.tensors:
        digest.update(f"{tensor.name}{tensor.shape}{tensor.type.name}".encode())
    return digest.hexdigest()[:16]
