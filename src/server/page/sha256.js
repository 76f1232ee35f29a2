// SHA-256 (FIPS 180-4) of bytes, as hexadecimal digits: crypto.subtle is there on secure origins alone.
const roots = (exponent) => (n) => Math.floor((n ** exponent % 1) * 2 ** 32) | 0;
const primes = [];
for (let n = 2; primes.length < 64; ++n) if (primes.every((p) => n % p)) primes.push(n);
const kStart = primes.slice(0, 8).map(roots(1 / 2)), kRounds = primes.map(roots(1 / 3));
const turn = (x, by) => (x >>> by) | (x << (32 - by));

export function sha256(bytes) {
  const size = ((bytes.length + 8) >> 6 << 6) + 64, data = new DataView(new ArrayBuffer(size)), w = new Int32Array(64);
  bytes.forEach((byte, i) => data.setUint8(i, byte));
  data.setUint8(bytes.length, 0x80);
  data.setUint32(size - 4, bytes.length * 8);
  const state = Int32Array.from(kStart);
  for (let block = 0; block < size; block += 64) {
    for (let i = 0; i < 64; ++i) {
      if (i < 16) { w[i] = data.getInt32(block + 4 * i); continue; }
      const a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; ++i) {
      const one = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      const two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [a, b, c, d, e, f, g, h] = [(one + two) | 0, a, b, c, (d + one) | 0, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((x, i) => { state[i] += x; });
  }
  return Array.from(state, (x) => (x >>> 0).toString(16).padStart(8, "0")).join("");
}
