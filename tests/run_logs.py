"""Reads what the logs of runs wrote: TensorBoard's files of events, and the offline files of Weights & Biases."""

import struct
import time


def events(folder):
    """Events of the TensorBoard files in a folder, in order."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.glob("events.*")):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def summaries(folder):
    """`(tag, step, value)` of each summary in a folder."""
    return [(one.tag, event.step, one) for event in events(folder) for one in event.summary.value]


def scalars(folder):
    return {(tag, step): one.simple_value for tag, step, one in summaries(folder) if one.HasField("simple_value")}


def wandb_records(folder):
    """Records of each offline run below a folder, in the order of time, once wandb's own process has written them."""
    for _ in range(100):
        runs = _records(folder)
        if all(any(one.HasField("exit") for one in records) for records in runs):
            return runs
        time.sleep(0.1)  # wandb's own process writes the file
    raise AssertionError(f"an offline run in {folder} has no end")


def _records(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    runs = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, place, whole, records = file.read_bytes(), 7, b"", []
        while place + 7 <= len(data):  # blocks of 32 KiB, in the format of LevelDB's log
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
                continue
            size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
            whole += data[place + 7 : place + 7 + size]
            place += 7 + size
            if kind in (1, 4):
                records.append(Record.FromString(whole))
                whole = b""
        runs.append(records)
    return runs


def wandb_history(records):
    """Values of an offline run by step."""
    rows = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            step = record.history.step.num or int(row["_step"])
            rows.setdefault(step, {}).update(row)
    return rows
