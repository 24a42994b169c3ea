"""The description of the interface against `oncelog serve`: whatever is sent that it allows, or almost
allows, is answered as it says, and never with a failure of the server.

Usage: description.py PROGRAM
"""
import pathlib
import subprocess
import sys

from server import TOKEN, Server

CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,"
          "response_schema_conformance,response_headers_conformance,allow_header_conformance,"
          "unsupported_method,ignored_auth")

with Server(sys.argv[1]) as server:
    (server.root / "a.csv").write_text("id,name\n1,x\n2,y\n")
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    description = pathlib.Path(__file__).parents[2] / "src/gateway/openapi.json"
    run = subprocess.run(
        [program, "run", description, "--url", server.url,
         "--header", f"Authorization: Bearer {TOKEN}", "--checks", CHECKS, "--max-examples", "40",
         "--seed", "1", "--phases", "examples,coverage,fuzzing", "--warnings", "off",
         "--generation-database", "none", "--request-timeout", "30"],
        cwd=server.home, timeout=900)
sys.exit(run.returncode)
