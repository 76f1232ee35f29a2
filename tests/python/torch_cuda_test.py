"""invar.torch, batch_invariant_ops and CausalLM on a GPU beside the CPU's operators and the engine: the same bits.

Needs a GPU and a PyTorch with CUDA; without them it says so and ends with 77, or with 1 where INVAR_REQUIRE is cuda.
"""
import base64
import multiprocessing
import os
import pickle
import sys
import unittest

try:
    import torch
    HAVE = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
except ImportError:
    HAVE = False
if not HAVE:
    print("torch_cuda_test: expected a GPU of compute capability 9.0 and a PyTorch with CUDA, found none: nothing was run")
    sys.exit(1 if os.environ.get("INVAR_REQUIRE") == "cuda" else 77)

import batch_invariant_ops as published  # noqa: E402
import invar  # noqa: E402
from invar import torch as ops  # noqa: E402
from invar.models import CausalLM  # noqa: E402

ORDERS = ("hopper", "portable")


def same(a, b):
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and a.view(torch.uint8).equal(b.view(torch.uint8))


def values(*shape, seed=1, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def rotation(positions, head_dim):
    angles = torch.outer(torch.arange(positions).float(), 10000 ** (-torch.arange(head_dim // 2) * 2.0 / head_dim))
    return angles.cos(), angles.sin()


class BitsTest(unittest.TestCase):
    """The operators of the CPU, which the engine's tests hold to it, against those of the GPU."""

    def expect_same(self, operator, *tensors, **keywords):
        for order in ORDERS:
            with self.subTest(order=order):
                on_cpu = operator(*tensors, order=order, **keywords)
                on_gpu = operator(*([t.cuda() for t in x] if isinstance(x, list) else x.cuda() if torch.is_tensor(x) else x
                                    for x in tensors), order=order,
                                  **{k: v.cuda() if torch.is_tensor(v) else v for k, v in keywords.items()})
                self.assertTrue(same(on_cpu, on_gpu), f"{operator.__name__}: {(on_cpu != on_gpu.cpu()).sum()} of {on_cpu.numel()}")

    def test_rms_norm(self):
        for rows, width in ((1, 64), (7, 1024), (33, 80), (3, 2048)):
            self.expect_same(ops.rms_norm, values(rows, width), values(width, seed=2))
        self.expect_same(ops.rms_norm, values(5, 96), values(96, seed=2), rounds=False)
        self.expect_same(ops.rms_norm, values(5, 96), values(96, seed=2), dtype=torch.bfloat16)

    def test_linear(self):
        for rows, k, n in ((1, 64, 48), (9, 80, 70), (33, 256, 40), (130, 512, 24)):
            x, w = values(rows, k), values(n, k, seed=2)
            self.expect_same(ops.linear, x, w)
            self.expect_same(ops.linear, x.bfloat16(), w.bfloat16())
            self.expect_same(ops.linear, x, w, values(n, seed=3), residual=values(rows, n, seed=4))
        x, w = values(17, 256), values(48, 256, seed=2)
        for runs in (2, 4, 8):
            self.expect_same(ops.linear, x, w, runs=runs, residual=values(17, 48, seed=4))
        self.expect_same(ops.linear, x, [w, values(24, 256, seed=5), values(8, 256, seed=6)])
        self.assertFalse(same(ops.linear(x.cuda(), w.cuda(), order="hopper"), ops.linear(x.cuda(), w.cuda())),
                         "the control: another order")

    def test_gated_linear_and_silu_mul(self):
        for rows, k, f in ((1, 64, 64), (19, 96, 72), (70, 256, 40)):
            x, gate, up = values(rows, k), values(f, k, seed=2, scale=0.2), values(f, k, seed=3, scale=0.2)
            for curve in ("silu", "gelu_tanh"):
                self.expect_same(ops.gated_linear, x, gate, up, curve=curve)
                self.expect_same(ops.gated_linear, x, gate.bfloat16(), up.bfloat16(), curve=curve, dtype=torch.bfloat16)
                self.expect_same(ops.silu_mul, values(rows, f), values(rows, f, seed=2), curve=curve)
        both = values(128, 64, seed=4).bfloat16().cuda()  # neighbours: one stack, read where it lies
        for order in ORDERS:
            apart = ops.gated_linear(values(9, 64).cuda(), both[:64].clone(), both[64:].clone(), order=order)
            self.assertTrue(same(ops.gated_linear(values(9, 64).cuda(), both[:64], both[64:], order=order), apart))

    def test_embedding_rope_and_sums(self):
        tokens = torch.tensor([3, 0, 99, 3])
        for width in (64, 80):
            self.expect_same(ops.embedding, tokens, values(100, width))
            self.expect_same(ops.embedding, tokens, values(100, width).bfloat16())
        cos, sin = rotation(64, 32)
        self.expect_same(ops.rope, values(20, 4, 32), torch.arange(20), cos, sin)
        self.expect_same(ops.log_softmax_gather, values(9, 5000, scale=4), torch.arange(9) * 17)

    def test_attention(self):
        for heads, kv_heads, head_dim, lengths, window in ((4, 2, 32, [30, 20, 1], 0), (8, 2, 128, [150, 3, 17], 0),
                                                           (4, 4, 64, [200], 40), (2, 1, 80, [40, 5], 0)):
            rows, width = sum(lengths), (heads + 2 * kv_heads) * head_dim
            norms = [values(head_dim, seed=s).abs() for s in (5, 6)]
            for given in ([], norms):
                self.expect_same(packed, values(rows, width), *rotation(256, head_dim), *given, lengths=lengths, heads=heads,
                                 kv_heads=kv_heads, window=window)

    def test_rows_do_not_depend_on_their_batch(self):
        x, w = values(4096, 1024).cuda().bfloat16(), values(2048, 1024, seed=2).cuda().bfloat16()
        gate, up = w[:1024], w[1024:]
        cos, sin = (t.cuda() for t in rotation(512, 128))
        qkv = values(700, 12 * 128).cuda()
        for order in ORDERS:
            whole = ops.linear(x, w, order=order), ops.gated_linear(x, gate, up, order=order), ops.rms_norm(x.float(), w[0], order=order)
            split = ops.linear(x, w, runs=8, order=order)
            for rows in (1, 2, 5, 8, 17, 64, 100, 129, 256, 1000):
                for first in (0, 4096 - rows):
                    part = x[first:first + rows]
                    found = ops.linear(part, w, order=order), ops.gated_linear(part, gate, up, order=order), ops.rms_norm(part.float(), w[0], order=order)
                    for a, b in zip(found, whole):
                        self.assertTrue(same(a, b[first:first + rows]), (order, rows))
                    self.assertTrue(same(ops.linear(part, w, runs=8, order=order), split[first:first + rows]))
            lengths = [300, 1, 399]
            together = ops.packed_attention(qkv, cos, sin, lengths, 8, 2, order=order)
            alone = ops.packed_attention(qkv[301:], cos, sin, [399], 8, 2, order=order)
            self.assertTrue(same(together[301:], alone))
        x, w = values(4096, 8192, seed=3).cuda().bfloat16(), values(1024, 8192, seed=4).cuda().bfloat16()
        differing = sum(not same(x[:rows] @ w.T, (x @ w.T)[:rows]) for rows in (1, 2, 5, 8, 17, 64, 100, 129, 256, 1000))
        print(f"the control, torch's own product: {differing} of 10 batches give the first rows other bits", flush=True)
        self.assertGreater(differing, 0, "the control: torch's own product")


class BackwardTest(unittest.TestCase):
    """Gradients of the GPU's operators beside those of the CPU's, whose definition is the trainer's."""

    @staticmethod
    def gradients(operator, tensors, order, device, dy, **keywords):
        """Gradients of all float tensors, from a gradient of the result that depends on `dy` alone."""
        def there(x):
            return [there(t) for t in x] if isinstance(x, list) else x.detach().to(device).requires_grad_(x.is_floating_point())
        given = [there(x) if isinstance(x, list) or torch.is_tensor(x) else x for x in tensors]
        keywords = {k: there(v) if torch.is_tensor(v) or isinstance(v, list) and torch.is_tensor(v[0]) else v
                    for k, v in keywords.items()}
        out = operator(*given, order=order, **keywords)
        out.backward(values(*out.shape, seed=dy).to(out.dtype).to(device))
        leaves = [t for x in (*given, *keywords.values()) for t in (x if isinstance(x, list) else [x])]
        return [t.grad for t in leaves if torch.is_tensor(t) and t.grad is not None]

    def expect_same(self, operator, *tensors, **keywords):
        for order in ORDERS:
            with self.subTest(operator=operator.__name__, order=order):
                on_cpu, on_gpu = (self.gradients(operator, tensors, order, d, 11, **keywords) for d in ("cpu", "cuda"))
                self.assertEqual(len(on_cpu), len(on_gpu))
                self.assertGreater(len(on_cpu), 0)
                for i, (a, b) in enumerate(zip(on_cpu, on_gpu)):
                    self.assertTrue(same(a, b), f"{operator.__name__}, gradient {i}: {(a != b.cpu()).sum()} of {a.numel()}")
                other = self.gradients(operator, tensors, order, "cuda", 12, **keywords)
                self.assertFalse(all(same(a, b) for a, b in zip(on_cpu, other)), "the control: another gradient of the result")

    def test_products(self):
        for rows, k, n in ((1, 64, 48), (9, 80, 70), (5, 64, 41), (33, 256, 40), (70, 64, 24)):  # 41: the next weight's place is odd
            x, w = values(rows, k), values(n, k, seed=2)
            self.expect_same(ops.linear, x, w)
            self.expect_same(ops.linear, x.bfloat16(), w.bfloat16())
            self.expect_same(ops.linear, x, [w, values(24, k, seed=5)], [values(n, seed=3), values(24, seed=6)])
        for rows, k, f in ((1, 64, 64), (19, 96, 72), (40, 128, 40)):
            x, gate, up = values(rows, k), values(f, k, seed=2, scale=0.2), values(f, k, seed=3, scale=0.2)
            for curve in ("silu", "gelu_tanh"):
                self.expect_same(ops.gated_linear, x, gate, up, curve=curve)
                self.expect_same(ops.silu_mul, values(rows, f), values(rows, f, seed=2), curve=curve)

    def test_rows(self):
        for rows, width in ((1, 64), (7, 1024), (33, 80)):
            self.expect_same(ops.rms_norm, values(rows, width), values(width, seed=2))
        self.expect_same(ops.embedding, torch.tensor([3, 0, 99, 3]), values(100, 80))
        cos, sin = rotation(64, 32)
        self.expect_same(ops.log_softmax_gather, values(9, 500, scale=4), torch.arange(9) * 17)
        self.expect_same(lambda x, order: ops.rope(x, torch.arange(20, device=x.device), cos.to(x.device), sin.to(x.device), order),
                         values(20, 4, 32))

    def test_attention(self):
        for heads, kv_heads, head_dim, lengths, window in ((4, 2, 32, [30, 20, 1], 0), (4, 2, 128, [70, 3, 17], 0),
                                                           (4, 4, 64, [100], 40), (2, 1, 80, [40, 5], 0)):
            rows, width = sum(lengths), (heads + 2 * kv_heads) * head_dim
            cos, sin = rotation(128, head_dim)
            for norms in ([], [values(head_dim, seed=s).abs() for s in (5, 6)]):
                def attend(x, *norms, order):
                    return ops.packed_attention(x, cos.to(x.device), sin.to(x.device), lengths, heads, kv_heads, norms=list(norms),
                                                window=window, order=order)
                self.expect_same(attend, values(rows, width), *norms)


    def test_a_model(self):
        found = {}
        for device in ("cpu", "cuda"):
            model = CausalLM("models/story").to(device)
            ids = torch.tensor([[11, 12, 13, 14, 15, 11, 12, 99], [7, 8, 9, 10, 11, 12, 13, 14]], device=device)
            model(ids, labels=ids).loss.backward()
            found[device] = {name: p.grad for name, p in model.named_parameters()}
        wrong = [name for name, grad in found["cpu"].items() if not same(grad, found["cuda"][name])]
        self.assertEqual(wrong, [])


def packed(qkv, cos, sin, *norms, lengths, **keywords):
    return ops.packed_attention(qkv, cos, sin, lengths, norms=norms, **keywords)


class PagedTest(unittest.TestCase):
    def run_paged(self, device, order, steps, qkv, lengths, heads, kv_heads, head_dim, block_size):
        """Sequences that grow by `steps` rows at a time, in blocks in no order."""
        keys = ops.paged_cache(40, kv_heads, head_dim, block_size, device=device, order=order)
        tables = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:4 * len(lengths)].view(len(lengths), -1)
        tables, cos_sin = tables.to(torch.int32).to(device), [t.to(device) for t in rotation(512, head_dim)]
        found, begins = [[] for _ in lengths], [sum(lengths[:i]) for i in range(len(lengths))]
        for first in range(0, max(lengths), steps):
            new = [min(steps, length - first) for length in lengths]
            rows = torch.cat([qkv[b + first:b + first + n] for b, n in zip(begins, new)]).to(device)
            starts = torch.full((len(lengths),), first, dtype=torch.int32, device=device)
            out = ops.paged_attention(rows, keys, tables, starts, *cos_sin, new, heads, kv_heads, block_size=block_size, order=order)
            for i, part in enumerate(out.split(new)):
                found[i].append(part)
        return torch.cat([torch.cat(parts) for parts in found])

    def test_paged_is_dense(self):
        lengths = [60, 60]
        for heads, kv_heads, head_dim in ((4, 2, 32), (8, 2, 128)):
            qkv = values(120, (heads + 2 * kv_heads) * head_dim)
            cos, sin = rotation(512, head_dim)
            for order in ORDERS:
                dense = ops.packed_attention(qkv.cuda(), cos.cuda(), sin.cuda(), lengths, heads, kv_heads, order=order)
                for steps, block in ((1, 32), (20, 32), (60, 64)):
                    self.assertTrue(same(self.run_paged("cuda", order, steps, qkv, lengths, heads, kv_heads, head_dim, block), dense))
                self.assertTrue(same(self.run_paged("cpu", order, 20, qkv, lengths, heads, kv_heads, head_dim, 32), dense))

    def test_decoding_in_a_graph(self):
        heads, kv_heads, head_dim, block = 8, 2, 128, 64
        qkv, (cos, sin) = values(2 * 300, 12 * 128).cuda(), (t.cuda() for t in rotation(512, 128))
        dense = ops.packed_attention(qkv, cos, sin, [300, 300], heads, kv_heads, order="hopper")
        cache = ops.paged_cache(20, kv_heads, head_dim, block, device="cuda", order="hopper")
        tables = torch.randperm(20)[:10].view(2, 5).to(torch.int32).cuda()
        starts, rows = torch.zeros(2, dtype=torch.int32, device="cuda"), torch.zeros(2, 12 * 128, device="cuda")
        step = recorded(lambda: ops.paged_attention(rows, cache, tables, starts, cos, sin, [1, 1], heads, kv_heads, block_size=block,
                                                    order="hopper"))
        for i in range(300):
            rows.copy_(qkv[[i, 300 + i]])
            starts.fill_(i)
            self.assertTrue(same(step(), dense[[i, 300 + i]]), i)


def recorded(work):
    """`work` as a CUDA graph; what it gives afterwards is what is there after a launch."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()

    def launch():
        graph.replay()
        return out
    return launch


class LaunchTest(unittest.TestCase):
    def layer(self, order, dtype=torch.float32):
        w = {name: values(*shape, seed=s, scale=0.05).cuda().to(dtype) for s, (name, shape) in enumerate(
            dict(norm=(256,), qkv=(512, 256), o=(256, 256), gate=(512, 256), up=(512, 256), down=(256, 512), head=(1000, 256)).items())}
        cos, sin = (t.cuda() for t in rotation(64, 64))
        targets = torch.arange(40, device="cuda")

        def forward(h):
            x = ops.rms_norm(h, w["norm"], order=order)
            a = ops.packed_attention(ops.linear(x, w["qkv"], order=order), cos, sin, [30, 10], 4, 2, order=order)
            h = ops.linear(a, w["o"], runs=4, residual=h, order=order)
            g = ops.gated_linear(ops.rms_norm(h, w["norm"], order=order), w["gate"], w["up"], order=order)
            h = ops.linear(g, w["down"], runs=8, residual=h, order=order)
            logits = ops.linear(ops.rms_norm(h, w["norm"], order=order), w["head"], order=order)
            return ops.log_softmax_gather(logits, targets, order=order)
        return forward

    def test_graphs(self):
        for order in ORDERS:
            forward, h = self.layer(order), values(40, 256).cuda()
            launch = recorded(lambda: forward(h))
            for seed in (1, 2, 3):
                h.copy_(values(40, 256, seed=seed))
                expected = forward(h)
                self.assertTrue(same(launch(), expected))
            h.copy_(values(40, 256, seed=9))
            self.assertFalse(same(launch(), expected), "the control: other rows")

    def test_compile(self):
        for order in ORDERS:
            forward, h = self.layer(order, torch.bfloat16), values(40, 256).cuda()
            compiled = torch.compile(lambda x: forward(x * 1.0) + 0.0, fullgraph=True)
            with torch.no_grad():
                self.assertTrue(same(compiled(h), forward(h)))

    def test_streams_and_weights_that_are_products(self):
        """A product whose weights, and whose rows, the products before it in the stream make."""
        a, b = values(64, 512).cuda().bfloat16(), values(512, 512, seed=2, scale=0.1).cuda().bfloat16()
        big = values(4096, 4096, seed=3).cuda().bfloat16()
        norm = torch.ones(512, device="cuda")

        def chain():
            w = ops.rms_norm(ops.linear(b, b, order="hopper"), norm, order="hopper", dtype=torch.bfloat16)
            return ops.linear(a, w, order="hopper")
        expected = chain()
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(3)]
        for _ in range(30):
            found = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    ops.linear(big, big, order="hopper")
                    found.append(chain())
            torch.cuda.synchronize()
            for one in found:
                self.assertTrue(same(one, expected))

    def test_fakes_and_schemas(self):
        x, w = values(8, 64).cuda(), values(16, 64).cuda()
        tests = ("test_schema", "test_faketensor")
        torch.library.opcheck(torch.ops.invar.linear.default, (x, [w], [], [], 1, None, "hopper"), test_utils=tests)
        torch.library.opcheck(torch.ops.invar.gated_linear.default, (x, [w, w.clone()], [], [], "silu", "hopper", torch.bfloat16),
                              test_utils=tests)
        cos, sin = (t.cuda() for t in rotation(64, 16))
        torch.library.opcheck(torch.ops.invar.attention.default,
                              (x, [], cos, sin, [8], 2, 1, 16, 0, 1e-6, 0.0, "hopper", torch.float32), test_utils=tests)

    def test_what_cannot_be_is_a_sentence(self):
        x, w = values(4, 64).cuda(), values(8, 64).cuda()
        for call in (lambda: ops.linear(x, w[:, :32]), lambda: ops.linear(x, w, torch.zeros(3).cuda()), lambda: ops.linear(x, w, runs=5),
                     lambda: ops.linear(x, w, order="x"), lambda: ops.linear(x, w.cpu()), lambda: ops.rms_norm(x, torch.ones(3).cuda()),
                     lambda: ops.linear(x[:0], w), lambda: ops.gated_linear(x, w, w[:4]),
                     lambda: ops.packed_attention(x, *rotation(64, 16), [4], 2, 1),
                     lambda: ops.packed_attention(x, *(t.cuda() for t in rotation(64, 16)), [3], 2, 1)):
            with self.assertRaises((ValueError, TypeError, RuntimeError)) as caught:
                call()
            self.assertNotIn("CUDA error", str(caught.exception))
        nan = values(40, 64).cuda()
        nan[7, 40] = float("nan")
        self.assertTrue(ops.packed_attention(nan, *(t.cuda() for t in rotation(64, 16)), [40], 2, 1).isnan().all())


class PublishedNamesTest(unittest.TestCase):
    def test_the_mode(self):
        a, b = values(512, 2048).cuda().bfloat16(), values(2048, 1024, seed=2).cuda().bfloat16()
        f = values(40, 300).cuda()

        def rows(count):
            return (a[:count] @ b, torch.addmm(b[0], a[:count], b), a[:count].float() @ b.float(), torch.bmm(a[None, :count], b[None]),
                    torch.log_softmax(a[:count].float(), -1), a[:count].float().mean(-1))
        differ = [not same(x[:1], y[:1]) if x.dim() < 3 else not same(x[:, :1], y[:, :1]) for x, y in zip(rows(1), rows(512))]
        self.assertTrue(any(differ), "the control: torch's own operators")
        with published.set_batch_invariant_mode():
            for count in (1, 3, 17, 130):
                for x, y in zip(rows(count), rows(512)):
                    y = y[:, :count] if x.dim() == 3 else y[:count]
                    self.assertTrue(same(x, y))
            self.assertTrue(same(f.mean(0), published.mean_dim(f.cpu(), 0)))
            self.assertTrue(same(torch.log_softmax(f, 0), published.log_softmax(f.cpu(), 0)))
            self.assertTrue(same(f @ f.T, published.matmul_persistent(f.cpu(), f.cpu().T)))
            self.assertTrue(same(a[:9] @ b[:, :64], ops.linear(a[:9].cpu(), b[:, :64].T.cpu(), order="hopper").bfloat16()))
        torch.testing.assert_close(rows(9)[0], published.matmul_persistent(a[:9], b), atol=0.5, rtol=0.02)


class CausalLMTest(unittest.TestCase):
    def test_log_probabilities_are_the_engines(self):
        texts = [list(range(3, 90)), list(range(200, 233)), [5, 7, 9]]
        ids = torch.tensor([t + [0] * (87 - len(t)) for t in texts])
        mask = torch.tensor([[1] * len(t) + [0] * (87 - len(t)) for t in texts])
        for order in ORDERS:
            with invar.LLM("tiny", load_format="dummy:7", device="cuda", arith=order, max_model_len=256, kv_cache_gib=1) as llm:
                expected = llm.score(texts)
            for dtype in (torch.float32, torch.bfloat16):
                model = CausalLM("tiny", load_format="dummy:7", order=order).to("cuda", dtype)
                with torch.no_grad():
                    found = model.log_probs(ids.cuda(), mask.cuda()).cpu()
                for i, text in enumerate(texts):
                    self.assertEqual([float(x) for x in found[i, :len(text) - 1]], [float(x) for x in expected[i]], (order, dtype))
            with torch.no_grad():
                other = CausalLM("tiny", load_format="dummy:8", order=order).cuda().log_probs(ids.cuda(), mask.cuda())
            self.assertFalse(same(other, found), "the control: other weights")


class WeightsTest(unittest.TestCase):
    def test_an_update_from_torchs_own_tensors(self):
        greedy = invar.SamplingParams(max_tokens=6, temperature=0)
        with (invar.LLM("tiny", load_format="dummy:7", device="cuda", arith="hopper", max_model_len=256, kv_cache_gib=1) as llm,
              invar.LLM("tiny", load_format="dummy:8", device="cuda", arith="hopper", max_model_len=256, kv_cache_gib=1) as other):
            expected = other.generate([[3, 4, 5]], greedy, use_tqdm=False)[0].outputs[0].logits_hash
            before = llm.generate([[3, 4, 5]], greedy, use_tqdm=False)[0].outputs[0].logits_hash
            self.assertNotEqual(before, expected, "the control: other weights")
            tensors = [(name, torch.from_numpy(array.copy()).view(torch.bfloat16 if array.dtype.kind == "u" else torch.float32).cuda())
                       for name, array in other.named_weights()]
            bad = [(name, t.clone()) for name, t in tensors]
            bad[-1][1].view(-1)[0] = float("nan")
            with self.assertRaises(RuntimeError):
                llm.update_weights(bad)
            self.assertEqual(llm.generate([[3, 4, 5]], greedy, use_tqdm=False)[0].outputs[0].logits_hash, before)
            llm.update_weights(tensors)
            self.assertEqual(llm.generate([[3, 4, 5]], greedy, use_tqdm=False)[0].outputs[0].logits_hash, expected)
            self.assertEqual(llm.weights_digest(), other.weights_digest())


def send(weights, ready, done):
    """Another process: puts tensors into the GPU's memory, and keeps them until it is told."""
    from torch.multiprocessing.reductions import reduce_tensor
    tensors = [(name, torch.from_numpy(array).view(getattr(torch, dtype)).cuda()) for name, dtype, array in weights]
    gpu = str(torch.cuda.get_device_properties(0).uuid)
    torch.cuda.synchronize()
    handles = [{gpu: reduce_tensor(t)} for _, t in tensors]
    ready.send(dict(names=[name for name, _ in tensors], dtype_names=[str(t.dtype)[6:] for _, t in tensors],
                    shapes=[list(t.shape) for _, t in tensors],
                    ipc_handles_pickled=base64.b64encode(pickle.dumps(handles)).decode()))
    done.recv()


class AnotherProcessTest(unittest.TestCase):
    def test_an_update_from_another_process(self):
        greedy = invar.SamplingParams(max_tokens=6, temperature=0)
        options = dict(device="cuda", arith="hopper", max_model_len=256, kv_cache_gib=1)
        context = multiprocessing.get_context("spawn")
        ready, of_sender = context.Pipe()
        with invar.LLM("tiny", load_format="dummy:7", **options) as llm, invar.LLM("tiny", load_format="dummy:8", **options) as other:
            weights = [(name, {"u": "bfloat16", "f": "float32"}[array.dtype.kind], array.copy()) for name, array in other.named_weights()]
            sender = context.Process(target=send, args=(weights, of_sender, of_sender))
            sender.start()
            info = ready.recv()
            before, expected = (one.generate([[3, 4, 5]], greedy, use_tqdm=False)[0].outputs[0].logits_hash for one in (llm, other))
            llm.init_weight_transfer_engine({"init_info": {}})
            llm.start_weight_update()
            for bad in ({"shapes": [[1]] * len(info["shapes"])}, {"names": ["x"] * len(info["names"])}, {"names": info["names"][1:]},
                        {"ipc_handles_pickled": base64.b64encode(pickle.dumps([os.getcwd] * len(info["names"]))).decode()},
                        {"ipc_handles_pickled": "!"}, spoiled(info)):
                with self.assertRaises(ValueError) as caught:
                    llm.update_weights({"update_info": {**info, **bad}})
                print(f"    {str(caught.exception)[:150]}", flush=True)
                self.assertEqual(llm.generate([[3, 4, 5]], greedy, use_tqdm=False)[0].outputs[0].logits_hash, before)
            with self.assertRaises(ValueError):
                llm.init_weight_transfer_engine({"init_info": {"master_address": "127.0.0.1"}})
            llm.update_weights({"update_info": info})
            llm.finish_weight_update(weight_version="2")
            ready.send("done")
            sender.join()
            self.assertNotEqual(before, expected, "the control: other weights")
            self.assertEqual(llm.generate([[3, 4, 5]], greedy, use_tqdm=False)[0].outputs[0].logits_hash, expected)
            self.assertEqual((llm.weights_digest(), llm.weight_version), (other.weights_digest(), "2"))


def spoiled(info):
    """The last handle names memory that nobody has."""
    handles = pickle.loads(base64.b64decode(info["ipc_handles_pickled"]))
    (gpu, (function, args)), = handles[-1].items()
    bytes_of = next(i for i, arg in enumerate(args) if isinstance(arg, bytes))
    args = (*args[:bytes_of], args[bytes_of][:8] + bytes(b ^ 0x5a for b in args[bytes_of][8:]), *args[bytes_of + 1:])
    return {"ipc_handles_pickled": base64.b64encode(pickle.dumps([*handles[:-1], {gpu: (function, args)}])).decode()}


if __name__ == "__main__":
    unittest.main(verbosity=2)
