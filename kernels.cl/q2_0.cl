/* Q2_0 rows times q8_0 columns; equals ggml_vec_dot_q2_0_q8_0, one serial chain per row, so one work-item per row.
 *
 * Per 64-block: the sums of (code - 1) * quant of its two 32-blocks, exact integers below 2^24 times an f16 scale of
 * the activation, exact too; one fused step with the block's own scale.
 *
 * A work-item takes one row and `tile` columns from `first` on; past `last` it computes that column again and writes
 * nothing.
 */
inline int coded_sum(__global const ushort *codes, __global const char4 *quants)
{
    int sum = 0;
    for (uint m = 0; m < 8u; m++) {
        uint four = (uint)codes[m / 2u] >> (m % 2u * 8u);
        char4 q = quants[m];
        sum += ((int)(four & 3u) - 1) * (int)q.x + ((int)(four >> 2 & 3u) - 1) * (int)q.y;
        sum += ((int)(four >> 4 & 3u) - 1) * (int)q.z + ((int)(four >> 6 & 3u) - 1) * (int)q.w;
    }
    return sum;
}

inline void q2_0_tile(uint rows, uint width, __global const ushort *weights, __global const char *quants,
                      __global const float *scales, uint first, uint last, __global float *out, ulong out_stride,
                      uint tile)
{
    uint row = get_global_id(0);
    if (row >= rows) {
        return;
    }
    uint blocks = width / 64u;
    __global const ushort *block = weights + (ulong)row * blocks * 9u;
    float acc[TILE];
    for (uint c = 0; c < tile; c++) {
        acc[c] = 0.0f;
    }
    for (uint i = 0; i < blocks; i++, block += 9) {
        float own_scale = f16_bits_to_f32(block[0]);
        for (uint c = 0; c < tile; c++) {
            uint column = min(first + c, last);
            __global const char4 *q = (__global const char4 *)(quants + (ulong)column * width + 64u * i);
            __global const float *d = scales + (ulong)column * (width / 32u) + 2u * i;
            float sum = d[0] * (float)coded_sum(block + 1, q);
            sum = d[1] * (float)coded_sum(block + 5, q + 8) + sum;
            acc[c] = fused(own_scale, sum, acc[c]);
        }
    }
    for (uint c = 0; c < tile && first + c <= last; c++) {
        out[(first + c) * out_stride + row] = stored(acc[c]);
    }
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void q2_0_column(uint rows, uint width, ulong start, __global const ushort *weights, __global const char *quants,
                 __global const float *scales, uint columns, __global float *out, ulong out_start, ulong out_stride)
{
    uint column = get_global_id(1);
    q2_0_tile(rows, width, weights + start, quants, scales, column, column, out + out_start, out_stride, 1u);
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void q2_0_columns(uint rows, uint width, ulong start, __global const ushort *weights, __global const char *quants,
                  __global const float *scales, uint columns, __global float *out, ulong out_start, ulong out_stride)
{
    uint first = get_global_id(1) * TILE;
    q2_0_tile(rows, width, weights + start, quants, scales, first, columns - 1u, out + out_start, out_stride, TILE);
}
