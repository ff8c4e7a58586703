/* Exact helpers shared by every kernel: OpenCL C 1.2, no fp64, no fp16 extension.
 *
 * Fusing is written, never hoped for: `fused(a, b, c)` rounds a*b+c once. Where a kernel has `a*b + c`, the product is
 * exact in float32, so it does not matter whether a driver fuses it (some do in spite of the pragma).
 */
#pragma OPENCL FP_CONTRACT OFF

/* The float32 of an IEEE half given as its bits, denormals too on a card that flushes them or lacks half conversions: no
 * float32 here is one. A denormal half m is (1 + m/1024) * 2^-14 less 2^-14, exactly.
 */
inline float f16_bits_to_f32(ushort half_bits)
{
    uint sign = ((uint)half_bits & 0x8000u) << 16;
    uint bits = ((uint)half_bits & 0x7fffu) << 13;
    float denormal = as_float(bits + 0x38800000u) - as_float(0x38800000u);
    uint other = bits + (bits < 0x0f800000u ? 0x38000000u : 0x70000000u); /* infinities and NaNs keep their exponent */
    return as_float(sign | (bits < 0x00800000u ? as_uint(denormal) : other));
}

/* A result as it is stored. Every sum of ours begins with +0, so none is -0; but a driver's fma(0, -1, 0) may be -0 (it
 * is with Mesa 22.3 on llvmpipe). Integers only, as a driver may take x + 0 for x.
 */
inline float stored(float x)
{
    return as_float(as_uint(x) == 0x80000000u ? 0u : as_uint(x));
}

#ifdef SOFTWARE_FMA
/* a + b = *sum + *rest exactly (Knuth). */
inline void two_sum(float a, float b, float *sum, float *rest)
{
    float x = a + b;
    float b_part = x - a;
    float a_part = x - b_part;
    *rest = (a - a_part) + (b - b_part);
    *sum = x;
}

/* a*b+c rounded once, for cards whose fma() is none (Boldo and Melquiond 2008: add with rounding to odd, then round).
 *
 * For an `a` of at most 12 significant bits (an f16 scale has 11), and no value below 2^-100 or near overflow but 0:
 * both partial products are exact then, and no sum of ours is denormal, so flushing cannot matter either.
 */
inline float fused(float a, float b, float c)
{
    float high = as_float(as_uint(b) & 0xfffff000u); /* 12 bits of 24 */
    float low = b - high;
    float high_sum, low_sum, rest, top, middle, odd, lost;
    two_sum(a * high, a * low, &high_sum, &low_sum);
    two_sum(c, low_sum, &rest, &low_sum);
    two_sum(high_sum, rest, &top, &middle);
    two_sum(low_sum, middle, &odd, &lost);
    uint bits = as_uint(odd);
    if (lost != 0.0f && (bits & 1u) == 0u) { /* round to odd: towards what was lost */
        bits += ((as_uint(lost) ^ bits) >> 31) ? 0xffffffffu : 1u;
    }
    return top + as_float(bits);
}
#else
#define fused(a, b, c) fma(a, b, c)
#endif
