import os
import time

os.write(1, b"%d %d\n" % (os.getpid(), time.time_ns()))
time.sleep(600)
