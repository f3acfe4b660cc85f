"""The table of rows: what is called, and what must come of it.

A row is a function that runs in a process of its own and returns what it has seen, as
values that JSON knows. Rows are told apart by what the two engines owe:

    keep    both the same
    safe    upstream crashes or does something undefined, ours returns a code
    fix     ours differs on purpose
"""

KEEP, SAFE, FIX = "keep", "safe", "fix"


class Undefined:
    """Anything may come of it."""

    def __str__(self):
        return "undefined"


UNDEFINED = Undefined()


class Row:
    def __init__(self, number, part, text, do, upstream, ours, run, **how):
        self.number, self.part, self.text, self.do = number, part, text, do
        self.upstream, self.ours, self.run = upstream, ours, run
        self.env = how.pop("env", {})
        self.limit = how.pop("limit", 30)
        self.needs = how.pop("needs", None)
        # Whose engine it tells of: A's, B's ("peer"), or what only two of a kind do ("both").
        self.about = how.pop("about", "")
        # A note says where the wheel does otherwise than the row was once written.
        self.note = how.pop("note", "")
        if how:
            raise TypeError("row %s: unknown settings: %s" % (self.name, ", ".join(how)))

    @property
    def name(self):
        return "%d%s" % (self.number, self.part)


ROWS = {}


def _add(row):
    if row.name in ROWS:
        raise ValueError("row %s is there twice" % row.name)
    ROWS[row.name] = row


def keep(number, text, expected, part="", **how):
    def add(run):
        _add(Row(number, part, text, KEEP, expected, expected, run, **how))
        return run

    return add


def safe(number, text, upstream, ours, part="", **how):
    def add(run):
        _add(Row(number, part, text, SAFE, upstream, ours, run, **how))
        return run

    return add


def fix(number, text, upstream, ours, part="", **how):
    def add(run):
        _add(Row(number, part, text, FIX, upstream, ours, run, **how))
        return run

    return add


def absent(number, text, do, needs):
    """A row that nothing here can run."""
    _add(Row(number, "", text, do, None, None, None, needs=needs))
