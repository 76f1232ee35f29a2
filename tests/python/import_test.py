"""How long `import invar` takes, and that a package without numpy and torch can be imported.

Time of the processor: other tests run beside this one."""
import os
import subprocess
import sys

PROGRAM = """
import sys
import invar
invar.SamplingParams(max_tokens=3)
assert not {"numpy", "torch", "asyncio"} & set(sys.modules), "an import brings what it does not need"
"""


def seconds(program: str) -> float:
    """The fastest of five runs."""
    best = 1e9
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-c", program], check=True)
        after = os.times()
        best = min(best, after.children_user + after.children_system - before.children_user - before.children_system)
    return best


taken = seconds(PROGRAM) - seconds("pass")
print(f"import invar: {1e3 * taken:.0f} ms")
assert taken <= 0.15, "expected at most 150 ms"
