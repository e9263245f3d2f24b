"""Damages the bytes of files where it hurts."""

WORDS = [0, 1, 2, 3, 6, 7, 12, 13, 16, 31, 32, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, -1]
WORDS += [0x112, 0xF993FAC8, 0xF993FAC9, 0xF993FACA]


def noise(random_, most):
    return bytes(random_.getrandbits(8) for _ in range(random_.randint(1, most)))


def flip(random_, data, spots):
    for _ in range(random_.choice([1, 1, 1, random_.randint(2, 8)])):
        data[random_.choice(spots)] ^= 1 << random_.randrange(8)


def put_word(random_, data, spots):
    spot, width = random_.choice(spots), random_.choice([1, 4, 8])
    word = random_.choice(WORDS) if random_.random() < 0.8 else random_.getrandbits(64)
    data[spot : spot + width] = (word % 2 ** (8 * width)).to_bytes(width, "little")


def resize(random_, data, spots):
    """Cut the file, lengthen it, or insert, delete, copy or replace a part of it."""
    spot, other, length = random_.choice(spots), random_.choice(spots), random_.randint(1, 64)
    place, end, new = random_.choice([
        (random_.randrange(len(data)), len(data), b""),
        (len(data), len(data), random_.choice([b"\0", b"\0" * 8, noise(random_, 64)])),
        (spot, spot, noise(random_, 8)),
        (spot, spot + random_.choice([1, 4, 8]), b""),
        (spot, spot + length, bytes(data[other : other + length])),
        (random_.choice([0, 8, 24, 40]), len(data), noise(random_, 200)),
    ])  # fmt: skip
    data[place:end] = new


def rename(random_, data, spots):
    word = random_.choice([b"weight", b"float", b"csr", b"2.", b"2."])
    # "2.bias" to "1.bias" gives a name twice
    other = b"1." if word == b"2." else random_.choice([b"bias\0\0", b"\xff" * 6, b"wei", b"weight", b"weight" * 200])
    place = data.rfind(word)
    if place >= 0:
        data[place : place + len(word)] = other


def damaged(random_, content, places, tail):
    """Change a file's bytes, mostly in headers and names, where it hurts."""
    data = bytearray(content)
    spots = [*range(24), *(spot for start, _, end in places for spot in range(start, end)), *range(tail, len(data))]
    words = [spot for start, device, end in places for spot in (*range(start, end, 4), device - 8)]
    how = random_.choice([*[resize] * 6, rename, *[flip] * 3, *[put_word] * 4])
    if random_.random() < 0.7:
        spots = [*words, 16, tail, tail + 8] if how is put_word else spots
    elif how is flip:
        spots = range(len(data))
    how(random_, data, spots)
    return bytes(data)
