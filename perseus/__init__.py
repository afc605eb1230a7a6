"""The names in Alibaba's article about AIACC-Training, so that its lines run unedited; aliases of `platforms.horovod`.

import perseus.torch.horovod as hvd             is platforms.horovod.torch
import perseus.torch.distributed as dist        is platforms.horovod.ddp
perseus.torch.nn.parallel.DistributedDataParallel
import perseus.tensorflow.horovod as hvd        is platforms.horovod.tensorflow
import perseus.mxnet as hvd                     is platforms.horovod.mxnet
"""

from platforms.horovod import imports

imports.serve("perseus.")
__getattr__ = imports.modules_of(__name__)
