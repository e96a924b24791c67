"""Archives that the kernel unpacks into its first file system: cpio's "new ASCII" format."""

from __future__ import annotations

from collections.abc import Mapping

_REGULAR = 0o100000
_FOLDER = 0o040000


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of executable files by their paths, including their folders."""
    folders: dict[str, None] = {}
    for path in files:
        parts = path.split("/")[:-1]
        folders.update(dict.fromkeys("/".join(parts[: depth + 1]) for depth in range(len(parts))))
    entries = [(name, _FOLDER, b"") for name in folders]
    entries += [(name, _REGULAR, content) for name, content in files.items()]
    entries.append(("TRAILER!!!", 0, b""))
    return b"".join(_entry(number, *entry) for number, entry in enumerate(entries, start=1))


def _entry(number: int, name: str, kind: int, content: bytes) -> bytes:
    encoded = name.encode() + b"\0"
    mode = kind | 0o755 if kind else 0
    # inode, mode, user, group, links, time, size, device and its kind's numbers, length of the name, no checksum
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
