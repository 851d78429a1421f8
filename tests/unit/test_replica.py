"""The pure parts of ``examples/replica``."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import threading
from argparse import ArgumentTypeError
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from celery_lowkiq.integration.redis_params import CLUSTER_SCHEMES
from examples.replica import __main__ as command
from examples.replica.generate import EVENTS, SEED, generate
from examples.replica.mirror import Mirror, Writes
from examples.replica.progress import Progress
from examples.replica.report import Outcome, as_json, table
from examples.replica.repository import read_history, read_tree
from examples.replica.stream import (
    SHIPPED,
    Event,
    StreamError,
    as_id,
    final_tree,
    read_events,
    with_copies,
    wrong_files,
)

ADDED = Event("a.py", 1, 1341582400, "A", "06e55c0b45b2")
CHANGED = Event("a.py", 2, 1341582401, "M", "1f55036a0746")
DELETED = Event("a.py", 3, 1341582402, "D", None)
OTHER = Event("b.py", 3, 1341582402, "A", "d00491fd7e5b")


def write(file: Path, *events: Event) -> Path:
    file.write_text("".join(json.dumps(asdict(event)) + "\n" for event in events))
    return file


# --- the stream ---------------------------------------------------------------------------------------------


def test_a_stream_is_read_gzipped_or_not(tmp_path: Path) -> None:
    plain = write(tmp_path / "events.ndjson", ADDED, DELETED)
    zipped = tmp_path / "events.ndjson.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_events(plain) == read_events(zipped) == [ADDED, DELETED]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", "events:1: not an event"),
        ("[]", "events:1: not an event"),
        ('{"path": "a", "version": 1, "at": 1, "status": "A"}', "events:1: 'blob' is missing"),
        ('{"path": "", "version": 1, "at": 1, "status": "A", "blob": "b"}', "path is ''"),
        ('{"path": "a", "version": "1", "at": 1, "status": "A", "blob": "b"}', "version is '1'"),
        ('{"path": "a", "version": 1, "at": 1, "status": "R", "blob": "b"}', "status is 'R'.* A, M, D"),
        ('{"path": "a", "version": 1, "at": 1, "status": "D", "blob": "b"}', "blob is 'b'"),
        ('{"path": "a", "version": 1, "at": 1, "status": "M", "blob": null}', "blob is None"),
        ("", "holds no event"),
        ("\udcff", "cannot be read"),
    ],
)
def test_what_is_no_stream_is_refused_with_the_reason(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "events"
    file.write_bytes(line.encode(errors="surrogateescape"))
    with pytest.raises(StreamError, match=complaint):
        read_events(file)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="cannot be read"):
        read_events(tmp_path / "missing")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    with pytest.raises(StreamError, match="cannot be read"):
        read_events(broken)


def test_a_stream_that_goes_back_in_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=r"version 1 of a.py comes after version 2"):
        read_events(write(tmp_path / "events", CHANGED, OTHER, ADDED))


@pytest.mark.parametrize("path", ["a" * 257, "é" * 129, "a\nb", "caf\udce9"])
def test_a_path_that_cannot_be_an_id_is_replaced_by_its_digest(path: str) -> None:
    assert as_id(path).startswith("sha256:")
    assert as_id(path) != as_id(path + "a")


@pytest.mark.parametrize("path", ["a" * 256, "docs/näher.md", "with space"])
def test_any_other_path_is_the_id_itself(path: str) -> None:
    assert as_id(path) == path


def test_copies_come_right_behind_their_originals() -> None:
    events = [replace(ADDED, path=str(number)) for number in range(1000)]
    messages = list(with_copies(events, share=0.1, seed=1))
    assert 50 < len(messages) - len(events) < 150
    assert [one for one, before in zip(messages, [None, *messages], strict=False) if one != before] == events


@pytest.mark.parametrize(("share", "times"), [(0.0, 1), (1.0, 2)])
def test_none_or_all_may_be_copied(share: float, times: int) -> None:
    assert list(with_copies([ADDED], share, seed=1)) == [ADDED] * times


def test_the_final_tree_has_the_last_version_and_nothing_deleted() -> None:
    assert final_tree([ADDED, CHANGED]) == {"a.py": "1f55036a0746"}
    assert final_tree([ADDED, CHANGED, DELETED, OTHER]) == {"b.py": "d00491fd7e5b"}


def test_outdated_missing_and_resurrected_files_are_wrong() -> None:
    expected = {"right": "1", "outdated": "2", "missing": "3"}
    assert wrong_files({"right": "1", "outdated": "1", "deleted": "4"}, expected) == [
        "deleted",
        "missing",
        "outdated",
    ]
    assert wrong_files(expected, expected) == []


def test_the_shipped_stream_is_what_the_generator_makes() -> None:
    assert read_events(SHIPPED) == generate(SEED, EVENTS)


# --- a repository as source ---------------------------------------------------------------------------------


class Repository:
    """A small git repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(self.folder), *who, *arguments], check=True, capture_output=True)

    def commit(self, **files: str) -> None:
        for name, content in files.items():
            (self.folder / name).write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Repository(tmp_path)


