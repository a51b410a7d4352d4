"""The user's files that came with a job: they are imported though they are not on this machine."""

from __future__ import annotations

import subprocess
import sys

FILES = {
    "/nowhere/game.py": "import rules\\nfrom parts.deep import DEPTH\\nPAY = rules.PAY + DEPTH",
    "/nowhere/rules.py": "PAY = 2",
    "/nowhere/parts/__init__.py": "",
    "/nowhere/parts/deep.py": "DEPTH = 40",
}
MODULES = {
    "rules": "/nowhere/rules.py",
    "parts": "/nowhere/parts/__init__.py",
    "parts.deep": "/nowhere/parts/deep.py",
}


def test_files_are_imported_from_memory() -> None:
    code = f"""
from manyhands.types import delivered, users_files
files = {{path: text.encode() for path, text in {FILES}.items()}}
delivered.put(delivered.Files(files, {MODULES}))
module = users_files.load("/nowhere/game.py")
assert module.PAY == 42, module.PAY
assert users_files.neighbours(module_path := __import__("pathlib").Path("/nowhere/game.py"))
sent = users_files.loaded()
assert set(sent.contents) == set(files), set(sent.contents)
assert sent.modules["parts.deep"] == "/nowhere/parts/deep.py"
print("good")
"""
    code = code.replace("\\\\n", "\\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "good", done.stderr
