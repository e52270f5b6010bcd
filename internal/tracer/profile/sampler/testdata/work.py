"""Launches kernels of a libcuda through ctypes, from functions whose names and lines a test knows.

work.py LIBRARY: each line on standard input is a number of rounds; an empty one ends."""

import ctypes
import sys
import threading

cuda = ctypes.CDLL(sys.argv[1])


def launch(kernel, blocks):
    cuda.cuLaunchKernel(ctypes.c_void_p(kernel), blocks, 1, 1, 128, 1, 1, 0, None, None, None)


class Model:
    def forward(self):
        launch(0x100, 4)  # line 18

    def backward(self):
        for _ in range(3):
            launch(0x200, 8)  # line 22


def wait():
    cuda.fake_next(0, ctypes.c_long(2000))
    cuda.cuCtxSynchronize()  # line 27


def train(model, rounds):
    for _ in range(rounds):
        model.forward()  # line 32
        (lambda: model.backward())()  # line 33
        if _ % 50 == 0:
            wait()  # line 35


print("ready", flush=True)
for line in sys.stdin:
    if not line.strip():
        break
    if line.startswith("thread"):
        t = threading.Thread(target=train, args=(Model(), int(line.split()[1])))
        t.start()
        t.join()
    else:
        train(Model(), int(line))
    print("done", flush=True)
