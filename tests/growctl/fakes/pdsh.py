"""A fake pdsh: every host is this machine, and like a remote shell it drops its own environment."""

import subprocess
import sys
import threading

OPTIONS_WITH_VALUE = ("-f", "-w")


def main(arguments: list[str]) -> int:
    options: dict[str, str] = {}
    while arguments[0].startswith("-"):
        option = arguments.pop(0)
        options[option] = arguments.pop(0) if option in OPTIONS_WITH_VALUE else ""
    assert "-S" in options, "without -S pdsh ends with 0 whatever became of the command"
    assert not arguments[0].startswith("pkill"), "kills every run of this user"
    running = []
    for number, host in enumerate(options["-w"].split(",")):
        # pdsh joins the words with blanks, and the remote shell splits them again.
        command = " ".join(arguments).replace("%n", str(number)).replace("%h", host)
        process = subprocess.Popen(
            ["env", "-i", "PATH=/usr/bin:/bin", "HOME=/nonexistent", "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append((process, threading.Thread(target=label, args=(host, process))))
    for _, thread in running:
        thread.start()
    codes = []
    for process, thread in running:
        thread.join()
        codes.append(process.wait())
    return max(codes)


def label(host: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout
    for line in process.stdout:
        print(f"{host}: {line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
