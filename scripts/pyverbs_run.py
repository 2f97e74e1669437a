"""Runs one module of rdma-core's Python tests and writes a line a test to a file: its name, and pass, skip or fail.

    pyverbs_run.py SOURCE MODULE RESULTS [--dev NAME] [--gid INDEX]

SOURCE holds `tests/` of rdma-core; pyverbs is the system's. Options are the tests' own.
"""

import random
import sys
import unittest

source, module, results = sys.argv[1:4]
sys.argv[1:4] = []
sys.path[:0] = [source, source + "/tests"]

from args_parser import parser  # noqa: E402

parser.parse_args()


class Lines(unittest.TestResult):
    """Tells each outcome at once: a module that dies has told those before."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def startTest(self, test):
        super().startTest(test)
        # Attributes are drawn at random: the same ones each time.
        random.seed(test.id())

    def tell(self, test, outcome, why=""):
        # What sets a class up has no name of its own.
        name = test.id().rsplit(" ", 1)[-1].strip("()")
        print(name, outcome, file=self.out, flush=True)
        if why:
            print(f"{name}: {outcome}: {why}", flush=True)

    def addSuccess(self, test):
        self.tell(test, "pass")

    def addSkip(self, test, reason):
        self.tell(test, "skip", reason)

    def addFailure(self, test, err):
        self.tell(test, "fail", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.tell(test, "fail", self._exc_info_to_string(err, test))


with open(results, "a", encoding="utf-8") as out:
    unittest.defaultTestLoader.loadTestsFromName("tests." + module).run(Lines(out))
