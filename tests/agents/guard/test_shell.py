"""Command lines, taken apart as a shell would: which commands run where, and which files they are seen to write."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.agents.guard import paths, shell, targets
from holdfast.agents.guard.syntax import UnclearError
from tests.agents.guard.conftest import RULES

TOP = "/repo"


def programs(line: str) -> list[str]:
    """Every command of a line, its folder first if it is not the top."""
    found = []
    for command in shell.commands_of(line, TOP):
        folder = os.path.normpath(command.cwd)
        found.append(("" if folder == TOP else f"{folder}: ") + " ".join(command.texts))
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("git push", ["git push"]),
        ("git  push   origin 'my branch'", ["git push origin my branch"]),
        ("cd app && git push", ["cd app", "/repo/app: git push"]),
        ("(cd app; git push); git push", ["cd app", "/repo/app: git push", "git push"]),
        ("cd /a/b; cd ..; make", ["cd /a/b", "/a/b: cd ..", "/a: make"]),
        ("A=1 B='x y' git push", ["git push"]),
        ("a | b |& c || d & e", ["a", "b", "c", "d", "e"]),
        ("echo done # git push", ["echo done"]),
        ("echo 'git push; rm x'", ["echo git push; rm x"]),
        ('echo "$(git push)"', ["git push", "echo "]),
        ("echo `git push`", ["git push", "echo "]),
        ("x=$(git push origin main)", ["git push origin main"]),
        ('sh -c "git push"', ["sh -c git push", "git push"]),
        ("bash -lc 'cd app && git push'", ["bash -lc cd app && git push", "cd app", "/repo/app: git push"]),
        ("eval git push", ["eval git push", "git push"]),
        ("sudo -u ana env -i A=b timeout 5 nice -n 3 git push", ["git push"]),
        ("env -C app git push", ["/repo/app: git push"]),
        ("xargs -n 1 rm", ["rm "]),
        ("find . -name x -exec rm {} \\;", ["find . -name x -exec rm {} ;", "rm ./"]),
        ("if git push; then echo a; else echo b; fi", ["git push", "echo a", "echo b"]),
        ("for x in a b; do git push; done", ["for x in a b", "git push"]),
        ("while ! git push; do :; done", ["git push", ":"]),
        ("{ git push; }", ["git push"]),
        ("f() { git push; }; f", ["git push", "f"]),
        ("git \\\n  push", ["git push"]),
        ("git push 2>&1 >/dev/null", ["git push"]),
        ("cat <<EOF\ngit push\nEOF\nls", ["cat", "ls"]),
        ("cat <<EOF\n$(git push)\nEOF", ["cat", "git push"]),
        ("cat <<'EOF'\n$(git push)\nEOF", ["cat"]),
        ("diff <(git push) b", ["git push", "diff b"]),
        ("echo $((1 + 2)) ${x:-$(git push)}", ["git push", "echo * "]),
        ("case x in a) git push;; esac", ["git push", "esac"]),
        ("a=(1 2); git push", ["1 2", "git push"]),
        ("cd app && cd - && git push", ["cd app", "/repo/app: cd -", "git push"]),
        ("pushd app; popd; git push", ["pushd app", "/repo/app: popd", "git push"]),
        ("eval 'cd app'; git push", ["eval cd app", "cd app", "/repo/app: git push"]),
        ("bash --norc -c 'git push'", ["bash --norc -c git push", "git push"]),
        ("bash <<'EOF'\ngit push\nEOF", ["bash", "git push"]),
        ("sudo sh -s x <<EOF\ngit push\nEOF", ["sh -s x", "git push"]),
        ("bash script.sh <<EOF\ngit push\nEOF", ["bash script.sh"]),
        ("sh <<< 'git push'", ["sh", "git push"]),
        ("time -p git push", ["git push"]),
        ("time { git push; }", ["git push"]),
        ("sudo A=1 --user ana git push", ["git push"]),
        ("env --chdir=app git push", ["/repo/app: git push"]),
        ("env -S 'git push'", ["git push"]),
        ("flock /tmp/lock -c 'true; git push'", ["true", "git push"]),
        ("su ana -c 'git push'", ["git push"]),
        ("xargs --max-args 1 rm", ["rm "]),
        ("holdfast run job -- git push", ["holdfast run job -- git push", "git push"]),
        ("function f { git push; }; f", ["git push", "f"]),
        ("echo $'a\\'b' && git push", ["echo a'b", "git push"]),
        ('echo $"a b"', ["echo a b"]),
        ("echo $((git push) ; true)", ["git push", "true", "echo "]),
        ("echo $(( (1 + 2) * $(git push) ))", ["git push", "echo *"]),
        ("rm a/!(b); git push", ["rm a/!(b)", "git push"]),
        ("[[ a > b ]] && git push", ["[[ a > b ]]", "git push"]),
        ("env -S'git push'; env -iS 'git push' origin", ["git push", "git push origin"]),
        ("env --split-string='-i A=1 git' push", ["git push"]),
        ("env - A=1 git push; su - ana -c 'git push'", ["git push", "git push"]),
        ("sudo -uana git push; su -lc 'git push' ana", ["git push", "git push"]),
        ("runuser -u ana -- git push; runuser ana -c 'git push'", ["git push", "git push"]),
        ("pkexec git push; chroot /x git push; unbuffer git push", ["git push", "git push", "git push"]),
        ("script -qc 'git push' /dev/null; script -q x -- git push", ["git push", "git push"]),
        ("watch -n 5 git push; watch 'git push; true'", ["git push", "git push", "true"]),
        ("parallel -j 4 git push origin ::: a b", ["git push origin a b"]),
        ("parallel 'git push origin {}; true' ::: a b", ["git push origin a b", "true"]),
        ("uv run --with x git push", ["uv run --with x git push", "git push"]),
        ("poetry run git push; uv sync", ["poetry run git push", "git push", "uv sync"]),
        ("trap 'git push' EXIT; trap - EXIT", ["trap git push EXIT", "git push", "trap - EXIT"]),
        ("B=main; git push origin $B ${B}x", ["git push origin main mainx"]),
        ("for b in a c; do git push origin $b; done", ["for b in a c", "git push origin a c"]),
        ("export A=git; $A push; cd app; ls $PWD", ["export A=git", "git push", "cd app", "/repo/app: ls /repo/app"]),
        ("echo $x ${x:-a} $1 $? ${B%x}", ["echo  a  * "]),
        ("A=$(git push); rm $A", ["git push", "rm "]),
        ("echo 'git push' | sh", ["echo git push", "sh", "git push"]),
        (
            "printf 'cd app\\ngit push\\n' | sudo bash -s",
            [
                "printf cd app\\ngit push\\n",
                "bash -s",
                "cd app",
                "/repo/app: git push",
            ],
        ),
        ("echo 'git push' || sh; echo 'git push' && sh", ["echo git push", "sh", "echo git push", "sh"]),
        ("echo 'git push' | sh script.sh", ["echo git push", "sh script.sh"]),
        ("cat <<EOF | sh\ngit push\nEOF", ["cat", "sh", "git push"]),
        ("cat <<EOF | grep x\ngit push\nEOF", ["cat", "grep x"]),
        ("", []),
    ],
)
def test_commands(line: str, expected: list[str]) -> None:
    """Every command of the line is found, in its folder."""
    assert programs(line) == expected


@pytest.mark.parametrize("line", ["echo 'a", 'echo "a', "echo $(a", "echo `a", "a >", "(a", "echo ${a", "(" * 100])
def test_unreadable_lines_are_reported(line: str) -> None:
    """A line without an end, or nested beyond reason, is unclear and not half understood."""
    with pytest.raises(UnclearError):
        shell.commands_of(line, TOP)


def test_long_lines_are_read_in_time() -> None:
    """The work grows with the line and not faster, and too many commands are unclear."""
    assert len(shell.commands_of("true; " * 1_900, TOP)) == 1_900
    assert len(shell.commands_of("echo " + "x" * 1_000_000 + " " + "'y' " * 10_000, TOP)[0].words) == 10_002
    with pytest.raises(UnclearError):
        shell.commands_of("true; " * 3_000, TOP)
    began = time.process_time()
    for piece in ("$a", "(b)", "$((1))", "> x ", "y > x ", "$'a' ", "{} ", "<<E "):
        shell.commands_of("echo a" + piece * 200_000, TOP)
    assert time.process_time() - began < 60, "something looked at the whole line each time"
    assert len(shell.commands_of("for x in a b c; do echo " + "$x " * 200_000, TOP)[1].words) < 250_000
    names, marks = "a " * 50_000, "{} " * 50_000
    for line in (
        f"find {names} -exec rm {marks}",
        f"parallel {marks} ::: {names}",
        f"parallel 'x {marks}' ::: {names}",
    ):
        with pytest.raises(UnclearError):
            shell.commands_of(line, TOP)
    with pytest.raises(UnclearError):
        shell.commands_of("x" * (shell.LINE_CHARS_MAX + 1), TOP)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo a > x", ["x"]),
        ("echo a >> x 2>y", ["x", "y"]),
        ("a &> x", ["x"]),
        ("a >| x", ["x"]),
        ("a < x", []),
        ("echo a | tee -a x y", ["x", "y"]),
        ("sed -i s/a/b/ x y", ["x", "y"]),
        ("sed -i.bak -e s/a/b/ x", ["x"]),
        ("sed -Ei s/a/b/ x", ["x"]),
        ("sed s/a/b/ x", []),
        ("perl -pi -e s/a/b/ x", ["x"]),
        ("mv a b", ["a", "b"]),
        ("cp -r a b", ["b"]),
        ("cp a b c folder", ["folder/a", "folder/b", "folder/c"]),
        ("cp -t folder a", ["folder/a"]),
        ("cp * folder", ["folder*"]),
        ("mv a folder", ["a", "folder/a"]),
        ("rm -rf a b", ["a", "b"]),
        ("rm -- -x", ["-x"]),
        ("rm folder", ["folder*"]),
        ("rm src/*.py", ["src/*"]),
        ("rm src/auth/{a,b}", ["src/auth/*"]),
        ("rm *", [".*"]),
        ('rm "$x"', ["?"]),
        ('rm "src/$x"', ["src/*"]),
        ("touch a; truncate -s 0 b; unlink c", ["a", "b", "c"]),
        ("dd if=a of=b", ["b"]),
        ("install -m 755 a b; ln -s a c", ["b", "c"]),
        ("git mv a b; git rm c; git checkout -- d; git restore e; git checkout f", ["a", "b", "c", "d", "e"]),
        ("git -C folder rm c", ["folder: c"]),
        ("cd folder && rm a", ["folder: a"]),
        ("sh -c 'rm a'", ["a"]),
        ("cat a; grep x b; python write.py", []),
        ("sed -i -es/a/b/ x; sed -i --expression=s/a/b/ y; sed -i -E s/a/b/ z", ["x", "y", "z"]),
        ("cp -tfolder a; cp -vt folder b", ["folder/a", "folder/b"]),
        ("ln -s /other/a", ["a"]),
        ("rsync -a folder/ folder", ["folder*"]),
        ("rsync -a folder/ new; cp -r folder other; cp -rT folder folder", ["new*", "other*", "folder*"]),
        ("find folder -name x -exec rm {} +", ["folder/*"]),
        ("cd folder; find /a /b -exec rm {} \\;", ["folder: /a/*", "folder: /b/*"]),
        ("find folder -delete", ["folder*"]),
        ('for f in a b; do rm $f; mv "$f" folder/$f.x; done', ["a", "b", "a", "b", "folder/a.x", "folder/b.x"]),
        ('for f in folder/*.py x; do sed -i s/a/b/ "$f"; done', ["folder/*", "x"]),
        ("F=a; [ $1 ] && F=b; echo > $F", ["a", "b"]),
        ('D=folder; rm "$D/x" "$PWD/y" "${D}/$z"', ["folder/x", "TOP/y", "folder/*"]),
        ('for f in a b; do for g in c d; do rm "$f/$g"; done; done', ["a/*", "b/*"]),
        ('while read f; do rm "$f"; done', ["?"]),
        ("xargs -I{} rm {}", ["?"]),
        ("echo a b | xargs rm", ["a", "b"]),
        ("echo a | xargs -I% mv % folder/%.bak", ["a", "folder/a.bak"]),
        ("find folder -name x | xargs -0 sed -i s/a/b/", ["folder/*"]),
        ("find folder | grep -v x |& sort | head -3 | xargs rm", ["folder/*"]),
        ("grep -rl x folder | xargs sed -i s/x/y/; rg -l x | xargs rm", ["folder*", "folder/*", "./*"]),
        ("git ls-files a | xargs rm; git diff --name-only | xargs rm; git log | xargs rm", ["a", "a/*", "./*", "?"]),
        ("find folder | wc -l; find folder | xargs cat; cat names | xargs rm", ["?"]),
        ("parallel rm ::: a b; ls folder | parallel rm {}", ["a", "b", "folder*", "folder/*"]),
        ("git checkout folder; git checkout HEAD folder", ["folder*", "folder*"]),
        ("git checkout -b folder; git checkout main", []),
        ("git --git-dir=folder/.git rm a; git --git-dir .git --work-tree folder rm b", ["folder: a", "folder: b"]),
        ("rm src/auth/!(a)", ["src/auth/*"]),
        ("[[ a > b ]]", []),
    ],
)
def test_targets(line: str, expected: list[str], tmp_path: Path) -> None:
    """What a line is seen to write; with `*` all below it too, `?` for a name that is unknown before it runs."""
    (tmp_path / "folder").mkdir()
    found = []
    for command in shell.commands_of(line, str(tmp_path)):
        for target in targets.targets_of(command):
            folder = os.path.relpath(target.cwd, tmp_path)
            text = f"{'?' * target.is_unknown}{target.text}{'*' * target.is_below}"
            found.append(("" if folder == "." else f"{folder}: ") + text.replace(str(tmp_path), "TOP"))
    assert found == expected


@pytest.mark.parametrize(
    ("rule", "line", "fits"),
    [
        ("git push", "git push", True),
        ("git push", "/usr/bin/git -C x -c a=b --no-pager push origin main", True),
        ("git push", "git commit -m push", False),
        ("git push", "git stash push", False),
        ("git push", "git log push", False),
        ("kubectl apply", "kubectl -n prod apply -f x", True),
        ("kubectl apply", "kubectl --namespace=prod apply", True),
        ("kubectl apply", "kubectl get apply", False),
        ("npm publish", "npm publish --tag next", True),
        ("npm publish", "npm run publish", False),
        ("git push --force", "git push origin --force", True),
        ("git push --force", "git push origin", False),
        ("make deploy-*", "make deploy-prod", True),
        ("terraform", "terraform plan", True),
    ],
)
def test_commands_that_a_rule_names(rule: str, line: str, fits: bool) -> None:
    """Options may stand in between; another word in the place of a subcommand is another command."""
    (words,), (command,) = ([each.texts for each in shell.commands_of(rule, TOP)], shell.commands_of(line, TOP))
    assert targets.command_fits(words, command) is fits


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ["main"]),
        ("origin", ["main"]),
        ("-u origin topic", ["topic"]),
        ("origin a b:c +d:refs/heads/e", ["a", "c", "e"]),
        ("origin HEAD", ["main"]),
        ("origin HEAD:release", ["release"]),
        ("origin :old", ["old"]),
        ("origin --delete old", ["old"]),
        ("-o ci.skip origin a", ["a"]),
        ("origin tag v1", ["refs/tags/v1"]),
        ("--all origin", []),
        ("--mirror", []),
        ("--tags", []),
        ("origin heads/main a:heads/b", ["main", "b"]),
        ("origin refs/heads/*:refs/heads/*", []),
        ("origin :", []),
    ],
)
def test_pushed_branches(words: str, expected: list[str]) -> None:
    """The branches that change there; none where they cannot be told."""
    assert paths.pushed(words.split(), "main") == expected


def test_nothing_to_push_without_a_branch() -> None:
    """On no branch, a push that names none cannot be told."""
    assert paths.pushed([], "") == paths.pushed(["origin", "HEAD"], "") == []
    assert "git push" in RULES
