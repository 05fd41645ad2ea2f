# SPDX-License-Identifier: Apache-2.0
"""Files that numpy and safetensors write are read by test_io --show, and theirs read test_io's.

    cross_io.py PATH/TO/test_io

Exit status 77: skipped, because a Python package is missing.
"""
import os
import struct
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
    import safetensors
    import safetensors.numpy
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(77)

# Our name, the numpy or ml_dtypes type, the safetensors dtype.
FORMATS = [
    ("f32", "float32", "F32"),
    ("f16", "float16", "F16"),
    ("bf16", "bfloat16", "BF16"),
    ("e5m2", "float8_e5m2", "F8_E5M2"),
    ("e4m3fn", "float8_e4m3fn", "F8_E4M3"),
    ("e4m3", "float8_e4m3", None),
    ("e3m4", "float8_e3m4", None),
    ("e4m3fnuz", "float8_e4m3fnuz", "F8_E4M3FNUZ"),
    ("e5m2fnuz", "float8_e5m2fnuz", "F8_E5M2FNUZ"),
    ("e3m2", "float6_e3m2fn", "F6_E3M2"),
    ("e2m3", "float6_e2m3fn", "F6_E2M3"),
    ("e2m1", "float4_e2m1fn", "F4"),
    ("e8m0", "float8_e8m0fnu", "F8_E8M0"),
    ("tf32", None, None),
    ("ue4m3", None, None),
    ("mxint8", None, None),
    ("u8", "uint8", "U8"),
    ("u16", "uint16", "U16"),
    ("u32", "uint32", "U32"),
    ("u64", "uint64", "U64"),
]
TESTS = 0
FAILED = 0


def check(ok, what):
    global TESTS, FAILED
    TESTS += 1
    if not ok:
        FAILED += 1
        print("failed:", what)


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def show(tool, kind, path, *more):
    """Lines of `test_io --show`, split, or the message."""
    run = subprocess.run([tool, "--show", kind, path, *more], capture_output=True, text=True)
    return [line.split() for line in run.stdout.splitlines()] if run.returncode == 0 else run.stdout


