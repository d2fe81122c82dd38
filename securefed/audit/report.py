"""The audit of a run: claims, ledger, receipts, and what each party saw, as text, JSON and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from html import escape
from textwrap import wrap
from typing import Any

from securefed.audit.blind import BLIND
from securefed.audit.claims import CONTENT, FORM, OPENINGS, Claim, Statement
from securefed.audit.recorded import Receipt, Recorded, receipts
from securefed.crypto import protects
from securefed.errors import DataError, plain_text
from securefed.pages import badge, fold, glossary, page, table, term
from securefed.protocols.messages import KINDS
from securefed.protocols.own_gradient.ledger import LedgerEntry
from securefed.transport.transcript import Transcript

CLAIMS: tuple[Statement, ...] = (*CONTENT, *OPENINGS, *BLIND, *FORM)
WIDTH = 110
MARKS = {"pass": "pass", "FAIL": "fail", "skip": "part"}
USED = ("claim", "key-holder", "ledger", "masked", "opened", "receipt", "round", "transcript")


@dataclass(frozen=True)
class Seen:
    """Messages of one kind that a party received from one peer."""

    peer: str
    kind: str
    messages: int
    bytes: int
    protection: str
    """Protection of the bytes: ciphertext, masked, opened, public-key, clear, ..."""
    key: str
    """The owner of its key."""
    reveals: str


@dataclass(frozen=True)
class AuditReport:
    """The outcome of an audit."""

    recorded: Recorded
    claims: list[Claim]
    ledger: list[LedgerEntry]
    receipts: list[Receipt]
    seen: dict[str, list[Seen]]

    @property
    def passed(self) -> bool:
        return all(claim.passed for claim in self.claims)

    @property
    def failed(self) -> list[str]:
        return [claim.name for claim in self.claims if not claim.passed]

    def claim(self, name: str) -> Claim:
        return next(claim for claim in self.claims if claim.name == name)

    @property
    def verdict(self) -> str:
        """The audit's result in one or two sentences, with everything that it could not check."""
        if not protects(self.recorded.settings["scheme"]):
            return "NOT PROTECTED: this run was plain, and every party could read every message."
        failed = f" ({', '.join(self.failed)} FAILED)" if self.failed else ""
        skipped = f" ({self._why_skipped()})" if self.not_checked else ""
        counts = f"{self.counts['pass']} checks passed, {self.counts['FAIL']} failed{failed}"
        return f"{counts}, {self.counts['skip']} skipped{skipped}.{self.reservation}"

    @property
    def counts(self) -> dict[str, int]:
        words = [claim.word for claim in self.claims]
        return {word: words.count(word) for word in ("pass", "FAIL", "skip")}

    @property
    def not_checked(self) -> list[str]:
        """Names of the checks that were skipped, because there was nothing to check."""
        return [claim.name for claim in self.claims if not claim.checked]

    def _why_skipped(self) -> str:
        """Say which file is missing for which skipped check."""
        others = [name for name in self.not_checked if name != "result"]
        missing = ", ".join(self.recorded.missing)
        why = f"no transcript of {missing} was given" if missing else "nothing to check"
        reasons = [f"{', '.join(others)}: {why}"] if others else []
        return "; ".join(reasons + ["result.json was not given"] * ("result" in self.not_checked))

    @property
    def reservation(self) -> str:
        """A warning where opened gradients may tell secrets, although every check passed."""
        past = [e for e in (*self.ledger, *self.recorded.stated_ledger()) if e.ratio >= 1.0]
        if not past:
            return ""
        listed = "; ".join(
            f"{e.party} holds {e.equations} equations for {e.unknowns} unknowns, {e.block}" for e in past[:2]
        )
        return f" WARNING: the opened gradients may determine secrets ({listed})."

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.recorded.run,
            "passed": self.passed,
            "verdict": self.verdict,
            "not_checked": self.not_checked,
            "claims": [claim.to_dict() for claim in self.claims],
            "ledger": [entry.to_dict() for entry in self.ledger],
            "receipts": [receipt.to_dict() for receipt in self.receipts],
            "seen": {name: [asdict(row) for row in rows] for name, rows in self.seen.items()},
            "missing": self.recorded.missing,
        }

    def to_text(self) -> str:
        settings = self.recorded.settings
        lines = [
            f"audit of run {self.recorded.run or '(unnamed)'}: {settings['algorithm']}, "
            f"{settings['objective']}, {settings['scheme']}",
            *wrap(self.verdict, WIDTH),
        ]
        if self.recorded.missing:
            lines.append(f"transcripts not here: {', '.join(self.recorded.missing)}")
        for name, rows in self.seen.items():
            lines += ["", f"what {name} saw", *_table(rows)]
        lines += ["", "claims"]
        for claim in self.claims:
            lines.append(f"  {claim.word}  {claim.text}")
            lines += [f"        {line}" for line in wrap(claim.evidence, WIDTH - 8)]
        lines += ["", "ledger: equations opened against unknowns, at the worst exchange"]
        for entry in self.ledger:
            note = ", over all rounds, an estimate" if entry.advisory else ""
            numbers = f"{entry.equations} for {entry.unknowns} ({entry.ratio:.2f}{note})"
            lines.append(f"  {entry.party}: {entry.block}: {numbers}: {entry.verdict}")
        if not self.ledger:
            lines.append("  empty: no gradient was opened to anybody")
        lines += ["", "receipts", *(f"  {receipt}" for receipt in self.receipts)]
        return "\n".join(lines) + "\n"

    def to_html(self, *, folded: bool = True) -> str:
        """Return a section of HTML. The page around it explains terms. `folded` also folds the checks."""
        mark = "bad" if not self.passed else "part" if self.reservation else "good"
        counts = self.counts
        short = f"{counts['pass']} checks passed, {counts['FAIL']} failed, {counts['skip']} skipped"
        claims, views = _claims_html(self.claims), "".join(_seen_html(*each) for each in self.seen.items())
        pieces = [
            f'<section id="audit"><h2>Audit</h2><p>{badge(short, mark)}</p>',
            f'<p class="soft">{escape(self.verdict)}</p>',
            fold(f"All {len(self.claims)} checks", claims) if folded else claims,
            f'<h3 id="receipts">{term("receipt", "Receipts")}</h3><ul>',
            *(f"<li>{escape(self._receipt(receipt))}</li>" for receipt in self.receipts),
            "</ul>",
            fold("What each party saw", views + _ledger_html(self.ledger)),
            "</section>",
        ]
        return "\n".join(pieces)

    def _receipt(self, receipt: Receipt) -> str:
        """A comparison of two parties' messages; one side alone knows what the parties found at the end."""
        peers = (self.recorded.result or {}).get("peers", {})
        comparison = peers.get(receipt.second, {}).get("transcripts")
        word = "they agree" if comparison == "agree" else comparison
        if receipt.compared or comparison is None:
            return str(receipt)
        return f"{receipt.first} and {receipt.second} compared fingerprints at the end of the run: {word}"


