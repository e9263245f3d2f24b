"""Which GPUs a library was compiled for, read from files written here in nvcc's format, and from the installed one."""

from pathlib import Path
import shutil
import struct
import subprocess

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxkit.runtime.gpus import CU112, Architectures, kernel_architectures, runs_on
import mxnet as mx
import pytest
from sharing import examples

PTX, CODE, LINK_TIME = 1, 2, 8
COMPRESSED, ONLY, FAMILY = 0x2000, 0x100000, 0x200000

# Entries' headers as nvcc 13.0 wrote them, with what follows each left out.
BY_NVCC = {
    "sm_90a": """
        02000101 40000000 700e0000 00000000 00000000 00000000 08000100 5a000000
        00000000 00000000 11001000 00000000 00000000 00000000 00000000 00000000
    """,
    "sm_100f": """
        02000101 70000000 98140000 00000000 00000000 40000000 08000100 64000000
        00000000 00000000 11002001 00000000 00000000 00000000 00000000 00000000
        48000000 24000000 00020900 00020201 00020505 00030701 01020300 00020601
        00040b08 00090000 00000000 00000000
    """,
    "compute_80": """
        01000101 50000000 00010000 00000000 fb000000 40000000 00000900 50000000
        00000000 00000000 11800000 00000000 00000000 00000000 89010000 00000000
        48000000 00000000 00000000 00000000
    """,
    "lto_90": """
        08000101 78000000 d8060000 00000000 d1060000 40000000 41000100 5a000000
        00000000 00000000 11800100 00000000 da98c233 00000000 8c080000 00000000
        48000000 28000000 2d66747a 3d30202d 70726563 5f646976 3d31202d 70726563
        5f737172 743d3120 2d666d61 643d3120 00000000 00000000
    """,
}


def entry(kind, architecture, flags=0x11, payload=24):
    return struct.pack("<HHIQ12xI8xQ16x", kind, 0x101, 64, payload, architecture, flags) + b"\x7f" * payload


def by_nvcc(name):
    header = bytes.fromhex(BY_NVCC[name])
    return header + b"\x7f" * struct.unpack_from("<Q", header, 8)[0]


def fat_binary(*entries):
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def elf(*sections):
    """A file of these `(name, content)` sections, with the table of their headers at its end, as linkers put it."""
    sections = [*sections, (b".shstrtab", b"\0" + b"".join(name + b"\0" for name, _ in sections) + b".shstrtab\0")]
    names, content, headers = sections[-1][1], b"", struct.pack("<64x")
    for name, data in sections:
        where = 64 + len(content)
        headers += struct.pack(
            "<IIQQQQIIQQ", names.index(b"\0" + name + b"\0") + 1, 1, 2, 0, where, len(data), 0, 0, 8, 0
        )
        content += data + b"\0" * (-len(data) % 8)
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    count, table = len(sections) + 1, 64 + len(content)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 56, 0, 64, count, count - 1)
    return head + content + headers


def read(path, data):
    path.write_bytes(data)
    return kernel_architectures(path)


@pytest.fixture
def library(tmp_path):
    return tmp_path / "library.so"


WHEEL = fat_binary(*[entry(CODE, number, 0x11 | COMPRESSED) for number in (50, 60, 70, 80, 86)])


def test_t83_the_format_of_mxnets_wheels(library):
    data = elf((b".text", b"\x90" * 100), (b".nv_fatbin", WHEEL * 198), (b".data", b"\0" * 9))
    assert read(library, data) == CU112
    assert str(CU112) == "sm_50, sm_60, sm_70, sm_80, sm_86"


def test_entries_as_nvcc_writes_them(library):
    expected = {
        "sm_90a": Architectures(exact=((9, 0),)),
        "sm_100f": Architectures(machine_code=((10, 0),)),
        "compute_80": Architectures(ptx=((8, 0),)),
        "lto_90": Architectures(),
    }
    assert {name: read(library, elf((b".nv_fatbin", fat_binary(by_nvcc(name))))) for name in BY_NVCC} == expected
    for flag, found in ((ONLY, Architectures(exact=((10, 0),))), (FAMILY, Architectures(machine_code=((10, 0),)))):
        assert read(library, elf((b".nv_fatbin", fat_binary(entry(PTX, 100, 0x11 | flag))))) == found


