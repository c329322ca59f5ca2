"""The names a shared library defines, read from its ELF bytes without loading it."""

from __future__ import annotations

import struct

_SHT_DYNSYM = 11


def exported(library: bytes) -> frozenset[str]:
    """Names of the defined global and weak dynamic symbols of a 64-bit little-endian ELF file.

    Empty for anything else, also for a damaged file.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        return frozenset()
    try:
        (offset,) = struct.unpack_from("<Q", library, 0x28)
        size, count = struct.unpack_from("<HH", library, 0x3A)
        sections = [struct.unpack_from("<IIQQQQIIQQ", library, offset + i * size) for i in range(count)]
        names: set[str] = set()
        for section in sections:
            if section[1] != _SHT_DYNSYM:
                continue
            strings = sections[section[6]]
            for start in range(section[4], section[4] + section[5], 24):
                name, info, other, index = struct.unpack_from("<IBBH", library, start)
                visible = other & 3 in (0, 3)
                if index != 0 and info >> 4 in (1, 2) and visible:
                    begin = strings[4] + name
                    names.add(library[begin : library.index(b"\0", begin)].decode("ascii", "replace"))
        return frozenset(names)
    except (struct.error, IndexError, ValueError):
        return frozenset()
