"""The environment that a llama-server is started in: ours, less what would change its settings unseen."""

from __future__ import annotations

from collections.abc import Mapping

_SETTING_PREFIXES = ("LLAMA_ARG_", "LLAMA_API_KEY", "LLAMA_LOG_")
"""Environment variables that set llama-server's options; a wrong value even ends its `--help`."""


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that llama-server takes for options."""
    return {name: value for name, value in environment.items() if not name.startswith(_SETTING_PREFIXES)}
