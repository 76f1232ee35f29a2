#!/usr/bin/env python3
"""Invar arithmetic, version 1, computed from the block `numerics.md` alone (numpy only).

Comments cite the block's sections.  Arrays called f32 never hold a subnormal: subnormals are removed when weights are
loaded (DAZ) and after every operation (FTZ).  Every f32 operation is done in f64 and rounded once by `f32`.
"""
import argparse, ctypes, hashlib, json, math, os, struct
import numpy as np

F32, F64, I32, I64, U32, U64 = np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64
hexf = lambda words: [float.fromhex(w) for w in words.split()]

# ---- section 0: f32 with FTZ and DAZ, exact fma, bf16 ---------------------------------------------------------------
TINY = 2.0**-126 - 2.0**-151  # what is below this is below 2^-126 once rounded with an unbounded exponent

def f32(r):
    """Rounds f64 results to f32, flushing to a zero of the same sign (r * False keeps the sign)."""
    return (r * (np.abs(r) >= TINY)).astype(F32)

# 53 >= 2 * 24 + 2, so rounding these through f64 is the same as rounding once.
def add(a, b): return f32(np.add(a, b, dtype=F64))
def sub(a, b): return f32(np.subtract(a, b, dtype=F64))
def mul(a, b): return f32(np.multiply(a, b, dtype=F64))
def div(a, b): return f32(np.divide(a, b, dtype=F64))
def sqrt(a): return f32(np.sqrt(a, dtype=F64))

def fma(a, b, c):
    """f32 fma: the product is exact in f64; the sum is rounded to odd in f64 (two-sum), then once to f32."""
    p = np.multiply(a, b, dtype=F64)
    s = np.atleast_1d(p + c)
    t = s - p
    error = (p - (s - t)) + (c - t)
    at = np.flatnonzero(error)
    if at.size:
        v, e = s.reshape(-1)[at], error.reshape(-1)[at]
        bits = v.view(I64)
        step = ((bits & 1) == 0) & np.isfinite(v)  # an odd significand is already rounded to odd
        s.reshape(-1)[at] = (bits + np.where((e > 0) == (v > 0), 1, -1) * step).view(F64)
    return f32(s)

def bf16(x):
    """f32 to bf16 (kept as f32): nearest even, subnormal to a zero of its sign, NaN to 0x7fff."""
    u = np.ascontiguousarray(x, F32).view(U32)
    y = ((u + U32(0x7fff) + ((u >> U32(16)) & U32(1))) & U32(0xffff0000)).view(F32)
    y = np.where(np.abs(x) < F32(2.0**-126), np.copysign(F32(0), x), y)
    return np.where(np.isnan(x), U32(0x7fff0000).view(F32), y)

# ---- section 5.1: f32 functions -------------------------------------------------------------------------------------
EXP2 = np.array(hexf("0x1.470b4ap-13 0x1.5f7276p-10 0x1.3b270ep-7 0x1.c6ae72p-5 0x1.ebfbe2p-3 0x1.62e432p-1 0x1p0"), F32)
L_HI, L_LO = F32(float.fromhex("0x1.715476p+0")), F32(float.fromhex("0x1.4ae0cp-26"))
ROUND = F32(1.5 * 2**23)

def exp_tail(t, n, f):
    p = EXP2[0]
    for c in EXP2[1:]:
        p = fma(p, f, c)
    bits = p.view(I32) + (np.where(np.abs(n) <= 128, n, 0).astype(I32) << 23)
    y = f32(bits.view(F32).astype(F64))
    y = np.where(t < -126, F32(0), np.where(t >= 128, F32(np.inf), y))
    return np.where(np.isnan(t), t, y)

def exp2(t):
    t = np.atleast_1d(t)
    n = sub(add(t, ROUND), ROUND)
    return exp_tail(t, n, sub(t, n))

def exp(x):
    x = np.atleast_1d(x)
    t = mul(x, L_HI)
    n = sub(add(t, ROUND), ROUND)
    return exp_tail(t, n, fma(x, L_LO, fma(x, L_HI, -n)))

def log(x): return f32(log64(np.asarray(x, F64)))

ONE = F32(1)
def logistic_of(x, z): return div(x, add(ONE, exp(-z)))
def silu(x): return logistic_of(x, x)
def half_tanh(x): return sub(ONE, div(F32(2), add(ONE, exp(x))))

def gelu_tanh(x):
    a, b = (F32(float.fromhex(w)) for w in ("0x1.2444f2p-4", "0x1.988454p+0"))
    return logistic_of(x, mul(x, fma(mul(x, x), a, b)))

def gelu(x):
    half_root, k = (F32(float.fromhex(w)) for w in ("0x1.6a09e6p-1", "0x1.4f740ap-2"))
    s = mul(np.abs(x), half_root)
    t = div(ONE, fma(k, s, ONE))
    p = None
    for c in hexf("0x1.0fb844p+0 -0x1.7401c6p+0 0x1.6be1c6p+0 -0x1.23531cp-2 0x1.04f20cp-2"):
        p = np.full_like(x, F32(c)) if p is None else fma(p, t, F32(c))
    tail = mul(mul(mul(p, t), exp(-mul(s, s))), F32(0.5))
    return np.where(x < 0, mul(x, tail), mul(x, sub(ONE, tail)))

def clamped(g, u):
    seven, slope = F32(7), F32(float.fromhex("0x1.b3b646p+0"))
    g, u = np.where(g > seven, seven, g), np.where(u > seven, seven, np.where(u < -seven, -seven, u))
    return mul(add(u, ONE), div(g, add(ONE, exp(-mul(g, slope)))))

# ---- section 5.2: f64 functions -------------------------------------------------------------------------------------
libm = ctypes.CDLL("libm.so.6")
libm.fma.restype, libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
one_fma = np.frompyfunc(libm.fma, 3, 1)
def fma64(a, b, c): return np.asarray(one_fma(a, b, c), F64)  # IEEE's fma is exact: one rounding

def horner64(coefficients, x):
    p = coefficients[0]
    for c in coefficients[1:]:
        p = fma64(p, x, c)
    return p

LOG64 = [2 / (2 * k + 1) for k in range(11, 0, -1)]
LN2_HI, LN2_LO, LOG2E = hexf("0x1.62e42feep-1 0x1.a39ef35793c76p-33 0x1.71547652b82fep+0")
EXP2_64 = hexf("""0x1.314964d5878a9p-44 0x1.816193166d0f9p-40 0x1.c3bd650fc2986p-36 0x1.e8cac7351bb25p-32
    0x1.e4cf5158b8ecap-28 0x1.b5253d395e7c4p-24 0x1.62c0223a5c824p-20 0x1.ffcbfc588b0c7p-17 0x1.430912f86c787p-13
    0x1.5d87fe78a6731p-10 0x1.3b2ab6fba4e77p-7 0x1.c6b08d704a0c0p-5 0x1.ebfbdff82c58fp-3 0x1.62e42fefa39efp-1 0x1p0""")
SIN = [1 / math.factorial(k) for k in range(17, 2, -2)]
COS = [1 / math.factorial(k) for k in range(18, 1, -2)]
TWO_OVER_PI, PIO2_1, PIO2_2, PIO2_3 = hexf("0x1.45f306dc9c883p-1 0x1.921fb544p+0 0x1.0b4611a6p-34 0x1.3198a2e037073p-69")

def log64(x):
    x = np.atleast_1d(x)
    low = U64(0x3fe6a09e667f3bcd)
    w = x.view(U64) + (U64(0x3ff0000000000000) - low)
    e = (w >> U64(52)).astype(F64) - 1023
    m = ((w & U64(0x000fffffffffffff)) + low).view(F64)
    s = (m - 1) / (m + 1)
    z = s * s
    tail = fma64(e, LN2_LO, s * (z * horner64(LOG64, z)))
    return np.where(x == 0, -np.inf, fma64(e, LN2_HI, fma64(2.0, s, tail)))

def exp2_64(t):
    t = np.atleast_1d(t)
    n = (t + 1.5 * 2**52) - 1.5 * 2**52
    return (horner64(EXP2_64, t - n).view(I64) + (n.astype(I64) << 52)).view(F64)

def pow64(x, y): return exp2_64(y * (log64(np.array([x], F64)) * LOG2E))

def sincos(angle):
    n = (angle * TWO_OVER_PI + 1.5 * 2**52) - 1.5 * 2**52
    r = angle
    for part in (PIO2_1, PIO2_2, PIO2_3):
        r = fma64(-n, part, r)
    z = -(r * r)
    s = fma64(r * z, horner64(SIN, z), r)
    c = fma64(z, horner64(COS, z), 1.0)
    q = n.astype(I64) & 3
    return np.choose(q, [s, c, -s, -c]), np.choose(q, [c, -s, -c, s])

