"""smi_view.py FILL BYTES NAME=COMMAND...: runs each command while a process of ours holds so many bytes; one JSON line."""
import json
import subprocess
import sys

program, size, *forms = sys.argv[1:]
holder = subprocess.Popen([program, "take", "alloc", size, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
holder.stdout.readline()
pid = json.loads(holder.stdout.readline())["pid"]
said = {}
for form in forms:
    name, _, command = form.partition("=")
    try:
        done = subprocess.run(command.split(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True, errors="replace", timeout=30)
        said[name] = {"code": done.returncode, "out": done.stdout}
    except subprocess.TimeoutExpired:
        said[name] = {"code": "none after 30 s", "out": ""}
    except FileNotFoundError as error:
        said[name] = {"code": 127, "out": str(error)}
print(json.dumps({"pid": pid, "forms": said}))
holder.communicate()
