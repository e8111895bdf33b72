import time

print(time.time_ns(), flush=True)
