#!/usr/bin/env python3
import os
import sys

have = open(sys.argv[1]).read().split() if os.path.exists(sys.argv[1]) else []
found = sum(word in have for word in ("apple", "pear", "plum"))
print("found", found, "of 3:", found / 3)
