/* F16 rows times columns of halves kept as float32: the reference's two paths, each with a float order of its own.
 *
 * One column (ggml_vec_dot_f16, haswell): four chains of eight lanes over 32 values, (a0+a2)+(a1+a3), then
 * ((0+4)+(1+5)) + ((2+6)+(3+7)). Two columns or more, where the matrix has rows % 4 == 0 (llamafile's tile): one chain
 * of eight lanes per element, then ((0+4)+(2+6)) + ((1+5)+(3+7)). The product of two halves is exact in float32.
 *
 * A work-group of 64 takes eight rows; past the last row it computes that one again and writes nothing.
 */
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void f16_column(uint rows, uint width, ulong start, __global const ushort *weights, __global const float *x,
                uint columns, __global float *out, ulong out_start, ulong out_stride)
{
    __local float lanes[64];
    uint row = get_global_id(0) / 8u, lane = get_global_id(0) % 8u, item = get_local_id(0), column = get_global_id(1);
    __global const ushort *w = weights + start + (ulong)min(row, rows - 1u) * width + lane;
    x += (ulong)column * width + lane;
    float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f;
    for (uint i = 0; i < width; i += 32u) {
        a0 = f16_bits_to_f32(w[i]) * x[i] + a0;
        a1 = f16_bits_to_f32(w[i + 8u]) * x[i + 8u] + a1;
        a2 = f16_bits_to_f32(w[i + 16u]) * x[i + 16u] + a2;
        a3 = f16_bits_to_f32(w[i + 24u]) * x[i + 24u] + a3;
    }
    lanes[item] = (a0 + a2) + (a1 + a3);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0u && row < rows) {
        __local const float *t = lanes + item;
        out[out_start + column * out_stride + row] =
            stored(((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7])));
    }
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void f16_columns(uint rows, uint width, ulong start, __global const ushort *weights, __global const float *x,
                 uint columns, __global float *out, ulong out_start, ulong out_stride)
{
    __local float lanes[64 * TILE];
    uint row = get_global_id(0) / 8u, lane = get_global_id(0) % 8u, item = get_local_id(0);
    uint first = get_global_id(1) * TILE, last = columns - 1u;
    __global const ushort *w = weights + start + (ulong)min(row, rows - 1u) * width + lane;
    x += lane;
    float acc[TILE];
    for (uint c = 0; c < TILE; c++) {
        acc[c] = 0.0f;
    }
    for (uint i = 0; i < width; i += 8u) {
        float weight = f16_bits_to_f32(w[i]);
        for (uint c = 0; c < TILE; c++) {
            acc[c] = weight * x[(ulong)min(first + c, last) * width + i] + acc[c];
        }
    }
    for (uint c = 0; c < TILE; c++) {
        lanes[64u * c + item] = acc[c];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint c = lane; c < TILE; c += 8u) {
        __local const float *t = lanes + 64u * c + item - lane;
        if (row < rows && first + c <= last) {
            out[out_start + (first + c) * out_stride + row] =
                stored(((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7])));
        }
    }
}
