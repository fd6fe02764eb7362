import os
import sys

sys.path.insert(0, os.getcwd())
import calc

for a in range(-3, 4):
    for b in range(-3, 4):
        assert calc.add(a, b) == a + b
print("all good")