def sample(name, shape):
    """An array of a type, from random bits. ml_dtypes keeps one code a byte."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    if "float6" in name:
        raw &= 0x3F
    if "float4" in name:
        raw &= 0x0F
    return raw.view(dtype).reshape(shape)


def read_theirs_npy(tool, path):
    for ours, theirs, _ in FORMATS:
        if theirs is None:
            continue
        for shape in [(), (3,), (2, 4), (2, 3, 4), (1, 2, 3, 4)]:
            for order in "CF":
                a = np.array(sample(theirs, shape), order=order)
                np.save(path, a)
                got = show(tool, "npy", path, "plain" if ours[0] == "u" else ours)
                what = f"npy {ours} {shape} {order}: {got}"
                if ours == "e2m1":
                    check("one code a byte" in got, what)
                    continue
                dims = "x".join(map(str, shape)) or "-"
                check(got == [["-", ours, dims, a.tobytes("C").hex()]], what)


def read_theirs_refused(tool, path):
    for array, text in [
        (np.zeros((2, 2), ">f4"), "big-endian"),
        (np.zeros((2, 2), "<f8"), "32-bit"),
        (np.zeros((0, 2), "<f4"), "empty"),
        (np.zeros((1,) * 5, "<f4"), "4 dimensions"),
        (np.zeros(2, [("a", "<f4")]), "structured"),
        (np.array([None]), "object"),
        (np.zeros(2, bool), "'|b1'"),
    ]:
        np.save(path, array)
        got = show(tool, "npy", path, "f32")
        check(text in got, f"refusal of {array.dtype}: {got}")


def pack(array, bits):
    """Codes of `bits` bits one after the other, lowest bits first."""
    value = 0
    for i, code in enumerate(array.view(np.uint8).ravel().tolist()):
        value |= code << (bits * i)
    return value.to_bytes(array.size * bits // 8, "little")


def serialize(tensors, metadata=None):
    """The package's own writer; its interface changed. F4 is given as bytes of two codes."""
    specs = {}
    keep = []
    for ours, (theirs, shape, data) in tensors.items():
        if theirs == "float4_e2m1fn":
            theirs, shape = theirs + "_x2", shape[:-1] + [shape[-1] // 2]
        if hasattr(safetensors, "TensorSpec"):
            keep.append(np.frombuffer(data, np.uint8))
            specs[ours] = safetensors.TensorSpec(
                dtype=theirs, shape=shape, data_ptr=keep[-1].ctypes.data, data_len=len(data))
        else:
            specs[ours] = {"dtype": theirs, "shape": shape, "data": data}
    return bytes(safetensors.serialize(specs, metadata=metadata))


def read_theirs_st(tool, path):
    tensors, want = {}, {}
    for ours, theirs, dtype in FORMATS:
        if theirs is None or dtype is None:
            continue
        a = sample(theirs, (2, 3, 4))
        data = memory = a.tobytes()
        if ours in ("e3m2", "e2m3"):
            data = pack(a, 6)
        if ours == "e2m1":
            data = memory = pack(a, 4)
        try:
            blob = serialize({ours: (theirs, [2, 3, 4], data)})
        except Exception as why:
            # Not every release of the package knows every dtype.
            print(f"note: safetensors {safetensors.__version__} does not write {dtype}: "
                  f"{str(why).partition('.')[0]}")
            continue
        tensors[ours] = (theirs, [2, 3, 4], data)
        want[ours] = [ours, ours, "2x3x4", memory.hex()]
        with open(path, "wb") as f:
            f.write(blob)
        got = show(tool, "st", path)
        check(got == [want[ours]], f"safetensors {ours}: {got}")
    with open(path, "wb") as f:
        f.write(serialize(tensors, {"a": "b"}))
    got = show(tool, "st", path)
    check(sorted(got) == sorted(want.values()), f"safetensors together: {got}")


def read_ours(tool, folder):
    subprocess.run([tool, "--dump", folder], check=True)
    with open(f"{folder}/all.safetensors", "rb") as f:
        blob = f.read()
    ours = {line[0]: line for line in show(tool, "st", f"{folder}/all.safetensors")}
    check(len(ours) == len(FORMATS), f"{len(ours)} tensors in the dump")
    for name, theirs, _ in FORMATS:
        a = np.load(f"{folder}/{name}.npy", allow_pickle=False)
        with open(f"{folder}/{name}.bin", "rb") as f:
            raw = f.read()
        check(a.shape == ((2, 3) if name == "e2m1" else (2, 6)), f"shape of {name}.npy")
        check(a.tobytes() == raw, f"items of {name}.npy")
        check(ours[name][3] == raw.hex(), f"{name} of all.safetensors")
        if theirs in ("float32", "float16"):
            check(a.dtype == dtype_of(theirs), f"dtype of {name}.npy")
    read_ours_st(blob, ours)


def read_ours_st(blob, ours):
    try:
        back = dict(safetensors.deserialize(blob))
    except Exception as why:
        print(f"note: safetensors {safetensors.__version__} does not read all dtypes: {why}")
        return
    check(set(back) == set(ours), "names in all.safetensors")
    for name, theirs, dtype in FORMATS:
        got = back[name]
        check(got["dtype"] == (dtype or ("U32" if name == "tf32" else "U8")), f"dtype of {name}")
        check(list(got["shape"]) == [2, 6], f"shape of {name}")
        memory = bytes.fromhex(ours[name][3])
        if name in ("e3m2", "e2m3"):
            memory = pack(np.frombuffer(memory, np.uint8), 6)
        check(bytes(got["data"]) == memory, f"data of {name}")
    n = struct.unpack("<Q", blob[:8])[0]
    check(n % 8 == 0, "the buffer is not aligned")


def main():
    tool = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        read_theirs_npy(tool, f"{folder}/a.npy")
        read_theirs_refused(tool, f"{folder}/a.npy")
        read_theirs_st(tool, f"{folder}/a.safetensors")
        read_ours(tool, folder)
    print(f"cross_io: {TESTS} checks, {FAILED} failed")
    return FAILED != 0


if __name__ == "__main__":
    sys.exit(main())