def changes(repository: Repository) -> list[tuple[str, int, str]]:
    return [(event.path, event.version, event.status) for event in read_history(repository.folder)]


def test_each_commit_is_a_version_of_what_it_changes(repository: Repository) -> None:
    repository.commit(a="1", b="1")
    repository.commit()
    repository.commit(a="2")
    repository.git("rm", "-q", "b")
    repository.commit()
    assert changes(repository) == [("a", 1, "A"), ("b", 1, "A"), ("a", 3, "M"), ("b", 4, "D")]
    assert final_tree(read_history(repository.folder)) == read_tree(repository.folder)


def test_a_merge_is_one_version_seen_from_its_first_parent(repository: Repository) -> None:
    repository.commit(a="1")
    repository.git("checkout", "-q", "-b", "side")
    repository.commit(b="1")
    repository.commit(b="2")
    repository.git("checkout", "-q", "main")
    repository.commit(a="2")
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    assert changes(repository) == [("a", 1, "A"), ("a", 2, "M"), ("b", 3, "A")]


def test_a_rename_is_a_deletion_and_an_addition_whatever_the_user_configured(repository: Repository) -> None:
    repository.commit(a="same\n" * 20)
    repository.git("mv", "a", "b")
    repository.commit()
    for setting in ("diff.renames=copies", "log.showRoot=false", "color.ui=always", "log.showSignature=true"):
        repository.git("config", *setting.split("="))
    assert changes(repository) == [("a", 1, "A"), ("a", 2, "D"), ("b", 2, "A")]


def test_a_file_that_becomes_a_link_is_modified(repository: Repository) -> None:
    repository.commit(a="1")
    (repository.folder / "a").unlink()
    (repository.folder / "a").symlink_to("elsewhere")
    repository.commit()
    assert changes(repository) == [("a", 1, "A"), ("a", 2, "M")]
    assert final_tree(read_history(repository.folder)) == read_tree(repository.folder)


def test_strange_names_are_read_as_they_are(repository: Repository) -> None:
    repository.commit(**{'quo"te ü': "1", "line\nbreak": "2"})
    tree = read_tree(repository.folder)
    assert set(tree) == {'quo"te ü', as_id("line\nbreak")}
    assert final_tree(read_history(repository.folder)) == tree


def test_a_folder_without_history_is_refused(tmp_path: Path, repository: Repository) -> None:
    with pytest.raises(StreamError, match="cannot be read"):
        read_history(repository.folder)
    repository.commit()
    with pytest.raises(StreamError, match="changes no file"):
        read_history(repository.folder)
    with pytest.raises(StreamError, match="cannot be read"):
        read_history(tmp_path / "missing")


# --- the mirror ---------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    mirror = Mirror(tmp_path / "mirror.sqlite")
    mirror.create()
    return mirror


def test_the_mirror_becomes_what_it_is_told(mirror: Mirror) -> None:
    for event in (ADDED, CHANGED, OTHER):
        mirror.apply(event.path, event.payload)
    assert mirror.tree() == {"a.py": "1f55036a0746", "b.py": "d00491fd7e5b"}
    assert mirror.writes() == Writes(total=3, stale=0)


def test_an_older_version_is_written_all_the_same_and_counted_as_stale(mirror: Mirror) -> None:
    for event in (CHANGED, ADDED, OTHER):
        mirror.apply(event.path, event.payload)
    assert mirror.tree()["a.py"] == ADDED.blob
    assert mirror.writes() == Writes(total=3, stale=1)


