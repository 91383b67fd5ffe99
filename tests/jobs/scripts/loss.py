"""A rank that is lost once, at a step that a test chooses: LOSS_STEP, with a file LOSS_MARK that says that it happened."""
import os
import pathlib
import signal


def lose(rank, step):
    mark = os.environ.get("LOSS_MARK")
    if mark and rank == 1 and step == int(os.environ["LOSS_STEP"]) and not os.path.exists(mark):
        pathlib.Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
