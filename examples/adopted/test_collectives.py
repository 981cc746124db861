"""Tests as torch writes them: this file does not know the plugin."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests


class CollectivesTest(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _open(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    def test_broadcast(self):
        self._open()
        x = torch.full((4,), float(self.rank))
        dist.broadcast(x, src=1)
        self.assertEqual(x, torch.ones(4))

    def test_all_gather(self):
        self._open()
        gathered = [torch.zeros(1) for _ in range(self.world_size)]
        dist.all_gather(gathered, torch.tensor([float(self.rank)]))
        self.assertEqual(torch.cat(gathered), torch.arange(2.0))


if __name__ == "__main__":
    run_tests()