def whole_page(report: AuditReport) -> str:
    title = f"Audit of {report.recorded.run or 'a run'}"
    return page(title, f"<h1>{escape(title)}</h1>{report.to_html(folded=False)}{glossary(USED)}")


def audit(
    transcripts: Iterable[Transcript] | Mapping[str, Transcript], result: Mapping[str, Any] | None = None
) -> AuditReport:
    """Check every claim against the transcripts of a run. `result`: its RunResult.to_dict(), to compare.

    Raises
    ------
    DataError
        The files do not say enough about a run, or are out of form.
    """
    try:
        recorded = Recorded(transcripts, result)
        claims = [statement.about(recorded) for statement in CLAIMS]
        views = {name: _seen(recorded, name) for name in recorded.transcripts}
        report = AuditReport(recorded, claims, recorded.ledger(), receipts(recorded), views)
        report.to_dict()  # a result that is out of form shows here
    except DataError:
        raise
    except Exception as error:  # the files come from others  # noqa: BLE001
        raise DataError(f"audit: what the files say is out of form ({plain_text(error, 80)})") from None
    return report


def _seen(recorded: Recorded, party: str) -> list[Seen]:
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for message in recorded.messages("received"):
        if message.receiver != party:
            continue
        parts = [part for part in message.parts if part.frame != "bytes"] or message.parts
        protection = "+".join(part.protection for part in parts) or "empty"
        if protection in ("bytes", "public-key"):
            named = message.kind
            expected = named is not None and (named.protection == "public" or bool(named.looks))
            protection = named.protection if named is not None and expected else "clear"
        owner = recorded.owner(parts[0].key) if parts else ""
        place = (message.sender, message.entry.kind, protection, owner)
        groups.setdefault(place, []).append(message.entry.bytes)
    rows = []
    for (peer, kind, protection, owner), sizes in groups.items():
        known = KINDS.get(kind)
        reveals = "everything in it" if "clear" in protection or known is None else known.reveals
        rows.append(Seen(peer, kind, len(sizes), sum(sizes), protection, owner, reveals))
    return rows


def _table(rows: list[Seen]) -> list[str]:
    if not rows:
        return ["  nothing"]
    lines = []
    for row in rows:
        under = f" under {row.key}'s key" if row.key and row.protection in ("ciphertext", "masked") else ""
        how = "opened, still masked" if row.protection == "opened" else row.protection
        what = f"{row.messages:>6} x {row.kind:<16} {row.bytes:>14,} bytes  from {row.peer}: {how}"
        lines.append(f"{what}{under}")
        lines.append(f"         reveals {row.reveals}")
    return lines


def _claims_html(claims: list[Claim]) -> str:
    rows = "".join(
        f'<tr><td><span class="{MARKS[claim.word]}">{claim.word}</span></td><td>{escape(claim.text)}<br/>'
        f'<span class="evidence">{escape(claim.evidence)}</span></td></tr>'
        for claim in claims
    )
    return f'<h3 id="claims">{term("claim", "Claims")}</h3><table><tbody>{rows}</tbody></table>'


def _seen_html(name: str, listed: list[Seen]) -> str:
    rows = []
    for row in listed:
        how = f"{row.protection} (key of {row.key})" if row.key else row.protection
        rows.append((row.peer, row.kind, f"{row.messages:,}", f"{row.bytes:,}", how, row.reveals))
    head = ("from", "message", "count", "bytes", "protection", "what it reveals")
    return f"<h3>What {escape(name)} saw</h3>{table(head, rows, numbers=(2, 3))}"


def _ledger_html(entries: list[LedgerEntry]) -> str:
    word = term("ledger", "Ledger")
    title = f'<h3 id="ledger">{word}: opened numbers against the secrets they depend on</h3>'
    if not entries:
        return f"{title}<p>Empty: no gradient was opened to anybody.</p>"
    rows = []
    for e in entries:
        block = f"{e.block} (estimate)" if e.advisory else e.block
        rows.append((e.party, block, f"{e.equations:,}", f"{e.unknowns:,}", f"{e.ratio:.2f}", e.verdict))
    head = ("party", "secrets", "numbers", "secrets, how many", "ratio", "verdict")
    return title + table(head, rows, numbers=(2, 3, 4))
