"""The commit of a folder is read from files, as git tells it; no program that the folder names is run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from qkv.train.commit import git_commit

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    """Git, as if nobody had ever configured it."""
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "PATH": os.environ["PATH"]}
    named = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *named, *arguments], cwd=folder, env=own, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "below").mkdir(parents=True)
    git(folder, "init")
    (folder / "file").write_text("one")
    git(folder, "add", "file")
    git(folder, "commit", "-m", "one")
    return folder


@needs_git
def test_the_commit_is_the_one_that_git_tells(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    assert git_commit(repository) == git_commit(repository / "below") == first
    git(repository, "pack-refs", "--all")
    assert not list((repository / ".git" / "refs" / "heads").iterdir())
    assert git_commit(repository) == first
    git(repository, "checkout", "-b", "another/branch")
    git(repository, "commit", "--allow-empty", "-m", "two")
    second = git(repository, "rev-parse", "HEAD")
    assert git_commit(repository) == second != first
    git(repository, "checkout", "--detach", first)
    assert git_commit(repository) == first
    git(repository, "worktree", "add", str(tmp_path / "tree"), "another/branch")
    assert git_commit(tmp_path / "tree") == second


@needs_git
def test_a_folder_whose_settings_name_programs_runs_none(repository: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    for name in ("core.fsmonitor", "core.sshCommand", "diff.external", "filter.trap.clean", "filter.trap.process"):
        git(repository, "config", name, f"touch '{mark}'; false")
    (repository / ".gitattributes").write_text("* filter=trap\n")
    (repository / "file").write_text("two")
    assert git_commit(repository) is not None
    assert not mark.exists()
    subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
    assert mark.exists(), "git itself runs them: the test could fail"


@pytest.mark.parametrize(
    "head",
    ["", "ref: refs/heads/../../../secret", "ref: refs/heads/none", "ref: /etc/passwd", "no commit", "a" * 39, "é"],
)
def test_what_is_no_commit_is_not_told(head: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "secret").write_text("b" * 40)
    (tmp_path / ".git" / "HEAD").write_text(head, "utf-8")
    assert git_commit(tmp_path) is None


def test_nothing_is_waited_for(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("needs pipes with names")
    os.mkfifo(tmp_path / ".git")
    assert git_commit(tmp_path) is None


def test_no_commit_outside_a_repository(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