def log_of(x): return float(log64(float(x))[0])

def rotary_frequencies(size, rope, most_positions=0):
    """Section 5.3, f64: the frequencies and the attention factor."""
    i = np.arange(size // 2, dtype=F64)
    theta, kind = float(rope["rope_theta"]), rope.get("rope_type", rope.get("type", "default"))
    if rope.get("alpha"):
        theta, kind = theta * float(pow64(float(rope["alpha"]), np.array([size / (size - 2)]))[0]), "default"
    frequency = pow64(theta, -(2 * i) / size)
    P = rope.get("original_max_position_embeddings")
    if kind == "linear":
        return frequency / rope["factor"], 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        w = float.fromhex("0x1.921fb54442d18p+2") / frequency
        t = (P / w - low) / (high - low)
        scaled = frequency / rope["factor"]
        middle = (1 - t) * scaled + t * frequency
        return np.where(w < P / high, frequency, np.where(w > P / low, scaled, middle)), 1.0
    if kind == "yarn":
        factor = rope.get("factor") or most_positions / P
        return yarn(frequency, size, theta, P, factor, rope), attention_factor(kind, factor, P, rope)
    if kind == "longrope":
        factor = rope.get("factor") or most_positions / P
        divisors = rope["long_factor"] if most_positions > P else rope["short_factor"]
        return frequency / np.array(divisors, F64), attention_factor(kind, factor, P, rope)
    assert kind == "default", "this rotary scaling is refused"
    return frequency, 1.0

def yarn(frequency, size, theta, P, factor, rope):
    tau = float.fromhex("0x1.921fb54442d18p+2")
    number = lambda n: (size * log_of(P / (n * tau))) / (2 * log_of(theta))
    low, high = number(rope.get("beta_fast") or 32), number(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2, dtype=F64) - low) / ((high if high != low else high + 0.001) - low), 0, 1)
    return ramp * (frequency / factor) + (1 - ramp) * frequency

def attention_factor(kind, factor, P, rope):
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + log_of(factor) / log_of(P))
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return (0.1 * rope["mscale"] * log_of(factor) + 1) / (0.1 * rope["mscale_all_dim"] * log_of(factor) + 1)
    return 0.1 * log_of(factor) + 1

# ---- sections 1 and 2: dot products ---------------------------------------------------------------------------------
class Portable:
    """Section 1.  Operands are laid out as [16 pairs, even/odd, leaf, run, ...]."""

    @staticmethod
    def prepare(x, runs=1):
        x = pad(x, 32).reshape(x.shape[:-1] + (runs, -1, 16, 2))
        return np.ascontiguousarray(np.moveaxis(x, (-2, -1, -3, -4), (0, 1, 2, 3)), F64)

    @staticmethod
    def chains(x, w):
        eo = F32(0)
        for j in range(16):
            eo = fma(x[j], w[j], eo)
        leaves = add(eo[0], eo[1])
        acc = np.zeros_like(leaves[0])
        for leaf in leaves:
            acc = add(acc, leaf)
        return acc

class Pair:
    """Section 1.3.  Operands are laid out as [pair, even/odd, run, ...]."""

    @staticmethod
    def prepare(x, runs=1):
        x = pad(x, 32).reshape(x.shape[:-1] + (runs, -1, 2))
        return np.ascontiguousarray(np.moveaxis(x, (-2, -1, -3), (0, 1, 2)), F64)

    @staticmethod
    def chains(x, w):
        acc = F32(0)
        for (x_even, x_odd), (w_even, w_odd) in zip(x, w):
            acc = fma(x_even, w_even, fma(x_odd, w_odd, acc))
        return acc

class Hopper:
    """Section 1.2.  Operands are (significand, exponent, value), each [step, 16, run, ...]."""

    @staticmethod
    def prepare(x, runs=1):
        x = pad(x, 16).reshape(x.shape[:-1] + (runs, -1, 16))
        x = np.ascontiguousarray(np.moveaxis(x, (-2, -1, -3), (0, 1, 2)), F32)
        return split_float(x, 16) + (x,)

    @staticmethod
    def chains(x, w):
        acc = None
        for step in range(x[0].shape[0]):
            acc = hopper_step(acc, *(a[step] for a in x), *(b[step] for b in w))
        return acc

def split_float(x, drop):
    """Signed significand (24 - drop bits) and the exponent as stored: of a subnormal -126, without a hidden bit."""
    u = x.view(U32).astype(I64)
    stored = (u >> 23) & 255
    significand = ((u & 0x7fffff) | np.where(stored > 0, 0x800000, 0)) >> drop
    return np.where(u >> 31, -significand, significand).astype(I32), (np.maximum(stored, 1) - 127).astype(I32)

def hopper_step(acc, sa, ea, va, sb, eb, vb):
    product, exponent = sa * sb, ea + eb  # product * 2^(exponent - 14)
    if acc is None:
        acc = np.zeros(product.shape[1:], F32)
    sc, ec = split_float(acc, 0)  # sc * 2^(ec - 23)
    E = np.where(product != 0, exponent, -133).max(axis=0)
    E = np.maximum(np.maximum(E, np.where(sc != 0, ec, -133)), -133)
    cut = (np.abs(product) << 11) >> np.clip(E - exponent, 0, 31)  # units of 2^(E - 25), toward zero
    total = np.where(product < 0, -cut, cut).sum(axis=0, dtype=I64)
    total += np.sign(sc) * ((np.abs(sc) << 2) >> np.clip(E - ec, 0, 31))
    result = toward_zero(np.ldexp(total.astype(F64), E - 25))
    if not all(np.isfinite(v).all() for v in (acc, va, vb)):  # special values: f64 has the same rules
        special = acc + (va.astype(F64) * vb).sum(axis=0)
        result = np.where(np.isfinite(special), result, special.astype(F32))
        result = np.where(np.isnan(result), U32(0x7fffffff).view(F32), result)
    return result

def toward_zero(v):
    """f64 to f32 toward zero, subnormals kept; from 2^128 on infinity."""
    normal = (v.view(I64) & ~I64((1 << 29) - 1)).view(F64)
    return np.where(np.abs(v) < 2.0**-126, np.trunc(v * 2.0**149) * 2.0**-149, normal).astype(F32)

def pad(x, multiple):
    extra = -x.shape[-1] % multiple
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, extra)]) if extra else x

def tree(parts):
    while len(parts) > 1:
        parts = add(parts[0::2], parts[1::2])
    return parts[0]

def dot(order, x, w):
    """Prepared operands: one chain per run, a binary tree over the runs, and + 0 (sections 1 and 2)."""
    runs = f32(order.chains(x, w).astype(F64))  # DAZ for the additions: a chain of `hopper` may end subnormal
    return add(tree(runs), F32(0))

def row_runs(K, heads=0):
    """Section 2: r."""
    return next(r for r in (8, 4, 2, 1) if r == 1 or (K % (32 * r) == 0 and heads % r == 0))

# ---- section 3: sums over vectors -----------------------------------------------------------------------------------
def sum64(x, squares=False):
    x = pad(x, 64)
    lanes = np.zeros(x.shape[:-1] + (64,), F32)
    for i in range(0, x.shape[-1], 64):
        part = x[..., i:i + 64]
        lanes = fma(part, part, lanes) if squares else add(lanes, part)
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = add(lanes[..., :half], lanes[..., half:])
    return lanes[..., 0]

def rms_norm(x, w, eps):
    total = sum64(x, squares=True)[..., None]
    rs = div(F32(1), sqrt(add(div(total, F32(x.shape[-1])), F32(eps))))
    return mul(mul(x, rs), w)

def layer_norm(x, w, b, eps):
    d = sub(x, div(sum64(x), F32(x.shape[-1]))[..., None])
    rs = div(ONE, sqrt(add(div(sum64(d, squares=True)[..., None], F32(x.shape[-1])), F32(eps))))
    return add(mul(mul(d, rs), w), b)

