"""Decide about a tool call: which jobs the rules require for it, and whether this owner holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from holdfast.agents.guard import paths, server, shell, state, targets
from holdfast.agents.guard.hosts import ASK as ASK_PERSON
from holdfast.agents.guard.hosts import CODEX, PASS, READERS, REFUSE, Event, can_ask
from holdfast.agents.guard.owner_session import ClaimedJob, OwnerSession, UnavailableJob
from holdfast.agents.guard.programs import is_interactive, program
from holdfast.agents.guard.rules import ASK, LET_PASS, ONLY_REFUSE, BrokenRulesError, Rule, Rules, read
from holdfast.agents.guard.server import RefusedError, UnavailableError
from holdfast.agents.guard.state import Owner, StateError
from holdfast.agents.guard.syntax import Command, UnclearError, Word
from holdfast.sanitize import plain

WHAT_CHARS_MAX = 120
TEXT_CHARS_MAX = 400
GIT = "git"  # The host of an owner that is a git process and not an agent.
TARGETS_MAX = 20_000  # Files checked per command line; checking more takes longer than a host waits.
JOBS_MAX = 50  # Jobs that one call may need.
_UNKNOWN_NAME = (
    "this command writes a file whose name is known only when it runs, and a rule guards files here. Write the names of"
    " the files literally, or change the files with your edit tool"
)
_INTERACTIVE = (
    "this starts a program that waits for input, and Codex does not show the guard what is typed into it later. Give it"
    " its commands now: `bash -c '…'`, `python -c '…'`, a script file, or a here-document"
)


class Requirement:
    def __init__(self, rule: Rule, job: str, what: str, problem: str = "") -> None:
        self.rule, self.job, self.problem = rule, job, problem
        self.what = what if len(what) <= WHAT_CHARS_MAX else what[:WHAT_CHARS_MAX] + "…"


class Verdict:
    def __init__(self, kind: str, text: str = "") -> None:
        self.kind, self.text = kind, text


class Matcher:
    def __init__(self, base: str) -> None:
        self._base = base
        self._read: dict[str, Rules] = {}

    def of_event(self, event: Event) -> Iterator[Requirement]:
        for file in event.files:
            is_below = event.takes_folders and os.path.isdir(os.path.join(event.cwd, paths.usable(file)))
            yield from self.of_path(file, event.cwd, is_below=is_below)
        if event.command is not None:
            yield from self.of_command_line(event.command, event.cwd, is_codex=event.host == CODEX)
        yield from self.of_tool(event)

    def of_path(
        self, text: str, cwd: str, *, is_below: bool = False, follows_links: bool = True, entry: str = ""
    ) -> Iterator[Requirement]:
        """Return what writing a file or a tree needs; a shell pattern in `entry` limits the tree's top entries."""
        for path in paths.resolved(text, cwd) if follows_links else [os.path.join(cwd, text)]:
            if is_below:
                yield from self._of_own_repository(path, cwd, entry)
            # A tree also falls under the rule file at its own top.
            for file, top in paths.rule_files_above(os.path.join(path, ".") if is_below else path):
                if path == file and self._is_broken(file):
                    continue  # A broken rule file must stay editable.
                rules = self._rules(file)
                folded = paths.folded if rules.ignores_case else str
                pieces = [folded(piece) for piece in path.removeprefix(top).split("/") if piece]
                shown, form = os.path.relpath(path, top), folded(entry)
                for rule in rules.rules:
                    patterns = ([folded(piece) for piece in each] for each in rule.paths)
                    if any(paths.path_fits(each, pieces, below=is_below, entry=form) for each in patterns):
                        yield from _filled(rule, shown, path=shown, folder=os.path.dirname(path))

    def _of_own_repository(self, path: str, cwd: str, entry: str) -> Iterator[Requirement]:
        """Match path rules around `cwd` whose whole folder is below the path, as with `rm -rf ../re*`."""
        above = path.rstrip("/") + "/"
        for file, top in paths.rule_files_above(os.path.join(os.path.realpath(cwd), ".")):
            if top.startswith(above) and paths.may_fit(entry, top[len(above) :].partition("/")[0]):
                for rule in self._rules(file).rules:
                    if rule.paths:
                        yield from _filled(rule, top, path=".", folder=top)

    def of_command_line(self, line: str, cwd: str, *, is_codex: bool = False) -> Iterator[Requirement]:
        try:
            commands = shell.commands_of(paths.usable(line), cwd)
        except UnclearError as error:
            yield from self._of_unclear(line, cwd, str(error))
            return
        count = 0
        for command in commands:
            yield from self._of_command(command)
            if is_codex and is_interactive(command):
                yield from self._refused(command, _INTERACTIVE)
            for target in targets.targets_of(command):
                count += 1
                if count > TARGETS_MAX:
                    yield from self._of_unclear(line, cwd, f"it names more than {TARGETS_MAX} files")
                    return
                if target.is_unknown:
                    yield from self._refused(command, _UNKNOWN_NAME)
                else:
                    yield from self.of_path(target.text, target.cwd, is_below=target.is_below, entry=target.pattern)
            if program(command.words) == "apply_patch":
                for file in targets.patched(line):
                    yield from self.of_path(file, command.cwd)

    def _refused(self, command: Command, problem: str) -> Iterator[Requirement]:
        for rule in self._rules_in(command.cwd):
            if rule.paths or (rule.commands and problem is _INTERACTIVE):
                yield Requirement(rule, rule.job, " ".join(command.texts) or "a redirection", problem)

    def _of_command(self, command: Command) -> Iterator[Requirement]:
        folder, pushed = command.cwd, None
        if program(command.words) == "git":
            rest, folder = targets.after_git_options(command.words[1:], folder)
            if rest and rest[0].text == "push":
                is_known = all(word.is_sure for word in rest)
                pushed = paths.pushed([word.text for word in rest[1:]], paths.current(folder)) if is_known else []
        for rule in self._rules_in(folder):
            if any(targets.command_fits(each, command) for each in rule.commands):
                yield from _filled(rule, " ".join(command.texts), folder=folder, pushed=pushed)

    def of_push(self, pushed: list[str], folder: str) -> Iterator[Requirement]:
        command = Command([Word("git"), Word("push")], folder, [])
        for rule in self._rules_in(folder):
            if any(targets.command_fits(each[:2], command) for each in rule.commands):
                yield from _filled(rule, f"git push of {', '.join(pushed)}", folder=folder, pushed=pushed)

    def _of_unclear(self, line: str, cwd: str, reason: str) -> Iterator[Requirement]:
        problem = f"this command line cannot be read ({reason}); write it plainer, one step at a time"
        for rule in self._rules_in(cwd):
            could_touch = any(targets.could_touch(each, f"{cwd} {line}") for each in rule.paths)
            # It may be a guarded command if all words of that are in the line.
            if could_touch or any(all(word.strip("*?") in line for word in each) for each in rule.commands):
                yield Requirement(rule, rule.job, line, problem)

    def of_tool(self, event: Event) -> Iterator[Requirement]:
        # Reading and repairing a broken rule file must stay possible.
        for rule in self._rules_in(event.cwd, skips_broken=event.tool in READERS or self._repairs_rules(event)):
            if any(paths.fits(each, name) for each in rule.tools for name in event.tool_names) and all(
                paths.fits(pattern, str(event.arguments.get(name, ""))) for name, pattern in rule.arguments.items()
            ):
                yield from _filled(rule, event.tool, folder=event.cwd, arguments=event.arguments)

    def rules_around(self, folder: str, *, skips_broken: bool = False) -> list[Rules]:
        """Return the rules that apply in a folder. Raises `BrokenRulesError` unless `skips_broken`."""
        files = paths.rule_files_above(os.path.join(os.path.realpath(folder), "."))
        return [self._rules(file) for file, _ in files if not (skips_broken and self._is_broken(file))]

    def _rules_in(self, folder: str, *, skips_broken: bool = False) -> Iterator[Rule]:
        return (rule for rules in self.rules_around(folder, skips_broken=skips_broken) for rule in rules.rules)

    def _repairs_rules(self, event: Event) -> bool:
        written = [path for file in event.files for path in paths.resolved(file, event.cwd)]
        return bool(written) and all(
            os.path.basename(each) == paths.RULES_NAME and self._is_broken(each) for each in written
        )

    def _rules(self, file: str) -> Rules:
        if file not in self._read:
            self._read[file] = read(file, self._base)
        return self._read[file]

    def _is_broken(self, file: str) -> bool:
        try:
            self._rules(file)
        except BrokenRulesError:
            return True
        return False


