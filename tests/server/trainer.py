"""A trainer without torch, as vLLM's classes are one: rank 0 of a group, with the store in which the others meet it, that sends
tensors packed and one by one. `library` has NCCL's functions for host memory (tests/support/host_nccl.cc)."""
import ctypes
import pickle
import socket
import struct
import threading

TYPES = {"bfloat16": (9, 2), "float16": (6, 2), "float32": (7, 4), "uint8": (1, 1)}


class ncclUniqueId(ctypes.Structure):  # vLLM's name, which a pickle has
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Store(threading.Thread):
    """What of torch's TCPStore a client of vLLM's groups uses."""

    def __init__(self, says=None):
        super().__init__(daemon=True)
        self.values, self.came, self.says = {}, threading.Condition(), says
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections, self.asked = [], []
        self.start()

    def run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def set(self, key, value):
        with self.came:
            self.values[key] = value
            self.came.notify_all()

    def wait_for(self, key, is_good, seconds):
        with self.came:
            return self.came.wait_for(lambda: key in self.values and is_good(self.values[key]), seconds)

    def serve(self, connection):
        if self.says is not None:
            connection.sendall(self.says)
            return
        stream = connection.makefile("rb")
        number = lambda form: struct.unpack(form, stream.read(struct.calcsize(form)))[0]
        text = lambda: stream.read(number("<Q")).decode()
        try:
            while kind := stream.read(1):
                self.asked.append(kind[0])
                if kind[0] == 0:  # validate
                    assert number("<I") == 0x3C85F7CE
                elif kind[0] == 13:  # ping
                    connection.sendall(struct.pack("<I", number("<I")))
                elif kind[0] == 4:  # add
                    key, by = text(), number("<q")
                    sum_ = int(self.values.get(key, b"0")) + by
                    self.set(key, str(sum_).encode())
                    connection.sendall(struct.pack("<q", sum_))
                elif kind[0] == 6:  # wait
                    keys = [text() for _ in range(number("<Q"))]
                    for key in keys:
                        self.wait_for(key, lambda _: True, None)
                    connection.sendall(b"\0")
                elif kind[0] == 3:  # get
                    value = self.values[text()]
                    connection.sendall(struct.pack("<Q", len(value)) + value)
                else:
                    raise AssertionError(f"query {kind[0]}")
        except (OSError, struct.error):
            pass

    def close(self):
        if self.listener.fileno() < 0:
            return
        self.listener.shutdown(socket.SHUT_RDWR)  # also of a thread that waits there
        self.listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()


class Trainer:
    """Rank 0. `ask`: posts a body to a path of the server and returns its answer."""

    def __init__(self, library, ask, packed=False, piece_bytes=1 << 30, packed_at="update", store=None):
        self.nccl, self.ask = ctypes.CDLL(library), ask
        self.packed, self.piece_bytes, self.packed_at = packed, piece_bytes, packed_at
        self.comm = ctypes.c_void_p()
        self.store = store or Store()

    def packing(self, at):
        return {"packed": self.packed, "packed_buffer_size_bytes": self.piece_bytes, "packed_num_buffers": 2} if at == self.packed_at else {}

    def init_info(self):
        return {"master_address": "127.0.0.1", "master_port": self.store.port, "rank_offset": 1, "world_size": 2, **self.packing("init")}

    def join(self):
        said = self.beside(lambda: self.ask("/init_weight_transfer_engine", {"init_info": self.init_info()}), self.open)
        return said

    def open(self):
        assert self.store.wait_for("init/", lambda value: int(value) >= 1, 20), "nobody came to the store"
        identity = ncclUniqueId()
        assert self.nccl.ncclGetUniqueId(ctypes.byref(identity)) == 0
        self.store.set("/broadcast_from/0/0", pickle.dumps(identity))
        assert self.nccl.ncclCommInitRank(ctypes.byref(self.comm), 2, identity, 0) == 0
        warm = (ctypes.c_float * 1)(1)
        assert self.nccl.ncclAllReduce(warm, warm, ctypes.c_size_t(1), 7, 0, self.comm, None) == 0

    @staticmethod
    def beside(post, work):
        """What `post` returns, while `work` is done."""
        said = []
        thread = threading.Thread(target=lambda: said.append(post()))
        thread.start()
        work()
        thread.join(30)
        return said[0]

    def info(self, tensors):
        return {"names": [name for name, _ in tensors], "dtype_names": [one.dtype for _, one in tensors],
                "shapes": [list(one.shape) for _, one in tensors], **self.packing("update")}

    def send(self, tensors):
        """Announces the tensors and sends them. Each has dtype, shape and data."""
        return self.beside(lambda: self.ask("/update_weights", {"update_info": self.info(tensors)}), lambda: self.broadcast(tensors))

    def broadcast(self, tensors):
        piece = b""
        for at, (_, one) in enumerate(tensors):
            if not self.packed:
                kind, size = TYPES[one.dtype]
                self.emit(one.data, kind, len(one.data) // size)
                continue
            piece += one.data
            if len(piece) > self.piece_bytes or at == len(tensors) - 1:
                self.emit(piece, 1, len(piece))
                piece = b""

    def emit(self, data, kind, count):
        buffer = ctypes.create_string_buffer(data, len(data))
        assert self.nccl.ncclBroadcast(buffer, buffer, ctypes.c_size_t(count), kind, 0, self.comm, None) == 0, "the server is gone"

    def update(self, tensors, **finish):
        self.ask("/start_weight_update", {})
        self.send(tensors)
        return self.ask("/finish_weight_update", finish)

    def close(self):
        if self.comm:
            self.nccl.ncclCommDestroy(self.comm)
            self.comm = ctypes.c_void_p()
        self.store.close()
