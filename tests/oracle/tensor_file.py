"""Reads and writes safetensors files with nothing but json and torch.

The format: 8 bytes little-endian header length, a JSON header that gives every tensor its dtype,
shape and byte range, then the raw little-endian data. Names are written in sorted order and the
header is padded with spaces to a multiple of 8, so equal tensors always give equal files.
"""

import json
import struct

import numpy as np
import torch

_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I32": torch.int32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _to_bytes(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)  # numpy has no bfloat16
    return tensor.numpy().tobytes()


def write_tensors(path, tensors):
    """Writes {name: tensor} to `path`; dtypes are bfloat16, float32 and int32."""
    header = {"__metadata__": {"format": "pt"}}
    chunks = []
    offset = 0
    for name in sorted(tensors):
        data = _to_bytes(tensors[name])
        header[name] = {
            "dtype": _NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        file.writelines(chunks)


def read_tensors(path):
    """Returns {name: tensor} with the tensors of the file at `path`."""
    with open(path, "rb") as file:
        data = file.read()
    (header_size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + header_size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
        dtype = _DTYPES[entry["dtype"]]
        carrier = np.int16 if dtype == torch.bfloat16 else {
            torch.float32: np.float32, torch.int32: np.int32}[dtype]
        array = np.frombuffer(data[begin:end], dtype=carrier).reshape(entry["shape"]).copy()
        tensor = torch.from_numpy(array)
        tensors[name] = tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor
    return tensors
