import multiprocessing.util
import os
import sys

from .cli import main

code = main()
if "RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
    # As a rank that torchrun or mpirun started: threads of torch.distributed that outlive the interpreter abort its
    # shutdown now and then ("terminate called without an active exception"), after all the work has been done.
    multiprocessing.util._run_finalizers()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
raise SystemExit(code)
