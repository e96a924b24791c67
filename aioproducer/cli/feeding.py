"""A bounded queue from a reading thread to the loop. The end of the process does not wait for the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from aioproducer.cli.columns import Outgoing
from aioproducer.cli.reading import BadLine, Row

# Maximum size of a piece, and number of pieces that the thread may be ahead of the loop.
PIECE_ROWS = 1000
PIECE_BYTES = 1 << 20
PIECES_AHEAD = 4


class Piece(NamedTuple):
    """Some records in order, the number of input bytes read so far, and the bad lines among the records."""

    records: list[Outgoing]
    bytes_read: int
    bad_lines: int
    shown: list[str]


class Feeder:
    """Reads in a daemon thread, because a read from a terminal or pipe cannot be cancelled.

    Args:
        open_rows: returns the rows; its argument is to be called before each read.
        rejects: the file for bad lines.
        shown: the maximum number of bad lines that are shown to the user.
    """

    def __init__(
        self,
        open_rows: Callable[[Callable[[int], None]], Iterator[Row]],
        *,
        rejects: BinaryIO | None = None,
        shown: int = 3,
    ) -> None:
        self._open_rows = open_rows
        self._rejects = rejects
        self._left_to_show = shown
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()
        self._room = threading.Semaphore(PIECES_AHEAD)
        self._ended = False
        self._begin(0)

    def _begin(self, bytes_read: int) -> None:
        self._records: list[Outgoing] = []
        self._size = 0
        self._bad_lines = 0
        self._shown: list[str] = []
        self._bytes_read = bytes_read

    def start(self) -> None:
        """Start the reading thread."""
        threading.Thread(target=self._run, name="aioproducer-feeder", daemon=True).start()

    async def next(self) -> Piece | None:
        """Return the next piece, None at the end of the input.

        Raises:
            CommandError, OSError: the input cannot be read.
        """
        piece = await self._pieces.get()
        self._room.release()
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def end(self) -> None:
        """Stop reading."""
        self._ended = True
        self._room.release()

    # In the thread

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            for row in self._open_rows(self._before_read):
                if self._ended:
                    return
                self._take(row)
            self._hand_over()
        except Exception as error:
            last = error
        finally:
            if self._rejects is not None:
                try:
                    self._rejects.close()
                except OSError as error:
                    last = last or error
        self._put(last)

    def _take(self, row: Row) -> None:
        if isinstance(row, BadLine):
            self._reject(row)
            return
        self._records.append(row)
        self._size += len(row.value or b"") + len(row.key or b"")
        if len(self._records) >= PIECE_ROWS or self._size >= PIECE_BYTES:
            self._hand_over()

    def _reject(self, line: BadLine) -> None:
        if self._rejects is not None:
            self._rejects.write(line.raw)
        if not line.reason:
            return
        self._bad_lines += 1
        if self._left_to_show > 0:
            self._left_to_show -= 1
            start = line.raw[:60].decode(errors="replace").strip()
            self._shown.append(f"line {line.number} is skipped: {line.reason}: {start}")

    def _before_read(self, bytes_read: int) -> None:
        self._hand_over()
        self._bytes_read = bytes_read

    def _hand_over(self) -> None:
        if self._records or self._bad_lines:
            self._put(Piece(self._records, self._bytes_read, self._bad_lines, self._shown))
            self._begin(self._bytes_read)

    def _put(self, piece: Piece | BaseException | None) -> None:
        self._room.acquire()
        if self._ended:
            return
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:
            # The loop is closed: there is no reader left.
            self._ended = True
