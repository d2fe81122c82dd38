"""Attempt after attempt until a run or a prediction is over, and the last comparison between the parties.

A peer that is lost, or starts again, ends an attempt; then all greet again. A peer that is still away when
the waiting time is over ends the run here, with its checkpoints kept. A peer that left for a reason that
will be the same next time (its data, a diverging training) ends it at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from securefed.audit.report import audit
from securefed.errors import DataError, SecurefedError, SettingError, plain_text
from securefed.files import minor_version, read_json, write_json
from securefed.process.keys import PartyKeys, Signatures, check_certificates
from securefed.process.message_sizes import SIZES
from securefed.process.own_data import ALIGNMENT_KINDS, AllRefuse
from securefed.process.party_run import Session
from securefed.process.scoring import Scoring
from securefed.protocols.messages import KINDS
from securefed.report.page import render
from securefed.report.summary import PartyAccount, seconds_of
from securefed.settings.party import PartyFile, read_party_file
from securefed.transport.message import TEMPORARY, PeerGone, PeerLeft, PeerLost, TransportError, WrongRun
from securefed.transport.message import Path as ClockPath
from securefed.transport.network.codec import MOST_SECONDS
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Timeouts
from securefed.transport.network.run import NetworkLink


def open_endpoint(party: PartyFile, keys: PartyKeys) -> Endpoint:
    """The party's place on the network; the address is checked by listening on it."""
    check_certificates(party, keys.identity.certificate)
    # A question has to be given up, and asked on a new connection, well before patience ends.
    patience, normal = party.own.patience, Timeouts()
    timeouts = replace(
        normal,
        join=party.own.wait,
        patience=patience,
        answer=min(normal.answer, patience / 4),
        beat=min(normal.beat, patience / 10),
    )
    return Endpoint(keys.identity, listen=party.own.listen, peers=party.peers, timeouts=timeouts)


def may_return(gone: PeerGone) -> bool:
    """Whether it is worth waiting for the peer to come back."""
    return not isinstance(gone, PeerLeft) or gone.reason.partition(" ")[0] in TEMPORARY


def why_it_ended(error: BaseException) -> str:
    text = plain_text(error)
    if isinstance(error, PeerLeft) and not may_return(error):
        return f"{text} ({error.peer}'s own last line says more, and it will be the same next time)"
    return text


ALL_KINDS = {**dict.fromkeys(ALIGNMENT_KINDS), **KINDS}
RELEASE = minor_version()
"""Compared between parties and with checkpoints: messages and files may change with it."""
CLOSING_SECONDS = 60.0
"""How long the others have to write their results before transcripts go uncompared."""
DIFFERENT = "DIFFER"
FEWEST_ATTEMPTS = 3
DONE_SECONDS = 60.0
"""How long a party that is done waits for others who may not be."""


def check_folder(session: Session, resume: bool, restart: bool) -> bool:
    """Refuse a run directory that is not as the operator thinks. Nothing is deleted here.

    Returns True if there is nothing to resume because this run is over. Its process may have been killed
    between the last write and its exit, and a supervisor starts it again.
    """
    folder, store = session.directory.folder, session.store
    if restart:
        return False
    if session.directory.finished and not (resume and store.aligned):
        result = read_json(session.directory.result, "run's result") if resume else {}
        same = result.get("inputs") == session.inputs
        if same and all(peer["transcripts"] != DIFFERENT for peer in result["peers"].values()):
            return True
        raise SettingError(
            f"{folder} holds a finished run; take another run name, or --restart to throw it away"
        )
    if store.aligned and not resume:
        raise SettingError(
            f"{folder} holds an unfinished run at round {session.last_round}; --resume goes on, --restart "
            "throws it away"
        )
    if store.aligned:
        session.check_unchanged()
        if damaged := store.set_aside_damage():
            text = f"{damaged} was damaged and is set aside; an older checkpoint is used"
            session.events.tell("note", text=text)
    session.state()  # a damaged checkpoint is found before anybody is called
    return False


def throw_away(session: Session) -> None:
    """Delete what an earlier start left of this run. The caller holds the lock and the open endpoint."""
    # The result first: without checkpoints it would say that the run is over.
    session.directory.result.unlink(missing_ok=True)
    session.store.clear()
    session.directory.alignments.unlink(missing_ok=True)


class Attempts:
    """Bounds attempts that get nowhere: greetings may pass where messages do not, again and again."""

    def __init__(self, wait: float, now: Callable[[], float] = time.monotonic) -> None:
        self._wait, self._now = wait, now
        self._position: object = None
        self._failed, self._since = 0, 0.0

    def interrupted(self, gone: PeerGone, position: object) -> None:
        """Note that an attempt ended at `position`; PeerLost if several got no further in the whole wait."""
        if self._failed == 0 or position != self._position:
            self._position, self._failed, self._since = position, 0, self._now()
        self._failed += 1
        elapsed = self._now() - self._since
        if self._failed >= FEWEST_ATTEMPTS and elapsed >= self._wait:
            raise PeerLost(
                gone.peer,
                f"{self._failed} attempts in {elapsed:.0f} s came no further; the last one: {gone}; "
                "something between the parties lets greetings pass and stops messages",
            )


