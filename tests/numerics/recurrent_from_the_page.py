"""Recurrent layers, made from section 4.4 of docs/numerics.md alone, with what from_the_page.py has of the other sections.

A row knows nothing of pieces: everything is computed position after position."""
import math
import numpy as np
from from_the_page import F32, ONE, Hopper, Pair, Portable, add, bf16, div, dot, exp, fma, hexf, mul, silu, sqrt, sub, sum64

ORDERS = {"portable": Portable, "hopper": Hopper, "pair": Pair}
SOFTPLUS = np.array(hexf("0x1.111112p-3 0x1.3b13b2p-3 0x1.745d18p-3 0x1.c71c72p-3 0x1.24924ap-2 0x1.99999ap-2 0x1.555556p-1 2"), F32)
ZERO = F32(0)

def softplus(x):  # 5.1
    z = exp(-np.abs(x))
    s = div(z, add(z, F32(2)))
    w = mul(s, s)
    p = np.full_like(x, SOFTPLUS[0])
    for c in SOFTPLUS[1:]:
        p = fma(p, w, c)
    return fma(s, p, np.where(x > 0, x, ZERO))

def logistic(x): return div(ONE, add(ONE, exp(-x)))

class Numbers:
    """What is rounded, in an order and a type."""
    def __init__(self, order, exact):
        self.order, self.exact = ORDERS[order], exact

    def round(self, x): return x if self.exact else bf16(x)

    def keep(self, x):
        y = self.round(x)
        largest = F32(float.fromhex("0x1.fffffep127" if self.exact else "0x1.fep127"))
        return np.where(np.isnan(y), ZERO, np.clip(y, -largest, largest))

    def dot(self, x, w):
        """Over the last axis; the others are broadcast."""
        x, w = np.broadcast_arrays(x, w)
        return dot(self.order, self.order.prepare(x), self.order.prepare(w))

def short_conv(n, x, weight, bias, has_silu, factor=None, gate=None):  # step 1
    rows, channels = x.shape
    taps = len(weight)
    kept = n.keep(x if factor is None else mul(x, factor))
    kept = np.concatenate([np.zeros((taps - 1, channels), F32), kept])
    y = np.zeros((rows, channels), F32)
    for m in range(taps):
        y = fma(weight[m], kept[m:m + rows], y)
    y = y if bias is None else add(y, bias)
    y = silu(y) if has_silu else y
    return y if gate is None else mul(y, gate)

def gates(kind, a, z, dt_bias, a_log, doubles, least, most):  # step 2
    rows, heads, rate = len(a), len(a_log), -exp(a_log)
    step = softplus(add(a, dt_bias)).reshape(rows, heads, -1)
    if kind == "state_space":
        b = np.where(step < least, least, np.where(step > most, most, step))
        return mul(b, rate[:, None]), b[:, :, 0]
    b = logistic(z)
    return mul(step, rate[:, None]), add(b, b) if doubles else b

def keys(n, kind, q, k):  # step 3, of one head
    if kind == "state_space":
        return n.round(q), n.keep(k)
    eps, scale = F32(1e-6), F32(1 / math.sqrt(q.shape[-1]))
    def normed(x): return mul(x, div(ONE, sqrt(add(sum64(x, squares=True), eps)))[..., None])
    return n.round(mul(normed(q), scale)), n.keep(normed(k))

class Head:
    """Steps 4 to 9 of one value head."""
    def __init__(self, n, kind, R, V):
        self.n, self.kind, self.channels = n, kind, kind == "channel_delta"
        self.S, self.first = np.zeros((R, V), F32), True
        self.begin()

    def begin(self):
        self.G, self.k, self.u = [], [], []

    def weights(self, x, own):
        """Of x at the slots so far, the row's own among them or not."""
        i = len(self.G) - 1
        count, start = (i + 1 if own else i), i // 16 * 16
        w = np.zeros(64, F32)
        if not self.channels:
            if count:
                k, G = np.array(self.k[:count]), np.array(self.G[:count])[:, 0]
                w[:count] = mul(exp(sub(self.G[i][0], G)), self.n.dot(x[None], k))
            return w
        for m in range(15, start, 16):  # stretches before the row's own, by their last slot
            a = self.n.round(mul(x, exp(sub(self.G[i], self.G[m]))))
            k = self.n.round(mul(np.array(self.k[m - 15:m + 1]), exp(sub(self.G[m], np.array(self.G[m - 15:m + 1])))))
            w[m - 15:m + 1] = self.n.dot(a[None], k)
        for s in range(start, count):
            w[s] = self.lanes(mul(x, exp(sub(self.G[i], self.G[s]))), self.k[s])
        return w

    @staticmethod
    def lanes(a, k):
        lane = np.zeros(64, F32)
        for d in range(0, len(a), 64):
            some = slice(0, min(64, len(a) - d))
            lane[some] = fma(a[d:d + 64], k[d:d + 64], lane[some])
        while len(lane) > 1:
            lane = add(lane[:len(lane) // 2], lane[len(lane) // 2:])
        return lane[0]

    def of_state(self, x):
        G = self.G[-1]
        if self.first:
            return np.zeros(self.S.shape[1], F32), (ONE if self.channels else exp(G)[0])
        if self.channels:
            return self.n.dot(self.n.round(mul(x, exp(G)))[None], self.n.round(self.S).T), ONE
        return self.n.dot(x[None], self.n.round(self.S).T), exp(G)[0]

    def over_slots(self, w):
        u = np.zeros((64, self.S.shape[1]), F32)
        if self.u:
            u[:len(self.u)] = self.u
        return self.n.dot(self.n.round(w)[None], u.T)

    def row(self, q, k, v, g, b, skip):
        self.G.append(add(self.G[-1], g) if self.G else add(ZERO, g))
        i = len(self.G) - 1
        self.k.append(k)
        if self.kind == "state_space":
            u = self.n.keep(mul(b, v))
        else:
            w, (y, D) = self.weights(k, False), self.of_state(k)
            start = i // 16 * 16
            r = sub(fma(-D, y, v), self.over_slots(np.where(np.arange(64) < start, w, ZERO)))
            for s in range(start, i):
                r = fma(-w[s], self.u[s], r)
            u = self.n.keep(mul(b, r))
        self.u.append(u)
        w, (y, D) = self.weights(q, True), self.of_state(q)
        o = fma(D, y, self.over_slots(w))
        if skip is not None:
            o = fma(skip, v, o)
        if i == 63:
            self.boundary()
        return o

    def boundary(self):
        G, last = np.array(self.G), self.G[63]
        x = self.n.round(mul(np.array(self.k), exp(sub(last, G)).reshape(G.shape)))  # [64][R]
        added = self.n.dot(x.T[:, None, :], np.array(self.u).T[None])
        self.S = fma(np.broadcast_to(exp(last)[:, None], self.S.shape), self.S, added)
        self.first = False
        self.begin()

def gated_norm(x, gate, weight, eps, is_sigmoid, gate_first):  # step 10, of [rows, groups, N]
    f = logistic(gate) if is_sigmoid else silu(gate)
    if gate_first:
        x = mul(x, f)
    mean = div(sum64(x, squares=True), F32(x.shape[-1]))
    y = mul(mul(x, div(ONE, sqrt(add(mean, F32(eps))))[..., None]), weight)
    return y if gate_first else mul(y, f)