def log_probability(logits, token):
    top, size = logits.max(), 64 * -(-len(logits) // 512)
    e = pad(exp(sub(logits, top)), 8 * size)[:8 * size].reshape(8, size)
    return sub(sub(logits[token:token + 1], top), log(tree(sum64(e)[:, None])))[0]

# ---- the model's files and section 8 --------------------------------------------------------------------------------
DTYPES = {"BF16": ("bf16", "<u2"), "F16": ("f16", "<f2"), "F32": ("f32", "<f4")}

def read_tensors(folder):
    tensors = {}
    for name in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        data = open(os.path.join(folder, name), "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + n])
        stored = header.get("__metadata__", {})
        for key, t in header.items():
            if key != "__metadata__":
                begin, end = t["data_offsets"]
                if "storage:" + key in stored:
                    raw = np.frombuffer(data[8 + n + begin:8 + n + end], np.uint8).reshape(t["shape"])
                    tensors[key] = (stored["storage:" + key], raw)
                    continue
                kind, code = DTYPES[t["dtype"]]
                tensors[key] = (kind, np.frombuffer(data[8 + n + begin:8 + n + end], code).reshape(t["shape"]))
    return tensors

# Section 0.1's blocks: elements, bytes; and section 2.3's q, a and c of their parts.
BLOCKS = {"q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "iq4_nl": (32, 18),
          "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210)}
STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])

def parts_of(kind, raw):
    """Of rows of blocks: q [N, K], a and c (or None) [N, parts]."""
    size, count = BLOCKS[kind]
    b = raw.reshape(len(raw), -1, count)
    half = lambda at: np.ascontiguousarray(b[..., at:at + 2]).view("<f2")[..., 0].astype(F32)
    byte = lambda at, n: b[..., at:at + n].astype(I32)
    i, c = np.arange(size), None
    if size == 32:
        a, at = half(0), 4 if kind.endswith("_1") else 2
        if kind == "q8_0":
            q = b[..., 2:].view(np.int8).astype(I32)
        else:
            h = 0
            if kind.startswith("q5"):
                h, at = (byte(at, 4)[..., i // 8] >> i % 8) & 1, at + 4
            n = byte(at, 16)[..., i % 16] >> np.where(i < 16, 0, 4) & 15
            q = {"q4_0": n - 8, "q4_1": n, "q5_0": n + 16 * h - 16, "q5_1": n + 16 * h, "iq4_nl": STEPS[n]}[kind]
            c = half(2)[..., None] if kind.endswith("_1") else None
        a = a[..., None]
    elif kind in ("q4_k", "q5_k"):
        s, j = byte(4, 12), np.arange(8)
        low, high = s[..., j % 4], s[..., j % 4 + 4]
        third = s[..., j % 4 + 8]
        scale = np.where(j < 4, low & 63, (third & 15) + 16 * (low >> 6))
        least = np.where(j < 4, high & 63, (third >> 4) + 16 * (high >> 6))
        a, c = mul(half(0)[..., None], scale.astype(F32)), -mul(half(2)[..., None], least.astype(F32))
        at = 48 if kind == "q5_k" else 16
        q = byte(at, 128)[..., 32 * (i // 64) + i % 32] >> np.where(i // 32 % 2, 4, 0) & 15
        if kind == "q5_k":
            q = q + 16 * (byte(16, 32)[..., i % 32] >> i // 32 & 1)
    elif kind == "q6_k":
        j = i // 32 % 4
        n = byte(18, 128)[..., 64 * (i // 128) + 32 * (j % 2) + i % 32] >> np.where(j < 2, 0, 4) & 15
        q = n + 16 * (byte(146, 64)[..., 32 * (i // 128) + i % 32] >> 2 * j & 3) - 32
        a = mul(half(16)[..., None], np.ascontiguousarray(b[..., :16]).view(np.int8).astype(F32))
    elif kind == "q2_k":
        s = byte(0, 16)
        q = byte(20, 64)[..., 32 * (i // 128) + i % 32] >> 2 * (i // 32 % 4) & 3
        a, c = mul(half(16)[..., None], (s & 15).astype(F32)), -mul(half(18)[..., None], (s >> 4).astype(F32))
    else:  # q3_k
        s, j = byte(0, 12), np.arange(16)
        scale = (s[..., j % 8] >> 4 * (j // 8) & 15) + 16 * (s[..., 8 + j % 4] >> 2 * (j // 4) & 3) - 32
        q = byte(46, 64)[..., 32 * (i // 128) + i % 32] >> 2 * (i // 32 % 4) & 3
        q = q + 4 * (byte(14, 32)[..., i % 32] >> i // 32 & 1) - 4
        a = mul(half(12)[..., None], scale.astype(F32))
    flat = lambda x: None if x is None else np.ascontiguousarray(x).reshape(len(raw), -1)
    return flat(q), flat(a), flat(c)

def elements_of(kind, raw):
    """What blocks stand for: a bf16 tensor."""
    q, a, c = parts_of(kind, raw)
    size = q.shape[1] // a.shape[1]
    x = mul(np.repeat(a, size, axis=1), q.astype(F32))
    return bf16(x if c is None else add(x, np.repeat(c, size, axis=1)))

def integers_of(x):
    """Section 2.1, step 1, of 32 columns each: q' [T, K] and s' [T, K / 32]."""
    runs = x.reshape(len(x), -1, 32)
    s = div(np.abs(runs).max(axis=2), F32(127))
    s = np.where(s == 0, F32(1), s)
    return np.rint(mul(runs, div(F32(1), s)[..., None])).astype(I32).reshape(x.shape), s

def blocks_dot(x, parts, runs):
    """Section 2.3."""
    (q, a, c), (y, s) = parts, integers_of(x)
    size, (T, K), N = q.shape[1] // a.shape[1], x.shape, len(q)
    chains = np.zeros((runs, T, N), F32)
    for r in range(runs):
        acc = np.zeros((T, N), F32)
        for j in range(r * K // runs // size, (r + 1) * K // runs // size):
            columns, scale = slice(j * size, (j + 1) * size), s[:, j * size // 32][:, None]
            total = (y[:, columns] @ q[:, columns].T).astype(F32)
            acc = fma(total, mul(scale, a[:, j][None]), acc)
            if c is not None:
                acc = fma(mul(y[:, columns].sum(axis=1).astype(F32)[:, None], scale), c[:, j][None], acc)
        chains[r] = acc
    return add(tree(chains), F32(0))

# Section 2.5: e4m3 numbers by rows. A code's value, its significand in eighths and its exponent as stored.
E4M3_SIGNIFICANDS = np.array([(-1 if b & 128 else 1) * ((b & 7) + (8 if b & 120 else 0)) for b in range(256)], I32)
E4M3_EXPONENTS = np.array([max(b >> 3 & 15, 1) - 7 for b in range(256)], I32)
E4M3 = np.ldexp(E4M3_SIGNIFICANDS.astype(F32), E4M3_EXPONENTS - 3)

def e4m3_of(x):
    """Codes of the nearest numbers, ties to even; |x| is 448 at most."""
    magnitude, values = np.abs(x).astype(F64), E4M3[:127].astype(F64)
    above = np.clip(np.searchsorted(values, magnitude), 1, 126)
    low, high = magnitude - values[above - 1], values[above] - magnitude
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    return code + np.where(np.signbit(x), 128, 0)

def scale_of(largest):
    s = div(np.where(largest < F32(2.0**-126), F32(0), largest), F32(448))
    return np.where(s == 0, F32(1), s)

def numbers_of_weights(w):
    """Of rows of bf16 [N, K]: codes, and scales [N]."""
    s = scale_of(np.abs(w).max(axis=1))
    return e4m3_of(div(w, s[:, None])), s

def numbers_of(x, runs):
    """Codes [T, runs, K / runs] and scales [T, runs]."""
    x = x.reshape(len(x), runs, -1)
    s = scale_of(np.abs(x).max(axis=2))
    return e4m3_of(mul(x, div(F32(1), s)[..., None])), s

def step8(acc, a, b):
    """Section 1.4: codes a [T, 32] and b [N, 32], acc [T, N]."""
    product = E4M3_SIGNIFICANDS[a][:, None] * E4M3_SIGNIFICANDS[b][None]  # * 2^(exponent - 6)
    exponent = E4M3_EXPONENTS[a][:, None] + E4M3_EXPONENTS[b][None]
    sc, ec = split_float(acc, 0)  # sc * 2^(ec - 23)
    E = np.maximum(np.where(product != 0, exponent, -999).max(axis=2), np.where(sc != 0, ec, -999))
    cut = (np.abs(product).astype(I64) << 7) >> np.clip(E[..., None] - exponent, 0, 62)  # units of 2^(E - 13), toward zero
    total = np.where(product < 0, -cut, cut).sum(axis=2)
    total += np.sign(sc) * (np.abs(sc).astype(I64) >> np.clip(10 + E - ec, 0, 62))
    exact = np.where(total == 0, 0.0, np.ldexp(total.astype(F64), E - 13))
    return (exact.view(I64) & ~I64((1 << 39) - 1)).view(F64).astype(F32)  # 13 bits behind the leading one, toward zero

def rows_dot(x, weights, runs):
    (w, sw), (q, s) = weights, numbers_of(x, runs)
    w = w.reshape(len(w), runs, -1)
    values = np.zeros((runs, len(x), len(w)), F32)
    for r in range(runs):
        acc = np.zeros((len(x), len(w)), F32)
        for k in range(0, q.shape[2], 32):
            acc = step8(acc, q[:, r, k:k + 32], w[:, r, k:k + 32])
        values[r] = mul(acc, mul(s[:, r, None], sw[None]))
    return add(tree(values), F32(0))

def widen(kind, a):
    if kind in BLOCKS:
        return elements_of(kind, a)
    return (a.astype(U32) << U32(16)).view(F32) if kind == "bf16" else a.astype(F32)

def sha(data): return hashlib.sha256(data).digest()
def u64(n): return struct.pack("<Q", n)
def chunk_digests(a): return b"".join(sha(a[i:i + 4096].tobytes()) for i in range(0, len(a), 4096))

def weights_digest(tensors):
    total = b""
    for name in sorted(tensors, key=str.encode):
        kind, a = tensors[name]
        head = b"".join(u64(len(s)) + s for s in (name.encode(), kind.encode()))
        size, count = BLOCKS.get(kind, (1, 1))
        shape = a.shape[:-1] + (a.shape[-1] // count * size,)
        chunks = a.reshape(-1) if size == 1 else a.reshape(-1, count)  # of 4096 elements
        digests = b"".join(sha(chunks[i:i + 4096 // size].tobytes()) for i in range(0, len(chunks), 4096 // size))
        total += sha(head + u64(a.ndim) + b"".join(u64(d) for d in shape) + digests)
    return sha(total).hex()

# ---- section 7: experts ---------------------------------------------------------------------------------------------
LIKE = {"qwen3_moe": "qwen3", "qwen2_moe": "qwen2", "mixtral": "mistral"}  # in their attention

def experts_of(c, layer):
    """The numbers of a layer's experts under the names of section 8; None where it has none."""
    family = c["model_type"]
    if family in ("qwen3_moe", "qwen2_moe"):
        if layer in c.get("mlp_only_layers", []) or (layer + 1) % c.get("decoder_sparse_step", 1):
            return None
        found = {"count": c["num_experts"], "intermediate_size": c["moe_intermediate_size"],
                 "renormalised": c.get("norm_topk_prob", False)}
        if family == "qwen2_moe":
            found |= {"shared_intermediate_size": c["shared_expert_intermediate_size"], "shared_gate": True}
    elif family == "mixtral":
        found = {"count": c["num_local_experts"], "intermediate_size": c["intermediate_size"], "renormalised": True}
    elif family == "olmoe":
        found = {"count": c["num_experts"], "intermediate_size": c["intermediate_size"],
                 "renormalised": c.get("norm_topk_prob", False)}
    elif family in ("glm4_moe", "deepseek_v3", "deepseek_v2", "deepseek_v32", "glm_moe_dsa"):
        if layer < c["first_k_dense_replace"]:
            return None
        grouped, scale = c["n_group"] > 1, c["routed_scaling_factor"]
        bits = lambda x: struct.pack(">d", float(F32(x))).hex()
        is_v2 = family == "deepseek_v2"
        grouped = grouped and not (is_v2 and c["topk_method"] == "greedy")
        return {"count": c["n_routed_experts"], "chosen": c["num_experts_per_tok"],
                "intermediate_size": c["moe_intermediate_size"],
                **({"score": "softmax"} if is_v2 else {"score": "sigmoid", "choice_bias": True}),
                **({"groups": c["n_group"], "chosen_groups": c["topk_group"]} if grouped else {}),
                **({"pair_score": True} if grouped and not is_v2 else {}),
                **({"renormalised": True, "epsilon": bits(1e-20)} if c.get("norm_topk_prob") and not is_v2 else {}),
                **({"scale": bits(scale)} if scale != 1 else {}),
                **({"shared_intermediate_size": c["n_shared_experts"] * c["moe_intermediate_size"]}
                   if c["n_shared_experts"] else {})}
    elif family == "gpt_oss":
        found = {"count": c["num_local_experts"], "intermediate_size": c["intermediate_size"], "score": "softmax_of_chosen",
                 "biases": True, "curve": "clamped"}
    elif family == "llama4_text":
        step = c.get("interleave_moe_layer_step", 1)
        if layer not in c.get("moe_layers", range(step - 1, layer + 1, step)):
            return None
        found = {"count": c["num_local_experts"], "intermediate_size": c["intermediate_size"], "score": "sigmoid_of_chosen",
                 "shared_intermediate_size": c["intermediate_size"], "weighs_inputs": True}
    else:
        return None
    return {"chosen": c["num_experts_per_tok"], "score": "softmax"} | {k: v for k, v in found.items() if v is not False}

INDEXER = ("index_n_heads", "index_head_dim", "index_topk")
LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")

def chain(numbers):
    total = F32(0)
    for x in numbers:
        total = add(total, x)
    return total

def softmax(l):
    t = exp(sub(l, l.max()))
    return div(t, chain(t))

def best(numbers, count):
    """The places of the largest, ties to the lower, ascending."""
    return sorted(sorted(range(len(numbers)), key=lambda i: (-numbers[i], i))[:count])

def route(logits, bias, how):
    """Of one token: its experts and their weights, ascending."""
    how = {k: struct.unpack(">d", bytes.fromhex(v))[0] if k in ("scale", "epsilon") else v for k, v in how.items()}
    logistic = lambda l: div(F32(1), add(F32(1), exp(-l)))
    s = logits if how["score"].endswith("_of_chosen") else {"softmax": softmax, "sigmoid": logistic}[how["score"]](logits)
    c = s if bias is None else add(s, bias)
    c = np.where(np.isnan(c), F32(-np.inf), c)
    groups = how.get("groups", 1)
    if groups > 1:
        of = np.sort(c.reshape(groups, -1), axis=1)
        kept = best(add(of[:, -1], of[:, -2]) if how.get("pair_score") else of[:, -1], how["chosen_groups"])
        c = np.where(np.isin(np.arange(len(c)) // (len(c) // groups), kept), c, F32(-np.inf))
    ids = best(c, how["chosen"])
    w = {"softmax_of_chosen": softmax, "sigmoid_of_chosen": logistic}.get(how["score"], lambda s: s)(s[ids])
    if how.get("renormalised"):
        total = chain(w)
        w = div(w, add(total, F32(how["epsilon"])) if how.get("epsilon") else total)
    return ids, mul(w, F32(how["scale"])) if how.get("scale", 1) != 1 else w

def of_gpt_oss(tensors):
    """Its experts' tensors as those of others that hold all in one: outputs before inputs, gate first; biases apart."""
    renamed = {}
    for name, t in tensors.items():
        name = name.replace("mlp.router.", "mlp.gate.")
        is_pair = "gate_up_proj" in name
        if name.endswith("_bias"):
            stem = name.rsplit(".", 1)[0]
            for e, row in enumerate(t):
                parts = {"gate_proj": row[::2], "up_proj": row[1::2]} if is_pair else {"down_proj": row}
                renamed |= {f"{stem}.{e}.{part}.bias": value for part, value in parts.items()}
        elif t.ndim == 3:
            t = t.swapaxes(1, 2)
            renamed[name] = np.concatenate([t[:, ::2], t[:, 1::2]], axis=1) if is_pair else t
        else:
            renamed[name] = t
    return renamed

def of_llama4(tensors):
    """Its tensors under Llama's names, experts' with outputs before inputs."""
    renamed = {}
    for name, t in tensors.items():
        name = name.replace("feed_forward.router", "mlp.gate").replace("feed_forward", "mlp")
        renamed[name] = t.swapaxes(1, 2) if t.ndim == 3 else t
    return renamed

def llama4_layer(c, layer):
    """Section 4: whether it rotates, its chunk and how its queries grow, each or None."""
    listed = c.get("no_rope_layers")
    turns = bool(listed[layer] if listed else (layer + 1) % c.get("no_rope_layer_interval", 4))
    kinds = c.get("layer_types")
    chunk = c["attention_chunk_size"] if (kinds[layer] == "chunked_attention" if kinds else turns) else None
    grows = not turns and c.get("attn_temperature_tuning", True)
    return turns, chunk, (c.get("attn_scale", 0.1), c.get("floor_scale", 8192)) if grows else None

def one_by_one(tensors):
    """Experts' tensors under the names of a checkpoint that holds each apart."""
    renamed = {}
    for name, t in tensors.items():
        name = name.replace("block_sparse_moe.", "mlp.").replace("shared_experts.", "shared_expert.")
        for old, new in ((".w1.", ".gate_proj."), (".w3.", ".up_proj."), (".w2.", ".down_proj.")):
            name = name.replace(old, new)
        stem = name.rsplit(".", 1)[0]
        for e in range(len(t) if t.ndim == 3 else 0):
            halves = np.split(t[e], 2) if name.endswith("gate_up_proj") else [t[e]]
            for part, half in zip(("gate_proj", "up_proj") if len(halves) == 2 else ("down_proj",), halves):
                renamed[f"{stem}.{e}.{part}.weight"] = half
        if t.ndim != 3:
            renamed[name] = t
    return renamed

def specification_digest(c, eos):
    """Section 8, of a config.json and the tokens that end an answer."""
    bits = lambda x: struct.pack(">d", x).hex()
    family, count = LIKE.get(c["model_type"], c["model_type"]), c["num_hidden_layers"]
    bias = c.get("attention_bias", True) if family == "gpt_oss" else family == "llama" and c.get("attention_bias", False)
    rope = c.get("rope_parameters") or {"rope_theta": c.get("rope_theta", 1e4), **(c.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    names = {"default": [], "linear": ["factor"], "yarn": ["factor", "original_max_position_embeddings"],
             "llama3": ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]}[kind]
    window = c.get("sliding_window") if family in ("mistral", "gpt_oss") or c.get("use_sliding_window") else None
    first = 0 if family == "mistral" else c.get("max_window_layers", 28)
    types = c.get("layer_types") or ["full_attention"] * first + ["sliding_attention"] * (count - first)
    rotation = {"theta": bits(rope["rope_theta"]), **{name: bits(rope[name]) for name in names}}
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    if kind == "yarn":
        rotation |= {"scaling": "yarn", "beta_fast": bits(rope.get("beta_fast", 32)), "beta_slow": bits(rope.get("beta_slow", 1)),
                     "attention_factor": bits(float(rotary_frequencies(size, rope, c["max_position_embeddings"])[1])),
                     **({} if rope.get("truncate", True) else {"truncate": False})}
    turning = int(size * c.get("partial_rotary_factor", rope.get("partial_rotary_factor", 0.5)))
    if family == "glm4_moe" and turning < size:
        rotation["rotated"] = turning
    layers = [{"window": window or 0 if t == "sliding_attention" else 0, "attention_norms": "before", "ffn_norms": "before",
               "intermediate_size": c["intermediate_size"], "rope": rotation} for t in types[:count]]
    for i, layer in enumerate(layers):
        if experts := experts_of(c, i):
            layer |= {"intermediate_size": 0, "experts": experts}
        if family == "gpt_oss":
            layer["sinks"] = True
        if family == "llama4_text":
            turns, chunk, growth = llama4_layer(c, i)
            layer |= {**({} if turns else {"rope": None}), **({"chunk": chunk} if chunk else {}),
                      **({"unit_heads": True} if turns and c.get("use_qk_norm", True) else {}),
                      **({"growth": dict(zip(("scale", "step"), map(bits, growth)))} if growth else {}),
                      **({} if experts_of(c, i) else {"intermediate_size": c["intermediate_size_mlp"]})}
    choices = {"family_choices": {"joint_qk_norm": True}} if family == "olmoe" else {}
    sizes = ["hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings"]
    c = dict(c)
    if "kv_lora_rank" in c:
        L, R, S, V = (c[name] for name in LATENT)
        c |= {"head_dim": L + R, "num_key_value_heads": 1}
        for layer in layers:
            layer["rope"]["rotated"] = R
            layer |= {"score_scale": bits(1 / math.sqrt(S + R)), "latent": {
                "rank": L, "turning": R, "still": S, "value": V, "query_rank": c.get("q_lora_rank") or 0}}
        if "index_topk" in c:
            for i, layer in enumerate(layers):
                J, I, N = (c[name] for name in INDEXER)
                layer["indexer"] = {"heads": J, "size": I, "chosen": N, "shared": c.get("indexer_types", ["full"] * count)[i] == "shared"}
    canonical = {**{name: c[name] for name in sizes},
                 "head_dim": c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
                 "rms_norm_eps": bits(float(F32(c["rms_norm_eps"]))), "qkv_bias": family == "qwen2" or bias or c.get("attention_bias", False), "o_bias": bias,
                 "mlp_bias": c.get("mlp_bias", False), "qk_norm": family in ("qwen3", "olmoe") or family != "llama4_text" and c.get("use_qk_norm", False), **choices,
                 "tie_word_embeddings": c.get("tie_word_embeddings", False), "layers": layers,
                 "eos_token_id": eos}
    return sha(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hex()

def position_hash(logits): return sha(chunk_digests(np.where(logits == 0, F32(0), logits).astype("<f4")))

# ---- section 4: families --------------------------------------------------------------------------------------------
BEFORE = ("input_layernorm", None, "post_attention_layernorm", None)  # of attention before and behind, of the other part
BEHIND = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
GEMMA = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
GLM = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
NORMS = {"gemma2": GEMMA, "gemma3_text": GEMMA, "gemma4_text": GEMMA, "olmo2": BEHIND, "olmo3": BEHIND, "exaone4": BEHIND, "glm4": GLM}

class Family:
    """What the page's list of section 4 says of a config.json."""

    def __init__(self, c):
        self.c, self.name = c, LIKE.get(c["model_type"], c["model_type"])
        gemma, granite, falcon = self.name.startswith("gemma"), self.name == "granite", self.name == "falcon"
        self.norms = NORMS.get(self.name, BEFORE)
        self.curve = gelu_tanh if gemma else gelu if falcon else silu
        self.pair = clamped if self.name == "gpt_oss" else lambda g, u: mul(self.curve(g), u)
        self.heads = c["num_attention_heads"]
        self.is_latent = "kv_lora_rank" in c
        self.kv_heads = self.falcon_kv() if falcon else 1 if self.is_latent else c["num_key_value_heads"]
        self.size = c.get("head_dim") or c["hidden_size"] // self.heads
        self.width = c.get("ffn_hidden_size") or 4 * c["hidden_size"] if falcon else c.get("intermediate_size_mlp", c["intermediate_size"])
        self.eps = c.get("rms_norm_eps", c.get("layer_norm_epsilon"))
        self.embedding_scale = F32(math.sqrt(c["hidden_size"])) if gemma else F32(c["embedding_multiplier"]) if granite else None
        self.residual_scale = F32(c["residual_multiplier"]) if granite and c["residual_multiplier"] != 1 else None
        self.logits_divisor = F32(c["logits_scaling"]) if granite else None
        a = c["attention_multiplier"] if granite else 1 / math.sqrt(c.get("query_pre_attn_scalar", 1)) if gemma else None
        gemma2 = self.name == "gemma2"
        cap, self.logits_cap = ((c.get("attn_logit_softcapping", 50), c.get("final_logit_softcapping", 30)) if gemma2
                                else (None, c.get("final_logit_softcapping") if self.name == "gemma4_text" else None))
        self.cap_scale = F32(2 * (a or 1 / math.sqrt(self.size)) / cap) if cap else None
        self.scale = F32(LOG2E * cap if cap else LOG2E * a if a else LOG2E / math.sqrt(self.size))  # section 4.1, c
        self.joint, self.late = self.name in ("olmo2", "olmo3", "olmoe"), self.name == "hunyuan_v1_dense"
        self.tied = c.get("tie_word_embeddings", gemma or falcon or self.name == "smollm3")
        part = c.get("partial_rotary_factor", (c.get("rope_parameters") or {}).get("partial_rotary_factor"))
        part = part if part is not None else 0.5 if self.name in ("glm4", "glm4_moe") else 1.0
        self.rotated = int(self.size * part)
        if self.is_latent:
            L, R, S, V = (c[name] for name in LATENT)
            self.size, self.rotated, self.scale = L + R, R, F32(LOG2E * (1 / math.sqrt(S + R)))

    def of_llama4(self, layer):
        return llama4_layer(self.c, layer) if self.name == "llama4_text" else (True, None, None)

    def falcon_kv(self):
        c = self.c
        if c.get("new_decoder_architecture"):
            return c["num_kv_heads"]
        return 1 if c.get("multi_query", True) else self.heads

    def window(self, layer):
        c = self.c
        size, types = c.get("sliding_window"), c.get("layer_types")
        if c["model_type"] == "mistral":
            size = c.get("sliding_window", 4096)
        if not size or (self.name.startswith("qwen") and not c.get("use_sliding_window") and not types):
            return None
        if types:
            return size if types[layer] == "sliding_attention" else None
        every = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": c.get("sliding_window_pattern", 6), "olmo3": 4}.get(self.name)
        if self.name == "exaone4":
            pattern = c.get("sliding_window_pattern", 4)
            if isinstance(pattern, str):
                return size if pattern[layer % len(pattern)] == "L" else None
            every = pattern
        if every:
            return size if (layer + 1) % every else None
        if self.name.startswith("qwen"):
            return size if layer >= c.get("max_window_layers", 28) else None
        return size

    def rope(self, layer):
        """Of one layer; None: it does not rotate."""
        c, window = self.c, self.window(layer)
        if self.name == "smollm3":
            listed = c.get("no_rope_layers")
            turns = listed[layer] if listed else (layer + 1) % c.get("no_rope_layer_interval", 4)
            if not turns:
                return None
        if self.name == "exaone4" and c.get("sliding_window") and window is None:
            return None
        if not self.of_llama4(layer)[0]:
            return None
        theta = c.get("rope_theta", {"gemma3_text": 1e6, "smollm3": 2e6, "olmo3": 5e5}.get(self.name, 1e4))
        rope = c.get("rope_parameters") or {"rope_theta": theta, **(c.get("rope_scaling") or {})}
        if rope.get("rope_type", rope.get("type")) in ("yarn", "longrope") and c.get("original_max_position_embeddings"):
            rope = {"original_max_position_embeddings": c["original_max_position_embeddings"], **rope}
        if self.name == "gemma3_text" and window:
            return {"rope_theta": c.get("rope_local_base_freq", 1e4)}
        if self.name == "olmo3" and window:
            return {"rope_theta": rope["rope_theta"]}
        return rope

    def unfused(self, w):
        """The tensors by the names of Llama, rows of q and k in the order of section 4's turning pairs."""
        if self.is_latent:
            return w
        w = dict(w)
        for name in list(w):
            at = name.rsplit(".", 2)[0] + "."
            kind, end = name.rsplit(".", 2)[1], "." + name.rsplit(".", 1)[1]
            q, kv = self.heads * self.size, self.kv_heads * self.size
            if kind == "qkv_proj":
                w[at + "q_proj" + end], w[at + "k_proj" + end], w[at + "v_proj" + end] = np.split(w.pop(name), [q, q + kv])
            elif kind == "gate_up_proj":
                w[at + "gate_proj" + end], w[at + "up_proj" + end] = np.split(w.pop(name), 2)
            elif kind == "query_key_value":
                rows = w.pop(name)
                groups = rows.reshape((self.kv_heads, self.heads // self.kv_heads + 2, self.size) + rows.shape[1:])
                parts = groups[:, :-2], groups[:, -2], groups[:, -1]
                for part, rows in zip(("q_proj", "k_proj", "v_proj"), parts):
                    w[at + part + end] = rows.reshape((-1,) + rows.shape[(3 if part == "q_proj" else 2):])
        names = {"self_attention.": "self_attn.", ".self_attn.dense.": ".self_attn.o_proj.", "dense_h_to_4h": "up_proj",
                 "dense_4h_to_h": "down_proj", "transformer.h.": "model.layers.", "transformer.ln_f": "model.norm",
                 "transformer.word_embeddings": "model.embed_tokens", "query_layernorm": "q_norm", "key_layernorm": "k_norm"}
        for name in list(w):
            new = name
            for old, to in names.items():
                new = new.replace(old, to)
            w[new] = w.pop(name)
        order = self.row_order()
        for name in w:
            parts = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias", "q_norm.weight", "k_norm.weight")
            if name.endswith(parts):
                heads = w[name].reshape((-1, self.size) + w[name].shape[1:])
                w[name] = heads[:, order].reshape(w[name].shape)
        return w

    def row_order(self):
        E, R = self.size, self.rotated
        order, rest = np.full(E, -1), iter(range(R, E))
        for i in range(R // 2):
            order[i], order[E // 2 + i] = (2 * i, 2 * i + 1) if self.name in ("glm4", "llama4_text") else (i, R // 2 + i)
        return np.array([next(rest) if at < 0 else at for at in order])

# ---- section 4: a layer ---------------------------------------------------------------------------------------------
class Model:
    def __init__(self, folder, arith, mode):
        self.config = c = json.load(open(os.path.join(folder, "config.json")))
        tensors = read_tensors(folder)
        self.family = f = Family(c)
        stored = next(kind for name, (kind, _) in tensors.items() if "embed" in name)
        in_blocks = {name: t for name, t in tensors.items() if t[0] in BLOCKS}
        mode = mode or ("bf16" if stored == "bf16" or in_blocks else "f32")
        assert not (mode == "blocks" and (arith != "portable" or not in_blocks)), f"{arith} refuses the weight mode blocks"
        assert not (mode == "fp8-row" and (stored != "bf16" or in_blocks)), "the weight mode fp8-row is for bf16"
        assert not (mode == "f32" and arith != "portable"), f"{arith} refuses the weight mode f32"
        if mode == "f32":  # the same tensors widened, as if they had been stored so
            tensors = {name: ("f32", widen(*t)) for name, t in tensors.items()}
        self.digest = weights_digest(tensors)
        self.order = {"portable": Portable, "hopper": Hopper, "pair": Pair}[arith]
        self.act = (lambda x: x) if mode == "f32" else bf16
        self.parts = {name: parts_of(*t) for name, t in in_blocks.items() if mode == "blocks"}
        for name in list(self.parts):
            gate, up = name.replace("up_proj", "gate_proj"), name.replace("gate_proj", "up_proj")
            if gate in tensors and tensors[gate][0] != tensors[up][0]:
                self.parts.pop(name)
        widened = {name: widen(*t) for name, t in tensors.items()}
        widened = {"gpt_oss": of_gpt_oss, "llama4_text": of_llama4}.get(f.name, lambda w: w)(widened)
        self.w = f.unfused(one_by_one(widened))
        seven = {f"{p}_proj.weight" for p in ("q", "k", "v", "o", "gate", "up", "down")}
        self.numbers = {name: numbers_of_weights(w) for name, w in self.w.items()
                        if mode == "fp8-row" and name.split(".", 4)[-1] in seven and w.shape[1] % 128 == 0}
        self.heads, self.kv_heads, self.size, self.eps = f.heads, f.kv_heads, f.size, f.eps
        self.layers, self.scale = c["num_hidden_layers"], f.scale
        self.r_out = row_runs(self.heads * c.get("v_head_dim", self.size), self.heads)
        self.experts = [experts_of(c, i) for i in range(self.layers)]
        self.r_down = [row_runs(e.get("shared_intermediate_size", 1) if e else f.width) for e in self.experts]
        self.identity = f"invar-1/{arith}/{mode}/row{self.r_out}." + "+".join(map(str, dict.fromkeys(self.r_down)))
        self.prepared, self.length, self.index_keys = {}, 0, {}
        self.kv = [np.zeros((2, self.kv_heads, 0, self.size), F32) for _ in range(self.layers)]

    def window(self, layer): return self.family.window(layer)

    def vector(self, name):  # norm weights and biases: f32 in every mode, read with DAZ
        return f32(self.w[name].astype(F64))

    def product(self, x, name, runs=1):
        """x [T, K] times the matrix, plus its bias where there is one."""
        if name + ".weight" in self.parts:
            y = blocks_dot(x, self.parts[name + ".weight"], runs)
            return add(y, self.vector(name + ".bias")) if name + ".bias" in self.w else y
        if name + ".weight" in self.numbers:
            y = rows_dot(x, self.numbers[name + ".weight"], runs)
            return add(y, self.vector(name + ".bias")) if name + ".bias" in self.w else y
        if name not in self.prepared:
            w = self.w[name + ".weight"]
            w = w if self.order is Hopper else f32(w.astype(F64))  # DAZ; the step of hopper does not flush
            self.prepared[name] = self.order.prepare(w[None], runs)
        y = dot(self.order, self.order.prepare(x[:, None], runs), self.prepared[name])
        return add(y, self.vector(name + ".bias")) if name + ".bias" in self.w else y

    def norm(self, x, name):
        w = self.vector(name + ".weight")
        if self.family.name.startswith("gemma"):
            w = add(ONE, w)
        if name + ".bias" in self.w:
            return layer_norm(x, w, self.vector(name + ".bias"), self.eps)
        is_own = name.endswith(("q_a_layernorm", "kv_a_layernorm")) and self.config["model_type"] in ("deepseek_v32", "glm_moe_dsa")
        return rms_norm(x, w, 1e-6 if is_own else self.eps)

    def rotate(self, x, sine, cosine):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([fma(a, cosine, -mul(b, sine)), fma(b, cosine, mul(a, sine))], axis=-1)

    def angles(self, layer, positions):
        """Section 5.3: sine and cosine of one layer, or None."""
        rope, f = self.family.rope(layer), self.family
        if rope is None:
            return None
        turned, factor = rotary_frequencies(f.rotated, rope, self.config.get("max_position_embeddings", 0))
        frequency = np.concatenate([turned, np.zeros(self.size // 2 - len(turned))])
        scale = np.where(frequency != 0, factor, 1.0)
        return [f32(y * scale)[:, None] for y in sincos(positions[:, None].astype(F64) * frequency)]

    def queries_and_keys(self, x, i, at, positions):
        """[T, heads, E] of q, k and v, normed and turned."""
        if self.family.is_latent:
            q, k, v = self.latents(x, at)
            angles = self.angles(i, positions)
            return self.rotate(q, *angles), self.rotate(k, *angles), v
        q, k, v = (self.product(x, at + n) for n in ("q_proj", "k_proj", "v_proj"))
        of_heads = lambda y: y.reshape(len(x), -1, self.size)
        normed = lambda q, k: (self.norm(q, at + "q_norm"), self.norm(k, at + "k_norm"))
        has_norms, angles = at + "q_norm.weight" in self.w, self.angles(i, positions)
        if self.family.joint:
            q, k = normed(q, k)
        q, k, v = of_heads(q), of_heads(k), of_heads(v)
        if has_norms and not self.family.joint and not self.family.late:
            q, k = normed(q, k)
        if angles:
            q, k = self.rotate(q, *angles), self.rotate(k, *angles)
        if has_norms and self.family.late:
            q, k = normed(q, k)
        _, _, growth = self.family.of_llama4(i)
        if growth:
            scale, step = growth
            g = 1 + scale * log64(1 + np.floor((positions.astype(F64) + 1) / step))
            q = mul(q, f32(g)[:, None, None])
        if self.family.name == "llama4_text" and angles and self.config.get("use_qk_norm", True):
            q, k = (rms_norm(y, np.ones(self.size, F32), self.eps) for y in (q, k))
        return q, k, v

    def add_part(self, h, y, behind):
        if behind:
            y = self.norm(y, behind)
        scale = self.family.residual_scale
        return add(h, y if scale is None else mul(y, scale))

    def network(self, x, at, runs):
        u, f = self.product(x, at + "up_proj"), self.family
        gated = f.pair(self.product(x, at + "gate_proj"), u) if at + "gate_proj.weight" in self.w else f.curve(u)
        return self.product(self.act(gated), at + "down_proj", runs)

    def through_experts(self, x, at, how, runs):
        """Section 7."""
        bias = self.vector(at + "gate.e_score_correction_bias") if at + "gate.e_score_correction_bias" in self.w else None
        acc = np.zeros_like(x)
        for t, logits in enumerate(self.product(x, at + "gate")):
            for e, w in zip(*route(logits, bias, how)):
                own = x[t:t + 1]
                if how.get("weighs_inputs"):
                    own, w = self.act(mul(own, w)), F32(1)
                y = self.act(self.network(own, f"{at}experts.{e}.", 1))
                acc[t] = fma(w, y, acc[t])
        if "shared_intermediate_size" in how:
            g = F32(1)
            if how.get("shared_gate"):
                g = div(F32(1), add(F32(1), exp(-self.product(x, at + "shared_expert_gate"))))
            acc = fma(g, self.network(x, at + "shared_expert.", runs), acc)
        return acc

    def layer(self, h, i, positions):
        base = f"model.layers.{i}."
        at, mlp = base + "self_attn.", base + "mlp."
        named = [n and base + n for n in self.family.norms]
        parallel = self.family.name == "falcon"
        if parallel:
            one = base + "input_layernorm.weight" in self.w
            named = [base + ("input_layernorm" if one else "ln_attn"), None, base + ("input_layernorm" if one else "ln_mlp"), None]
        x = self.act(self.norm(h, named[0]) if named[0] else h)
        beside = self.act(self.norm(h, named[2])) if parallel else None
        q, k, v = (bf16(y) for y in self.queries_and_keys(x, i, at, positions))
        assert np.isfinite(k).all() and np.isfinite(v).all(), "a key or a value is not finite"
        self.store(i, positions, k, v)
        attended = self.attention_to_chosen(x, q, i, at, positions) if "index_topk" in self.config else self.attention(q, self.kv[i], i, positions)
        x = self.act(attended.reshape(len(h), -1))
        if self.family.is_latent:
            x = self.act(self.outputs(x.reshape(len(h), self.heads, -1), at))
        h = self.add_part(h, self.product(x, at + "o_proj", self.r_out), named[1])
        x = beside if parallel else self.act(self.norm(h, named[2]) if named[2] else h)
        y = self.through_experts(x, mlp, self.experts[i], self.r_down[i]) if self.experts[i] else self.network(x, mlp, self.r_down[i])
        return self.add_part(h, y, named[3])

    def latents(self, x, at):
        """Section 4.3, steps 1 to 3: queries, keys and values before they turn."""
        L, R, S, V = (self.config[name] for name in LATENT)
        down, low = self.product(x, at + "kv_a_proj_with_mqa"), (self.size - R) // 2
        c = self.norm(down[:, :L], at + "kv_a_layernorm")[:, None]
        name = "q_proj"
        if self.config.get("q_lora_rank"):
            x, name = self.of_queries(x, at), "q_b_proj"
        q = self.product(x, at + name).reshape(len(x), self.heads, S + R)
        up = self.w[at + "kv_b_proj.weight"].reshape(self.heads, S + V, L)
        of_heads = [self.times(self.act(q[:, h, :S]), up[h, :S].T) for h in range(self.heads)]

        def placed(latent, t):
            first, second = t[..., 0::2], t[..., 1::2]
            return np.concatenate([first, latent[..., :low], second, latent[..., low:]], axis=-1)

        v = np.concatenate([c, np.zeros(c.shape[:2] + (R,), F32)], axis=-1)
        return placed(np.stack(of_heads, axis=1), q[..., S:]), placed(c, down[:, None, L:]), v

    def of_queries(self, x, at):
        return self.act(self.norm(self.product(x, at + "q_a_proj"), at + "q_a_layernorm"))

    def index(self, x, i, at, positions):
        """Section 4.6, steps 1 to 3: index queries [T, J, I], keys [T, I] and weights [T, J]."""
        c, at = self.config, at + "indexer."
        J, I, _ = (c[name] for name in INDEXER)
        R, rest = c["qk_rope_head_dim"], iter(range(c["qk_rope_head_dim"], I))
        neighbours = c.get("indexer_rope_interleave", c["model_type"] == "glm_moe_dsa")
        order = np.full(I, -1)
        for n in range(R // 2):
            order[n], order[I // 2 + n] = (2 * n, 2 * n + 1) if neighbours else (n, R // 2 + n)
        order = np.array([next(rest) if n < 0 else n for n in order])
        of_queries = self.of_queries(x, at[:-len("indexer.")])
        q = self.product(of_queries, at + "wq_b").reshape(len(x), J, I)[:, :, order]
        weight, bias = (self.vector(at + "k_norm." + end)[order] for end in ("weight", "bias"))
        k = layer_norm(self.product(x, at + "wk")[:, order], weight, bias, 1e-6)
        frequency = np.zeros(I // 2)
        frequency[:R // 2], factor = rotary_frequencies(R, self.family.rope(i), c["max_position_embeddings"])
        angles = [f32(y * np.where(frequency != 0, factor, 1.0))[:, None] for y in sincos(positions[:, None].astype(F64) * frequency)]
        return bf16(self.rotate(q, *angles)), bf16(self.rotate(k[:, None], *angles))[:, 0], self.product(x, at + "weights_proj")

    def choose(self, q, w, keys, p):
        """Step 4, of a row at p: the positions that it attends to, ascending."""
        N = self.config["index_topk"]
        if p < N:
            return np.arange(p + 1)
        d, s = dot(self.order, self.order.prepare(q[:, None]), self.order.prepare(keys[None, :p + 1])), np.zeros(p + 1, F32)
        for h in range(len(q)):
            s = fma(w[h], np.where(d[h] > 0, d[h], F32(0)), s)
        return np.sort(np.argsort(-add(s, F32(0)), kind="stable")[:N])

    def attention_to_chosen(self, x, q, i, at, positions):
        """Steps 4 to 6, row by row."""
        if at + "indexer.wk.weight" in self.w:
            index_q, k, w = self.index(x, i, at, positions)
            self.index_keys[i] = np.concatenate([self.index_keys.get(i, k[:0]), k])
            self.chosen = [self.choose(index_q[t], w[t], self.index_keys[i], p) for t, p in enumerate(positions)]
        rows = []
        for t, slots in enumerate(self.chosen):
            kv = np.pad(self.kv[i][:, :, slots], ((0, 0), (0, 0), (0, -len(slots) % 128), (0, 0)))
            rows.append(self.attention(q[t:t + 1], kv, i, np.array([len(slots) - 1])))
        return np.concatenate(rows)

    def outputs(self, x, at):
        """Step 5, of rounded results [T, heads, E]."""
        L, R, S, V = (self.config[name] for name in LATENT)
        up = self.w[at + "kv_b_proj.weight"].reshape(self.heads, S + V, L)
        return np.concatenate([self.times(x[:, h, :L], up[h, S:]) for h in range(self.heads)], axis=-1)

    def times(self, x, w):
        w = w if self.order is Hopper else f32(w.astype(F64))
        return dot(self.order, self.order.prepare(x[:, None]), self.order.prepare(w[None]))

    def store(self, i, positions, k, v):
        slots = -(-(positions[-1] + 1) // 128) * 128
        grow = slots - self.kv[i].shape[2]
        self.kv[i] = np.pad(self.kv[i], ((0, 0), (0, 0), (0, grow), (0, 0)))
        self.kv[i][:, :, positions] = np.stack([k, v]).transpose(0, 2, 1, 3)

    def attention(self, q, kv, i, positions):
        """Section 4.1, for q [T, heads, E]; M and L are [T, heads, 1]."""
        of_head = np.arange(self.heads) // (self.heads // self.kv_heads)
        shape, started = q.shape, np.zeros((len(q), 1, 1), bool)
        M, L, O = np.zeros(shape[:2] + (1,), F32), np.ones(shape[:2] + (1,), F32), np.zeros(shape, F32)
        for start in range(0, kv.shape[2], 128):
            j = start + np.arange(128)
            valid = j <= positions[:, None]
            if self.window(i):
                valid &= positions[:, None] - self.window(i) < j
            chunk = self.family.of_llama4(i)[1]
            if chunk:
                valid &= (positions - positions % chunk)[:, None] <= j
            rows = np.flatnonzero(valid.any(axis=1))
            if rows.size == 0:
                continue
            keys, values = kv[:, of_head, start:start + 128][:, None]
            m, l, o = self.split(q[rows], keys, values, valid[rows, None])
            top = np.maximum(M[rows], m)
            a, b = exp2(sub(M[rows], top)), exp2(sub(m, top))
            further = started[rows]
            M[rows] = np.where(further, top, m)
            L[rows] = np.where(further, fma(L[rows], a, mul(l, b)), l)
            O[rows] = np.where(further, fma(O[rows], a, mul(o, b)), o)
            started[rows] = True
        sinks = f"model.layers.{i}.self_attn.sinks"
        if sinks in self.w:
            m = np.broadcast_to(mul(self.vector(sinks), F32(float.fromhex("0x1.715476p+0")))[:, None], M.shape)
            top = np.maximum(M, m)
            a, b = exp2(sub(M, top)), exp2(sub(m, top))
            L, O = fma(L, a, b), fma(O, a, F32(0))
        return div(O, L)

    def split(self, q, keys, values, valid):
        prepare = self.order.prepare
        d = dot(self.order, prepare(q[:, :, None]), prepare(keys))
        if self.family.cap_scale is not None:
            d = half_tanh(mul(d, self.family.cap_scale))
        m = mul(np.where(valid, d, -np.inf).max(axis=-1, keepdims=True), self.scale)
        p = np.where(valid, exp2(fma(d, self.scale, -m)), F32(0))
        o = dot(self.order, prepare(bf16(p)[:, :, None]), prepare(values.swapaxes(-1, -2)))
        return m, sum64(p)[..., None], o

    def forward(self, tokens):
        """Appends tokens to the cache; the logits of the last one."""
        positions, f = self.length + np.arange(len(tokens)), self.family
        self.length += len(tokens)
        h = add(self.w["model.embed_tokens.weight"][tokens], F32(0))  # flushes a subnormal weight
        if f.embedding_scale is not None:
            h = mul(h, f.embedding_scale)
        for i in range(self.layers):
            h = self.layer(h, i, positions)
        x = self.act(self.norm(h[-1:], "model.norm"))
        logits = self.product(x, "model.embed_tokens" if f.tied or "lm_head.weight" not in self.w else "lm_head")[0]
        if f.logits_divisor is not None:
            logits = div(logits, f.logits_divisor)
        if f.logits_cap:
            cap = F32(f.logits_cap)
            logits = mul(cap, half_tanh(div(add(logits, logits), cap)))
        return logits

# ---- section 6: sampling --------------------------------------------------------------------------------------------
def philox(counter, seed):
    """Philox4x32-10; counter is four u64 arrays holding u32 values."""
    c, (k0, k1), low = list(counter), (seed & 0xffffffff, seed >> 32), U64(0xffffffff)
    for _ in range(10):
        a, b = c[0] * U64(0xD2511F53), c[2] * U64(0xCD9E8D57)
        c = [(b >> U64(32)) ^ c[1] ^ U64(k0), b & low, (a >> U64(32)) ^ c[3] ^ U64(k1), a & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xffffffff, (k1 + 0xBB67AE85) & 0xffffffff
    return np.stack(c)

def gumbel(vocabulary, position, seed, choice):
    ids = np.arange(vocabulary)
    same = lambda n: np.full(vocabulary, n, U64)
    x = philox([same(position), (ids >> 2).astype(U64), same(choice), same(0)], seed)[ids & 3, ids]
    return -log64(-log64((x.astype(F64) + 0.5) * 2.0**-32))

def penalties(x, prompt, answer, a):
    seen = np.unique(prompt + answer)
    R = F32(a.repetition_penalty)
    x[seen] = np.where(x[seen] > 0, div(x[seen], R), mul(x[seen], R))
    ids, n = np.unique(np.array(answer, int), return_counts=True)
    x[ids] = sub(x[ids], mul(F32(a.frequency_penalty), n.astype(F32)))
    x[ids] = sub(x[ids], F32(a.presence_penalty))

def sample(logits, prompt, answer, a):
    """The token, and the row that it is sampled from, with numbers whose exp is 0 for what is excluded."""
    x = logits.copy()
    penalties(x, prompt, answer, a)
    if a.temperature < 1e-5:
        return int(np.argmax(x)), x
    x = div(x, F32(max(a.temperature, 0.01)))
    e = exp(sub(x, x.max()))
    order = np.lexsort((np.arange(len(x)), -x))  # larger first, ties to the lower id
    order = order[e[order] >= F32(a.min_p)]
    if a.top_k > 0:
        order = order[:a.top_k]
    if a.top_p < 1:
        W = (e[order].astype(F64) * 2.0**40).astype(U64)
        limit = int(a.top_p * float(W.sum()))
        before = np.cumsum(W) - W
        order = order[(before < limit) | (np.arange(len(W)) == 0)]
    score = x.astype(F64) + gumbel(len(x), len(prompt) + len(answer), a.seed, a.choice)
    kept = np.sort(order)
    processed = np.full(len(x), -1e30, F32)
    processed[kept] = x[kept]
    return int(kept[np.argmax(score[kept])]), processed

# ---- the command ----------------------------------------------------------------------------------------------------
def model_of(folder):
    if json.load(open(os.path.join(folder, "config.json")))["model_type"] != "gemma4_text":
        return Model
    import page_gemma4  # which has this page's functions
    return page_gemma4.Model

def generate(folder, a):
    model = model_of(folder)(folder, a.arith, a.weights)
    prompt, answer, chain, logprobs, first = [int(t) for t in a.tokens.split(",")], [], bytes(32), [], []
    processed = []
    generation = os.path.join(folder, "generation_config.json")
    stop = json.load(open(generation)).get("eos_token_id") if os.path.exists(generation) else model.config.get("eos_token_id")
    stop = stop if isinstance(stop, list) else [stop]
    while len(answer) < a.max_tokens and not (answer and answer[-1] in stop):
        logits = model.forward(answer[-1:] or prompt)
        assert not np.isnan(logits).any(), "NaN in the logits fails the request"
        chain = sha(chain + position_hash(logits))
        token, row = sample(logits, prompt, answer, a)
        answer.append(token)
        logprobs.append(log_probability(logits, token))
        processed.append(log_probability(row, token))
        first.append([f"{b:08x}" for b in logits[:4].view(U32).tolist()])
    return {"identity": model.identity, "weights": model.digest, "answer": answer, "logits_hash": chain.hex(),
            "logprobs": [float(p) for p in logprobs], "processed": [float(p) for p in processed],
            "logprob_bits": [f"{int(p.view(U32)):08x}" for p in logprobs], "first_logits": first}

def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--tokens", required=True)
    p.add_argument("--arith", choices=["portable", "hopper", "pair"], default="portable")
    p.add_argument("--weights", choices=["bf16", "f32", "blocks", "fp8-row"])
    for name, default in (("max-tokens", 4), ("top-k", 0), ("seed", 0), ("choice", 0)):
        p.add_argument("--" + name, type=int, default=default)
    for name, default in (("temperature", 0.0), ("top-p", 1.0), ("min-p", 0.0), ("repetition-penalty", 1.0),
                          ("presence-penalty", 0.0), ("frequency-penalty", 0.0)):
        p.add_argument("--" + name, type=float, default=default)
    a = p.parse_args(argv)
    with np.errstate(all="ignore"):
        return generate(a.model, a)

if __name__ == "__main__":
    print(json.dumps(main()))
