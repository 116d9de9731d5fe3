"""Broken and reluctant llama-servers, as small shell scripts: each answers like a real one until it must serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

VERSION_LINE = "version: 4711 (0abc123)"

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-m,    --model FNAME                    model path to load
-c,    --ctx-size N                     size of the prompt context
-np,   --parallel N                     number of server slots
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
-ctk,  --cache-type-k TYPE              KV cache data type for K
-ctv,  --cache-type-v TYPE              KV cache data type for V
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-b,    --batch-size N                   logical maximum batch size
-ub,   --ubatch-size N                  physical maximum batch size
-cram, --cache-ram N                    set the maximum cache size in MiB
-ctxcp, --ctx-checkpoints, --swa-checkpoints N
                                        max number of context checkpoints to create per slot
--swa-full                              use full-size SWA cache
--repack, -nr, --no-repack              whether to enable weight repacking
-lm,   --load-mode MODE                 model loading mode
--embedding, --embeddings               restrict to only support embedding use case
-dev,  --device <dev1,dev2,..>          comma-separated list of devices to use for offloading
--list-devices                          print list of available devices and exit
--host HOST                             ip address to listen
--port PORT                             port to listen
-lv,   --verbosity N                    set the verbosity threshold
"""

MISSING_LIBRARY = (
    "llama-server: error while loading shared libraries: libcudart.so.12: "
    "cannot open shared object file: No such file or directory"
)


def write_script(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def write_engine(
    path: Path,
    *,
    serve: str = "exec sleep 600",
    version: str = f"echo '{VERSION_LINE}'",
    devices: Sequence[str] = (),
) -> Path:
    """A llama-server that can be identified; `version` and `serve` are what it does on `--version` and at work, and
    `devices` the lines that it lists.
    """
    listed = "\n".join(f"  {line}" for line in devices)
    return write_script(
        path,
        f"""case "$1" in
--version) {version}; exit 0 ;;
--help) cat <<'EOF'
{HELP}EOF
exit 0 ;;
--list-devices) cat <<'EOF'
Available devices:
{listed}
EOF
exit 0 ;;
esac
{serve}""",
    )
