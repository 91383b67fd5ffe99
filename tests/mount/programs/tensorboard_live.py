"""TensorBoard's writer, with its reader following while the file is open."""
# needs: python:tensorboard
import glob
import sys

from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

STEPS = 60


def event(step):
    value = summary_pb2.Summary.Value(tag="loss", simple_value=float(step))
    return event_pb2.Event(step=step, wall_time=step, summary=summary_pb2.Summary(value=[value]))


if sys.argv[1] == "work":
    writer = EventFileWriter("run", flush_secs=1000)
    seen = []
    loader = None
    for step in range(STEPS):
        writer.add_event(event(step))
        if step % 10 == 9:
            writer.flush()
            loader = loader or event_file_loader.EventFileLoader(glob.glob("run/events*")[0])
            seen += [e.step for e in loader.Load() if e.HasField("summary")]
            assert seen == list(range(step + 1)), f"after step {step} the reader has {seen}"
    writer.close()
else:
    accumulator = event_accumulator.EventAccumulator("run")
    accumulator.Reload()
    found = [s.step for s in (accumulator.Scalars("loss") if "loss" in accumulator.Tags()["scalars"] else
                              accumulator.Tensors("loss"))]
    assert found == list(range(STEPS)), found
