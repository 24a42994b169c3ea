"""A server for one of the clients: on a store of its own, and on a port that the system chose."""
import json
import pathlib
import shutil
import subprocess
import tempfile

TOKEN = "root:Milvus"


class Server:
    """A server on a store of its own; ends with the block."""

    def __init__(self, program):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="oncelog-clients-"))
        self.root = self.home / "root"
        self.root.mkdir()
        tokens = self.home / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(TOKEN + "\n")
        self.child = subprocess.Popen(
            [program, "serve", self.home / "store", "--json", "--listen", "127.0.0.1:0",
             "--import-root", self.root, "--token-file", tokens],
            stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.child.stdout.readline())["url"]
        assert json.loads(self.child.stdout.readline())["did"] == "ready"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        assert self.child.wait(60) == 0, "the server did not end well"
        shutil.rmtree(self.home)
