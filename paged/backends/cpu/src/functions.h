// exp and tanh over vectors, to about one unit in the last place.
#pragma once

#include "lanes.h"

namespace paged {
namespace {

// x <= 0 is what it is for; above 88 the result is that of 88. NaN stays NaN.
PAGED_INLINE Floats exp(Floats x) {
  const Floats least = splat(-87.3f), most = splat(88.0f);
  Floats inside = x < least ? least : x;
  inside = inside > most ? most : inside;
  // x = n * ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer. ln 2 in two
  // parts, so that n * the first is exact.
  const Floats shifted = inside * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  Floats r = inside - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  // Minimax polynomial of (exp(r) - 1 - r) / r^2 (Cephes, expf).
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Words power = ((Words)shifted - 0x4b400000u + 127u) << 23;
  const Floats result = p * as_floats(power);
  return x != x ? x : (x < least ? Floats{} : result);
}

PAGED_INLINE Floats tanh(Floats x) {
  const Floats size = as_floats(as_words(x) & 0x7fffffffu);
  // Small x by a polynomial of x^2 (Cephes, tanhf): 1 - 2 / (exp(2x) + 1) cancels there.
  const Floats z = x * x;
  Floats p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Floats small = p * z * x + x;
  const Floats capped = size > 10.0f ? splat(10.0f) : size;
  const Floats large = 1.0f - 2.0f / (exp(capped + capped) + 1.0f);
  const Words sign = as_words(x) & 0x80000000u;
  const Floats signed_large = as_floats(as_words(large) | sign);
  return x != x ? x : (size < 0.625f ? small : signed_large);
}

}  // namespace
}  // namespace paged