def test_a_deleted_file_is_gone_and_what_brings_it_back_is_stale(mirror: Mirror) -> None:
    mirror.apply("a.py", ADDED.payload)
    mirror.apply("a.py", DELETED.payload)
    assert mirror.tree() == {}
    mirror.apply("a.py", CHANGED.payload)
    assert mirror.tree() == {"a.py": CHANGED.blob}
    assert mirror.writes() == Writes(total=3, stale=1)


def test_a_copy_is_not_stale(mirror: Mirror) -> None:
    mirror.apply("a.py", CHANGED.payload)
    mirror.apply("a.py", CHANGED.payload)
    assert mirror.writes() == Writes(total=2, stale=0)


def test_many_threads_write_without_losing_anything(mirror: Mirror) -> None:
    def write_all(name: str) -> None:
        for version in range(1, 51):
            mirror.apply(name, replace(ADDED, version=version).payload)
        mirror.close()

    threads = [threading.Thread(target=write_all, args=(f"{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mirror.writes() == Writes(total=400, stale=0)


# --- what is shown ------------------------------------------------------------------------------------------

PLAIN = Outcome(messages=2863, calls=2863, stale=341, wrong=24, seconds=5.837)
ORDERED = Outcome(messages=2863, calls=1012, stale=0, wrong=0, seconds=4.2)


def test_the_table_has_both_sides() -> None:
    assert table(PLAIN, ORDERED).splitlines() == [
        "                          plain Celery       ordered",
        "messages                         2,863         2,863",
        "function calls                   2,863         1,012",
        "stale overwrites                   341             0",
        "wrong files at the end              24             0",
        "time                             5.8 s         4.2 s",
    ]


def test_the_json_has_both_sides_in_one_line() -> None:
    line = as_json(events=2600, paths=219, celery=PLAIN, ordered=ORDERED)
    assert "\n" not in line
    assert json.loads(line) == {
        "events": 2600,
        "paths": 219,
        "ordered": {"calls": 1012, "stale": 0, "wrong": 0, "seconds": 4.2},
        "celery": {"calls": 2863, "stale": 341, "wrong": 24, "seconds": 5.84},
    }


@pytest.mark.parametrize(("stale", "wrong", "clean"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_only_no_stale_overwrite_and_no_wrong_file_is_clean(stale: int, wrong: int, clean: bool) -> None:
    assert replace(ORDERED, stale=stale, wrong=wrong).clean is clean


@pytest.mark.parametrize(("ordered", "status"), [(ORDERED, 0), (replace(ORDERED, wrong=1), 1), (PLAIN, 1)])
def test_the_exit_status_tells_whether_the_ordered_side_is_clean(
    ordered: Outcome, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"celery": PLAIN, "ordered": ordered}
    monkeypatch.setattr(command, "run_side", lambda side, *_: outcomes[side.name])
    monkeypatch.setattr(command.interrupts, "handle", lambda: None)
    monkeypatch.setattr(type(command.mirror_ordered.ordered_queue), "stats", lambda _: None)
    for name in command.BROKER_VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
    assert command.main(["--redis", "redis://nowhere"]) == status
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["ordered"]["wrong"] == ordered.wrong


@pytest.mark.parametrize("scheme", ["redis", "sentinel", *CLUSTER_SCHEMES])
def test_urls_of_the_store(scheme: str) -> None:
    assert command.redis_url(f"{scheme}://h:1") == f"{scheme}://h:1"


def test_a_url_that_celery_has_no_broker_for_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"must begin with one of redis://.*valkeys\+cluster://"):
        command.redis_url("valkey://h:1")


def test_without_a_terminal_progress_is_a_few_lines() -> None:
    out = io.StringIO()
    progress = Progress("ordered", 100, out)
    for done in range(101):
        progress.show(done)
    progress.close()
    assert out.getvalue().splitlines() == [
        f"ordered: {done} of 100 messages" for done in (0, 25, 50, 75, 100)
    ]


def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    progress = Progress("ordered", 100, out)
    progress.show(50)
    progress.close()
    assert out.getvalue() == f"\rordered      [{'#' * 20}{'.' * 20}] 50/100\n"
