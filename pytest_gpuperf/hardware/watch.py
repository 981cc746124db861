"""Watches GPUs while ranks measure on them."""

import threading
from collections.abc import Sequence
from types import TracebackType

from pytest_gpuperf.hardware.device import Devices, Observation, Xid

INTERVAL = 0.1  # seconds between looks; one look at a GPU takes about a millisecond of one core


class Watch:
    """A thread that observes GPUs from its start to its end, and listens to what the driver reports of them.

    It looks at least once at either end, when it counts NVLinks too.
    """

    def __init__(self, uuids: Sequence[str], devices: Devices, *, interval: float = INTERVAL) -> None:
        self._uuids = tuple(uuids)
        self._devices = devices
        self._interval = interval
        self._over = threading.Event()
        self._looked = threading.Event()
        self._seen: list[Observation] = []
        self._xids: tuple[Xid, ...] = ()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="gpuperf-watch", daemon=True)

    @property
    def seen(self) -> tuple[Observation, ...]:
        """All observations in order; of all GPUs."""
        return tuple(self._seen)

    @property
    def xids(self) -> tuple[Xid, ...]:
        """The errors that the driver reported, known once it is over."""
        return self._xids

    def __enter__(self) -> "Watch":
        """Returns once every GPU was looked at."""
        self._thread.start()
        self._looked.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Looks once more.

        Raises:
            HardwareError: The vendor's library failed meanwhile; not if something else is being raised.
        """
        self._over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _watch(self) -> None:
        try:
            with self._devices.session():
                listener = self._devices.listen(self._uuids)
                self._look(links=True)
                self._looked.set()
                while not self._over.wait(self._interval):
                    self._look(links=False)
                self._look(links=True)
                self._xids = listener.close()
        except Exception as failure:  # of a thread: kept for the one who waits for it
            self._error = failure
        finally:
            self._looked.set()

    def _look(self, *, links: bool) -> None:
        self._seen += [self._devices.observe(uuid, links=links) for uuid in self._uuids]
