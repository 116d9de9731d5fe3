"""`python -m probes`: what was found here in short; with `--json`, everything that was read, to send with a report."""

from __future__ import annotations

import argparse
import json
import os
import sys

from probes.everything import Findings, probe_everything
from probes.machine import Machine


def main() -> None:
    """Look at this machine and print what was found, or all that was read."""
    parser = argparse.ArgumentParser(prog="python -m probes", description="What this machine is.")
    parser.add_argument("--json", action="store_true", help="print everything that was read, without what is private")
    options = parser.parse_args()
    machine = Machine()
    findings = probe_everything(machine)
    text = json.dumps(machine.report.to_document(), indent=1) if options.json else "\n".join(_lines(findings))
    try:
        print(text, flush=True)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lines(findings: Findings) -> list[str]:
    host, cpu = findings.host, findings.cpu
    lines = [
        f"processor: {cpu.model or cpu.architecture}",
        f"memory: {host.total_bytes} bytes, {host.usable_bytes} usable now",
    ]
    lines += [f"graphics: {gpu.name}, {gpu.total_bytes} bytes, {gpu.free_bytes} free" for gpu in findings.gpus]
    warnings = [*host.warnings, *cpu.warnings, *findings.warnings]
    warnings += [warning for gpu in findings.gpus for warning in gpu.warnings]
    return [*lines, *(f"warning: {warning}" for warning in warnings)]


if __name__ == "__main__":
    main()
