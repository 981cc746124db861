"""Every way in which a rank can fail, and what becomes of it: on gloo here, with ``--gpus N`` on NCCL."""
