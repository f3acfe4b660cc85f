"""Runs the tests, and prints a line of JSON for each: name, outcome, and what is to be said."""

import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class Result(unittest.TestResult):
    def tell(self, test, outcome, text=""):
        print(json.dumps({"name": test.id(), "outcome": outcome, "text": text}), flush=True)

    def addSuccess(self, test):
        self.tell(test, "ok")

    def addSkip(self, test, reason):
        self.tell(test, "skip", reason)

    def addError(self, test, err):
        self.tell(test, "fail", self._exc_info_to_string(err, test))

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.tell(subtest, "fail", self._exc_info_to_string(err, test))


sys.path.insert(0, HERE)
unittest.TestLoader().discover(HERE).run(Result())
