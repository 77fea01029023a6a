"""The script `mar` of the wheel: becomes the command. The package mar, which imports numpy, is not loaded."""
import os
import sys


def main() -> None:
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mar", "bin", "mar")
    os.execv(command, ["mar", *sys.argv[1:]])
