"""Tests of the page with servers of the bundled model, beside one of a made model."""
import pathlib

from browser import BrowserTest
from served import Served

MANY = ["--max-num-seqs", "16", "--max-model-len", "1152"]


class StoryTest(BrowserTest):
    program = None  # set by main

    def serve_story(self, *flags, port=0):
        """The bundled model, which takes long enough for an answer that something can happen meanwhile."""
        story = pathlib.Path(__file__).parents[2] / "models/story"
        server = Served(self.program, command=[self.program, "serve", str(story), "--host", "127.0.0.1", "--port", str(port), "--threads", "1",
                                        "--served-model-name", "m", "--kv-cache-memory", "0.1", *flags])
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server
