/* Exact helpers shared by every kernel: OpenCL C 1.2, no fp64, no fp16 extension.
 *
 * f16_bits_to_f32: the float32 of an IEEE half given as its bits. Integers only, so that a card which flushes
 * denormals or lacks half conversions still decodes a denormal scale to its exact value.
 */
inline float f16_bits_to_f32(ushort half_bits)
{
    uint sign = ((uint)half_bits & 0x8000u) << 16;
    uint exponent = ((uint)half_bits >> 10) & 31u;
    uint mantissa = (uint)half_bits & 0x3ffu;
    if (exponent == 31u) {
        return as_float(sign | 0x7f800000u | (mantissa << 13));
    }
    if (exponent == 0u) {
        if (mantissa == 0u) {
            return as_float(sign);
        }
        uint shift = clz(mantissa) - 21u; /* brings the leading one to bit 10 */
        mantissa = (mantissa << shift) & 0x3ffu;
        return as_float(sign | ((113u - shift) << 23) | (mantissa << 13));
    }
    return as_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}
