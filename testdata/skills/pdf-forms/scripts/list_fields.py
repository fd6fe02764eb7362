#!/usr/bin/env python3
import sys

for name in ("first_name", "last_name", "date"):
    print(name, "text", file=sys.stdout)
