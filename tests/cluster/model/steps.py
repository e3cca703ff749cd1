"""Every step that the world of the model can take next: clients, statements that arrive, and what nodes do.

The law of this file: nothing is excluded because it is unlikely. Any node may ask for the seat at any moment, for no
silence is believed here. A step is a label for people and the world after it. An answer that breaks a rule is judged
when it is given, by `judge.answered`; a world is judged as a whole by `judge.look`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from tests.cluster.model import judge
from tests.cluster.model.world import (
    FOLLOWER,
    TTL,
    TURN_MAX,
    Answer,
    Log,
    Node,
    Outcome,
    PendingRequest,
    Record,
    ReportedState,
    Request,
    Result,
    Rules,
    Statement,
    World,
    carry_out,
    name_of,
)

Step: TypeAlias = tuple[str, World]
Refusal: TypeAlias = Literal["failed", "unknown"]


def steps(world: World, rules: Rules) -> Iterator[Step]:
    """Yield all of them."""
    if world.time < rules.time_max:
        yield "time passes", world._replace(time=world.time + 1)
    if world.standby is not None and world.standby != world.store:
        yield "the standby catches up", world._replace(standby=world.store)
        promoted = world.standby._replace(timeline=world.store.timeline + 1)
        yield "THE STANDBY IS PROMOTED", world._replace(store=promoted, flight=(), standby=None)
    yield from _clients(world, rules)
    yield from _arrivals(world, rules)
    for at, node in enumerate(world.nodes):
        match node.mode:
            case "follows":
                yield from _follower(world, at, rules)
            case "takes":
                yield from _taker(world, at, rules)
            case "reads":
                yield _reader(world, at, rules)
            case _:
                yield from _writer(world, at, rules)
                if node.mode == "leads":
                    yield from _leader(world, at, rules)


# --- Clients, and the followers that pass their requests on ----------------------------------------------------------


def _clients(world: World, rules: Rules) -> Iterator[Step]:
    for number, it in enumerate(world.requests):
        ask = rules.asks[number]
        if it.status == "new" and _can_ask(world, number, rules):
            for at in (0, 1):
                yield f"r{number} {ask} is sent to n{at}", _sent(world, number, it, at)
        elif it.status == "sent" and it.resends:
            at = 1 - it.node
            if world.nodes[at].mode == "leads":
                again = it._replace(node=at, undecided=it.undecided | 1 << at, resends=it.resends - 1)
                yield f"r{number} is sent on to n{at}", _with_request(world, number, again)
        elif it.status == "unknown" and it.retries:
            for at in (0, 1):
                if world.nodes[at].mode == "leads":
                    again = it._replace(retries=it.retries - 1)
                    yield f"r{number} is asked again at n{at}, with its key", _sent(world, number, again, at)


def _can_ask(world: World, number: int, rules: Rules) -> bool:
    ask = rules.asks[number]
    if ask.startswith("release"):
        claim = world.requests[int(ask.split()[1])]
        return claim.status == "answered" and claim.said.what == "got"
    # Who asks the same is the same: they ask in their order, unless one of them is named by another.
    is_named = any(other.startswith("release") for other in rules.asks)
    return is_named or all(
        other.status != "new"
        for other, asked in zip(world.requests[:number], rules.asks[:number], strict=True)
        if asked == ask
    )


def _sent(world: World, number: int, it: Request, at: int) -> World:
    sent = it._replace(
        status="sent",
        sent_at=world.time,
        node=at,
        undecided=it.undecided | 1 << at,
        said=Outcome(),
        after=world.reported,
    )
    return _with_request(world, number, sent)


def copy_of(it: Request, rules: Rules) -> int:
    """The number of the copy whose answer counts. Answers are matched by it, never by the node alone (N-31)."""
    return rules.retries - it.retries + rules.resends - it.resends


# --- The store -------------------------------------------------------------------------------------------------------


def _arrivals(world: World, rules: Rules) -> Iterator[Step]:
    for it in world.flight:
        rest = tuple(other for other in world.flight if other != it)
        node = world.nodes[it.node]
        is_gone = it.is_received and it.kind in {"append", "confirm"} and node.timeline != world.store.timeline
        if rules.has_standby and is_gone:
            yield f"n{it.node} {it.kind}: its connection is gone", world._replace(flight=rest)
            continue
        store, last = carry_out(world.store, it, rules)
        if it.is_received:
            received = node._replace(inbox=Result(it.kind, last, store.timeline))
            after = _with_node(world._replace(store=store, flight=rest), it.node, received)
            yield f"n{it.node} {it.kind} of epoch {it.epoch} is done: {last}", after
        elif store != world.store:
            after = world._replace(store=store, flight=rest)
            yield f"n{it.node} {it.kind} of epoch {it.epoch} IS DONE LATE: {last}", after


# --- Becoming the leader ---------------------------------------------------------------------------------------------


def _follower(world: World, at: int, rules: Rules) -> Iterator[Step]:
    if world.store.epoch >= rules.epochs_max + rules.has_standby:
        return
    # Only a store that went back repeats an epoch; without one, tenures that are numbered by it make fewer worlds.
    term = world.terms + 1 if rules.has_standby else world.store.epoch + 1
    candidate = Node("takes", epoch=world.store.epoch + 1, term=term)
    after = _with_node(world._replace(terms=term if rules.has_standby else 1), at, candidate)
    yield (
        f"n{at} sees epoch {world.store.epoch} and asks for the seat",
        _with_statement(after, Statement("take", at, is_received=True, epoch=world.store.epoch, term=term)),
    )


def _taker(world: World, at: int, rules: Rules) -> Iterator[Step]:
    node = world.nodes[at]
    if node.inbox is not None:
        if node.inbox.last is None:
            yield f"n{at} came too late", _with_node(world, at, FOLLOWER)
        else:
            leader = node._replace(mode="reads", inbox=None, timeline=node.inbox.timeline)
            yield f"n{at} has the seat, epoch {node.epoch}", _with_node(world, at, leader)
    elif _strays(world) < rules.strays_max:
        yield f"n{at} gives up taking", _with_node(_as_strays(world, at), at, FOLLOWER)


def _reader(world: World, at: int, rules: Rules) -> Step:
    """Read the log after the seat was taken, and append that this tenure is opened."""
    node, store = world.nodes[at], world.store
    last_at = max(record.at for record in store.log)
    now = world.time + 1 if rules.time == "fast" else max(last_at, store.now)
    batch: Log = (Record("opened", node.epoch, last_at, node.epoch),)
    if rules.marks != "never" and store.timeline != name_of(store.log).timeline:
        batch += (Record("jumped", store.timeline, last_at, node.epoch),)
    opening = node._replace(
        mode="opens",
        now=now,
        turned_at=world.time,
        view=store.log + batch,
        pending=PendingRequest(batch, (), is_lost=False),
        timeline=store.timeline,
    )
    after = _with_statement(_with_node(world, at, opening), _append(at, opening))
    return f"n{at} reads {len(store.log)} records; its time goes on at {now}", after


# --- The one append or confirm that is on its way --------------------------------------------------------------------


def _writer(world: World, at: int, rules: Rules) -> Iterator[Step]:
    node = world.nodes[at]
    if node.pending is None:
        return
    if node.inbox is not None:
        yield _receive(world, at, node.pending, node.inbox, rules)
        return
    if _strays(world) >= rules.strays_max:
        return
    is_awaiting_reply = any(it.node == at and it.is_received and it.kind == "ask" for it in world.flight)
    if not (node.pending.is_lost and is_awaiting_reply):
        awaiting_reply = node._replace(pending=node.pending._replace(is_lost=True))
        after = _with_node(_as_strays(world, at), at, awaiting_reply)
        yield f"n{at} loses the answer and asks", _with_statement(after, _question(at, awaiting_reply))
    if node.pending.is_lost:
        how: Refusal = "unknown" if node.pending.batch else "failed"
        yield f"n{at} gives up", _over(world, at, how, "unknown", rules)


def _receive(world: World, at: int, pending: PendingRequest, result: Result, rules: Rules) -> Step:
    """Act on what the store answered (N-7, N-12, N-15)."""
    node = world.nodes[at]._replace(inbox=None)
    if result.kind == "ask":
        return _asked(world, at, pending, result, rules)
    world = _with_node(world, at, node)
    if result.last is not None:
        if result.kind == "confirm" and result.last != node.durable:
            return f"n{at} finds that the store went back", _over(world, at, "unknown", "unknown", rules)
        return f"n{at} has it done, and answers", _done(world, at, pending, rules)
    if result.kind == "confirm" or not pending.is_lost or rules.no_row == "deposed":
        return f"n{at} is deposed", _over(world, at, "failed", "failed", rules)
    return f"n{at} found no row for a second copy, and asks", _with_statement(world, _question(at, node))


def _asked(world: World, at: int, pending: PendingRequest, result: Result, rules: Rules) -> Step:
    node = world.nodes[at]._replace(inbox=None, timeline=result.timeline)
    is_other = result.timeline != world.nodes[at].timeline
    world = _with_node(world, at, node)
    if is_other and rules.marks == "always":
        return f"n{at} finds another store", _over(world, at, "unknown", "unknown", rules)
    if result.last is None:
        how: Refusal = rules.lost_and_deposed if pending.batch else "failed"
        return f"n{at} lost an answer and the seat", _over(world, at, how, how, rules)
    if result.last == node.durable + len(pending.batch):
        return f"n{at} finds it there, and answers", _done(world, at, pending, rules)
    if result.last != node.durable:
        return f"n{at} finds that the store went back", _over(world, at, "unknown", "unknown", rules)
    if rules.lost == "look":
        return f"n{at} believes that it is not there", _over(world, at, "failed", "failed", rules)
    return f"n{at} sends the same again", _with_statement(world, _append(at, node))


def _done(world: World, at: int, pending: PendingRequest, rules: Rules) -> World:
    world = _with_node(world, at, world.nodes[at]._replace(mode="leads", pending=None))
    return _answer(world, at, pending.answers, rules)


def _over(world: World, at: int, pending: Refusal, gathered: Refusal, rules: Rules) -> World:
    """End a tenure: everybody who waits is refused, and all that was believed is gone (N-18)."""
    node = world.nodes[at]
    world = _refuse(world, at, node.pending.answers if node.pending else (), pending, rules)
    world = _refuse(world, at, node.answers, gathered, rules)
    return _with_node(_as_strays(world, at), at, FOLLOWER)


# --- Leading ---------------------------------------------------------------------------------------------------------


def _leader(world: World, at: int, rules: Rules) -> Iterator[Step]:
    node = world.nodes[at]
    for number, it in enumerate(world.requests):
        if it.undecided & 1 << at:
            yield _decide(world, at, number, it, rules)
    if node.pending is not None:
        return
    if node.records:
        sending = _gathered(node)
        yield f"n{at} appends", _with_statement(_with_node(world, at, sending), _append(at, sending))
    elif node.answers:
        sending = _gathered(node)
        yield f"n{at} confirms", _with_statement(_with_node(world, at, sending), _confirm(at, sending))
    elif world.time > node.turned_at:
        turned = _turn(node, world.time)
        if turned.records:
            yield f"n{at} ends a lease by itself at {turned.now}", _with_node(world, at, turned)
        elif turned.now > world.store.now:
            sending = _gathered(turned)
            yield f"n{at} has a heartbeat", _with_statement(_with_node(world, at, sending), _confirm(at, sending))


def _gathered(node: Node) -> Node:
    return node._replace(pending=PendingRequest(node.records, node.answers, is_lost=False), records=(), answers=())


def _turn(node: Node, time: int) -> Node:
    """Let time move, and end what is due (T1, T3)."""
    now = node.now + min(time - node.turned_at, TURN_MAX)
    name = name_of(node.view)
    if name.holder is None or name.until > now:
        return node._replace(now=now, turned_at=time)
    ended = Record("ended", name.holder, now, node.epoch)
    return node._replace(now=now, turned_at=time, view=(*node.view, ended), records=(*node.records, ended))


def _decide(world: World, at: int, number: int, it: Request, rules: Rules) -> Step:
    node = _turn(world.nodes[at], world.time)
    said, record = _decision(node, number, rules)
    if record is not None:
        node = node._replace(view=(*node.view, record), records=(*node.records, record))
    copy = copy_of(it, rules) if it.node == at else -1
    answer = Answer(number, said, name_of(node.view).position, copy)
    is_early = not rules.barrier and not node.records and not (node.pending and node.pending.batch)
    if not is_early:
        node = node._replace(answers=(*node.answers, answer))
    decided = it._replace(undecided=it.undecided & ~(1 << at))
    after = _with_request(_with_node(world, at, node), number, decided)
    if is_early:
        after = _answer(after, at, (answer,), rules)
    return f"n{at} decides r{number} {rules.asks[number]} at {node.now}: {said}", after


def _decision(node: Node, number: int, rules: Rules) -> tuple[Outcome, Record | None]:
    name = name_of(node.view)
    match rules.asks[number].split():
        case ["claim"]:
            return _claim(node, number, rules)
        case ["release", claim]:
            if name.holder == int(claim):
                return Outcome("released"), Record("released", int(claim), node.now, node.epoch)
            is_done = any(record.kind == "released" and record.of == int(claim) for record in node.view)
            return Outcome("released" if is_done else "gone"), None
        case _:
            if not rules.has_delay or name.holder is not None:
                return Outcome("saw"), None
            is_open = name.closed_until <= node.now
            must_report = any(record.at >= name.closed_until for record in node.view)
            record = (
                Record("noted", number, node.now, node.epoch) if is_open and rules.timed and not must_report else None
            )
            return Outcome("saw", is_open=is_open), record


def _claim(node: Node, number: int, rules: Rules) -> tuple[Outcome, Record | None]:
    name = name_of(node.view)
    granted = dict(name.granted)
    if number in granted:
        # The key remembers it: the same token once more, or that it has ended.
        is_alive = name.holder == number
        return (Outcome("got", granted[number], name.until - node.now) if is_alive else Outcome("ended")), None
    if name.holder is not None or (rules.has_delay and name.closed_until > node.now):
        return Outcome("held"), None
    token = name.token + 1
    return Outcome("got", token, TTL, is_new=True), Record("granted", number, node.now, node.epoch, token)


# --- What is told ----------------------------------------------------------------------------------------------------


def _answer(world: World, at: int, answers: tuple[Answer, ...], rules: Rules) -> World:
    for answer in answers:
        it = world.requests[answer.request]
        if it.status != "sent" or it.node != at or answer.copy != copy_of(it, rules):
            continue
        judge.answered(answer, it, rules)
        reported = ReportedState(
            max(world.reported.position, answer.position),
            max(world.reported.token, answer.said.token),
            max(world.reported.open_at, answer.position if answer.said.is_open else -1),
        )
        answered = it._replace(status="answered", said=answer.said)
        world = _with_request(world._replace(reported=reported), answer.request, answered)
    return world


def _refuse(world: World, at: int, answers: tuple[Answer, ...], how: Refusal, rules: Rules) -> World:
    for answer in answers:
        it = world.requests[answer.request]
        if it.status != "sent" or it.node != at or answer.copy != copy_of(it, rules):
            continue
        # Another copy of it may have been taken (N-31).
        is_unknown = rules.copies == "unknown" and copy_of(it, rules) > 0
        world = _with_request(world, answer.request, it._replace(status="unknown" if is_unknown else how))
    return world


# --- Small parts -----------------------------------------------------------------------------------------------------


def _append(at: int, node: Node) -> Statement:
    batch = node.pending.batch if node.pending else ()
    now = batch[-1].at if batch else 0
    return Statement("append", at, True, node.epoch, node.term, node.durable + 1, batch, now)


def _confirm(at: int, node: Node) -> Statement:
    return Statement("confirm", at, True, node.epoch, node.term, now=node.now)


def _question(at: int, node: Node) -> Statement:
    return Statement("ask", at, True, node.epoch, node.term)


def _with_node(world: World, at: int, node: Node) -> World:
    return world._replace(nodes=(node, world.nodes[1]) if at == 0 else (world.nodes[0], node))


def _with_request(world: World, number: int, it: Request) -> World:
    return world._replace(requests=(*world.requests[:number], it, *world.requests[number + 1 :]))


def _with_statement(world: World, it: Statement) -> World:
    return world._replace(flight=tuple(sorted({*world.flight, it})))


def _as_strays(world: World, at: int) -> World:
    """Nobody waits any more for what this node has on its way."""
    flight = {it._replace(is_received=False) if it.node == at else it for it in world.flight}
    return world._replace(flight=tuple(sorted(flight)))


def _strays(world: World) -> int:
    return sum(not it.is_received for it in world.flight)
