"""What `hwsim` alone prints."""

from __future__ import annotations

from hwsim import __version__
from hwsim.cli.console import out

COMMANDS = (
    ("hwsim run", "a tiled matrix product on the course's CPU: what it costs, and why"),
    ("hwsim run zen3 matmul_naive n=512", "another machine, another workload, another size"),
    ("hwsim explain", "more about the last run: conflicts, reuse, stalls, energy"),
    ("hwsim sweep course_cpu matmul_tiled tile=4..256:x2 --plot t.png", "many runs, kept and drawn"),
    ("hwsim ladder matmul", "naive, vectorised, tiled, parallel: what each step brings"),
    ("hwsim list", "machines and workloads that are here"),
    ("hwsim show course_cpu", "one of them, at a glance"),
    ("hwsim show course_cpu --set l1.size='64 KiB' --resolved", "a variant, with every default filled in"),
    ("hwsim check machines/my.yaml", "what is wrong with a file of yours"),
    ("hwsim schema machine > machine.schema.json", "completion and hints in your editor"),
    ("hwsim --help", "all commands"),
)


def print_welcome() -> None:
    console = out()
    console.print(f"[bold]hwsim {__version__}[/bold]: what would this kernel cost on that machine, and why?\n")
    console.print("Try:\n")
    width = max(len(command) for command, _ in COMMANDS)
    for command, meaning in COMMANDS:
        console.print(f"  [cyan]{command:<{width}}[/cyan]  {meaning}")