class _Attempt:
    """The program of one meeting."""

    def __init__(self, session: Session | Scoring) -> None:
        self._session = session
        self.begun = False
        self.refusal: SecurefedError | None = None
        """The refusal that all parties reach independently. Each ends its program and reports it."""

    async def __call__(self, link: NetworkLink) -> Any:
        session, self.begun = self._session, True
        session.events.tell("met")
        if session.keys.holder is not None:
            session.directory.make()
            session.keys.holder.memory.keep(session.directory.openings)
        try:
            return await session.program(link)
        except AllRefuse as refusal:
            self.refusal = refusal.error


def run_session(session: Session | Scoring, endpoint: Endpoint) -> tuple[Any, bool]:
    """Make attempts until the work is over, or nothing moves for as long as this party waits for others.

    Returns what the program returned, and whether the run is known to be over for all. A party that is done
    stays until then, since others may need it to repeat their last round. It is content after a while if
    nobody comes.
    """
    events, attempts = session.events, Attempts(endpoint.timeouts.join)
    while True:
        events.tell("attempt")
        attempt, done = _Attempt(session), session.finished_before()
        try:
            run = endpoint.run(
                attempt,
                run=session.run,
                kinds=ALL_KINDS,
                settings={**session.compared, "release": RELEASE},
                facts=session.facts(),
                sizes=SIZES,
                join=math.inf if done is None else DONE_SECONDS,
                on_wait=lambda waiting: events.tell("waiting", waiting=waiting),
            )
        except WrongRun:
            if done is None:
                raise
            return done, True  # a peer that is in another run has closed this one
        except PeerGone as gone:
            if done is not None and not attempt.begun:
                return done, False
            if not attempt.begun or not may_return(gone):
                raise
            # A peer may have a new certificate by now, or an old one was revoked.
            changed = read_party_file(session.party.path)
            check_certificates(changed, session.keys.identity.certificate)
            endpoint.repin(changed.peers)
            attempts.interrupted(gone, session.position)
            last = session.last_round
            again = f"going back to round {last}" if last else "beginning again"
            events.tell("note", text=f"{why_it_ended(gone)}; {again} and waiting for it")
            events.tell("interrupted", peer=gone.peer, reason=str(gone), last_round=last)
        else:
            if attempt.refusal is not None:
                raise attempt.refusal
            return run.outcome, True


def write_run(session: Session, account: PartyAccount) -> None:
    """Write result.json, timing.json and report.html with the audit of the party's own transcript."""
    result, timing = {**account.result(), "inputs": session.inputs}, account.timing()
    try:
        section = audit([account.transcript], result).to_html()
    except DataError:
        section = ""
    session.directory.write(result, timing, render(result, timing, section))


def close_run(endpoint: Endpoint, session: Session, account: PartyAccount) -> PartyAccount:
    """Compare transcripts, exchange times and sign. Whoever is gone already is not compared.

    The own signature and countersignatures of the peers' transcripts go into the run directory.
    """
    signatures = Signatures(session.keys, account.transcript, account.instance)
    peers = list(session.party.peers)
    facts = {
        "signed": signatures.to_facts(),
        "timing": seconds_of(account.path),
        "roots": {peer: account.transcript.roots(peer) for peer in peers},
    }
    heard: dict[str, dict[str, Any]] = {}

    async def listen(link: NetworkLink) -> None:
        heard.update(link.hello)

    with suppress(TransportError):  # whoever is away: what was heard of the others counts
        endpoint.run(
            listen,
            run=f"{account.run}/closing",
            kinds=(),
            settings={"instance": account.instance},
            facts=facts,
            after=(account.run,),
            join=CLOSING_SECONDS,
        )
    write_json(session.directory.signatures, signatures.to_file({p: heard[p] for p in peers if p in heard}))
    return replace(account, peers={peer: _compared(account, peer, heard.get(peer)) for peer in peers})


def _compared(account: PartyAccount, peer: str, facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Compare a peer's transcript roots with this party's."""
    theirs = facts.get("roots") if facts is not None else None
    theirs = theirs.get(account.party) if isinstance(theirs, dict) else None
    if facts is None or not isinstance(theirs, dict):
        return {"transcripts": "not compared: the peer was gone", "timing": None}
    ours = account.transcript.roots(peer)
    ours["sent"], ours["received"] = ours["received"], ours["sent"]
    equal = all(theirs.get(name) == root for name, root in ours.items())
    return {"transcripts": "agree" if equal else DIFFERENT, "timing": _timing(facts.get("timing"))}


def _timing(value: object) -> dict[str, float] | None:
    """Return a peer's times, if they are numbers that a run can take."""
    if not isinstance(value, dict):
        return None
    times = {key: value.get(key) for key in seconds_of(ClockPath())}
    if not all(isinstance(each, int | float) and 0 <= each < MOST_SECONDS for each in times.values()):
        return None
    return {key: float(each) for key, each in times.items() if each is not None}
