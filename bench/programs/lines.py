import sys

for number in range(int(sys.argv[1])):
    print(f"line {number:07d} of a rank that talks a lot")
