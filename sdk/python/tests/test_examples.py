"""The code of the README, of docs/python.md and of the examples is run against a real server."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import unittest

from .bench import ROOT, SDK, Server

EXAMPLES = {
    "nightly.py": r"working, with fence \d{15}\n",
    "timeout.py": r"another client kept the lock for half a second\nlocked after [\d.]+ s\n",
    "cancel_on_loss.py": r"the work was cancelled: revoked\n",
    "fence.py": r"the newer holder writes: True\nthe paused holder writes: False\n",
    # Threads print in any order, and into each other's lines.
    "semaphore.py": r"(download \d\n*){5}",
}


class Examples(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server().start()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def run_program(self, *command: str) -> str:
        environment = {**os.environ, "LEASEHOLD_URL": self.server.url, "PYTHONPATH": str(SDK / "src")}
        done = subprocess.run(
            [sys.executable, "-W", "error", *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_examples_do_what_they_say(self) -> None:
        files = sorted(path.name for path in (SDK / "examples").glob("*.py"))
        self.assertEqual(files, sorted(EXAMPLES))
        for name, expected in EXAMPLES.items():
            with self.subTest(name):
                self.assertRegex(self.run_program(str(SDK / "examples" / name)), f"^{expected}$")

    def test_code_of_the_pages_runs(self) -> None:
        for page, blocks in ((SDK / "README.md", 2), (ROOT / "docs" / "python.md", 8)):
            with self.subTest(page.name):
                code = python_blocks(page)
                self.assertEqual(len(code), blocks)
                said = self.run_program("-c", "\n".join(code))
                self.assertIn("locked, with fence", said)
                self.assertNotIn("stopped", said)

    def test_readme_is_one_screen(self) -> None:
        self.assertLessEqual(len((SDK / "README.md").read_text().splitlines()), 50)


def python_blocks(page: pathlib.Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)


if __name__ == "__main__":
    unittest.main()
