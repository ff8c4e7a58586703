/* Q1_0 rows times q8_0 columns; equals ggml_vec_dot_q1_0_q8_0 (haswell), whose eight float lanes are eight work-items.
 *
 * Per 128-block and lane: sums of four adjacent signed quants, exact integers (int8 negation wraps -128); the products
 * with the activation's scales, exact too, added in the order of the four 32-blocks; one fused step with the block's
 * own scale. At the end ((0+4)+(2+6)) + ((1+5)+(3+7)).
 *
 * A work-group of 64 takes eight rows and `columns` (at most TILE) columns from `first` on; past the ends it computes
 * the last row or column again and writes nothing.
 */
inline int signed_sum(uint signs, __global const char4 *quants)
{
    uchar4 negate = (uchar4)(signs & 1u ? 0 : 255, signs & 2u ? 0 : 255, signs & 4u ? 0 : 255, signs & 8u ? 0 : 255);
    char4 v = as_char4((as_uchar4(*quants) ^ negate) - negate); /* two's complement, modulo 256 */
    return ((int)v.x + (int)v.y) + ((int)v.z + (int)v.w);
}

inline void q1_0_tile(uint rows, uint width, __global const ushort *weights, __global const char *quants,
                      __global const float *scales, uint first, uint last, __global float *out, ulong out_stride,
                      uint tile, __local float *lanes)
{
    uint row = get_global_id(0) / 8u, lane = get_global_id(0) % 8u, item = get_local_id(0);
    uint blocks = width / 128u;
    __global const ushort *block = weights + (ulong)min(row, rows - 1u) * blocks * 9u;
    float acc[TILE];
    for (uint c = 0; c < tile; c++) {
        acc[c] = 0.0f;
    }
    for (uint i = 0; i < blocks; i++, block += 9) {
        float own_scale = f16_bits_to_f32(block[0]);
        uint signs[4];
        for (uint k = 0; k < 4u; k++) {
            signs[k] = (uint)block[1u + 2u * k + lane / 4u] >> (lane % 4u * 4u);
        }
        for (uint c = 0; c < tile; c++) {
            uint column = min(first + c, last);
            __global const char *q = quants + (ulong)column * width + 128u * i + 4u * lane;
            __global const float *d = scales + (ulong)column * (width / 32u) + 4u * i;
            float sum = d[0] * (float)signed_sum(signs[0], (__global const char4 *)q);
            for (uint k = 1; k < 4u; k++) {
                sum = d[k] * (float)signed_sum(signs[k], (__global const char4 *)(q + 32u * k)) + sum;
            }
            acc[c] = fused(own_scale, sum, acc[c]);
        }
    }
    for (uint c = 0; c < tile; c++) {
        lanes[64u * c + item] = acc[c];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint c = lane; c < tile; c += 8u) {
        __local const float *t = lanes + 64u * c + item - lane;
        if (row < rows && first + c <= last) {
            out[(first + c) * out_stride + row] =
                stored(((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7])));
        }
    }
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void q1_0_column(uint rows, uint width, ulong start, __global const ushort *weights, __global const char *quants,
                 __global const float *scales, uint columns, __global float *out, ulong out_start, ulong out_stride)
{
    __local float lanes[64];
    uint column = get_global_id(1);
    q1_0_tile(rows, width, weights + start, quants, scales, column, column, out + out_start, out_stride, 1u, lanes);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void q1_0_columns(uint rows, uint width, ulong start, __global const ushort *weights, __global const char *quants,
                  __global const float *scales, uint columns, __global float *out, ulong out_start, ulong out_stride)
{
    __local float lanes[64 * TILE];
    uint first = get_global_id(1) * TILE;
    q1_0_tile(rows, width, weights + start, quants, scales, first, columns - 1u, out + out_start, out_stride, TILE,
              lanes);
}
