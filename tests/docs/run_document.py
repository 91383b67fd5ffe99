"""Runs every command block of a Markdown document, in order, in one shell, as a reader would type them. They must all
succeed. What is left out says why (documents.py).

    python3 run_document.py BIN_FOLDER DOCUMENT.md

The shell has a home, a folder for /tmp and /mnt, and a loopback address of its own; credentials and settings of the
machine are hidden from it. `prepare/NAME.sh` makes what the document takes for granted; NAME is the document's, or the
folder's of an example's README. Exit status 77: it cannot run here.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from documents import Block, command_blocks

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMEOUT_S = 500
NEEDED = ("millrace", "millrace-train", "millrace-serve", "millrace-eval")
#: Documents that need what another one needs, and folders whose documents all need the same.
PREPARED_LIKE = {"evaluate": "serve"}
PREPARED_TOGETHER = ("recipes",)

PROLOGUE = """
set -E -o pipefail
at=preparation
trap 'status=$?; echo "FAIL $at: exit status $status: $BASH_COMMAND" >&2; exit 1' ERR
"""


def isolated(text: str, scratch: pathlib.Path) -> str:
    """Documents name addresses and folders that several tests cannot share."""
    pid = os.getpid()
    own = f"127.{1 + pid // 65536 % 250}.{pid // 256 % 256}.{1 + pid % 254}:"
    return text.replace("127.0.0.1:", own).replace("/tmp/", f"{scratch}/tmp/").replace("/mnt/", f"{scratch}/mnt/")


def preparation_of(document: pathlib.Path) -> pathlib.Path:
    in_example = document.stem == "README" and document.parent != ROOT
    together = document.parent.name in PREPARED_TOGETHER
    name = document.parent.name if in_example or together else document.stem
    return HERE / "prepare" / f"{PREPARED_LIKE.get(name, name)}.sh"


def find_program(name: str) -> str | None:
    """Looks for a program in PATH and among those that tests/install-peers installs."""
    peers = os.environ.get("MILLRACE_PEERS")
    return shutil.which(name) or (shutil.which(name, path=f"{peers}/trainers/bin:{peers}/venv/bin") if peers else None)


def script_of(document: pathlib.Path, blocks: list[Block], scratch: pathlib.Path) -> str:
    name = document.relative_to(ROOT)
    script = PROLOGUE
    preparation = preparation_of(document)
    if preparation.exists():
        script += isolated(preparation.read_text(encoding="utf-8"), scratch)
    for block in blocks:
        missing = [program for program in block.programs if find_program(program) is None]
        if block.not_run or missing:
            print(f"left out {name}:{block.line}: {block.not_run or 'not here: ' + ', '.join(missing)}", flush=True)
            continue
        script += f"at={name}:{block.line}\n{isolated(block.text, scratch)}echo \"ok $at\"\n"
    return script + "trap - ERR\n"


def environment(scratch: pathlib.Path, programs: pathlib.Path) -> dict[str, str]:
    hidden = ("AWS_", "MILLRACE_", "XDG_", "HTTP", "http", "OMP_")
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(hidden) or name in ("MILLRACE_CLEANUP_ID", "MILLRACE_PEERS")}
    return env | {"HOME": str(scratch / "home"), "TMPDIR": str(scratch / "tmp"), "AWS_EC2_METADATA_DISABLED": "true",
                  "PATH": f"{programs}:{env['PATH']}", "SOURCE": str(ROOT), "SCRATCH": str(scratch)}


def clean_up(scratch: pathlib.Path) -> None:
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        mounted = [line.split(" ")[1] for line in mounts]
    for point in mounted:
        if point.startswith(str(scratch)):
            subprocess.run(["fusermount3", "-u", "-z", point], check=False)


def run(document: pathlib.Path, programs: pathlib.Path) -> int:
    blocks = command_blocks(document)
    if not blocks:
        print(f"{document} has no command block")
        return 0
    for block in blocks:
        if not block.not_run and "sleep" in block.text:
            print(f"FAIL {document}:{block.line}: a reader must not have to guess how long to sleep")
            return 1
    with tempfile.TemporaryDirectory(prefix="millrace-docs-", ignore_cleanup_errors=True) as folder:
        scratch = pathlib.Path(folder)
        for name in ("home", "tmp", "mnt", "clone/build/release"):
            (scratch / name).mkdir(parents=True)
        for name in ("docs", "examples", "tests", "tools"):
            (scratch / "clone" / name).symlink_to(ROOT / name)
        (scratch / "clone/build/release/bin").symlink_to(programs)
        shell = subprocess.Popen(["bash", "-c", script_of(document, blocks, scratch)], cwd=scratch / "clone",
                                 env=environment(scratch, programs), start_new_session=True, stdin=subprocess.DEVNULL)
        try:
            return shell.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"FAIL {document}: not through after {TIMEOUT_S} s")
            return 1
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            clean_up(scratch)


def main() -> int:
    programs, document = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    missing = [name for name in NEEDED if not (programs / name).exists()]
    if missing:
        print(f"not built: {', '.join(missing)}")
        return 77
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("no /dev/fuse here")
        return 77
    return run(document, programs)


if __name__ == "__main__":
    sys.exit(main())
