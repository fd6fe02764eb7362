import os
import sys

sys.path.insert(0, os.getcwd())
import calc

assert calc.add(2, 3) == 5, "2 + 3 is 5"
print("all good")