def _filled(
    rule: Rule,
    what: str,
    *,
    folder: str,
    path: str = "",
    pushed: list[str] | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Iterator[Requirement]:
    """Fill in the placeholders of a rule's job name. A push of several branches needs several jobs."""
    job = rule.job.replace("{path}", path)
    for name, value in (arguments or {}).items():
        job = job.replace(f"{{argument.{name}}}", str(value))
    if "{argument." in job:
        yield Requirement(rule, rule.job, what, "it lacks the argument that its job is named after")
    elif "{branch}" not in job:
        yield Requirement(rule, job, what)
    else:
        found = [paths.current(folder)] if pushed is None else pushed
        if not found or not all(found):
            problem = "it cannot be told which branch this is; name it, as in `git push origin main`"
            yield Requirement(rule, rule.job, what, problem)
        else:
            yield from (Requirement(rule, job.replace("{branch}", branch), what) for branch in found)


def decide(event: Event, owner: Owner, base: str, environment: Mapping[str, str]) -> Verdict:
    try:
        requirements = list(Matcher(base).of_event(event))
    except BrokenRulesError as error:
        return Verdict(REFUSE, str(error))
    if not requirements:
        return Verdict(PASS)
    owner_session = OwnerSession(base, owner, environment, requirements[0].rule.ttl_seconds)
    return decide_requirements(requirements, owner_session, base, event=event, owner=owner)


class _JobPolicy:
    """Combined settings of the rules that name one job: the strictest of each wins."""

    def __init__(self, requirements: list[Requirement]) -> None:
        self.what = requirements[0].what
        self.is_claimed = any(requirement.rule.when_free != ONLY_REFUSE for requirement in requirements)
        self.is_asked = any(requirement.rule.when_free == ASK for requirement in requirements)
        self.passes_unavailable = all(requirement.rule.when_away == LET_PASS for requirement in requirements)


def decide_requirements(
    requirements: list[Requirement], owner_session: OwnerSession, base: str, *, owner: Owner, event: Event | None = None
) -> Verdict:
    for requirement in requirements:
        if requirement.problem:
            return Verdict(REFUSE, f"{_shown(requirement.what)}: {_shown(requirement.problem)}")
    # Sorted: of two agents that need the same jobs, one gets all of them.
    jobs = {
        job: _JobPolicy([requirement for requirement in requirements if requirement.job == job])
        for job in sorted({requirement.job for requirement in requirements})
    }
    if len(jobs) > JOBS_MAX:
        return Verdict(REFUSE, f"it needs {len(jobs)} jobs at once, and {JOBS_MAX} are the most; do it in parts")
    claimed: list[ClaimedJob] = []
    unchecked: dict[str, str] = {}
    reason = ""
    to_claim = {job: policy.what for job, policy in jobs.items() if policy.is_claimed}
    # Read-only jobs come first: after a successful claim nothing may refuse the call.
    steps = [[job] for job in jobs if job not in to_claim] + ([list(to_claim)] if to_claim else [])
    for step in steps:
        what, job = jobs[step[0]].what, step[0]
        try:
            found = owner_session.claim(to_claim) if job in to_claim else owner_session.read_holder(job)
        except UnavailableError as error:
            strict = next((each for each in step if not jobs[each].passes_unavailable), None)
            if strict is not None:
                return Verdict(REFUSE, _unavailable_text(jobs[strict].what, strict, str(error)))
            unchecked.update({each: jobs[each].what for each in step})
            reason = str(error)
            continue
        except (RefusedError, StateError) as error:
            return Verdict(
                REFUSE, f"{_shown(what)} belongs to the job {_shown(job)}, which could not be claimed: {_shown(error)}"
            )
        if isinstance(found, UnavailableJob):
            return Verdict(
                REFUSE, _unavailable_job_text(found, jobs[found.job].what, owner_session.link_problem(found))
            )
        claimed += found or []
    asked = _jobs_to_ask({each.job: each for each in claimed if jobs[each.job].is_asked}, owner, base, event)
    if asked:
        purposes = {job: jobs[job].what for job in asked}
        if event is not None and can_ask(event):
            return Verdict(ASK_PERSON, _question(purposes))
        return Verdict(REFUSE, _question(purposes, event.host if event else "git"))
    notices = [text for each in claimed if (text := _handover_text(each))]
    if unchecked:
        notices.insert(0, _let_pass_text(unchecked, reason))
        state.log(base, f"{owner.name}: {notices[0]}")
    return Verdict(PASS, "\n".join(notices))


def _jobs_to_ask(claimed: Mapping[str, ClaimedJob], owner: Owner, base: str, event: Event | None) -> list[str]:
    """Return the jobs whose current leases no person has agreed to yet, and record the question."""
    if not claimed or owner.host == GIT:
        return []  # Without an agent, a person runs git.
    with state.locked(base, owner.folder):
        agreed_to = state.read_map(owner.folder + "/agreed")
        found = [job for job, each in claimed.items() if agreed_to.get(job) != [_lease_of(each)]]
        if found:
            asked = state.read_map(owner.folder + "/asked")
            asked.update({job: [event.use_id if event else "", _lease_of(claimed[job])] for job in found})
            state.write_private(owner.folder + "/asked", asked)
    return found


def _lease_of(claimed: ClaimedJob) -> str:
    return str(claimed.fields.get("lease_id", ""))


def record_consent(base: str, folder: str, *, call: str = "", job: str = "") -> bool:
    """Record a person's consent: the call ran, or they named the job. Return whether a question was pending."""
    if not os.path.exists(folder + "/asked"):
        return False
    with state.locked(base, folder):
        asked = state.read_map(folder + "/asked")
        found = {each: of for each, of in asked.items() if each == job or (call and of[0] == call)}
        if not found:
            return False
        agreed_to = state.read_map(folder + "/agreed") | {each: of[1:] for each, of in found.items()}
        state.write_private(folder + "/agreed", agreed_to)
        state.write_private(folder + "/asked", {each: of for each, of in asked.items() if each not in found})
    return True


def owner_of(job: str, environment: Mapping[str, str]) -> Mapping[str, object]:
    status, reply = server.find(environment).call("GET", f"/locks/{server.quoted(job)}")
    if status != 200:  # noqa: PLR2004 - done
        raise server.refusal(status, reply)
    return reply


# --- Messages. They tell an agent what to do instead. Foreign names and notes are escaped, cut and quoted. ------------


def _shown(text: object) -> str:
    """Escape a foreign text into one line without control characters, and cut it."""
    found = plain(str(text))
    return found if len(found) <= TEXT_CHARS_MAX else found[:TEXT_CHARS_MAX] + "…"


def _quoted(text: object) -> str:
    return f'"{_shown(text)}"' if text else "none"


def _span(milliseconds: object) -> str:
    if not isinstance(milliseconds, int):
        return "an unknown time"
    minutes, seconds = divmod(max(milliseconds // 1_000, 0), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _unavailable_job_text(found: UnavailableJob, what: str, hint: str = "") -> str:
    job, fields, status = _shown(found.job), found.fields, found.fields.get("status")
    begin = f"{_shown(what)} belongs to the job {job}, which"
    if status == "done":
        return (
            f"{begin} is done: by {_shown(fields.get('owner'))}, result: {_quoted(fields.get('result'))}. Do not do it"
            f" again. If it must be: `holdfast reopen {job}`."
        )
    if status == "delayed":
        return (
            f"{begin} is closed for another {_span(fields.get('retry_after_ms'))} after its last owner. Wait for so"
            " long and try again, or work on something else."
        )
    owner = _shown(fields.get("owner") or fields.get("shown_as") or "one that gave no name")
    note = f"; its note: {_quoted(fields.get('note'))}" if fields.get("note") else ""
    return (
        f"{begin} another has: owner {owner}, since {_shown(fields.get('claimed_at'))},"
        f" {_span(fields.get('expires_in_ms'))} left unless it is renewed{note}. Do not change it in another way."
        " Instead: work on something that another job covers, or wait and try again;"
        f" `holdfast why {job}` says who has it and who waits." + (f" {hint}" if hint else "")
    )


def _handover_text(claimed: ClaimedJob) -> str:
    """Return the previous owner's note for a new owner; "" without one."""
    previous = claimed.fields.get("previous")
    if claimed.fields.get("reacquired") is True or not isinstance(previous, dict) or not previous.get("note"):
        return ""
    return (
        f"You have the job {_shown(claimed.job)} now. Its last owner, {_shown(previous.get('owner'))}"
        f" ({_shown(previous.get('ended'))}), left a note: {_quoted(previous.get('note'))}"
    )


def _unavailable_text(what: str, job: str, reason: str) -> str:
    return (
        f"{_shown(what)} belongs to the job {_shown(job)}, and the Holdfast server cannot be asked who has it:"
        f" {_shown(reason)}. Nothing that a rule names passes until it answers. Wait and try again, or work on"
        " something that no rule names; `holdfast doctor` looks for the reason."
    )


def _let_pass_text(purposes: Mapping[str, str], reason: str) -> str:
    jobs = ", ".join(f"{_shown(job)} ({_shown(what)})" for job, what in purposes.items())
    return (
        f"passed WITHOUT a claim, because the Holdfast server cannot be asked and the rule says let-pass: {jobs}."
        f" Another may be at work on it: {_shown(reason)}"
    )


def _question(jobs: Mapping[str, str], unable: str = "") -> str:
    """Ask a person to agree; the agent sees this if its host is `unable` to ask, or has no terminal."""
    named = ", ".join(f"{_shown(job)} for {_shown(what)}" for job, what in jobs.items())
    middle = (
        f", which {unable} cannot ask from a hook. The job is kept for you meanwhile. Ask"
        if unable
        else "; no other agent gets it until the session ends. If there is no terminal to ask at, ask"
    )
    agree = "; ".join(f"holdfast guard agree {_shown(job)}" for job in jobs)
    return (
        f"a person must agree that this agent claims {named}{middle} the person you work for to run: {agree}. Then try"
        " again."
    )
