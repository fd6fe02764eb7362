import json
import sys

args = json.load(sys.stdin)
with open(args["path"], encoding="utf-8") as f:
    columns = f.readline().strip().split(args["separator"])
with open("columns.txt", "w", encoding="utf-8") as f:
    f.write("\n".join(columns) + "\n")
print(json.dumps({"kind": "progress", "data": {"pct": 100, "message": "done"}}))
print(json.dumps({"result": {"columns": columns}}))
