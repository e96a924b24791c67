"""A machine with an RDMA device, for tests: QEMU boots a Linux kernel with soft-RoCE on this machine's own files.

``python -m tests.rdma.guest COMMAND...`` runs a command there. Everything that is needed (QEMU, a kernel, rdma-core and
pyverbs) comes from the distribution's packages, once, into a cache folder; nothing is installed on this machine.
"""