def test_what_every_fat_binary_holds_counts(library):
    first = fat_binary(entry(CODE, 86), entry(CODE, 70), entry(PTX, 86), entry(CODE, 90, ONLY), entry(LINK_TIME, 90))
    second = fat_binary(entry(PTX, 86, 0x11 | COMPRESSED), entry(CODE, 70), entry(CODE, 80), entry(CODE, 90, ONLY))
    assert read(library, elf((b".nv_fatbin", first + second))) == Architectures(((7, 0),), ((8, 6),), ((9, 0),))
    assert str(kernel_architectures(library)) == "sm_70, sm_90a, compute_86"
    assert read(library, elf((b".nv_fatbin", first), (b".nv_fatbin", second))).machine_code == ((7, 0),)
    only_link_time = fat_binary(entry(LINK_TIME, 90))
    assert read(library, elf((b".nv_fatbin", only_link_time + fat_binary() + second))).ptx == ((8, 6),)


def test_linkers_align_fat_binaries(library):
    for padding in (8, 48, 56):
        assert read(library, elf((b".nv_fatbin", (WHEEL + b"\0" * padding) * 3))) == CU112


def test_a_library_without_gpu_code(library):
    assert read(library, elf((b".text", b"\x90" * 100))) == Architectures()
    assert read(library, elf((b".nv_fatbin", b""))) == Architectures()
    assert read(library, elf((b".nv_fatbin.more", WHEEL), (b"more.nv_fatbin", WHEEL))) == Architectures()
    assert str(Architectures()) == "no GPU code"


def test_the_installed_library():
    found = kernel_architectures(Path(mx.base._LIB._name))
    assert found == (CU112 if mx.runtime.Features().is_enabled("CUDA") else Architectures())


def test_a_real_library_of_the_systems_compiler(tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("no gcc, which makes the library of this test")
    (tmp_path / "fat").write_bytes(WHEEL)
    (tmp_path / "a.s").write_text('.section .nv_fatbin, "a"\n.align 8\n.incbin "fat"\n')
    (tmp_path / "b.c").write_text("int f(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "lib.so", "a.s", "a.s", "b.c"], cwd=str(tmp_path), check=True)
    assert kernel_architectures(tmp_path / "lib.so") == CU112
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "lib.so", "b.c"], cwd=str(tmp_path), check=True)
    assert kernel_architectures(tmp_path / "lib.so") == Architectures()


def test_a_library_longer_than_4_gib_is_not_read_through(library):
    apart = 5 * 2**30
    header = struct.pack("<Q", apart).join([entry(CODE, 50)[:8], entry(CODE, 50)[16:64]])
    first = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + apart) + header
    data = elf((b".nv_fatbin", first), (b".rest", b""))
    table = struct.unpack_from("<Q", data, 40)[0]
    with library.open("wb") as file:  # the holes take no space on the disk
        file.write(data[:40] + struct.pack("<Q", table + apart) + data[48 : 64 + len(first)])
        file.seek(apart, 1)
        file.write(data[64 + len(first) : table])
        headers = bytearray(data[table:])
        struct.pack_into("<Q", headers, 64 + 32, len(first) + apart)
        for i in (2, 3):
            struct.pack_into("<Q", headers, 64 * i + 24, struct.unpack_from("<Q", headers, 64 * i + 24)[0] + apart)
        file.write(headers)
    assert kernel_architectures(library) == Architectures(machine_code=((5, 0),))


SMALL = elf((b".text", b"\x90" * 40), (b".nv_fatbin", fat_binary(entry(CODE, 70), entry(PTX, 80)) * 2))


def test_a_truncated_file_is_told(library):
    for length in range(0, len(SMALL), 7):
        found = read(library, SMALL[:length])
        assert found.problem.startswith(f"{library}: "), length
        assert found[:3] == ((), (), ()), length


