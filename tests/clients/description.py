"""The description of the interface against `oncelog serve`: whatever is sent that it allows, or almost
allows, is answered as it says, and never with a failure of the server.

Usage: description.py PROGRAM
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

TOKEN = "root:Milvus"
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,"
          "response_schema_conformance,response_headers_conformance,allow_header_conformance,"
          "unsupported_method,ignored_auth")

home = pathlib.Path(tempfile.mkdtemp(prefix="oncelog-description-"))
root = home / "root"
root.mkdir()
(root / "a.csv").write_text("id,name\n1,x\n2,y\n")
tokens = home / "tokens"
tokens.touch(mode=0o600)
tokens.write_text(TOKEN + "\n")
child = subprocess.Popen(
    [sys.argv[1], "serve", home / "store", "--json", "--listen", "127.0.0.1:0", "--import-root", root,
     "--token-file", tokens], stdout=subprocess.PIPE, text=True)
try:
    url = json.loads(child.stdout.readline())["url"]
    assert json.loads(child.stdout.readline())["did"] == "ready"
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    description = pathlib.Path(__file__).parents[2] / "src/gateway/openapi.json"
    run = subprocess.run(
        [program, "run", description, "--url", url, "--header", f"Authorization: Bearer {TOKEN}",
         "--checks", CHECKS, "--max-examples", "40", "--seed", "1", "--phases", "examples,coverage,fuzzing",
         "--warnings", "off", "--generation-database", "none", "--request-timeout", "30"],
        cwd=home, timeout=900)
    child.terminate()
    assert child.wait(60) == 0, "the server did not end well"
finally:
    child.kill()
    shutil.rmtree(home)
sys.exit(run.returncode)
