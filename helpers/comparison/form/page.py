"""What the form says, as HTML in Jupyter's own colours, so that dark themes hold."""

from html import escape
from pathlib import Path

from ... import plots
from ...config import SETTINGS, STRATEGIES
from ...launcher.language import local, marked, said
from ...plots import style
from .refusal import steps_of

# JupyterLab handles arrow keys and letters itself unless a text field has the focus: in a list they would move to the
# next cell, or cut this one. The attribute leaves them to the list that has the focus.
KEYS = (
    "this.closest('.helpers-form').addEventListener('focusin', event => event.target.matches('select') && "
    "event.target.setAttribute('data-lm-suppress-shortcuts', ''))"
)
STYLE = f'<style onload="{KEYS}">\n{Path(__file__).with_name("form.css").read_text(encoding="utf-8")}</style>'
# Where the clipboard is out of reach the text is selected, to be copied by hand.
COPY = (
    "const code = this.closest('.helpers-code').querySelector('code');"
    "const by_hand = () => getSelection().selectAllChildren(code);"
    "if (!navigator.clipboard) { by_hand(); } else { navigator.clipboard.writeText(code.textContent).then(() => {"
    "const was = this.textContent;"
    "this.textContent = this.dataset.copied; setTimeout(() => this.textContent = was, 2000); }, by_hand); }"
)
NOTHING = marked("Nothing to copy as long as the choice is impossible.")
PYTHON, COMMANDS = marked("The same in Python"), marked("The same on the command line")

STATES = {
    "starting": marked("{label} beside its baseline starts; a data set that was not used before is made first."),
    "queued": marked(
        "{label} beside its baseline waits for its turn: another run goes on, and one at a time has all cores."
    ),
    "running": marked("{label} beside its baseline runs; other cells can be used meanwhile."),
    "stopped": marked("{label} beside its baseline was stopped; what it recorded until then is kept."),
}


def blocks(choice, refusal) -> str:
    """The code and the command lines, each in a block with a button that copies it."""
    if refusal:
        return f"<p>{local(NOTHING)}</p>"
    commands = "\n".join(choice.commands())
    return _block(local(PYTHON), choice.code()) + _block(local(COMMANDS), commands)


def _block(title, text):
    name = escape(title)
    return (
        f'<div class="helpers-code"><div><span>{name}</span>'
        f'<button type="button" aria-label="{local("Copy")}: {name}" data-copied="{local("Copied")}" '
        f'onclick="{escape(COPY)}">{local("Copy")}</button></div>'
        f'<pre tabindex="0" role="region" aria-label="{name}"><code>{escape(text)}</code></pre></div>'
    )


def verdict(choice, refusal) -> str:
    """Whether the choice can be run; if not, what to change and why."""
    if refusal:
        change, reason = refusal.local()
        return (
            '<div class="helpers-verdict helpers-refused" role="alert"><strong>✗ '
            f"{escape(local('Not possible: {change}.', change=change))}</strong><br>{escape(_sentence(reason))}</div>"
        )
    advice = choice.advice()
    mind = f"<br><strong>{local('Mind:')}</strong> {escape(_sentence(local(advice)))}" if advice else ""
    return (
        f'<div class="helpers-verdict" role="status"><strong>✓ {local("Ready.")}</strong> '
        f"{escape(plan(choice))}{mind}</div>"
    )


def plan(choice) -> str:
    """What the Run button would do, in a sentence."""
    base, chosen = choice.configs()
    strategy = STRATEGIES[choice.strategy].summary.partition(":")[0]
    where = local("on {ranks} devices with {strategy}", ranks=choice.ranks, strategy=strategy)
    how = [local("on one device") if choice.ranks == 1 else where]
    changed = [name for name in ("precision", "compiler") if getattr(chosen, name) != getattr(base, name)]
    for name in (*changed, *choice.alone()):
        how.append(f"{local(SETTINGS[name].noun)} {getattr(chosen, name)}".removesuffix(" True"))
    return local(
        "{model} on {data}, two runs of {steps:,} steps with a global batch of {batch}: first the baseline (one "
        "device, fp32, no compiler), then {how}.",
        model=choice.model,
        data=choice.data,
        steps=steps_of(chosen),
        batch=base.global_batch,
        how=", ".join(how),
    )


def state(label, status) -> str:
    """How far a comparison is that was started from the form."""
    named = f"<strong>{escape(label)}</strong>"
    return f'<div role="status">{local(STATES[status], label=named)}</div>'


def error(label, problem) -> str:
    """Why a comparison came to nothing."""
    return (
        '<div class="helpers-verdict helpers-refused" role="alert"><strong>✗ '
        f"{escape(local('{label} beside its baseline: nothing to show.', label=label))}</strong>"
        f"{_as_printed(problem)}</div>"
    )


def result(comparison) -> str:
    """Sentence, table and figure of a comparison of two runs."""
    drawn, alt = plots.speed_up(comparison)
    why = comparison.records[-1]["error"]
    more = f"<details><summary>{local('What it says')}</summary>{_as_printed(why)}</details>" if why else ""
    return (
        f'<div role="status"><strong>{escape(outcome(comparison))}</strong></div>{more}'
        f'<div class="helpers-wide" role="region" tabindex="0" aria-label="{local("Both runs in numbers")}">'
        f"{comparison._repr_html_()}</div>{style.html(drawn, alt)}"
    )


def outcome(comparison) -> str:
    """What came out, beside what was expected."""
    base, row = comparison.rows()
    if row["status"] != "completed":
        return f"✗ {row['label']}: {local(row['status'])}."
    if not row["speed_up"]:
        return local("✓ {label} is done, with too few steps to time.", label=row["label"])
    done = local(
        "✓ Done: a step of {label} was {speed_up} as fast as the baseline's",
        label=row["label"],
        speed_up=style.times(row["speed_up"]),
    )
    if row["predicted"]:
        done = local("{done}; you expected {predicted}", done=done, predicted=style.times(row["predicted"]))
    accuracy, of_base = (style.percent(one["accuracy"]) for one in (row, base))
    return local("{done}. Accuracy {accuracy}, baseline {base}.", done=done, accuracy=accuracy, base=of_base)


def _as_printed(text):
    return f'<pre style="white-space: pre-wrap">{escape(said(str(text)))}</pre>'


def _sentence(text):
    if text.endswith((".", "?", "!", "。", "？")):
        return text
    return f"{text}." if text.isascii() else local("{text}.", text=text)