def test_what_is_no_library_is_told(tmp_path, library):
    assert "no 64-bit little-endian ELF file" in read(library, b"#!/bin/sh\necho not a library\n").problem
    assert "it ends at byte 0, inside a header" in read(library, b"").problem
    assert "No such file" in kernel_architectures(tmp_path / "nothing.so").problem
    assert "directory" in kernel_architectures(tmp_path).problem
    assert "it has no section headers" in read(library, SMALL[:40] + b"\0" * 8 + SMALL[48:]).problem
    assert f"it is cut off: {len(SMALL) - 1} bytes, {len(SMALL)} expected" in read(library, SMALL[:-1]).problem


NO_FAT_BINARY, NO_ENTRY = "no fat binary at byte 64", "no entry of a fat binary at byte 80"
DAMAGED = [
    (b"\x01" * 8 + WHEEL, NO_FAT_BINARY),
    (WHEEL[:-8], NO_FAT_BINARY),
    (b"\x51" + WHEEL[1:], NO_FAT_BINARY),
    (WHEEL[:6] + b"\0\0" + WHEEL[8:], NO_FAT_BINARY),
    (WHEEL[:8] + b"\xff" * 8 + WHEEL[16:], NO_FAT_BINARY),
    (WHEEL[:20] + b"\0\0\0\0" + WHEEL[24:], NO_ENTRY),
    (WHEEL[:24] + b"\xff" * 8 + WHEEL[32:], NO_ENTRY),
]


def test_damaged_gpu_code_is_told(library):
    for damage, problem in DAMAGED:
        found = read(library, elf((b".nv_fatbin", damage)))
        assert found.problem == f"{library}: its GPU code is damaged: {problem}"


@pytest.mark.parametrize("field", [24, 32])
def test_sections_beyond_the_end_are_told(library, field):
    data, table = bytearray(SMALL), struct.unpack_from("<Q", SMALL, 40)[0]
    struct.pack_into("<Q", data, table + 2 * 64 + field, len(SMALL) + 1)
    assert f"it is cut off: {len(SMALL)} bytes, " in read(library, bytes(data)).problem
    for offset in (2**63, 2**64 - 1):
        struct.pack_into("<Q", data, table + 3 * 64 + 24, offset)  # where the names of sections are
        assert read(library, bytes(data)) == Architectures()


SIZES = [0, 1, 16, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1]
NUMBERS = st.sampled_from([struct.pack("<Q", size) for size in SIZES])
EDITS = st.one_of(
    st.tuples(st.integers(0, len(SMALL) - 1), st.binary(min_size=1, max_size=1)),
    st.tuples(st.integers(0, len(SMALL) // 8 - 1).map(lambda number: 8 * number), NUMBERS),
)


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDITS, min_size=1, max_size=6))
def test_damaged_files_never_raise(library, edits):
    data = bytearray(SMALL)
    for where, value in edits:
        data[where : where + len(value)] = value
    assert isinstance(read(library, data), Architectures)


def test_application_compatibility():
    for architectures, runs, fails in [
        (CU112, [(5, 0), (5, 2), (6, 1), (7, 5), (8, 0), (8, 6), (8, 9)], [(3, 5), (9, 0), (10, 0), (12, 0)]),
        (Architectures(machine_code=((8, 6),)), [(8, 6), (8, 9)], [(8, 0), (9, 0), (7, 5)]),
        (Architectures(ptx=((7, 0),)), [(7, 0), (7, 5), (9, 0), (12, 0)], [(6, 1), (5, 2)]),
        (Architectures(exact=((9, 0),)), [(9, 0)], [(9, 1), (8, 9), (10, 0)]),
        (Architectures(), [], [(5, 0), (9, 0)]),
    ]:
        expected = {**dict.fromkeys(runs, True), **dict.fromkeys(fails, False)}
        assert {capability: runs_on(architectures, capability) for capability in expected} == expected
