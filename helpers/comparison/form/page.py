"""What the form says, as HTML in Jupyter's own colours, so that dark themes hold."""

from html import escape
from pathlib import Path

from ... import plots
from ...config import SETTINGS, STRATEGIES
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
    "this.textContent = 'Copied'; setTimeout(() => this.textContent = 'Copy', 2000); }, by_hand); }"
)
NOTHING = "Nothing to copy as long as the choice is impossible."


def blocks(choice, refusal) -> str:
    """The code and the command lines, each in a block with a button that copies it."""
    if refusal:
        return f"<p>{NOTHING}</p>"
    commands = "\n".join(choice.commands())
    return _block("The same in Python", choice.code()) + _block("The same on the command line", commands)


def _block(title, text):
    name = escape(title)
    return (
        f'<div class="helpers-code"><div><span>{name}</span>'
        f'<button type="button" aria-label="Copy: {name}" onclick="{escape(COPY)}">Copy</button></div>'
        f'<pre tabindex="0" role="region" aria-label="{name}"><code>{escape(text)}</code></pre></div>'
    )


def verdict(choice, refusal) -> str:
    """Whether the choice can be run; if not, what to change and why."""
    if refusal:
        return (
            '<div class="helpers-verdict helpers-refused" role="alert"><strong>✗ Not possible: '
            f"{escape(refusal.change)}.</strong><br>{escape(_sentence(refusal.reason))}</div>"
        )
    advice = choice.advice()
    mind = f"<br><strong>Mind:</strong> {escape(_sentence(advice))}" if advice else ""
    return (
        '<div class="helpers-verdict" role="status"><strong>✓ Ready.</strong> '
        f"{escape(plan(choice))}{mind}</div>"
    )


def plan(choice) -> str:
    """What the Run button would do, in a sentence."""
    base, chosen = choice.configs()
    with_strategy = STRATEGIES[choice.strategy].partition(":")[0]
    how = ["on one device" if choice.ranks == 1 else f"on {choice.ranks} devices with {with_strategy}"]
    how += [f"precision {chosen.precision}"] * (chosen.precision != base.precision)
    how += [f"compiler {chosen.compiler}"] * (chosen.compiler != base.compiler)
    how += [f"{SETTINGS[name].noun} {getattr(chosen, name)}".removesuffix(" True") for name in choice.alone()]
    return (
        f"{choice.model} on {choice.data}, two runs of {steps_of(chosen):,} steps with a global batch of "
        f"{base.global_batch}: first the baseline (one device, fp32, no compiler), then {', '.join(how)}."
    )


def state(label, status) -> str:
    """How far a comparison is that was started from the form."""
    text = {
        "starting": "starts; a data set that was not used before is made first",
        "queued": "waits for its turn: another run goes on, and one at a time has all cores",
        "running": "runs; other cells can be used meanwhile",
        "stopped": "was stopped; what it recorded until then is kept",
    }[status]
    return f'<div role="status"><strong>{escape(label)}</strong> beside its baseline {text}.</div>'


def error(label, problem) -> str:
    """Why a comparison came to nothing."""
    return (
        f'<div class="helpers-verdict helpers-refused" role="alert"><strong>✗ {escape(label)} beside its baseline: '
        f"nothing to show.</strong>{_as_printed(problem)}</div>"
    )


def result(comparison) -> str:
    """Sentence, table and figure of a comparison of two runs."""
    drawn, alt = plots.speed_up(comparison)
    why = comparison.records[-1]["error"]
    more = f"<details><summary>What it says</summary>{_as_printed(why)}</details>" if why else ""
    return (
        f'<div role="status"><strong>{escape(outcome(comparison))}</strong></div>{more}'
        f'<div class="helpers-wide" role="region" tabindex="0" aria-label="Both runs in numbers">'
        f"{comparison._repr_html_()}</div>{style.html(drawn, alt)}"
    )


def outcome(comparison) -> str:
    """What came out, beside what was expected."""
    base, row = comparison.rows()
    if row["status"] != "completed":
        return f"✗ {row['label']}: {row['status']}."
    if not row["speed_up"]:
        return f"✓ {row['label']} is done, with too few steps to time."
    expected = f"; you expected {style.times(row['predicted'])}" if row["predicted"] else ""
    return (
        f"✓ Done: a step of {row['label']} was {style.times(row['speed_up'])} as fast as the baseline's{expected}. "
        f"Accuracy {style.percent(row['accuracy'])}, baseline {style.percent(base['accuracy'])}."
    )


def _as_printed(text):
    return f'<pre style="white-space: pre-wrap">{escape(str(text))}</pre>'


def _sentence(text):
    return text if text.endswith((".", "?", "!")) else f"{text}."
