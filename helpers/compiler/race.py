"""The race: plans take real training steps in turn, and the fastest is kept."""

from . import ranks
from .watch import Watch

CLOSE = 0.9  # plans this near to the fastest race on in the second stage
FINALISTS = 3
DROPPED = ("rejected", "failed", "skipped")


class Race:
    """Which plan takes the next step, and when the race is over.

    In the first stage all sound plans take `rounds` steps each after one to warm up, in the second
    those that are close take twice as many. Each round begins with another plan, so that a machine
    that slows down, or a rhythm in the training loop, favours none. All ranks count the same steps.

    Attributes:
        baseline: the Candidate of plain eager, which takes part in all rounds.
        winner: the Candidate that was chosen (None: still racing).
    """

    def __init__(self, candidates, rounds, min_gain):
        self.candidates, self.baseline = candidates, candidates[0]
        self.rounds, self.min_gain = rounds, min_gain
        self.turns, self.at, self.watch, self.winner = [], 0, None, None
        self.final = False
        self._add([c for c in candidates if c.racing], rounds + 1)

    @property
    def stage_is_over(self) -> bool:
        """Whether all steps of this stage were taken; then all ranks must call `end_stage`."""
        return self.at == len(self.turns)

    def step(self, device, args, kwargs):
        """The outputs of the plan whose turn it is; its time is taken when backward has ended."""
        number, candidate = self.turns[self.at]
        if self.watch is not None and self.watch.running and candidate is not self.baseline:
            candidate.drop("failed", f"its backward pass broke off in round {number}")
        self.watch = Watch(device, lambda seconds: self._took(number, candidate, seconds))
        # A plan that was dropped keeps its turns, since all ranks must count alike; eager takes them.
        call = candidate.call or self.baseline.call
        try:
            outputs = call(*args, **kwargs)
        except Exception as error:
            if candidate is self.baseline:
                raise
            outputs = self.baseline.call(*args, **kwargs)  # raises if it was the model's own error
            candidate.fail(error, f"in round {number}")
        return self.watch.outputs(outputs)

    def end_stage(self) -> None:
        """Agree with the other ranks on the times, then race on with the fastest, or choose."""
        hear_objections(self.candidates)
        told = ranks.told_by_all([c.samples for c in self.candidates])
        for place, candidate in enumerate(self.candidates):
            rounds = set.intersection(*(set(samples[place]) for samples in told))
            candidate.samples = {n: max(samples[place][n] for samples in told) for n in rounds}  # the slowest rank's
        ranked = sorted((c for c in self.candidates if c.status == "racing"), key=self._gain, reverse=True)
        close = [c for c in ranked if self._gain(c) > CLOSE * max(1.0, self._gain(ranked[0]))][:FINALISTS]
        if close and not self.final:
            self.final = True
            self._add([self.baseline, *close], 2 * self.rounds)
        else:
            self._choose(ranked)

    def _add(self, racers, rounds):
        first = 1 + max((number for number, _ in self.turns), default=-1)
        if len(racers) > 1:
            places = range(len(racers))
            self.turns += [(first + r, racers[(place + r) % len(racers)]) for r in range(rounds) for place in places]

    def _took(self, number, candidate, seconds):
        if number and candidate.call is not None:  # round 0 warms up
            candidate.samples[number] = seconds
        self.at += 1

    def _gain(self, candidate):
        return candidate.speed_up(self.baseline)

    def _choose(self, ranked):
        fastest = ranked[0] if ranked and self._gain(ranked[0]) >= self.min_gain else self.baseline
        for candidate in ranked:
            factor = f"{self._gain(candidate):.2f}× eager's speed"
            if self._gain(candidate) > 1:
                enough = f"less than the {self.min_gain:g}× asked for"
                factor += f", {enough}" if fastest is self.baseline else f"; {fastest.plan} is faster"
            candidate.status, candidate.why = "slower", factor
        fastest.status, fastest.why = "chosen", ""
        if fastest is self.baseline:
            fastest.why = f"no other plan was {self.min_gain:g}× as fast"
        self.winner = fastest


def hear_objections(candidates) -> None:
    """Drop on all ranks what was dropped on one; the largest errors and the slowest compilation count."""
    told = ranks.told_by_all([(c.status, c.why, c.compile_s, c.output_error, c.gradient_error) for c in candidates])
    for place, candidate in enumerate(candidates):
        by_rank = [answers[place] for answers in told]
        candidate.compile_s, candidate.output_error, candidate.gradient_error = (
            max((values[field] for values in by_rank if values[field] is not None), default=None) for field in (2, 3, 4)
        )
        for rank, (status, why, *_) in enumerate(by_rank):
            if len(told) > 1 and status in DROPPED and not why.startswith("on rank "):
                candidate.drop(status, f"on rank {rank}: {why}")  # the first that objects, on every rank alike
                break
