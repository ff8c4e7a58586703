/* What a card makes of a*b+c as it is written, of fma() and mad(), and of a denormal: for the report, proof of nothing.
 * given: a, b, c, a denormal, one. seen: a*b+c, fma, mad, denormal*one.
 */
__kernel void habits(__global const float *given, __global float *seen)
{
    float a = given[0], b = given[1], c = given[2];
    seen[0] = a * b + c;
    seen[1] = fma(a, b, c);
    seen[2] = mad(a, b, c);
    seen[3] = given[3] * given[4];
}
