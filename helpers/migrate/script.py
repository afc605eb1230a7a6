"""A script as the passes see it: its tree, what its names mean, and edits that leave the rest alone."""

from functools import cached_property

from .notes import Notes
from .tree import Tree


class Script(Tree):
    """One text of a script, for the passes to read, edit and remark on.

    `names(node)` are the fully qualified names that a node has by the imports of the script, whatever
    the alias: {"torch.cuda.is_available"}. `edit` collects replacements; `edited()` is the text with
    them, everything else as it was. `style` is that of the migration; `step` the one that an edit
    belongs to if it does not say.
    """

    def __init__(self, source, *, name="<script>", style="article", notes=None):
        super().__init__(source, name)
        self.style, self.step = style, None
        self.notes = Notes() if notes is None else notes
        self._edits, self._doomed = [], {}

    @cached_property
    def shape(self):
        """What was recognised in the script (`shape.Shape`)."""
        from .shape import recognise

        return recognise(self)

    # Changes

    def edit(self, node, text, step=None):
        """Replace the text of `node`."""
        self.edit_span(*self.span(node), text, step)

    def edit_span(self, start, end, text, step=None):
        """Replace source[start:end]."""
        if self.source[start:end] != text:
            self._edits.append((start, end, text, step or self.step))

    def insert(self, offset, text, step=None):
        """Insert `text` before the character at `offset`."""
        self.edit_span(offset, offset, text, step)

    def delete(self, statement, step=None):
        """Take out a small statement; what becomes of its block is settled when all edits are known."""
        self._doomed[statement] = step or self.step

    @property
    def pending(self):
        """Whether there are edits that are not yet made."""
        return bool(self._edits or self._doomed)

    def edited(self):
        """The text with the edits, which are then forgotten; None without any.

        Where edits belong to several steps it is a list of (step, text): the text after one step,
        after two, and so on, so that every line is known to come from one of them.
        """
        if self._doomed:
            from .edits import delete_statements

            delete_statements(self, self._doomed)
        edits, self._edits, self._doomed = _apart(self._edits), [], {}
        if not edits:
            return None
        stages, done = [], set()
        for step in sorted({edit[3] for edit in edits}, key=lambda step: step or 0):
            done.add(step)
            stages.append((step, _apply(self.source, [edit for edit in edits if edit[3] in done])))
        return stages if len(stages) > 1 else stages[0][1] if stages[0][0] in (None, self.step) else stages

    # Notes

    def left(self, node, text, advice):
        """Tell that something at `node` (a node, a line, several lines or None) was seen and not changed."""
        self.notes.add("left", self._lines(node), text, advice)

    def choose(self, node, text, advice):
        """Tell what only the user can choose; of several with one `text` the first stays."""
        self.notes.add("choose", self._lines(node), text, advice)

    def _lines(self, node):
        if node is None or isinstance(node, int):
            return () if node is None else (node,)
        return tuple(node) if isinstance(node, (list, tuple, set, range)) else (self.line(node),)


def _apart(edits):
    """The edits in order, each once, without those that lie inside another one."""
    kept = []
    # What is inserted where something is replaced comes before it.
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit[0], edit[1] > edit[0], -edit[1])):
        if not kept or edit[0] >= kept[-1][1]:
            kept.append(edit)
    return kept


def _apply(source, edits):
    parts, at = [], 0
    for start, end, text, _ in edits:
        parts += [source[at:start], text]
        at = end
    return "".join([*parts, source[at:]])
