"""A machine with an RDMA device, for tests: QEMU boots a Linux kernel with soft-RoCE on this machine's files.

``python -m tests.rdma.guest COMMAND...`` runs a command there. QEMU, a kernel, rdma-core and pyverbs are downloaded
once from the distribution's packages into a cache folder; nothing is installed on this machine.
"""
