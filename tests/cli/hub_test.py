#!/usr/bin/env python3
"""invar pull, list and rm, and models by name, from a hub of this machine that speaks the API and fails in every way.
Usage: hub_test.py INVAR [unittest arguments]"""
import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse

INVAR = None  # the program; set by main
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
LARGE = 1000  # bytes from which on a file is one of Git LFS


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """`files` of one repository; `wrong` says what goes wrong with it."""

    def __init__(self, files, name="org/model", wrong=(), needs_token=False):
        self.files, self.name, self.wrong, self.needs_token = files, name, set(wrong), needs_token
        self.asked, self.cuts = [], {}
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.answer(self)

        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]  # the hub, and where large files lie
        for server in self.servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url, self.store = (f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers)
        self.store = self.store.replace("127.0.0.1", "localhost")

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def listed(self):
        siblings = []
        for path, data in self.files.items():
            one = {"rfilename": path, "size": len(data), "blobId": git_hash(data)}
            if len(data) >= LARGE:
                sha = hashlib.sha256(data + (b"x" if "hash" in self.wrong else b"")).hexdigest()
                one["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
            siblings.append(one)
        if "path" in self.wrong:
            siblings.append({"rfilename": "../../evil", "size": 1, "blobId": git_hash(b"x")})
        return {"id": self.name, "sha": COMMIT, "siblings": siblings}

    def reply(self, to, status, data=b"", **headers):
        to.send_response(status)
        for name, value in headers.items():
            to.send_header(name.replace("_", "-"), value)
        to.send_header("Content-Length", str(len(data)))
        to.end_headers()
        to.wfile.write(data)

    def answer(self, to):
        path = urllib.parse.unquote(to.path.split("?")[0])
        at_store = to.server is self.servers[1]
        self.asked.append((path, to.headers.get("Range"), to.headers.get("Authorization")))
        if at_store:
            return self.send(to, path.removeprefix("/store/"))
        if self.needs_token and to.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.reply(to, 401, b'{"error": "Unauthorized"}')
        if path == f"/api/models/{self.name}/revision/main":
            return self.reply(to, 200, json.dumps(self.listed()).encode())
        begin = f"/{self.name}/resolve/{COMMIT}/"
        file = path.removeprefix(begin)
        if not path.startswith(begin) or file not in self.files:
            return self.reply(to, 404, b'{"error": "not found"}')
        if len(self.files[file]) >= LARGE:
            return self.reply(to, 302, b"go there", Location=f"{self.store}/store/{file}", X_Linked_Size=str(len(self.files[file])))
        self.send(to, file)

    def send(self, to, file):
        data = self.files[file]
        if "pointer" in self.wrong and len(data) >= LARGE:
            data = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + hashlib.sha256(data).hexdigest().encode() + b"\nsize %d\n" % len(data)
        ranged = to.headers.get("Range")
        begin = int(ranged.removeprefix("bytes=").removesuffix("-")) if ranged and "ranges" not in self.wrong else 0
        to.send_response(206 if begin else 200)
        if begin:
            to.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        to.send_header("Content-Length", str(len(data) - begin))
        to.end_headers()
        if "cut" in self.wrong and len(data) >= LARGE and self.cuts.get(file, 0) < 2:
            self.cuts[file] = self.cuts.get(file, 0) + 1
            to.wfile.write(data[begin:begin + (len(data) - begin) // 3])
            to.close_connection = True
            return
        to.wfile.write(data[begin:])


class Pull(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory(prefix="invar-hub-")
        cls.addClassCleanup(cls.made.cleanup)
        subprocess.run([INVAR, "make-model", cls.made.name], check=True, capture_output=True)
        cls.files = {path.name: path.read_bytes() for path in pathlib.Path(cls.made.name).iterdir()}
        assert any(len(data) >= LARGE for data in cls.files.values())

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-cache-")
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.cache = self.home / "hub"

    def hub(self, files=None, **more):
        hub = Hub(files or {**self.files, "README.md": b"# m", "pytorch_model.bin": b"z" * 5000, "onnx/model.onnx": b"o"}, **more)
        self.addCleanup(hub.close)
        return hub

    def run_invar(self, *words, hub=None, status=0, cwd=None, **variables):
        env = {**os.environ, "HF_HOME": str(self.home), "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:1", **variables}
        for name in ("HF_HUB_CACHE", "HF_TOKEN"):
            if name not in variables:
                env.pop(name, None)
        done = subprocess.run([INVAR, *words], env=env, cwd=cwd, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.decode() if status == 0 else done.stderr.decode()

    def test_a_model_is_fetched_into_the_cache_of_pythons_tools(self):
        self.files["a #1 é.json"] = b"{}"
        self.addCleanup(self.files.pop, "a #1 é.json")
        hub = self.hub()
        path = pathlib.Path(self.run_invar("pull", "org/model", hub=hub).strip())
        folder = self.cache / "models--org--model"
        self.assertEqual(path, folder / "snapshots" / COMMIT)
        self.assertEqual((folder / "refs/main").read_text(), COMMIT)
        self.assertEqual({one.name: one.read_bytes() for one in path.iterdir()}, self.files)  # no README, no other weights
        for one in path.iterdir():
            data = one.read_bytes()
            name = hashlib.sha256(data).hexdigest() if len(data) >= LARGE else git_hash(data)
            self.assertEqual(os.readlink(one), f"../../blobs/{name}")
        self.assertEqual([one for one in (folder / "blobs").iterdir() if one.name.endswith(".incomplete")], [])
        # A second pull fetches no file again.
        before = len(hub.asked)
        self.run_invar("pull", "org/model", hub=hub)
        self.assertEqual([path for path, _, _ in hub.asked[before:]], ["/api/models/org/model/revision/main"])

    def test_its_name_is_a_model(self):
        run = ["--prompt", "hello", "--max-tokens", "4", "--threads", "1", "--json"]
        said = self.run_invar("generate", "org/model", *run, status=2)
        self.assertIn("invar pull org/model fetches it", said)
        self.run_invar("pull", "org/model", hub=self.hub())
        by_name = json.loads(self.run_invar("generate", "org/model", *run))
        by_path = json.loads(self.run_invar("generate", self.made.name, *run))
        self.assertEqual(by_name["logits_hash"], by_path["logits_hash"])
        [one] = json.loads(self.run_invar("list", "--json"))
        self.assertEqual(one["name"], "org/model")
        self.assertGreaterEqual(one["bytes"], sum(map(len, self.files.values())))
        self.assertIn("org/model", self.run_invar("list"))
        self.assertIn("deleted", self.run_invar("rm", "org/model"))
        self.assertEqual(json.loads(self.run_invar("list", "--json")), [])
        self.assertIn("invar list", self.run_invar("rm", "org/model", status=2))

    def test_transfers_that_are_cut_off_go_on(self):
        hub = self.hub(wrong=["cut"])
        self.run_invar("pull", "org/model", hub=hub)
        self.assertEqual(set(hub.cuts.values()), {2})
        self.assertTrue(any(ranged for _, ranged, _ in hub.asked))
        snapshot = self.cache / "models--org--model/snapshots" / COMMIT
        self.assertEqual({one.name: one.read_bytes() for one in snapshot.iterdir()}, self.files)

    def test_a_server_without_ranges_begins_again(self):
        hub = self.hub(wrong=["cut", "ranges"])
        self.run_invar("pull", "org/model", hub=hub)
        snapshot = self.cache / "models--org--model/snapshots" / COMMIT
        self.assertEqual({one.name: one.read_bytes() for one in snapshot.iterdir()}, self.files)

    def test_a_wrong_hash_and_a_pointer_are_found(self):
        for wrong, text in (("hash", "expected the SHA-256"), ("pointer", "pointer of Git LFS")):
            hub = self.hub(wrong=[wrong])
            self.assertIn(text, self.run_invar("pull", "org/model", hub=hub, status=1))
            self.assertFalse((self.cache / "models--org--model/refs/main").exists())
            self.run_invar("generate", "org/model", "--prompt", "x", status=2)

    def test_tokens(self):
        hub = self.hub(needs_token=True)
        self.assertIn("HF_TOKEN", self.run_invar("pull", "org/model", hub=hub, status=1))
        self.run_invar("pull", "org/model", hub=hub, HF_TOKEN=TOKEN)
        shown = {token for path, _, token in hub.asked if path.startswith("/store/")}
        self.assertEqual(shown, {None})  # another host does not see it
        self.run_invar("rm", "org/model")
        (self.home / "token").write_text(TOKEN + "\n")
        self.run_invar("pull", "org/model", hub=hub)
        self.assertIn("may not read it", self.run_invar("pull", "org/model", hub=hub, HF_TOKEN="other", status=1))

    def test_what_is_not_there(self):
        hub = self.hub()
        self.assertIn("there is none at", self.run_invar("pull", "org/other", hub=hub, status=1))
        self.assertIn("cannot be asked", self.run_invar("pull", "org/model", status=1))
        for word in ("model", "../x", "org/..", "a/b/c", "org/mo del"):
            self.assertIn("OWNER/NAME", self.run_invar("pull", word, hub=hub, status=2))
        (self.home / "org/model").mkdir(parents=True)
        for command in ("pull", "rm"):
            self.assertIn("a path in this directory", self.run_invar(command, "org/model", hub=hub, status=2, cwd=self.home))
        for url in ("nonsense", "file:///etc"):
            self.assertIn("expected HF_ENDPOINT as a URL", self.run_invar("pull", "org/model", status=2, HF_ENDPOINT=url))
        self.assertIn("within the repository", self.run_invar("pull", "org/model", hub=self.hub(wrong=["path"]), status=1))

    def test_gguf_by_its_quantisation(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "m.gguf")
            subprocess.run([INVAR, "convert", self.made.name, str(file), "--gguf", "q8_0"], check=True, capture_output=True)
            data = file.read_bytes()
        hub = self.hub({"m-Q8_0.gguf": data, "m-Q4_K_M.gguf": b"other" * 500, "mmproj-Q8_0.gguf": b"p" * 2000, "m-BF16-00001-of-00002.gguf": b"1" * 1500,
                        "m-BF16-00002-of-00002.gguf": b"2" * 1500})
        path = pathlib.Path(self.run_invar("pull", "org/model:q8_0", hub=hub).strip())
        self.assertEqual((path.name, path.read_bytes()), ("m-Q8_0.gguf", data))
        self.assertEqual([one.name for one in path.parent.iterdir()], ["m-Q8_0.gguf"])
        run = ["--prompt", "hello", "--max-tokens", "4", "--threads", "1", "--json"]
        self.assertTrue(json.loads(self.run_invar("generate", "org/model:Q8_0", *run))["logits_hash"])
        self.run_invar("pull", "org/model:BF16", hub=hub)
        self.assertEqual(len([one for one in path.parent.iterdir() if "BF16" in one.name]), 2)
        said = self.run_invar("pull", "org/model:Q3_K", hub=hub, status=1)
        self.assertIn("m-Q4_K_M.gguf", said)
        self.run_invar("pull", "org/model", hub=hub)  # llama.cpp's choice
        self.assertTrue((path.parent / "m-Q4_K_M.gguf").exists())
        [listed] = json.loads(self.run_invar("list", "--json"))
        self.assertEqual(listed["gguf"], ["m-BF16-00001-of-00002.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"])
        self.assertIn("  :m-BF16-00001-of-00002.gguf :m-Q4_K_M.gguf :m-Q8_0.gguf\n", self.run_invar("list"))


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
